"""Models of torchvision and timm by name: `torchvision:mobilenet_v2`, `timm:mobilenetv3_small_050`.

They have their trained weights, which the library downloads once. With the suffix `:untrained` nothing is downloaded,
for a look at delegation and time.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from micronpu.base.errors import ErrorsAs, ModelError, first_line

OTHER_TORCH = (
    "torch and torchvision from one index: pip install --force-reinstall torchvision --index-url "
    "https://download.pytorch.org/whl/cpu for a torch with +cpu in its version, or both again, from PyPI"
)
OF_TORCHVISION = "operator torchvision::"
"""Text in the error of a torchvision that was built for another torch."""
UNTRAINED = "untrained"
_SIZE = (3, 224, 224)
"""Size of an input if the library does not state one."""


def is_named(text: str) -> bool:
    """Return True if a text names a model of a library."""
    return text.partition(":")[0] in _LIBRARIES


def load_named(text: str) -> tuple[Any, tuple[Any, ...], str]:
    """Return the model in evaluation mode, its example inputs, and a name for files."""
    library, _, rest = text.partition(":")
    name, _, how = rest.partition(":")
    if not name or how not in ("", UNTRAINED):
        raise ModelError(f"{text!r} names no model.", hint=f"{library}:NAME, or {library}:NAME:{UNTRAINED}")
    try:
        _imported(library)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{text} is a model of {library}, which is not installed.", hint=f"pip install {library}"
        ) from error
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision was built for another torch
        raise ModelError(
            f"{text} is a model of {library}, which cannot be imported: {first_line(error)}.", hint=OTHER_TORCH
        ) from error
    names, make = _LIBRARIES[library]
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 3) or known[:3]
        hint = f"one of its {len(known)}, such as {', '.join(near)}"
        raise ModelError(f"{library} has no model {name!r}.", hint=hint)
    what, hint = f"{name}{'' if how else ' with its weights'}", f"a connection, or {library}:{name}:{UNTRAINED}"
    with ErrorsAs(
        lambda e: ModelError(f"{library} cannot make {what}: {type(e).__name__}: {first_line(e)}.", hint=hint)
    ):
        model, size = make(name, how != UNTRAINED)
    import torch

    return model.eval(), (torch.randn(1, *size, generator=torch.Generator().manual_seed(0)),), name


def _imported(library: str) -> None:
    """Import a library of networks, even if torchvision's compiled operators are for another torch.

    Only detectors need these operators: two schemas that torchvision's Python part looks up are defined instead.
    """
    try:
        importlib.import_module(library)
    except RuntimeError as error:
        if OF_TORCHVISION not in str(error):
            raise
        import torch

        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module(library)


def _torchvision(name: str, trained: bool) -> tuple[object, Sequence[int]]:
    models = importlib.import_module("torchvision.models")
    weights = models.get_model_weights(name).DEFAULT if trained else None
    model = models.get_model_builder(name)
    # Detectors and segmenters would also fetch the weights of their backbone.
    has_backbone = "weights_backbone" in inspect.signature(model).parameters
    return model(weights=weights, **({"weights_backbone": None} if has_backbone else {})), _SIZE


def _timm_names() -> Sequence[str]:
    timm = importlib.import_module("timm")
    return [*timm.list_models(), *timm.list_models(pretrained=True)]


def _timm(name: str, trained: bool) -> tuple[object, Sequence[int]]:
    model = importlib.import_module("timm").create_model(name, pretrained=trained)
    return model, getattr(model, "default_cfg", {}).get("input_size", _SIZE)


_LIBRARIES: dict[str, tuple[Callable[[], Sequence[str]], Callable[[str, bool], tuple[Any, Sequence[int]]]]] = {
    "torchvision": (lambda: importlib.import_module("torchvision.models").list_models(), _torchvision),
    "timm": (_timm_names, _timm),
}
