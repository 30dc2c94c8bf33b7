"""What is changed about other people's packages, all of it: repairs of torchao, and silence while it is imported.

Each repair names the version that needs it, and has a test that fails as soon as the installed version no longer does.
Repairs are made when a quantizer first sees a model, and left in place: results stay what torchao promises.  Another
version of torchao is left as it is: slower, and to be looked at anew.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.base.quiet import quiet
from micronpu.frontend.program import overload_name
from micronpu.frontend.training import set_training

Function: TypeAlias = Callable[..., Any]

TORCHAO = "0.18."
"""Versions of torchao that the repairs are for begin with this."""

_PT2E = "torchao.quantization.pt2e"
_FUSABLE = (
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv1d.padding,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
)
# Between a convolution and its batch norm torchao's own rewrite puts these.
_BETWEEN = (torch.ops.aten.div.Tensor, torch.ops.aten.add.Tensor)


@dataclass(frozen=True)
class Repair:
    """A function of torchao, by the place where torchao looks it up.

    Attributes:
        home: module, or module and class behind a colon.
        name: of the function.
        parameters: of the function that the repair is for.
        repaired: makes the function to use instead, from torchao's own.
        why: what torchao does.
    """

    home: str
    name: str
    parameters: tuple[str, ...]
    repaired: Callable[[Function], Function]
    why: str

    @property
    def owner(self) -> Any:
        """The module or class that holds the function."""
        module, _, cls = self.home.partition(":")
        found = importlib.import_module(module)
        return getattr(found, cls) if cls else found

    @property
    def fits(self) -> bool:
        """Whether there is such a function."""
        function = getattr(self.owner, self.name, None)
        return function is not None and tuple(inspect.signature(function).parameters) == self.parameters


def _own_switch(dropouts: bool) -> Callable[[Function], Function]:
    """The flag alone changes, of dropouts or of batch norms."""

    def switch(m: GraphModule, train_to_eval: bool) -> None:
        set_training(m, not train_to_eval, dropouts=dropouts, batch_norms=not dropouts)

    return lambda original: switch


def can_match(model: GraphModule) -> bool:
    """Whether a convolution is followed by a batch norm, as far as torchao's patterns go."""
    for node in model.graph.nodes:
        if "batch_norm" not in overload_name(node):
            continue
        before = node.args[0]
        for _ in _BETWEEN:
            if isinstance(before, Node) and before.target in _BETWEEN:
                before = before.args[0]
        if isinstance(before, Node) and before.target in _FUSABLE:
            return True
    return False


def _only_where_it_can_match(original: Function) -> Function:
    @functools.wraps(original)
    def guarded(m: GraphModule) -> GraphModule:
        fused: GraphModule = original(m) if can_match(m) else m
        return fused

    return guarded


def _ask_each(original: Function) -> Function:
    def prepare_obs_or_fq_callback(self: Any, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        for quantizer in self.quantizers:
            quantizer.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    return prepare_obs_or_fq_callback


def _tell_the_quantizer(original: Function) -> Function:
    @functools.wraps(original)
    def prepare(
        model: GraphModule, node_name_to_scope: Any, is_qat: bool, obs_or_fq_callback: Function | None = None
    ) -> GraphModule:
        given = getattr(obs_or_fq_callback, "__self__", None)
        for quantizer in getattr(given, "quantizers", [given]):
            if hasattr(quantizer, "check_use"):
                quantizer.check_use(is_qat)
        prepared: GraphModule = original(model, node_name_to_scope, is_qat, obs_or_fq_callback)
        return prepared

    return prepare


REPAIRS = (
    Repair(
        f"{_PT2E}.export_utils",
        "_replace_dropout",
        ("m", "train_to_eval"),
        _own_switch(dropouts=True),
        "switching modes writes a probability of 0.5 into every dropout",
    ),
    Repair(
        f"{_PT2E}.export_utils",
        "_replace_batchnorm",
        ("m", "train_to_eval"),
        _own_switch(dropouts=False),
        "switching modes writes a momentum of 0.1 and an epsilon of 1e-5 into every batch norm",
    ),
    *(
        Repair(
            f"{_PT2E}.quantize_pt2e",
            name,
            ("m",),
            _only_where_it_can_match,
            "as soon as one batch norm is left, a hundred patterns are exported, 17 s, whether any can fit or not",
        )
        for name in ("_fuse_conv_bn_qat", "_fold_conv_bn_qat")
    ),
    Repair(
        f"{_PT2E}.quantizer.composable_quantizer:ComposableQuantizer",
        "prepare_obs_or_fq_callback",
        ("self", "model", "edge_or_node_to_obs_or_fq"),
        _ask_each,
        "ExecuTorch's recipes wrap every quantizer in one that does not pass on what torchao asks a quantizer",
    ),
    Repair(
        f"{_PT2E}.quantize_pt2e",
        "prepare",
        ("model", "node_name_to_scope", "is_qat", "obs_or_fq_callback"),
        _tell_the_quantizer,
        "a quantizer is not told whether it prepares for post-training quantization or for QAT",
    ),
)

ORIGINALS: dict[tuple[str, str], Function] = {}
"""Torchao's own functions, by home and name, once they are repaired."""


@functools.lru_cache(maxsize=1)
def apply() -> bool:
    """Makes the repairs, once; False where torchao is not the version that they are for."""
    if not importlib.metadata.version("torchao").startswith(TORCHAO) or not all(r.fits for r in REPAIRS):
        return False
    for repair in REPAIRS:
        original = getattr(repair.owner, repair.name)
        ORIGINALS[repair.home, repair.name] = original
        setattr(repair.owner, repair.name, repair.repaired(original))
    return True


def import_torchao() -> None:
    """Imports torchao, which would tell of optional CUDA libraries that it cannot load, and of torch's deprecations."""
    with quiet():
        importlib.import_module(_PT2E)
