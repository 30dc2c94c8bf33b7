"""Facts about nodes and modules that one stage records for a later one, in torch's `meta`; all keys are declared here.

torch copies `meta` from a node to its replacements.  A fact that holds only for the node itself therefore contains the
node's name, and does not apply to nodes of other names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from micronpu.program.file_facts import FileFacts

Value = TypeVar("Value")


class HasMeta(Protocol):
    """A node or a module of torch.fx."""

    meta: dict[str, Any]


@dataclass(frozen=True)
class Fact(Generic[Value]):
    """A fact."""

    key: str  # in `meta`
    unsaid: Value  # default value

    def of(self, whose: HasMeta) -> Value:
        """Return the recorded value, or `unsaid`."""
        value: Value = whose.meta.get(self.key, self.unsaid)
        return value

    def say(self, whose: HasMeta, value: Value) -> None:
        """Record a value, which replaces the previous one."""
        whose.meta[self.key] = value

    def is_said(self, whose: HasMeta) -> bool:
        return self.key in whose.meta

    def take(self, whose: HasMeta) -> Value:
        value: Value = whose.meta.pop(self.key, self.unsaid)
        return value


# Facts about nodes of a float program.
SEARCHED: Fact[bool] = Fact("micronpu_searched", False)
"""True for an operator that the search for precision left in float."""
WRITTEN: Fact[str] = Fact("micronpu_written", "")
"""Sentence of the decomposition of the model's operator, for the operators that it wrote."""
SETTING: Fact[tuple[Any, ...]] = Fact("micronpu_quantization", ())
"""The user's setting for the operator, or None for float, as a tuple of one."""
IN_FLOAT: Fact[bool] = Fact("micronpu_in_float", False)
"""True for an operator that standardizes an input which would lose too much precision if it were quantized before."""
QPARAMS: Fact[tuple[str, Any]] = Fact("micronpu_grid", ("", None))
"""Name of a value with fixed qparams, independent of calibration, and the rule with these qparams."""
KEPT_OR_ZERO: Fact[str] = Fact("micronpu_is_kept_or_zero", "")
"""Name of a product of 0 or 1 and a value, or of one-hot rows and a matrix. It has the qparams of the operand:
calibration has seen only the selected values, and the NPU may select another of nearly equal values.
"""
SIGN_COUNTS: Fact[str] = Fact("micronpu_sign_counts", "")
"""Name of a difference that is only compared with zero."""
UNEVEN: Fact[float] = Fact("micronpu_uneven", 1.0)
"""Ratio of the sizes of large rows to small ones in a norm's operand, for any decomposition of the norm."""
ROW_SIZE: Fact[float] = Fact("micronpu_row_size", 1.0)
"""Size of the largest row of a norm's operand in calibration."""
KEEPS_INTEGERS: Fact[bool] = Fact("micronpu_keeps_integers", False)
"""True for an operator of a quantized LiteRT file, whose own runtime defines the integers of the result."""
DECIDED: Fact[str] = Fact("micronpu_decided", "")
"""Name of a cast that converts a boolean, computed on the core, to a number."""
DISTANCES: Fact[tuple[str, ...]] = Fact("micronpu_distances", ())
"""Results of a program with room beyond calibration."""
SIZE: Fact[Any] = Fact("micronpu_size", None)
"""The size that a program with dynamic size was traced with."""
EXTREMES: Fact[tuple[str, Any]] = Fact("micronpu_extremes", ("", None))
"""Name of a quantize node whose range follows from calibrated values, and their farthest extremes with their calls."""

# Facts about nodes of a core part.
HANDLES: Fact[tuple[int, ...]] = Fact("micronpu_handles", ())
"""Debug handles of the operators that a kernel call computes."""

# Facts about modules.
EXPORTED: Fact[bool] = Fact("micronpu_exported", False)
"""True for a float module of an exported program, with the user's source lines, and for any batch size if it allows
that."""
IN_TRAINING: Fact[bool] = Fact("micronpu_in_training", False)
"""True while weights and batch norms are trained."""
NOT_NEGATIVE: Fact[Collection[str]] = Fact("micronpu_not_negative", ())
"""Names of integer inputs that are never negative; the finished program refuses negative values."""
BOTH_BRANCHES: Fact[tuple[str, ...]] = Fact("micronpu_branches", ())
"""Names of each `torch.cond` whose two branches are both computed."""
CONVERTED: Fact[tuple[str, ...]] = Fact("micronpu_converted", ())
"""Dtypes of a module's floats that were converted to float32, such as "float16"."""
LEFT_OUT: Fact[tuple[str, ...]] = Fact("micronpu_left_out", ())
"""Branches of a model file that do not fit its inputs, with the reason; the other branch is always computed."""
NOT_COMPARED: Fact[str] = Fact("micronpu_not_compared", "")
"""End of the sentence that a module was not compared with its file's own runtime: the reason."""
COMPARED: Fact[str] = Fact("micronpu_compared", "")
"""The file's own runtime, such as "LiteRT", that computed the same values as the module; "" without a comparison."""
FILE_FACTS: Fact[FileFacts] = Fact("micronpu_file_facts", FileFacts())
"""Names, labels and normalization of the model file that a module was read from."""
INTEGER_IO: Fact[Any] = Fact("micronpu_integer_io", None)
"""Meaning of the integer inputs and outputs of a quantized file, an `IntegerIO`; None for other modules."""
WRITTEN_OUT: Fact[tuple[tuple[str, int, bool], ...]] = Fact("micronpu_written_out", ())
"""Name of each unrolled `while_loop`, its steps, and whether data may end it earlier."""
LOOPS_ALLOWED: Fact[bool] = Fact("micronpu_loops", False)
"""True if recurrent layers may become one step in a loop."""
FLOAT_PROGRAM: Fact[Any] = Fact("micronpu_float_program", None)
"""The module before any rewrite; between the rewrites and the annotation in torchao's `prepare_pt2e`."""
IS_STEP: Fact[bool] = Fact("micronpu_is_step", False)
"""The module is the step of a loop, before it is quantized."""
LOOP_QPARAMS: Fact[tuple[Any, ...]] = Fact("micronpu_grids", ())
"""Qparams of the inputs and outputs of a loop's step."""
PREPARED: Fact[bool] = Fact("micronpu_prepared", False)
"""The module has observers of this package, between preparation and conversion."""
