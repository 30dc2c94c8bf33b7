"""The integers of a finished program are the nearest ones to the real results of its own operands, without mean error.

An operator that a device computes as one operator or one table is measured; what consists of other operators rounds
once for each of these. An operator that cannot do better says why in `Op.imprecise`.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir.dialects._ops import ops as _edge_ops  # noqa: F401  (registers dim_order_ops)
from tests.cases import case, i8, q
from tests.support_rows import Rows, batches, overloads

import micronpu
from micronpu.compiler.program import CompiledProgram
from micronpu.emit.litert import to_litert
from micronpu.ir import interpret
from micronpu.ops import OPERATORS
from micronpu.ops.activation import LeakyRelu
from micronpu.targets.registry import device_for

MOST_MEAN, LEAST_NEAREST = 0.02, 0.98
TIE = 0.502
"""Largest error of a nearest integer in LSB: a tie, and the roundings of float32."""
FEWEST = 100
"""Results from which their mean says something."""
PART = 100
"""Rows to a program: a container has at most 255 inputs and outputs."""
leaves = torch.utils._pytree.tree_leaves


@dataclass
class Errors:
    """Errors of the results of one row that are not at the limits, in LSB.

    Attributes:
        real: against the real results.
        nearest: rows of the real results and of the errors against their nearest integers, which need not have the mean
            0. Equal results count once: where a clamp ends at a tie, both integers are the nearest to most of them.
        operators: names of those that compute them.
    """

    real: list[torch.Tensor] = field(default_factory=list)
    nearest: list[torch.Tensor] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)

    @property
    def mean(self) -> float:
        return float(torch.cat(self.nearest, 1).unique(dim=1)[1].mean())

    @property
    def share(self) -> float:
        return float((torch.cat(self.real).abs() <= TIE).double().mean())

    @property
    def reasons(self) -> list[str]:
        return [OPERATORS[name].imprecise for name in self.operators if OPERATORS[name].imprecise]

    @property
    def is_off(self) -> bool:
        return abs(self.mean) > MOST_MEAN or self.share < LEAST_NEAREST


def unrounded(program: CompiledProgram) -> tuple[torch.nn.Module, list[tuple[float, int, int, int] | None]]:
    """The quantized module without the last quantize of each output, and scale, zero point and limits of these."""
    module: Any = copy.deepcopy(program.quantized)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    results, qparams = [], list[Any]()
    for node in output.args[0]:
        is_rounded = "dequantize" in str(node.target)
        results.append(node.args[0].args[0] if is_rounded else node)
        qparams.append(tuple(node.args[1:5]) if is_rounded else None)
    output.args = (results,)
    module.recompile()
    return module, qparams


def measured(names: list[str], target: str, activations: Any) -> dict[str, Errors]:
    """The errors of some overloads, by name of their row."""
    found = defaultdict[str, Errors](Errors)
    for start in range(0, len(names), PART):
        rows, data = Rows(names[start : start + PART]), batches(24)
        program: Any = micronpu.compile(
            rows, data[0], calibration=data[:8], target=target, quantization=activations, verify=False
        )
        twin: Any = program
        if not program.partitions:  # a core computes with kernels, from the same operators
            twin = micronpu.compile(rows, data[0], calibration=data[:8], target="ethos-u55-128", verify=False)
        for node in (node for part in twin.partitions for node in part.graph.nodes):
            found[node.origin.module.rpartition(".")[2]].operators.add(node.op.name)
        real, qparams = unrounded(program)
        outputs = [name for name, y in zip(rows.rows, rows(*data[0]), strict=True) for _ in leaves(y)]
        for inputs in data:
            results = leaves(program.run(*inputs)), leaves(program.quantized(*inputs)), leaves(real(*inputs))
            for name, own, y, nearest, exact in zip(outputs, qparams, *results, strict=True):
                if own is not None:
                    scale, zero, low, high = own
                    exact = exact.double() / scale
                    inside = (exact + zero > low) & (exact + zero < high)
                    found[name].real.append((y.double() / scale - exact)[inside])
                    off = (y.double() - nearest.double()) / scale
                    found[name].nearest.append(torch.stack([exact[inside], off[inside]]))
    return {name: errors for name, errors in found.items() if sum(map(len, errors.real)) >= FEWEST}


def computed(target: str) -> list[str]:
    """The overloads that a device computes as one operator or one table of int8."""
    device = device_for(target).quantizer(activations="int8").capabilities
    return [name for name in overloads() if device.computes(name) and not device.decompositions(name)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "target",
    ["ethos-u55-128", *(pytest.param(t, marks=pytest.mark.slow) for t in ("imxrt700", "ethos-u85-256", "cortex-m55"))],
)
def test_results_are_the_nearest(target: str):
    found = measured(computed(target), target, "int8")
    assert len(found) > 100
    off = {name: errors for name, errors in found.items() if errors.is_off}
    wrong = [f"{n}: mean {e.mean:+.3f} LSB, nearest {e.share:.3f}" for n, e in off.items() if not e.reasons]
    assert not wrong, "\n".join(wrong)
    needed = {name for errors in off.values() for name in errors.operators}
    unneeded = {name for name, op in OPERATORS.items() if op.imprecise} - needed
    # A core computes means as products of weights.
    assert unneeded - ({"mean"} if target == "cortex-m55" else set()) == {"leaky_relu"}, (
        "leaky ReLUs are those of `test_a_file_keeps_its_integers`"
    )


def test_two_roundings_are_found():
    """A mean error of a quarter of an LSB for half of the results, which leaky ReLUs had."""
    real = torch.linspace(-60, 60, 1001, dtype=torch.float64)
    twice = torch.where(real < 0, -((-real * 2).round() / 2 + 0.5).floor(), real.round())
    errors = Errors([twice - real], [torch.stack([real, twice - real.round()])])
    assert errors.is_off
    assert errors.mean < -0.1
    assert not Errors([real.round() - real], [torch.stack([real, real * 0])]).is_off


@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128"])
def test_a_file_keeps_its_integers(target: str, tmp_path: Path):
    """A quantized file has the integers of LiteRT's leaky ReLU, which rounds twice."""
    row = case(LeakyRelu(0.3), x=i8(1, 256, scale=0.01), out=q(0.0065, -69))
    path, graph = tmp_path / "leaky.tflite", row.graph()
    path.write_bytes(to_litert(graph).data)
    every = np.arange(-128, 128, dtype=np.int8)[None]
    (expected,) = interpret(graph, [every])
    program = micronpu.compile(path, target=target, calibration=None)
    np.testing.assert_array_equal(np.asarray(program.run(torch.from_numpy(every))), expected)
    real = np.where(every < 0, 0.3 * every, every) * (0.01 / 0.0065)
    assert (np.abs(expected + 69.0 - real)[every < 0] > 0.51).mean() > 0.2
