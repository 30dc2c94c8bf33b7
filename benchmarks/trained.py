"""Trained networks compiled and run three ways; what `accuracy`, `exactness` and the tests of whole networks share.

evaluated = evaluate(networks.load("dscnn"))
print(evaluated.network.score(evaluated.outputs))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from benchmarks.networks import TrainedNetwork, data_folder
from torch import Tensor, nn

import micronpu
from micronpu.ir.interpreter import interpret
from micronpu.ir.op import Value
from micronpu.ops.movement import Reshape, Transpose

CALIBRATION_ROWS = 100
# Rows of one batch in float and in eager mode; the programs take one row at a time.
BATCH = 64

Done = Callable[[int], None]
"""ReplayedOffers how many rows more are done."""


def quiet(rows: int) -> None:
    """Tells nobody."""


@torch.no_grad()
def run_eager(module: nn.Module, inputs: Tensor, done: Done = quiet) -> Tensor:
    """Outputs of a module for all rows, in batches."""
    outputs = []
    for batch in inputs.split(BATCH):
        outputs.append(module(batch))
        done(len(batch))
    return torch.cat(outputs)


def run_rows(function: Callable[[Tensor], Tensor], inputs: Tensor, done: Done = quiet) -> Tensor:
    """Outputs of what takes one row at a time."""
    outputs = []
    for row in inputs.split(1):
        outputs.append(function(row))
        done(1)
    return torch.cat(outputs)


@dataclass(frozen=True)
class Evaluated:
    """A compiled network and what it answers to all evaluation rows.

    Attributes:
        outputs: of the finished `.pte`, through the ExecuTorch runtime.
    """

    network: TrainedNetwork
    program: micronpu.CompiledProgram
    outputs: Tensor

    @cached_property
    def float_outputs(self) -> Tensor:
        """Of the module as it was trained."""
        return run_eager(self.network.module, self.network.inputs)

    @cached_property
    def eager_outputs(self) -> Tensor:
        """Of the `convert_pt2e` model in eager mode, which computes in float between the int8 grids."""
        return run_eager(self.program.quantized, self.network.inputs)

    @cached_property
    def steps(self) -> Tensor:
        """[rows, outputs] `.pte` minus `convert_pt2e`, in steps of the output's grid."""
        return ((self.outputs - self.eager_outputs) / self.integers.output.scale).round().long()

    @cached_property
    def integers(self) -> Integers:
        """The NPU program between its integer borders."""
        return Integers(self.program)


def evaluate(network: TrainedNetwork, *, samples: int = CALIBRATION_ROWS, done: Done = quiet) -> Evaluated:
    """Compiles a network and runs the `.pte` on all of its evaluation rows.

    Args:
        samples: calibration rows, at most as many as the network has.
    """
    # All calibration rows calibrate: what is kept back by default would judge nothing here.
    program = micronpu.compile(
        network.module,
        network.example_inputs,
        "imxrt700-neutron",
        calibration=network.calibration[:samples],
        verify=micronpu.Verification(held_out=0),
    )
    return Evaluated(network, program, run_rows(program.run, network.inputs, done))


class Integers:
    """The only partition of a fully delegated program, run without the ExecuTorch runtime.

    Raises:
        ValueError: the program is not one partition with one input and one output.
    """

    def __init__(self, program: micronpu.CompiledProgram) -> None:
        if len(program.partitions) != 1 or program.report.host:
            raise ValueError(f"Not all of the program is in one partition: {program.report.summary()}.")
        (self.partition,) = program.partitions
        self.graph = self.partition.graph
        if (len(self.graph.inputs), len(self.graph.outputs)) != (1, 1):
            raise ValueError("The program has several inputs or outputs.")
        self.input, self.output = self.graph.inputs[0].type, self.graph.outputs[0].type

    def quantize(self, row: Tensor) -> np.ndarray:
        """A float input on the grid and in the layout of the NPU program."""
        q = torch.ops.quantized_decomposed.quantize_per_tensor.default(
            row, self.input.scale, self.input.zero_point, -128, 127, torch.int8
        )
        if 0 in self.graph.channels_last_inputs:
            q = q.permute(0, 2, 3, 1)
        return q.contiguous().numpy()

    def dequantize(self, y: np.ndarray) -> Tensor:
        """What `quantize` undoes, for the output."""
        q = torch.from_numpy(np.ascontiguousarray(y))
        if 0 in self.graph.channels_last_outputs:
            q = q.permute(0, 3, 1, 2)
        return torch.ops.quantized_decomposed.dequantize_per_tensor.default(
            q, self.output.scale, self.output.zero_point, -128, 127, torch.int8
        )

    def interpret(self, row: Tensor) -> Tensor:
        """One row through the reference interpreter."""
        (y,) = interpret(self.graph, [self.quantize(row)])
        return self.dequantize(y)

    @cached_property
    def _litert(self) -> LiteRt:
        return LiteRt(self.partition.litert.data)

    def litert(self, row: Tensor) -> Tensor:
        """One row through LiteRT's reference kernels."""
        return self.dequantize(self._litert.run(self.quantize(row)))


class LiteRt:
    """A LiteRT model with one input and one output, on the reference kernels."""

    def __init__(self, model: bytes) -> None:
        self._interpreter = Interpreter(model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
        self._interpreter.allocate_tensors()
        (self.input,), (self.output,) = self._interpreter.get_input_details(), self._interpreter.get_output_details()

    def run(self, x: np.ndarray) -> np.ndarray:
        """Integers to integers."""
        self._interpreter.set_tensor(self.input["index"], x)
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self.output["index"])


# MLPerf Tiny's int8 files, made by Google's converter: network -> file. The autoencoder's lost nine biases.
REFERENCE_FILES = {
    "resnet8": "pretrainedResnet_quant.tflite",
    "dscnn_folded": "kws_ref_model.tflite",
    "mobilenetv1": "vww_96_int8.tflite",
    "autoencoder_litert": "ad01_int8.tflite",
    "wake_word": "str_ww_ref_model.tflite",
}


def run_reference(network: TrainedNetwork, done: Done = quiet) -> Tensor | None:
    """Outputs of the int8 LiteRT file that MLPerf Tiny publishes of the network; None where there is none.

    Raises:
        FileNotFoundError: the data folder has no such file.
    """
    if network.name not in REFERENCE_FILES:
        return None
    path: Path = data_folder() / "tflite_reference" / REFERENCE_FILES[network.name]
    if not path.is_file():
        raise FileNotFoundError(f"The data folder has no {path.name}. Try: fetch the folder again.")
    model = LiteRt(path.read_bytes())
    x_scale, x_zero = model.input["quantization"]
    y_scale, y_zero = model.output["quantization"]

    def row(x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        q = (last.numpy() / x_scale).round() + x_zero
        y = model.run(np.ascontiguousarray(q.clip(-128, 127).astype(np.int8)))
        return torch.from_numpy((y.astype(np.float32) - y_zero) * np.float32(y_scale))

    return run_rows(row, network.inputs, done)


class _Recorder(torch.fx.Interpreter):
    """Keeps the result of every node."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.results: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        self.results[n.name] = super().run_node(n)
        return self.results[n.name]


def operator_steps(evaluated: Evaluated, rows: Tensor) -> dict[str, Tensor]:
    """How far single operators are from the `convert_pt2e` model in eager mode, when both are given the same integers.

    Every operator of the NPU program computes, by its own definition, from the integers that the eager model has in
    front of it.

    Returns:
        For every operator with a counterpart in the eager model: all differences in steps of its result's grid.
    """
    module, graph = evaluated.program.quantized, evaluated.integers.graph
    assert isinstance(module, torch.fx.GraphModule)
    quantized = {
        source.name: node.name
        for node in module.graph.nodes
        if node.op == "call_function" and "::quantize_per_tensor" in str(getattr(node.target, "_schema", ""))
        for source in node.all_input_nodes[:1]
    }
    order = [node.name for node in module.graph.nodes]  # the last node that an operator stems from has its result
    differences: dict[str, list[Tensor]] = {}
    for row in rows.split(1):
        recorder = _Recorder(module)
        with torch.no_grad():
            recorder.run(row)
        known = {graph.inputs[0]: evaluated.integers.quantize(row)}
        for node in graph.nodes:
            operands = [Value(t.data if t.data is not None else known[t], t.type) for t in node.inputs]
            y = node.op.reference(node.output.type, *operands)
            sources = sorted((name for name in node.origin.nodes if name in quantized), key=order.index)
            results = [recorder.results[quantized[name]].numpy() for name in sources]
            expected = _laid_out_like(y, [result for result in results if result.size == y.size][-1:])
            # What only moves values is exact, and may move them in another order than the eager model does.
            if expected is not None and not isinstance(node.op, (Reshape, Transpose)):
                apart = torch.from_numpy(y.astype(np.int64) - expected.astype(np.int64)).flatten()
                differences.setdefault(node.output.name, []).append(apart)
                y = expected
            known[node.output] = y
    return {name: torch.cat(parts) for name, parts in differences.items()}


def _laid_out_like(y: np.ndarray, result: list[np.ndarray]) -> np.ndarray | None:
    """The eager result in the layout of ``y``: as it is, or channels-last; the nearer one where both would fit."""
    layouts = [r.transpose(order) for r in result for order in ((0, 1, 2, 3), (0, 2, 3, 1)) if r.ndim == 4]
    fitting = [r for r in layouts if r.shape == y.shape] or [r.reshape(y.shape) for r in result]
    distances = [float(np.abs(r.astype(np.int64) - y).mean()) for r in fitting]
    return fitting[distances.index(min(distances))] if fitting else None


def rows_equal(a: Tensor, b: Tensor) -> int:
    """How many rows of two outputs are the same in every element."""
    return int((a == b).flatten(1).all(1).sum())


def same_class(a: Tensor, b: Tensor) -> float:
    """Percent of rows whose largest output is at the same place."""
    return 100.0 * (a.argmax(1) == b.argmax(1)).double().mean().item()


def share_of_steps(steps: Tensor, most: int = 4) -> Sequence[float]:
    """Percent of outputs that are 0, 1, ... and at least ``most`` steps apart."""
    counts = torch.bincount(steps.abs().flatten().clamp(max=most), minlength=most + 1)
    return [100.0 * float(c) / steps.numel() for c in counts]
