"""The graph of a network that was read from a file, recorded step by step.

`torch.export` runs a module under proxies, fake tensors, and stack traces of every call. The steps of a network are
functions of this package that the reader has run on the meta device already, so that recording their ATen calls there
gives the same graph in a seventh of the time.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.weak import WeakTensorKeyDictionary

from micronpu.base.errors import InternalError
from micronpu.frontend.export import by_shape, export
from micronpu.frontend.exported import graph_module
from micronpu.frontend.facts import EXPORTED, FILE_FACTS
from micronpu.frontend.functional import in_float32_in_place, remove_empty_tensors
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.model_files.network import Network, NetworkStep, as_identifier
from micronpu.frontend.program import calls_into, short_name
from micronpu.frontend.tensors import free_name
from micronpu.ops import facts
from micronpu.upstream.torch import calls_before_decomposition, schema_of, tree_map

_PLAIN = str.maketrans({**dict.fromkeys('",\n\r', "_"), "/": "."})


@dataclass(frozen=True)
class FileModel:
    """A model that was read from a file.

    Attributes:
        module: a float module; or, of a quantized file, a module with the file's own quantization, whose inputs and
            outputs are integers if the file's are.
        examples: inputs of the file's shapes and dtypes, the same in every run.
        names: of the inputs in the file.
    """

    module: GraphModule
    examples: tuple[torch.Tensor, ...]
    names: tuple[str, ...] = ()


class _Frame(nn.Module):
    """A module with as many outputs as a network, whose exported form receives the network's graph."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> Any:
        results = tuple(torch.eye(1) for _ in range(self.outputs))
        return results if self.outputs > 1 else results[0]


def exported(network: Network, path: Path) -> GraphModule:
    """Export the network as a graph whose inputs have the file's names, and whose nodes name its tensors as source."""
    module = recorded(network)
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        own = str(list(stack.values())[-1][0]).rpartition(".")[2] if stack else ""
        # Converters join the names of fused operators by semicolons, the last one first; / would look like a folder.
        name = network.names.get(own, own).partition(";")[0].translate(_PLAIN)
        node.meta["stack_trace"] = f'File "{path.name}", line {name}, in {own}' if own else ""
    EXPORTED.say(module, True)
    FILE_FACTS.say(module, network.file_facts)
    return module


def recorded(network: Network) -> GraphModule:
    """Return a network as an exported module; each node has the path of its step in ``nn_module_stack``."""
    module = graph_module(export(_Frame(len(network.outputs)), network.examples()))
    inputs = module.graph.find_nodes(op="placeholder")
    output = module.graph.output_node()
    output.args = ((),)
    module.graph.eliminate_dead_code()
    with module.graph.inserting_before(output):
        recorder = _Recorder(module, network)
        values = network.given(network.inputs, {})
        for node, name, value in zip(inputs, network.input_names, values.values(), strict=True):
            recorder.hold(value, _renamed(node, as_identifier(name)))
        recorder.run(values)
        output.args = (tuple(recorder.nodes[values[number]] for number in network.outputs),)
    in_float32_in_place(module)
    remove_empty_tensors(module)
    module.recompile()
    return module


def _renamed(node: Node, name: str) -> Node:
    """Return an input that replaces ``node`` and has another name."""
    with node.graph.inserting_before(node):
        named = node.graph.placeholder(name)
    named.target, named.meta = named.name, node.meta
    node.graph.erase_node(node)
    return named


class _Recorder:
    """Appends nodes to the graph of a module.

    Attributes:
        nodes: node of each tensor on the meta device. Its references are weak, since torch.zeros and the like return
            another tensor if theirs is referred to.
    """

    def __init__(self, module: GraphModule, network: Network) -> None:
        self.module, self.network = module, network
        self.nodes: MutableMapping[torch.Tensor, Node] = WeakTensorKeyDictionary()
        self._made: list[torch.Tensor] = []  # constants that steps make of numbers
        self._constants: dict[int, torch.Tensor] = {}  # by the identity of tensors that the network holds
        self._stack: dict[str, tuple[str, str]] = {}

    def hold(self, value: torch.Tensor, node: Node) -> None:
        """Record that a node computes a tensor."""
        self.nodes[value] = node
        node.meta["val"] = value.detach()
        if self._stack:
            node.meta["nn_module_stack"] = self._stack

    def run(self, values: dict[int, torch.Tensor]) -> None:
        """Record all steps and writes of states; ``values``, by number, holds the inputs and receives all results."""
        root = ("", _path_of(Network))
        for own, state in self.network.states():
            values[state.number] = self._read(own, state.initial)
        steps = [(own, step, self._constants_of(own, step)) for own, step in self.network.named_steps()]
        with torch.no_grad(), calls_before_decomposition(self._called):
            for own, step, given in steps:
                self._stack = {"L__self__": root, f"L__self__{own}": (own, _path_of(type(step)))}
                results = functional_call(step, given, tuple(values[number] for number in step.reads))
                values.update(zip(step.results, results, strict=True))
        self._stack = {}
        for _, state in self.network.states():
            if state.written != state.number:
                operands = tuple(self.nodes[values[number]] for number in (state.number, state.written))
                calls_into(self.module.graph)(facts.WRITE, *operands)

    def _constants_of(self, own: str, step: NetworkStep) -> dict[str, torch.Tensor]:
        named = (*step.named_parameters(), *step.named_buffers())
        for name, value in named:  # steps of one tensor read one constant
            if id(value) not in self._constants:
                self._constants[id(value)] = self._read(f"{own}.{name}", value)
        return {name: self._constants[id(value)] for name, value in named}

    def _read(self, path: str, value: torch.Tensor) -> torch.Tensor:
        """Return a constant or state on the meta device, and add it to the module."""
        folder, _, name = path.rpartition(".")
        home: nn.Module = self.module
        for part in filter(None, folder.split(".")):
            if not hasattr(home, part):
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        home.register_buffer(name, value.detach())
        shape_only = value.detach().to("meta")
        self.hold(shape_only, self.module.graph.get_attr(path))
        return shape_only

    def _node_of(self, value: object) -> object:
        """Return the node of a tensor, a new constant for one that a step made from numbers; "cpu" for a device."""
        if not isinstance(value, torch.Tensor):
            return torch.device("cpu") if isinstance(value, torch.device) else value
        if value not in self.nodes:
            if value.is_meta:
                raise InternalError(f"A tensor of {list(self._stack.values())} has no node.")
            self.nodes[value] = self.nodes[self._read(free_name(self.module, "constant"), value)]
            self._made.append(value)
        return self.nodes[value]

    def _called(self, overload: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        """Return the result of an ATen operator, and append its node."""
        if short_name(overload) in facts.OF_NUMBERS:
            return args[0]
        if schema_of(overload).is_mutable:
            raise InternalError(f"A step of a file calls {overload}, which writes in place.")
        results = by_shape(overload)(*args, **kwargs)
        if isinstance(results, torch.Tensor):
            self.hold(results, self._call(overload, tree_map(self._node_of, args), tree_map(self._node_of, kwargs)))
        elif isinstance(results, (tuple, list)):
            node = self._call(overload, tree_map(self._node_of, args), tree_map(self._node_of, kwargs))
            node.meta |= {"val": tuple(value.detach() for value in results), "nn_module_stack": self._stack}
            for number, value in enumerate(results):
                self.hold(value, self._call(operator.getitem, (node, number), {}))
        return results

    def _call(self, target: Any, args: Any, kwargs: Any) -> Node:
        name = getattr(target, "overloadpacket", target).__name__  # as torch.export names it
        return self.module.graph.create_node("call_function", target, tuple(args), dict(kwargs), name)


def _path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
