"""Trained networks with operators that the Neutron refuses, on i.MX RT700 as a whole: Neutron and Cortex-M33.

    python -m benchmarks.combined [network ...]

Every inserted chain of operators leaves the scores, or at least their order, as they are, so that the accuracy of the
network as it was trained is what is to be kept.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from benchmarks import networks, results
from benchmarks.networks import TrainedNetwork
from benchmarks.trained import run_eager, run_rows
from torch import Tensor, nn
from torch.nn import functional as F

import micronpu
from micronpu.compiler.host import host_part
from micronpu.frontend.program import is_getitem
from micronpu.ir import Graph, interpret
from micronpu.partition.device import Device
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.registry import device_for

TARGET = "imxrt700-neutron-cortexm"
INTERPRETED_ROWS = 4

# Submodules whose results the chains inside of a network work on.
INSIDE = {
    "resnet8": "stem",
    "resnet20": "layer1",
    "cifarnet": "conv1",
    "dscnn": "stem",
    "dscnn_folded": "stem",
    "mobilenetv1": "stem",
    "autoencoder": "bn4",
    "wake_word": "block1",
}


def magnitude(x: Tensor) -> Tensor:
    return torch.maximum(x, -x)


def minimum_maximum(x: Tensor) -> Tensor:
    """min(max(x, -x), x), which is x."""
    return torch.minimum(magnitude(x), x)


def hard_swish(x: Tensor) -> Tensor:
    """hardswish(|x| + 3) - 3 is |x|, and the minimum of that and x is x."""
    return torch.minimum(F.hardswish(magnitude(x) + 3.0) - 3.0, x)


def unequal_add(scores: Tensor) -> Tensor:
    """Scores and their mean, which is the same for all classes."""
    return scores + scores.mean(-1, keepdim=True)


def softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


class Changed(nn.Module):
    """A network with a function applied to the result of one of its submodules, or of all of it."""

    def __init__(self, network: nn.Module, function: Callable[[Tensor], Tensor], where: str = "") -> None:
        super().__init__()
        self.network = network
        self._function, self._where = function, where

    def forward(self, x: Tensor) -> Tensor:
        place = self.network.get_submodule(self._where)
        hook = place.register_forward_hook(lambda module, inputs, output: self._function(output))
        try:
            result: Tensor = self.network(x)
        finally:
            hook.remove()
        return result


@dataclass(frozen=True)
class Variant:
    """A chain of operators, and the options with which the Neutron refuses some of it."""

    function: Callable[[Tensor], Tensor]
    inside: bool
    flavor: str = "latest"
    excluded: tuple[str, ...] = ()

    def options(self) -> NeutronOptions:
        return NeutronOptions(
            silicon="imxrt700",
            converter_flavor=self.flavor,
            operators_not_to_delegate=self.excluded,
            disabled_passes=tuple(rewrite.name for rewrite in REWRITES),
        )


VARIANTS = {
    "softmax": Variant(softmax, inside=False, flavor="SDK_25_06"),
    "unequal add": Variant(unequal_add, inside=False, flavor="SDK_25_06"),
    "min, max": Variant(minimum_maximum, inside=True, flavor="SDK_25_06"),
    "hard-swish": Variant(
        hard_swish, inside=True, excluded=("aten.hardswish.default", "aten.maximum.default", "aten.minimum.default")
    ),
}


class IntegerProgram:
    """A whole program by the reference interpreter: the NPU's graphs and the core's, in the order of the program.

    Args:
        program: what `micronpu.compile` made for a target whose core computes what the NPU leaves.
        device: of this target, with the options that the program was compiled with.
    """

    def __init__(self, program: micronpu.CompiledProgram, device: Device) -> None:
        assert isinstance(program.quantized, torch.fx.GraphModule) and device.core is not None
        host = host_part(program.quantized, device)
        self.module = host.module
        self.graphs: dict[str, Graph] = {f"delegate_{i}": part.graph for i, part in enumerate(host.partitions)}
        self.graphs |= {f"core_{i}": graph for i, graph in enumerate(host.core_graphs)}

    def floats_inside(self) -> list[str]:
        """Operators with float operands or results between the program's quantizes and dequantizes."""
        return [
            str(n.target)
            for n in self.module.graph.nodes
            if n.op == "call_function" and not is_getitem(n) and "quantize_per_tensor" not in str(n.target)
        ]

    def requantizing_pairs(self) -> int:
        """Dequantizes that a quantize reads."""
        return sum(
            "dequantize" in str(n.target) and any("quantize_per_tensor" in str(u.target) for u in n.users)
            for n in self.module.graph.nodes
        )

    def __call__(self, *inputs: Tensor) -> Tensor:
        values: dict[Any, Any] = {}
        rest = iter(inputs)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(rest)
            elif node.op == "call_module":
                values[node] = self._interpreted(self.graphs[str(node.target)], [values[a] for a in node.args])
            elif node.op == "call_function":
                values[node] = node.target(*torch.fx.node.map_arg(node.args, values.__getitem__), **node.kwargs)
            elif node.op == "output":
                (result,) = node.args[0]
                return values[result]  # type: ignore[no-any-return]
            else:
                raise ValueError(f"The program reads {node.op} {node.target}.")
        raise ValueError("The program has no output.")

    @staticmethod
    def _interpreted(graph: Graph, operands: list[Tensor]) -> list[Tensor]:
        arrays = [
            (x.permute(0, 2, 3, 1) if i in graph.channels_last_inputs else x).contiguous().numpy()
            for i, x in enumerate(operands)
        ]
        results = [torch.from_numpy(np.array(y, order="C")) for y in interpret(graph, arrays)]
        return [y.permute(0, 3, 1, 2) if i in graph.channels_last_outputs else y for i, y in enumerate(results)]


@dataclass(frozen=True)
class Result:
    """A network with a chain, compiled and run."""

    network: TrainedNetwork
    options: NeutronOptions
    program: micronpu.CompiledProgram
    outputs: Tensor
    seconds_per_row: float

    @cached_property
    def integers(self) -> IntegerProgram:
        return IntegerProgram(self.program, device_for(TARGET, self.options))

    @cached_property
    def float_score(self) -> float:
        return self.network.score(run_eager(self.network.module, self.network.inputs))

    @property
    def score(self) -> float:
        return self.network.score(self.outputs)

    @property
    def on_core(self) -> int:
        return sum(bool(v.core) for v in self.program.report.verdicts)

    def rows_equal(self, rows: int = INTERPRETED_ROWS) -> int:
        """Of so many rows, how many the reference gives bit for bit."""
        return sum(
            torch.equal(self.integers(self.network.inputs[i : i + 1]), self.outputs[i : i + 1]) for i in range(rows)
        )


def evaluate(name: str, variant: Variant, limit: int | None = None) -> Result:
    """Compiles a network with a chain and runs its evaluation rows."""
    network = networks.load(name, limit=limit)
    network = replace(
        network, module=Changed(network.module, variant.function, INSIDE[name] if variant.inside else "").eval()
    )
    options = variant.options()
    program = micronpu.compile(
        network.module,
        network.example_inputs,
        TARGET,
        calibration=network.calibration[:100],
        quantization="int8",
        options=options,
    )
    program.run(network.inputs[:1])
    start = time.perf_counter()
    outputs = run_rows(program.run, network.inputs)
    return Result(network, options, program, outputs, (time.perf_counter() - start) / len(network.inputs))


def main(names: list[str]) -> None:
    print("network       chain        float     int8   on NPU  on core  float ops  dq-q  rows equal  ms per row")
    rows = []
    for name in names or list(INSIDE):
        for title, variant in VARIANTS.items():
            if name == "autoencoder" and not variant.inside:
                continue  # whose output is no scores
            result = evaluate(name, variant, limit=4 if name == "autoencoder" else None)
            row = {
                "network": name,
                "chain": title,
                "float": result.float_score,
                "int8": result.score,
                "on_npu": result.program.report.delegated,
                "on_core": result.on_core,
                "float_operators": len(result.integers.floats_inside()),
                "requantizing_pairs": result.integers.requantizing_pairs(),
                "rows_equal": result.rows_equal(),
                "rows": INTERPRETED_ROWS,
                "ms_per_row": result.seconds_per_row * 1e3,
            }
            rows.append(row)
            print(
                "{network:13s} {chain:11s} {float:7.3f}  {int8:7.3f}  {on_npu:6d}  {on_core:7d}  {float_operators:9d}  "
                "{requantizing_pairs:4d}  {rows_equal:4d} of {rows}  {ms_per_row:10.2f}".format(**row),
                flush=True,
            )
    if not names:
        results.write("combined", "python -m benchmarks.combined", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
