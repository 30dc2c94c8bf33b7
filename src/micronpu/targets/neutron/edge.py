"""Edge passes under the names of ExecuTorch's own Neutron backend."""

from __future__ import annotations

from typing import Any

from executorch.exir import EdgeProgramManager
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from micronpu.base.errors import ModelError, OptionError
from micronpu.frontend.program import is_dequantize, is_quantize, overload_of
from micronpu.ops.activation import PRELU
from micronpu.partition.moves import move_integers

core_aten_ops_exception_list: list[Any] = [overload_of(PRELU)]
"""ATen operators allowed in an edge program, for ``EdgeCompileConfig(_core_aten_ops_exception_list=...)``."""

default_preserve_ops: list[Any] = []
"""For ``NeutronPartitioner(preserve_ops=...)``, which keeps every operator that can be delegated anyway."""


class RemoveIOQuantOpsPass(ExportPass):
    """Removes the quantizes and dequantizes at the inputs and outputs of an edge program, which then are integers.

        x float -> quantize -> x8 -> delegate -> y8 -> dequantize -> y float
                               x8 -> delegate -> y8

    For ``edge.transform([RemoveIOQuantOpsPass(edge)])``, after delegation. Inputs and outputs without quantization are
    unchanged; scales and zero points become constant methods of the program, as in ExecuTorch's `QuantizeInputs`.

    Args:
        edge_program_manager: the program to transform.

    Raises:
        OptionError: it is not an edge program.
            ModelError: a quantized input has other readers, and would have to be float and integer.
    """

    def __init__(self, edge_program_manager: EdgeProgramManager) -> None:
        super().__init__()
        if not isinstance(edge_program_manager, EdgeProgramManager):
            raise OptionError(
                f"`edge_program_manager` is a {type(edge_program_manager).__name__}.",
                hint="what to_edge_transform_and_lower returned",
            )
        self._manager = edge_program_manager

    def call(self, graph_module: GraphModule) -> PassResult:
        program = self._manager.exported_program()
        by_name = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
        inputs = []
        for index, name in enumerate(program.graph_signature.user_inputs):
            readers = list(by_name[str(name)].users)
            if any(map(is_quantize, readers)):
                if len(readers) > 1:
                    raise ModelError(
                        f"The input `{name}` has {len(readers)} readers, and one of them quantizes it.",
                        hint='micronpu.compile(..., io="int8"), which gives them the same qparams',
                    )
                inputs.append(index)
        (results,) = program.graph.output_node().args
        outputs = [i for i, node in enumerate(results) if is_dequantize(node)]
        QuantizeInputs(self._manager, inputs).call(graph_module)
        QuantizeOutputs(self._manager, outputs).call(graph_module)
        return PassResult(graph_module, True)


class RemoveAdditionalQDQClustersPass(ExportPass):
    """Replaces dequantize, move and quantize with the same qparams by moving integers.

        x8 -> dequantize -> permute -> quantize -> y8        x8 -> permute -> y8

    For ``edge.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))``, after delegation.
    `micronpu.compile` does it automatically.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        return PassResult(graph_module, move_integers(graph_module))
