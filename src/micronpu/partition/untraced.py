"""Exported programs of graphs that are operators of tensors already, which nobody has to trace for that.

`torch.export` runs a module with tensors that record what is done with them.  A host part that a core computes is a
graph of a thousand operators and more, written here a moment ago: nothing but the shapes of its tensors is unknown, and
the record of it was a quarter of the time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from micronpu.upstream.torch import FakeTensorMode, OpOverload, codegen_of, metadata_of, schema_of, tree_structure

_UNKNOWN = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
"""Operators whose results have no shape before they are computed."""


def untraced(module: nn.Module, examples: tuple[torch.Tensor, ...]) -> ExportedProgram | None:
    """The program that `torch.export.export(module, examples)` gives, made without a trace.

        core_0(quantize(x))[0]         ->   conv(reshape(quantize(x)), b_core_0_constant_0)
          with core_0: conv(reshape(input_0), constant_0)

    Args:
        module: a graph, which may call other graphs.
        examples: its inputs.

    Returns:
        None where it holds anything but operators that give one tensor each, of buffers, inputs and numbers.
    """
    graphs = [part for part in module.modules() if isinstance(part, GraphModule)]
    if not isinstance(module, GraphModule) or not all(map(_is_plain, graphs)):
        return None
    buffers = dict(module.named_buffers(remove_duplicate=False))
    if len({id(b) for b in buffers.values()}) < len(buffers) or set(module.state_dict()) != set(buffers):
        return None  # a tensor of two names, a parameter, or a buffer that is not saved
    tree = getattr(codegen_of(module.graph), "pytree_info", None)
    if tree is None or tree.in_spec != tree_structure((examples, {})) or not all(map(_is_whole, examples)):
        return None
    return _Writer(module, buffers, examples, tree.out_spec).program


def _is_plain(module: GraphModule) -> bool:
    """Whether a graph holds operators of one tensor each, and calls of graphs by what they give."""
    for node in module.graph.nodes:
        target: Any = node.target
        if node.op == "call_function" and isinstance(target, OpOverload):
            if schema_of(target).is_mutable or any(tag in target.tags for tag in _UNKNOWN):
                return False
        elif node.op == "call_function":
            source = node.args[0] if target is operator.getitem else None
            if not isinstance(source, Node) or source.op != "call_module" or not isinstance(node.args[1], int):
                return False
        elif node.op == "call_module":
            if not isinstance(module.get_submodule(target), GraphModule) or node.kwargs:
                return False
        elif node.op == "get_attr" and not isinstance(_attribute(module, target), torch.Tensor):
            return False
    return True


def _is_whole(example: torch.Tensor) -> bool:
    return type(example) is torch.Tensor and not example.requires_grad


def _attribute(module: nn.Module, path: str) -> object:
    home, _, name = path.rpartition(".")
    return getattr(module.get_submodule(home), name)


def _valued(node: Node, value: torch.Tensor) -> Node:
    node.meta |= {"val": value, "tensor_meta": metadata_of(value)}
    return node


class _Writer:
    """Writes the one graph of several.

    Args:
        buffers: of the module and what it calls, by path.
        result: what the program gives, as a tree.

    Attributes:
        program: the whole.
    """

    def __init__(
        self, module: GraphModule, buffers: Mapping[str, torch.Tensor], examples: tuple[torch.Tensor, ...], result: Any
    ) -> None:
        self._graph, self._mode = Graph(), FakeTensorMode(allow_non_fake_inputs=True)
        self._buffers = {path: self._placeholder(f"b_{path.replace('.', '_')}", b) for path, b in buffers.items()}
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        inputs = [self._placeholder(name, x) for name, x in zip(names, examples, strict=True)]
        with self._mode:
            given = self._written(module, "", inputs)
        results = list(given) if isinstance(given, (list, tuple)) else [given]
        self._graph.output(tuple(results))
        state = {path: b.detach() for path, b in buffers.items()}
        trees = {"in_spec": tree_structure((examples, {})), "out_spec": result}
        call = ModuleCallSignature([], [], **trees, forward_arg_names=[node.name for node in inputs])
        self.program = ExportedProgram(
            root=nn.Module(),
            graph=self._graph,
            graph_signature=self._signature(inputs, results),
            state_dict=state,
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", call)],
            example_inputs=(examples, {}),
        )

    def _placeholder(self, name: str, value: torch.Tensor) -> Node:
        node = self._graph.placeholder(name)
        return _valued(node, self._mode.from_tensor(value, static_shapes=True))

    def _written(self, module: GraphModule, prefix: str, inputs: Iterable[Node]) -> Any:
        """Writes a graph; what it gives, of nodes of ours."""
        own: dict[Node, Any] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                own[node] = next(given)
            elif node.op == "get_attr":
                own[node] = self._buffers[f"{prefix}{node.target}"]
            elif node.op == "call_module":
                path = str(node.target)
                arguments = [own[a] for a in node.args]
                own[node] = self._written(module.get_submodule(path), f"{prefix}{path}.", arguments)  # type: ignore[arg-type]
            elif node.op == "output":
                return map_arg(node.args[0], own.__getitem__)
            elif isinstance(node.target, OpOverload):
                own[node] = self._called(node, own)
            else:
                own[node] = own[node.args[0]][node.args[1]]
        raise AssertionError("a graph without an output")

    def _called(self, node: Node, own: Mapping[Node, Node]) -> Node:
        target: Any = node.target
        args: Any = map_arg(node.args, own.__getitem__)
        kwargs: Any = map_arg(node.kwargs, own.__getitem__)
        made = self._graph.create_node("call_function", target, args, kwargs, target.overloadpacket.__name__)
        args, kwargs = (map_arg(part, lambda n: n.meta["val"]) for part in (args, kwargs))
        if "from_node" in node.meta:
            made.meta["from_node"] = list(node.meta["from_node"])
        return _valued(made, target(*args, **kwargs))

    def _signature(self, inputs: Iterable[Node], results: Iterable[Node]) -> ExportGraphSignature:
        specs = [
            InputSpec(InputKind.BUFFER, TensorArgument(node.name), path, persistent=True)
            for path, node in self._buffers.items()
        ]
        specs += [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in inputs]
        given = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results]
        return ExportGraphSignature(specs, given)
