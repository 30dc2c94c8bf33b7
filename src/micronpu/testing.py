"""Test helper for users: a model through quantization, compiler and runtime, with comparisons.

    from micronpu.testing import Tester

    Tester(module, (x,)).quantize().compile("imxrt700").check_delegated("conv2d", "relu").run_and_compare()

It replaces the testers of ExecuTorch's backends; each stage returns the tester.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import micronpu
from micronpu.base.arguments import check_type
from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.base.texts import plural
from micronpu.frontend.export import as_inputs
from micronpu.program.io import io_of
from micronpu.program.plan import read_plan
from micronpu.targets.registry import target_required
from micronpu.upstream.torch import tree_leaves

_ROWS = 8
"""Number of generated calibration inputs."""


class ComparisonError(MicroNpuError, AssertionError):
    """A check of a test failed; also an AssertionError."""


class Tester:
    """A model under test.

    Args:
        module: in evaluation mode, or a `torch.export.ExportedProgram`.
        inputs: example inputs, a tuple of tensors or one tensor.

    Attributes:
        program: result of `compile`, a `CompiledProgram`; None before.
    """

    __test__ = False  # pytest takes classes of this name for tests

    def __init__(self, module: Any, inputs: torch.Tensor | Sequence[torch.Tensor]) -> None:
        self.module = module
        self.inputs = as_inputs(inputs)
        self.program: micronpu.CompiledProgram | None = None
        self._quantization = micronpu.Quantization()
        self._rows: Sequence[Sequence[torch.Tensor]] | None = None

    def quantize(
        self,
        quantization: micronpu.Quantization | None = None,
        *,
        calibration: Sequence[Sequence[torch.Tensor] | torch.Tensor] | None = None,
    ) -> Tester:
        """Set the quantization of the model.

        Args:
            quantization: as for `micronpu.compile`; default: int8.
            calibration: typical inputs; default: the example inputs and permutations of them.
        """
        check_type("quantization", quantization, micronpu.Quantization, type(None), hint='Quantization(io="int8")')
        self._quantization = quantization or micronpu.Quantization()
        if calibration is not None:
            self._rows = [(row,) if isinstance(row, torch.Tensor) else tuple(row) for row in calibration]
        return self

    @target_required
    def compile(self, target: str, **options: Any) -> Tester:
        """Compile the model.

        Args:
            target: as for `micronpu.compile`.
            options: further arguments of `micronpu.compile`.

        Raises:
            MicroNpuError: see `micronpu.compile`.
        """
        rows = self._rows or [self.inputs, *(self._similar(number) for number in range(_ROWS - 1))]
        self.program = micronpu.compile(
            self.module, self.inputs, target, calibration=rows, quantization=self._quantization, **options
        )
        return self

    def check_delegated(self, *operators: str) -> Tester:
        """Check that every call of these operators, such as "conv2d" or "aten.relu.default", is on the NPU; default:
        all.

        Raises:
            ComparisonError: one is not; the message has the reason.
        """
        return self._check_place(operators, True)

    def check_not_delegated(self, *operators: str) -> Tester:
        """Check that no call of these operators is on the NPU."""
        return self._check_place(operators, False)

    def check_count(self, counts: dict[str, int], *, delegated: bool = True) -> Tester:
        """Check the numbers of calls of operators on the NPU, or not on it."""
        found = Counter(_short(v.operator) for v in self._compiled().report.verdicts if v.delegated is delegated)
        for operator, count in counts.items():
            if found[_short(operator)] != count:
                where = "on the NPU" if delegated else "on the host"
                raise ComparisonError(
                    f"{plural(found[_short(operator)], 'call')} of {operator} {where}, and the test says {count}.",
                    hint=f"{where}: {', '.join(f'{name} {n}' for name, n in sorted(found.items())) or 'nothing'}",
                )
        return self

    def run_and_compare(
        self,
        *inputs: torch.Tensor,
        steps: float = 1.0,
        atol: float = 1e-6,
        rtol: float = 1e-5,
        on: str | None = None,
    ) -> Tester:
        """Compare the outputs of the program with those of the quantized model.

        Args:
            inputs: of the run; default: the example inputs. Floats, even if the program takes integers.
            steps: allowed difference in LSB of an output, in addition to the tolerances; float outputs have no LSB.
            atol, rtol: as for `torch.allclose`.
            on: a board that runs the program, as for `CompiledProgram.run`.

        Raises:
            ComparisonError: an output differs by more; the message names its worst element.
        """
        program = self._compiled()
        given = inputs or self.inputs
        plan, summary = read_plan(program.buffer)
        known = program.integer_io
        taken, results = io_of(plan, summary.named_data, (known.inputs, known.outputs) if known else None)
        numbers = [
            torch.from_numpy(b.quantize(x.detach().numpy())) if b.scale is not None and x.is_floating_point() else x
            for b, x in zip(taken, given, strict=True)
        ]
        found, wanted = program.run(*numbers, on=on), program.quantized(*numbers)
        program.reset_states()
        found, wanted = map(tree_leaves, (found, wanted))
        for number, (output, mine, other) in enumerate(zip(results, found, wanted, strict=True)):
            step = 1.0 if output.is_integer else output.qparams[0] if output.qparams is not None else 0.0
            a, b = (np.asarray(v.detach(), np.float64) for v in (mine, other))
            if a.shape != b.shape:
                raise ComparisonError(
                    f"Output {number} has the shape {list(a.shape)}, and the model's {list(b.shape)}."
                )
            over = np.abs(a - b) - (steps * step * (1 + 1e-5) + atol + rtol * np.abs(b))
            if a.size and not (over <= 0).all():
                worst = int(np.nanargmax(np.where(np.isnan(over), np.inf, over)))
                place = [int(i) for i in np.unravel_index(worst, a.shape)]
                count = int((over > 0).sum())
                raise ComparisonError(
                    f"Output {number} of the program is {a.flat[worst]:g} at {place} and the quantized model's "
                    f"{b.flat[worst]:g}, a step being {step:g}; {count} of {a.size} elements are too far apart.",
                    hint="steps, atol or rtol, where that is meant",
                )
        return self

    def _similar(self, number: int) -> tuple[torch.Tensor, ...]:
        """Return inputs of the same range: the example's elements in another order."""
        made = torch.Generator().manual_seed(number)
        return tuple(x.reshape(-1)[torch.randperm(x.numel(), generator=made)].reshape(x.shape) for x in self.inputs)

    def _compiled(self) -> micronpu.CompiledProgram:
        if self.program is None:
            raise OptionError(
                "The model is not compiled yet.", hint="Tester(module, inputs).quantize().compile(target)"
            )
        return self.program

    def _check_place(self, operators: Sequence[str], wanted: bool) -> Tester:
        verdicts = self._compiled().report.verdicts
        names = {_short(name) for name in operators}
        missing = names - {_short(v.operator) for v in verdicts}
        if missing:
            there = ", ".join(sorted({_short(v.operator) for v in verdicts}))
            raise ComparisonError(f"The model does not call {', '.join(sorted(missing))}.", hint=f"one of {there}")
        for verdict in verdicts:
            if (not names or _short(verdict.operator) in names) and verdict.delegated is not wanted:
                why = "; ".join(reason.detail for reason in verdict.reasons)
                where = f"is not on the NPU: {why}" if wanted else "is on the NPU"
                raise ComparisonError(f"`{verdict.operator}` {where.rstrip('.')}.")
        return self


def _short(operator: str) -> str:
    """Return the name of an operator in any usual spelling, without its overload."""
    name = operator.replace("::", ".").removeprefix("executorch_exir_dialects_edge__ops_").replace("aten_", "aten.", 1)
    parts = [part for part in name.split(".") if part not in ("aten", "torch", "ops", "edge")]
    return parts[0]


__all__ = ["ComparisonError", "Tester"]
