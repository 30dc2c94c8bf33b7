"""The portable kernels of the installed ExecuTorch, from its lists; none is loaded."""

from __future__ import annotations

import functools
import re
from importlib import resources


@functools.lru_cache(maxsize=1)
def portable_kernels() -> frozenset[str]:
    """Return names of the operators with a portable kernel, from ExecuTorch's lists."""
    texts = [
        resources.files(f"executorch.kernels.{package}").joinpath(name).read_text(encoding="utf-8")
        for package, name in (
            ("portable", "functions.yaml"),
            ("portable", "custom_ops.yaml"),
            ("quantized", "quantized.yaml"),
        )
    ]
    found = (name for text in texts for name in re.findall(r"^- (?:op|func): ([\w:.]+)", text, re.MULTILINE))
    return frozenset(name if "::" in name else f"aten::{name}" for name in found)


@functools.lru_cache(maxsize=1)
def _packets() -> frozenset[str]:
    return frozenset(name.partition("::")[2].split(".")[0] for name in portable_kernels())


def has_some_kernel(packet: str) -> bool:
    """Return True if ExecuTorch has a portable kernel of any overload of an operator, such as "add"."""
    return packet in _packets()
