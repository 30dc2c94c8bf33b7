"""Recorder of calibration inputs, by which `convert_pt2e` gives the qparams that `micronpu.compile` gives.

Some decisions need the calibration data before the float program is rewritten (norms over rows of unequal size), or
between calibration and conversion (values that feed a concat and other operators); torchao's functions have no place
for them.  `convert_pt2e` therefore quantizes the float program once more, with the inputs that the prepared module was
called with, by the function that `micronpu.compile` uses.

The observers of the prepared module decide alone where those inputs are not all that counts: another quantizer
annotated a part of the program, or observers were changed by hand or loaded from a checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from micronpu.base.callers import warn
from micronpu.frontend.constants import attribute, set_attribute
from micronpu.frontend.copies import copied, with_own_graph
from micronpu.frontend.facts import FLOAT_PROGRAM
from micronpu.quantize.specs import KEY
from micronpu.upstream.session import exclusive
from micronpu.upstream.torch import OpOverload, codegen_of, schema_of

Row = tuple[torch.Tensor, ...]
Quantize = Callable[[GraphModule, list[list[Row]]], GraphModule]


class Recorder(nn.Module):
    """Keeps a copy of the inputs of each finished call of a prepared module.

    x -> ... -> y        x -> ... -> y, recorder(x)

    Args:
        program: the float program before any rewrite; it shares tensors with the prepared module.
        quantize: converts the program, which it consumes, with the recorded calls to the quantized program.
        annotated: names of the nodes of the prepared module that are annotated.
    """

    def __init__(self, program: GraphModule, quantize: Quantize, annotated: Collection[str]) -> None:
        super().__init__()
        self._given: Any = (program, quantize, annotated)  # in a tuple, the program is no submodule
        self._observers: tuple[nn.Module, ...] = ()
        self._observed: list[torch.Tensor] = []
        self.rows: list[Row] = []

    def watch(self, observers: Iterable[nn.Module]) -> None:
        """Set the observers of the prepared module."""
        self._observers = tuple(dict.fromkeys(observers))

    def forward(self, *inputs: torch.Tensor) -> None:
        """Record a call, except those of an export, with fake tensors."""
        if self._given and all(type(x) in (torch.Tensor, nn.Parameter) for x in inputs):
            dtypes = [n.meta["val"].dtype for n in _inputs(self._given[0])]
            with torch.inference_mode(False), torch.no_grad():
                self.rows.append(tuple(x.to(d, copy=True) for x, d in zip(inputs, dtypes, strict=True)))
                self._observed = [buffer.clone() for buffer in self._buffers_of_observers()]

    def convert(self, model: GraphModule, node: Node) -> None:
        """Replace a module's graph by the quantized program; torchao calls it last of all observers."""
        model.graph.erase_node(node)
        if not self._decides(model):
            warn(
                "`convert_pt2e` uses the observers alone: the prepared module was not called, another quantizer "
                "annotated a part, or observers were changed or loaded. Norms over rows of unequal size, and values "
                "that feed a concat and another operator, may be less accurate than with `micronpu.compile`."
            )
            return
        program, quantize, _ = self._given
        with exclusive():
            made = quantize(_copied(program), [[row] for row in self.rows])
        made.graph.set_codegen(codegen_of(model.graph))
        for new in made.graph.nodes:
            new.meta.pop(KEY, None)  # later passes of torchao expect its own annotations
            if new.op in ("get_attr", "call_module"):
                _adopt(model, made, new)
        model.graph = made.graph

    def _decides(self, model: GraphModule) -> bool:
        """Return True if the recorded calls determine the result."""
        now = self._buffers_of_observers()
        return (
            bool(self.rows)
            and annotated(model) <= set(self._given[2])
            and len(now) == len(self._observed)
            and all(map(torch.equal, now, self._observed))
        )

    def _buffers_of_observers(self) -> list[torch.Tensor]:
        return [buffer for observer in self._observers for buffer in observer.buffers()]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_given": (), "rows": []}  # a pickled graph has lost the facts about its nodes

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        made = Recorder.__new__(Recorder)
        vars(made).update(vars(self))
        made._observers = copy.deepcopy(self._observers, memo)
        made.rows = list(self.rows)
        return made


def _adopt(model: GraphModule, made: GraphModule, node: Node) -> None:
    """Copy the tensor or submodule of another module's node into a module; both have the submodules of one model."""
    path, value = str(node.target), attribute(made, node)
    if "." in path and value is not None:
        if attribute(model, node) is not value:
            set_attribute(model, node, value)
    else:
        if hasattr(model, path):
            delattr(model, path)
        setattr(model, path, getattr(made, path))


def _inputs(model: GraphModule) -> list[Node]:
    return [node for node in model.graph.nodes if node.op == "placeholder"]


def annotated(model: GraphModule) -> set[str]:
    """Return the names of the nodes that are annotated."""
    return {node.name for node in model.graph.nodes if KEY in node.meta}


def _copied(model: GraphModule) -> GraphModule:
    """Return a copy of a float program that shares its tensors."""
    made = with_own_graph(model)
    for name, part in list(made.named_children()):
        if isinstance(part, GraphModule):  # the body of a loop
            made.set_submodule(name, copied(part))
    return made


def keep_float_program(model: GraphModule) -> None:
    """Record the current float program in the meta of an exported float module before it is rewritten."""
    if any(not isinstance(node.meta.get("val"), torch.Tensor) or _is_written(node) for node in _inputs(model)):
        return  # calls with sizes, or with changing inputs, cannot be replayed
    made = _copied(model)
    made.graph.set_codegen(CodeGen())  # its inputs are those of the graph, one by one
    made.recompile()
    FLOAT_PROGRAM.say(model, made)


def _is_written(node: Node) -> bool:
    """Return whether the program writes into an input."""
    return any(
        isinstance(user.target, OpOverload) and schema_of(user.target).is_mutable and user.args[:1] == (node,)
        for user in node.users
    )


def record_calls(model: GraphModule, quantize: Quantize) -> None:
    """Add a recorder to an annotated model whose float program was kept, in place."""
    program, inputs = FLOAT_PROGRAM.take(model), _inputs(model)
    if program is not None and inputs:
        model.add_module("calibration_inputs", Recorder(program, quantize, annotated(model)))
        with model.graph.inserting_before(model.graph.output_node()):
            model.graph.call_module("calibration_inputs", tuple(inputs))


def recorders(model: GraphModule) -> Collection[Recorder]:
    """Return the recorders of a prepared module."""
    return [module for module in model.modules() if isinstance(module, Recorder)]


def without_recorder(prepared: GraphModule) -> GraphModule:
    """Remove recorders from a prepared module and its loops, in place, for callers that keep the calls themselves."""
    for part in prepared.modules():
        if not isinstance(part, GraphModule):
            continue
        for node in list(part.graph.nodes):
            if node.op == "call_module" and isinstance(part.get_submodule(str(node.target)), Recorder):
                part.graph.erase_node(node)
                delattr(part, str(node.target))
                part.recompile()
    return prepared
