"""Doors of torchao: what its quantizers and observers are taken for, and the functions of it that are repaired.

Imports no torchao by itself, which takes as long as a small network to compile.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch.fx import GraphModule, Node

from micronpu.base.callers import warn
from micronpu.base.quiet import quiet
from micronpu.upstream.door import Door, declared, installed, is_seen, through

Function: TypeAlias = Callable[..., Any]

_PT2E = "torchao.quantization.pt2e"


def _repair(home: str, name: str, parameters: tuple[str, ...], why: str) -> Door:
    return declared(f"{_PT2E}.{home}{'.' if ':' in home else ':'}{name}", why, parameters=parameters)


REPAIRS = {
    "dropout": _repair(
        "export_utils",
        "_replace_dropout",
        ("m", "train_to_eval"),
        "switching modes writes a probability of 0.5 into every dropout",
    ),
    "batch_norm": _repair(
        "export_utils",
        "_replace_batchnorm",
        ("m", "train_to_eval"),
        "switching modes writes a momentum of 0.1 and an epsilon of 1e-5 into every batch norm",
    ),
    **{
        name: _repair(
            "quantize_pt2e",
            name,
            ("m",),
            "as soon as one batch norm is left, a hundred patterns are exported, 17 s, whether any can fit or not",
        )
        for name in ("_fuse_conv_bn_qat", "_fold_conv_bn_qat")
    },
    "ask_each": _repair(
        "quantizer.composable_quantizer:ComposableQuantizer",
        "prepare_obs_or_fq_callback",
        ("self", "model", "edge_or_node_to_obs_or_fq"),
        "ExecuTorch's recipes wrap every quantizer in one that does not pass on what torchao asks a quantizer",
    ),
    "prepare": _repair(
        "quantize_pt2e",
        "prepare",
        ("model", "node_name_to_scope", "is_qat", "obs_or_fq_callback"),
        "a quantizer is not told whether it prepares for post-training quantization or for QAT",
    ),
}
"""Functions that others take the place of, by the place where torchao looks them up; each says what torchao does.

Each has a test that fails as soon as the installed version no longer needs it.
"""

ORIGINALS: dict[str, Function] = {}
"""Torchao's own functions by the names of `REPAIRS`, once they are repaired."""

_ANNOTATED = declared(
    f"{_PT2E}.quantizer:QuantizationAnnotation._annotated",
    "what another quantizer has annotated is not seen",
    probe=lambda: importlib.import_module(f"{_PT2E}.quantizer").QuantizationAnnotation()._annotated,
)
_MODE = declared(
    f"{_PT2E}.export_utils:_EXPORTED_TRAINING_ATTR", "`train()` of a prepared module does not switch it for torchao"
)


def import_torchao() -> None:
    """Imports torchao, which would tell of optional CUDA libraries that it cannot load, and of torch's deprecations."""
    with quiet():
        importlib.import_module(_PT2E)


def _unrepaired() -> str:
    """Why torchao is left as it is, as a sentence; "" where it is not."""
    if not is_seen("torchao"):
        return f"torchao {installed('torchao')} is left as it is: its repairs are for {REPAIRS['prepare'].versions}."
    return next((f"torchao is left as it is: {s}" for door in REPAIRS.values() if (s := door.misfit()) is not None), "")


def repair(repaired: Mapping[str, Callable[[Function], Function]]) -> bool:
    """Puts functions in the place of torchao's, once; False, with a warning, where it is another than they are for.

    Args:
        repaired: makes a function from torchao's own, by the names of `REPAIRS`.
    """
    if ORIGINALS:
        return True
    if sentence := _unrepaired():
        warn(sentence)
        return False
    for name, door in REPAIRS.items():
        home, last = door.owner()
        ORIGINALS[name] = getattr(home, last)
        setattr(home, last, repaired[name](ORIGINALS[name]))
    return True


def accept_as_observer(kind: type) -> type:
    """Lets torchao take a class of modules, of which it knows nothing, for one of its observers."""
    base: Any = importlib.import_module(_PT2E).ObserverBase
    base.register(kind)
    return kind


def accept_as_quantizer(kind: type) -> None:
    """Makes a class a virtual subclass of torchao's `Quantizer`, if torchao is imported."""
    home = sys.modules.get(f"{_PT2E}.quantizer.quantizer")
    if home is not None:
        home.Quantizer.register(kind)


@through(_ANNOTATED)
def is_annotated(node: Node) -> bool:
    """Whether a quantizer of torchao's has annotated a node."""
    found = node.meta.get("quantization_annotation")
    return found is not None and bool(found._annotated)


@through(_ANNOTATED)
def annotation(inputs: Mapping[Node, Any], output: Any) -> Any:
    """torchao's annotation of a node."""
    kind: Any = importlib.import_module(f"{_PT2E}.quantizer").QuantizationAnnotation
    return kind(input_qspec_map=dict(inputs), output_qspec=output, _annotated=True)


@through(_MODE)
def note_mode(model: GraphModule, training: bool) -> None:
    """Writes down, where torchao looks, whether a prepared module is in training mode."""
    name: str = importlib.import_module(f"{_PT2E}.export_utils")._EXPORTED_TRAINING_ATTR
    vars(model)[name] = training
