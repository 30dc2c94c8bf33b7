"""The type of arrays whose type of elements only the value knows."""

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
