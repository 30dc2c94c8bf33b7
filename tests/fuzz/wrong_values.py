"""Good and wrong values for the calls of `tests/fuzz/public_calls.py`."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.fuzz.malformed import broken_iterator
from torch import nn

import micronpu


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()).eval()


X = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))


class _Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class _Gives(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        return self.result


def _poisoned(value: float) -> nn.Module:
    made = net()
    with torch.no_grad():
        next(made.parameters()).fill_(value)
    return made


MODELS: tuple[Any, ...] = (
    nn.Conv2d,
    nn.Sequential(nn.Dropout()).train(),
    net().half(),
    net().bfloat16(),
    net().to("meta"),
    _poisoned(math.nan),
    _poisoned(math.inf),
    _Raises(ValueError()),
    _Raises(KeyError("k\nl")),
    _Raises(RuntimeError("")),
    _Raises(AssertionError()),
    _Raises(RecursionError("deep")),
    _Raises(SystemExit(2)),
    _Raises(MemoryError()),
    _Raises(StopIteration()),
    _Gives(None),
    _Gives(3.0),
    _Gives([[], ()]),
    _Gives({"a": object()}),
    _Gives(np.zeros(3)),
    _Gives("text"),
    _Gives(b""),
    [net()],
    {"model": net()},
    torch.jit.ScriptModule,
)


INPUTS: tuple[Any, ...] = (
    (),
    (X, X),
    X[0],
    X[:, :1],
    X.double(),
    X.int(),
    X.bool(),
    X.half(),
    X.to("meta"),
    X.to_sparse(),
    X.to(torch.complex64),
    X[:0],
    torch.tensor(1.0),
    (X.numpy().tolist(),),
    ("x",),
    (None,),
    {"x": X},
    [[X]],
    ((X,),),
    (nn.Parameter(X), 3),
    X.numpy().astype("U8"),
    (X, None),
    range(3),
    np.array(["a"]),
    torch.zeros(1, 2, 2, 2),
    torch.zeros(1, 2, 6),
    torch.zeros(1, 2, 6, 6, 1),
    (X, {}),
)


CALIBRATION: tuple[Any, ...] = (
    [],
    [()],
    [X, None],
    [X[0, 0]],
    [X.int()],
    [X * math.nan],
    [X, X * math.inf],
    [(X, X)],
    {"x": X},
    "data.npz",
    broken_iterator(),
    [X.to("meta")],
    [X.to_sparse()],
    [X.numpy().astype(object)],
    [["a"]],
    [{"x": X}],
    [X[:0]],
    3,
    lambda: [X],
    [torch.zeros(0, 2, 6, 6)],
    [np.zeros((1, 2, 6, 6), "U3")],
    np.zeros((3, 3)),
    [0.5],
    ["a"],
)


TARGETS: tuple[Any, ...] = (
    ["imxrt700"],
    "imxrt7000",
    "ethos",
    "cortex",
    "IMXRT700 ",
    "no/chip.toml",
    ".",
    "/dev/null",
    "a.py",
)


NO_PATHS: tuple[Any, ...] = ("a\0b", "no/such/folder/file", "x" * 5000, ".", "", Path("a\0b"), "\udce4/a")
"""Where nothing can be written."""


DISABLED = [["no such pass"], "fold_pads"]


NEUTRON_WRONG: dict[str, Any] = {
    "extra_flags": [[3], ["a", None]],
    "operators_not_to_delegate": [["conv"], [3], [""]],
    "converter_timeout": [0, -1, math.nan, math.inf],
    "disabled_passes": DISABLED,
    "intermediates_dir": ["a\0b", "/dev/null/x"],
}


@functools.cache
def program() -> micronpu.CompiledProgram:
    return micronpu.compile(net(), X, "imxrt700-neutron", calibration=[X])


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="micronpu-malformed-"))


def new_file() -> Path:
    return Path(tempfile.mkdtemp(dir=folder())) / "file.pte"


def of_inputs(function: Any) -> Any:
    """The function with its variadic inputs as a parameter."""

    def call(inputs: Any, **options: Any) -> Any:
        return function(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)), **options)

    return call
