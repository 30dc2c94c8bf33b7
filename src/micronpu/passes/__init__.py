"""Graph passes: layout, fusion and legalisation. `pipeline` is the ordered list."""

from micronpu.passes.base import Pass
from micronpu.passes.pipeline import LITERT_PASSES, Pipeline, run_passes

__all__ = ["LITERT_PASSES", "Pass", "Pipeline", "run_passes"]
