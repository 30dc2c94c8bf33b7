"""The PT2E quantizer for a core alone."""

from __future__ import annotations

from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.targets.cortexm.rules import CAPABILITIES


class CortexMQuantizer(StaticQuantizer):
    """Static int8 for a Cortex-M core alone; see `StaticQuantizer`."""

    capabilities = CAPABILITIES
