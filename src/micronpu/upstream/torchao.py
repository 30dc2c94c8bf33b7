"""Private names of torchao: its base classes of quantizers and observers, and functions of it that are repaired.

The module does not import torchao, which takes as long as compiling a small network.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch.fx import GraphModule, Node

from micronpu.base.callers import warn
from micronpu.base.installed import installed
from micronpu.base.quiet import quiet
from micronpu.upstream.shim import Shim, declared, is_seen, through

Function: TypeAlias = Callable[..., Any]

_PT2E = "torchao.quantization.pt2e"


def _repair(home: str, name: str, parameters: tuple[str, ...], why: str) -> Shim:
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
        "a quantizer cannot distinguish post-training quantization from QAT",
    ),
}
"""Functions of torchao that are replaced, by the place where torchao looks them up; each text states torchao's defect.

Each has a test that fails as soon as the installed version no longer needs it.
"""

ORIGINALS: dict[str, Function] = {}
"""Torchao's own functions by the names of `REPAIRS`, while they are repaired."""
_lock = threading.RLock()
_users = 0

_ANNOTATED = declared(
    f"{_PT2E}.quantizer:QuantizationAnnotation._annotated",
    "what another quantizer has annotated is not seen",
    probe=lambda: importlib.import_module(f"{_PT2E}.quantizer").QuantizationAnnotation()._annotated,
)
_MODE = declared(
    f"{_PT2E}.export_utils:_EXPORTED_TRAINING_ATTR", "`train()` of a prepared module does not switch it for torchao"
)


def import_torchao() -> None:
    """Import torchao without its messages about missing CUDA libraries and torch's deprecations."""
    with quiet():
        importlib.import_module(_PT2E)


def _unrepaired() -> str:
    """Return the reason why torchao is not repaired, as a sentence, or ""."""
    if not is_seen("torchao"):
        return f"torchao {installed('torchao')} is left as it is: its repairs are for {REPAIRS['prepare'].versions}."
    return next((f"torchao is left as it is: {s}" for shim in REPAIRS.values() if (s := shim.misfit()) is not None), "")


def repair(repaired: Mapping[str, Callable[[Function], Function]]) -> bool:
    """Replace functions of torchao until `restore`; return False, with a warning, for a version they are not for.

    Args:
        repaired: makes a function from torchao's own, by the names of `REPAIRS`.
    """
    global _users
    with _lock:
        if not ORIGINALS and (sentence := _unrepaired()):
            warn(sentence)
            return False
        _users += 1
        if not ORIGINALS:
            for name, shim in REPAIRS.items():
                home, last = shim.owner()
                ORIGINALS[name] = getattr(home, last)
                setattr(home, last, repaired[name](ORIGINALS[name]))
    return True


def restore() -> None:
    """Undo one call of `repair`; the last one puts torchao's own functions back."""
    global _users
    with _lock:
        _users -= 1
        for name in list(ORIGINALS) if not _users else ():
            home, last = REPAIRS[name].owner()
            own = ORIGINALS.pop(name)
            setattr(home, last, own)
            if any(vars(base).get(last) is own for base in getattr(home, "__mro__", ())[1:]):
                delattr(home, last)  # a method of a base class


def accept_as_observer(kind: type) -> type:
    """Register a class of modules as an observer of torchao."""
    base: Any = importlib.import_module(_PT2E).ObserverBase
    base.register(kind)
    return kind


def accept_as_quantizer(kind: type) -> None:
    """Make a class a virtual subclass of torchao's `Quantizer`, if torchao is imported."""
    home = sys.modules.get(f"{_PT2E}.quantizer.quantizer")
    if home is not None:
        home.Quantizer.register(kind)


@through(_ANNOTATED)
def is_annotated(node: Node) -> bool:
    """Return True if a quantizer of torchao has annotated a node."""
    found = node.meta.get("quantization_annotation")
    return found is not None and bool(found._annotated)


@through(_ANNOTATED)
def annotation(inputs: Mapping[Node, object], output: object) -> Any:
    """Return torchao's annotation of a node."""
    kind: Any = importlib.import_module(f"{_PT2E}.quantizer").QuantizationAnnotation
    return kind(input_qspec_map=dict(inputs), output_qspec=output, _annotated=True)


@through(_MODE)
def note_mode(model: GraphModule, training: bool) -> None:
    """Record for torchao whether a prepared module is in training mode."""
    name: str = importlib.import_module(f"{_PT2E}.export_utils")._EXPORTED_TRAINING_ATTR
    vars(model)[name] = training
