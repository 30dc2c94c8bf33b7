"""Modules that are converted, and exported ones that are not yet."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Interpreter, Node

from micronpu.base.errors import MicroNpuError, ModelError, first_line
from micronpu.base.quiet import quiet
from micronpu.frontend.export import export
from micronpu.frontend.program import is_dequantize, is_quantize, overload_name
from micronpu.quantize.training import set_training
from micronpu.quantize.transforms import add_constant


def finished(quantized: GraphModule, examples: tuple[torch.Tensor, ...]) -> GraphModule:
    """A converted module ready to be compiled: dropouts off, shapes those of the example inputs.

    Args:
        quantized: the result of `convert_pt2e`; it is not changed.

    Raises:
        ModelError: the module is prepared but not converted, or does not take the example inputs.
    """
    waiting = _observers(quantized)
    if waiting:
        raise ModelError(
            f"The module is prepared for quantization and not converted: it still has the observer `{waiting[0]}`.",
            hint="convert_pt2e(module) before compiling",
        )
    with quiet():
        model = copy.deepcopy(quantized)
    set_training(model, False)
    try:
        _Specialize(model).shapes(*examples)
    except MicroNpuError:
        raise
    except Exception as error:
        raise ModelError(
            f"The quantized module does not take the example inputs: {first_line(error) or type(error).__name__}.",
            hint="example inputs of the shapes that it was exported with",
        ) from error
    for node in list(model.graph.nodes):
        size = node.meta.pop(_SIZE, None)
        if size is not None:
            node.replace_all_uses_with(size)
    for node in list(model.graph.nodes):
        if overload_name(node) and not node.all_input_nodes and isinstance(node.meta.get("val"), torch.Tensor):
            # A constructor, whose shape was that of the batch until now.
            constant = add_constant(model, node, node.target(*node.args, **node.kwargs), "constant")
            node.replace_all_uses_with(constant)
    model.graph.eliminate_dead_code()
    model.recompile()
    return model


def _observers(module: nn.Module) -> list[str]:
    return [name for name, inner in module.named_modules() if hasattr(inner, "calculate_qparams")]


_SIZE = "micronpu_size"


class _Specialize(Interpreter):
    """Runs a module on fake inputs; notes shapes, and sizes that are numbers now."""

    def __init__(self, model: GraphModule) -> None:
        super().__init__(model)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def shapes(self, *inputs: Any) -> None:
        with self.mode, torch.no_grad():
            self.run(*(self.mode.from_tensor(t) for t in inputs))

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "get_attr":
            return self.mode.from_tensor(result) if isinstance(result, torch.Tensor) else result
        if n.op == "output":
            return result
        if isinstance(result, int) and not isinstance(result, bool):
            n.meta[_SIZE] = result
        elif isinstance(result, torch.Tensor | tuple | list):
            n.meta["val"] = result
        return result


def is_float(module: GraphModule) -> bool:
    """Whether nothing in a module has to do with quantization."""
    return not any(is_quantize(n) or is_dequantize(n) for n in module.graph.nodes) and not _observers(module)


# ---------------------------------------------------------------- float modules


def export_for_training(
    model: nn.Module | ExportedProgram, examples: tuple[torch.Tensor, ...]
) -> ExportedProgram | GraphModule:
    """The model in evaluation mode, for any batch size if it has one and can be exported so."""
    if isinstance(model, ExportedProgram):
        return copy.deepcopy(model)
    if isinstance(model, GraphModule) and is_exported(model):
        with quiet():
            return copy.deepcopy(model)
    if not isinstance(model, nn.Module):
        return export(model, examples)  # which says what is wrong with it
    own = copy.deepcopy(model).eval()
    sizes = {t.shape[0] if t.dim() else None for t in examples}
    if len(sizes) == 1 and None not in sizes:
        # A size of 1 would be taken for a constant.
        several = tuple(torch.cat([t, t]) if t.shape[0] == 1 else t for t in examples)
        try:
            with quiet(), torch.no_grad():
                return torch.export.export(own, several, dynamic_shapes=tuple({0: Dim.AUTO} for _ in examples))
        except MicroNpuError:
            raise
        except (
            Exception
        ):  # torch raises many kinds here; the export below says what is wrong with the model, if anything
            pass
    return export(own, examples)


EXPORTED = "micronpu_exported"
"""Key of a float module's meta: it is an exported program's, with the lines of the user's model, and for any batch size
where that has one."""


def is_exported(model: Any) -> bool:
    """Whether a model is a module that one of our functions has exported, which need not be done again."""
    return isinstance(model, GraphModule) and bool(model.meta.get(EXPORTED))
