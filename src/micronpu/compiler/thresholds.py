"""Numbers by which this package decides [unit; the measurement that chose it, with its commit, or the calculation]."""

from __future__ import annotations

ALIGNMENT = 16  # Alignment of values in a memory pool [bytes; ExecuTorch's memory planning]
