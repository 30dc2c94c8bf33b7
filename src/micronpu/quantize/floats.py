"""Run of the float network inside a module that is prepared for quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from micronpu.frontend.program import aten_overload
from micronpu.quantize.observers import is_observer
from micronpu.upstream.torch import schema_of


class FloatRun(Interpreter):
    """Runs a prepared module without its observers and keeps every value.

    Args:
        gradients: keep what `backward` needs.
    """

    def __init__(self, prepared: GraphModule, *, gradients: bool = False) -> None:
        super().__init__(prepared, garbage_collect_values=False)
        self.gradients = gradients
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        if n.op == "call_module" and is_observer(self.module.get_submodule(str(n.target))):
            result = self.fetch_args_kwargs_from_env(n)[0][0]
        elif n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            result = called(n, args, kwargs)
        else:
            result = super().run_node(n)
        is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
        if self.gradients and is_float and n.op != "get_attr" and not result.requires_grad:
            result = result.detach().requires_grad_()
        self.values[n.name] = result
        return result


def called(node: Node, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call; an operand that it writes into is copied, since it may have other readers."""
    overload = aten_overload(node)
    if overload is not None and schema_of(overload).is_mutable and isinstance(args[0], torch.Tensor):
        args = (args[0].clone(), *args[1:])
    assert callable(node.target)
    return node.target(*args, **kwargs)
