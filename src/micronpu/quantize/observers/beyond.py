"""Range of int16 values, which has room for larger values than those of calibration."""

from __future__ import annotations

from typing import ClassVar

from micronpu.quantize.observing import Observer, RangeObserver


class BeyondObserver(RangeObserver):
    """Twice the range of calibration: one of 16 bits, where clipping costs more than rounding."""

    widens: ClassVar[bool] = False
    part: float = 2.0


OBSERVER = Observer("beyond", BeyondObserver, for_users=False)
