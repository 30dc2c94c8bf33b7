"""What one stage says of a node, or of a module, to a later one: every key of ours in torch's `meta`, declared here.

torch hands `meta` on from a node to what is written for it.  A fact that is true of the node alone therefore holds the
node's name, and is none where the name is another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Value = TypeVar("Value")


class HasMeta(Protocol):
    """A node or a module of torch.fx."""

    meta: dict[str, Any]


@dataclass(frozen=True)
class Fact(Generic[Value]):
    """One thing that is said.

    Attributes:
        key: in `meta`.
        unsaid: what it is where nobody has said it.
    """

    key: str
    unsaid: Value

    def of(self, whose: HasMeta) -> Value:
        """What was said, or `unsaid`."""
        value: Value = whose.meta.get(self.key, self.unsaid)
        return value

    def say(self, whose: HasMeta, value: Value) -> None:
        """Says it, in the place of what was said before."""
        whose.meta[self.key] = value

    def is_said(self, whose: HasMeta) -> bool:
        """Whether somebody has said it."""
        return self.key in whose.meta

    def take(self, whose: HasMeta) -> Value:
        """What was said, which is unsaid from then on."""
        value: Value = whose.meta.pop(self.key, self.unsaid)
        return value


# Of nodes of a float program.
SETTING: Fact[tuple[Any, ...]] = Fact("micronpu_quantization", ())
"""The user's setting for the operator, or None for float, as a tuple of one."""
IN_FLOAT: Fact[bool] = Fact("micronpu_in_float", False)
"""Whether an operator standardises an input that would lose too much if it were quantized before."""
GRID: Fact[tuple[str, Any]] = Fact("micronpu_grid", ("", None))
"""Of a value that has a grid of its own, whatever calibration sees of it: its name, and the rule with the grid."""
KEPT_OR_ZERO: Fact[str] = Fact("micronpu_is_kept_or_zero", "")
"""The name of a product of 0 or 1 and a value, or of rows with a single 1 and a matrix, whose grid it has: calibration
has seen only what was kept, and of values that are almost equal the NPU may keep another."""
SIGN_COUNTS: Fact[str] = Fact("micronpu_sign_counts", "")
"""The name of a difference of which nobody asks more than whether it is larger than zero."""
UNEVEN: Fact[float] = Fact("micronpu_uneven", 1.0)
"""Of a norm's operators, whatever they are written as: how many times larger than small rows its large ones are."""
ROW_SIZE: Fact[float] = Fact("micronpu_row_size", 1.0)
"""Of the same, the size of the largest row that was seen."""
DECIDED: Fact[str] = Fact("micronpu_decided", "")
"""The name of a cast that makes a number of a decision that the host has taken."""
SIZE: Fact[Any] = Fact("micronpu_size", None)
"""The size that a program was traced with where it took any."""

# Of nodes of a host part.
HANDLES: Fact[tuple[int, ...]] = Fact("micronpu_handles", ())
"""Debug handles of the operators that a call of a kernel stands for."""

# Of modules.
EXPORTED: Fact[bool] = Fact("micronpu_exported", False)
"""Whether a float module is an exported program's, with the lines of the user's model, and for any batch size where
that has one."""
IN_TRAINING: Fact[bool] = Fact("micronpu_in_training", False)
"""Whether weights and batch norms are about to be trained."""
NOT_NEGATIVE: Fact[Collection[str]] = Fact("micronpu_not_negative", ())
"""Names of integer inputs that are never negative; the finished program refuses others."""
BOTH_BRANCHES: Fact[tuple[str, ...]] = Fact("micronpu_branches", ())
"""Names of each `torch.cond` of which both branches are computed."""
CONVERTED: Fact[tuple[str, ...]] = Fact("micronpu_converted", ())
"""Dtypes of a module's floats that were converted to float32, such as "float16"."""
WRITTEN_OUT: Fact[tuple[tuple[str, int, bool], ...]] = Fact("micronpu_written_out", ())
"""Of each `while_loop` that is written out: its name, its steps, and whether data may end it before that."""
LOOPS_ALLOWED: Fact[bool] = Fact("micronpu_loops", False)
"""Whether recurrent layers may become one step in a loop."""
FLOAT_PROGRAM: Fact[Any] = Fact("micronpu_float_program", None)
"""The module as it was before any rewrite, between the rewrites and the annotation of torchao's `prepare_pt2e`."""
LOOP_GRIDS: Fact[tuple[Any, ...]] = Fact("micronpu_grids", ())
"""Grids of what the step of a loop takes and gives."""
SCOPES: Fact[dict[str, str] | None] = Fact("micronpu_scopes", None)
"""Names of observers by what they look at, between preparation and conversion."""
