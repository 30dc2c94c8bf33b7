"""The lowering of a recipe, and its quantization: the steps of `micronpu.compile` as passes of ExecuTorch's stages."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from executorch.export import ExportRecipe, QuantizationRecipe
from torch.export import ExportedProgram

from micronpu.base.errors import ModelError
from micronpu.base.quiet import quiet
from micronpu.chips.core import Core
from micronpu.compiler.host import host_part
from micronpu.frontend.checks import Train, is_in_training
from micronpu.frontend.export import check_static
from micronpu.frontend.exported import finished, graph_module
from micronpu.frontend.graphs import GraphModule, Node, calls, nodes_where, operand
from micronpu.frontend.integers import IntegerIO, integer_states, to_integer_io
from micronpu.frontend.program import arguments, static_shape
from micronpu.frontend.tensors import hold, lift, states_of
from micronpu.ops.movement import VIEWS
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.lower import with_delegates
from micronpu.partition.outline import memory_format_of
from micronpu.quantize.config import IOType
from micronpu.quantize.data import calibration_batches
from micronpu.quantize.decompose import write_out
from micronpu.quantize.qat import train_prepared
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.report.delegation import DelegationReport
from micronpu.targets.registry import BACKENDS, core_device

Inputs = tuple[torch.Tensor, ...]


class OutliningPartitioner(Partitioner):
    """Replaces parts for an NPU by finished delegate calls, and parts for a core by calls of CMSIS-NN's kernels.

    Args:
        device: the NPU, or the core alone, with its options.  A core beside an NPU computes the remaining operators.
        io: dtype of the program's integer inputs and outputs, for which the quantizer needs `set_io`; None for floats.

    Attributes:
        integer_io: meaning of the integers of the last program, or None for floats.
        report: report of the last program, or None; a core after an NPU does not have one.
        partitions: the delegated parts of the last program.
    """

    def __init__(self, device: Device, *, io: IOType | None = None) -> None:
        super().__init__()
        # Importing it registers the out variants of quantize and dequantize, which remain at the boundary of the core
        # part.
        import executorch.kernels.quantized  # noqa: F401

        self.device = device
        self.io = io
        self.integer_io: IntegerIO | None = None
        self.report: DelegationReport | None = None
        self.partitions: tuple[CompiledPartition, ...] = ()

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Replace partitions by calls; the given program is not changed."""
        with quiet():
            return self.outlined(lift(graph_module(exported_program)), examples_of(exported_program))

    def outlined(self, given: GraphModule, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
        """Replace partitions of a quantized module by calls, in place.

        Args:
            examples: inputs of the shapes that it takes.
        """
        with quiet():
            module = integer_states(given)
            check_static(module)
            self.integer_io = None if self.io is None else to_integer_io(module, as_bytes=self.io == "uint8")
            if self.integer_io is not None:
                examples = self.integer_io.quantize(examples)
            host = host_part(module, self.device, integer_io=self.integer_io)
            self.partitions = host.partitions
            self.report = None if _is_behind_an_npu(module) else host.report
            hold(host.module, states_of(module))
            return torch.export.export(with_delegates(host.module), examples)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[object], object]:
        """Return nothing: the remaining operators are for the core."""
        return [], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Return no partitions: they have been replaced already."""
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


def _is_behind_an_npu(module: GraphModule) -> bool:
    return bool(module.graph.find_nodes(op="call_function", target=executorch_call_delegate))


class CorePartitioner(OutliningPartitioner):
    """Replaces parts for a Cortex-M core by calls of CMSIS-NN's kernels; alone, or after the NPU's partitioner."""

    def __init__(self, core: Core) -> None:
        super().__init__(core_device(core))


def partitioners_of(recipe: ExportRecipe) -> list[object]:
    """Return the partitioners of a recipe, of all methods."""
    given = recipe.lowering_recipe.partitioners if recipe.lowering_recipe else None
    return [p for ps in given.values() for p in ps] if isinstance(given, dict) else list(given or ())


def core_of(partitioner: Partitioner) -> Core | None:
    """Return the core that a partitioner writes kernels for; None without one, and for other partitioners."""
    return partitioner.device.core if isinstance(partitioner, OutliningPartitioner) else None


def plan_scratch(edge: EdgeProgramManager) -> list[object]:
    """Plan memory for the scratch tensors of CMSIS-NN's kernels; for ``edge_manager_transform_passes``."""
    for backend in BACKENDS.values():
        backend.plan_scratch(edge)
    return []


def examples_of(program: ExportedProgram) -> tuple[torch.Tensor, ...]:
    """Return inputs of the shapes that a program takes."""
    if program.example_inputs:
        return tuple(program.example_inputs[0])
    given = set(program.graph_signature.user_inputs)
    return _zeros(node for node in program.graph.find_nodes(op="placeholder") if node.name in given)


def _zeros(inputs: Iterable[Node]) -> Inputs:
    """Return tensors with the shapes, dtypes and orders of axes of some inputs."""
    values = (node.meta["val"] for node in inputs)
    return tuple(torch.zeros(v.shape, dtype=v.dtype).to(memory_format=memory_format_of(v)) for v in values)


def post_training(quantizer: StaticQuantizer, calibration: object) -> QuantizationRecipe:
    """Return a recipe for post-training quantization.

    Args:
        calibration: an iterable of inputs, as for `micronpu.compile`, or a function that returns one; None for the
            example inputs of the session.
    """
    data = _Calibration(calibration)
    return QuantizationRecipe(
        quantizers=[quantizer],
        calibration_inputs_fn=None if calibration is None else data.batches,
        pre_prepare_passes=[data.before],
        post_prepare_passes=[data.watch],
    )


class _Calibration:
    """Calibration data, and facts about the model that are needed to check them."""

    def __init__(self, calibration: object) -> None:
        self._calibration = calibration
        self._examples: Inputs = ()
        self._in_training = ""

    def before(self, module: GraphModule) -> GraphModule:
        """Fold batch norms before torch does, which writes into weights that other layers may share."""
        self._examples = _zeros(module.graph.find_nodes(op="placeholder", sort=True))
        self._in_training = next((n.name for n in nodes_where(module, is_in_training)), "")
        write_out(module)
        return module

    def batches(self) -> Iterable[Inputs]:
        given = self._calibration() if callable(self._calibration) else self._calibration
        return calibration_batches(given, self._examples)

    def watch(self, prepared: GraphModule) -> GraphModule:
        """Refuse a model in training mode when it is called, because ExecuTorch replaces exceptions of a pass."""

        def refuse(*_: object) -> None:
            raise ModelError(
                f"The model is in training mode, in which `{self._in_training}` changes results.",
                hint="model.eval() before the export",
            )

        if self._in_training:
            prepared.register_forward_pre_hook(refuse)
        return prepared


def aware_training(quantizer: StaticQuantizer, train: Train) -> QuantizationRecipe:
    """Return a recipe for quantization-aware training.

    Args:
        quantizer: made with ``is_qat=True``.
        train: trains a module in place, with batches of any size if the model allows it.
    """
    examples: list[Inputs] = [()]

    def before(module: GraphModule) -> GraphModule:
        examples[0] = _zeros(module.graph.find_nodes(op="placeholder", sort=True))
        return any_batch_size(module)

    return QuantizationRecipe(
        quantizers=[quantizer],
        is_qat=True,
        train_fn=lambda prepared: train_prepared(prepared, train),
        pre_prepare_passes=[before],
        post_convert_passes=[lambda quantized: finished(quantized, examples[0])],
    )


def any_batch_size(module: GraphModule) -> GraphModule:
    """Replace the batch size 1 in reshapes of a captured module by any size, in place.

        x [1, 8, 4, 4] -> view [1, 128]        x [N, 8, 4, 4] -> view [-1, 128]

    The other operators of a convolutional network take any batch size already.  The result for batch 1 is the same as
    before.
    """
    for node in calls(module, *VIEWS):
        if not {"size", "shape"} & arguments(node).keys():
            continue
        before, after = static_shape(operand(node)), static_shape(node)
        if before and after and before[0] == after[0] == 1 and 0 not in after:
            node.update_arg(1, [-1, *after[1:]])
    module.recompile()
    return module
