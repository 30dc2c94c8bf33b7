"""Whether programs are the same bytes whatever computes them: `python -m tests.same_bytes`.

Compiles programs of twenty kinds and more in a process for each setting, and compares digests. A setting holds the
kernels of torch, oneDNN and NumPy to older instructions, changes the number of threads, or the seed of hashes.

    python -m tests.same_bytes --kinds gru adaptive --settings base sse41
    python -m tests.same_bytes --digests > here.json      # of this process alone, to compare with another machine's
    python -m tests.same_bytes --against here.json
    python -m tests.same_bytes --every 12 --digests > here.json  # beside them golden programs, random networks for each
                                                                 # kind of target, and every twelfth operator
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

_OLD_NUMPY = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
SETTINGS: dict[str, dict[str, str]] = {
    "base": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "NPY_DISABLE_CPU_FEATURES": _OLD_NUMPY},
    "sse41": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NPY_DISABLE_CPU_FEATURES": f"AVX2 FMA3 {_OLD_NUMPY}",
    },
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "threads": {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"},
    "hash": {"PYTHONHASHSEED": "7"},
    "batches": {"MICRONPU_TEST_BATCHES": "4"},
}
"""Environment variables of each; the first is what the others are compared with."""


def numbers(*shape: int, seed: int, gain: float = 1.0) -> torch.Tensor:
    """Numbers between -gain and gain, the same everywhere: those of torch's normal distribution are not."""
    drawn = np.random.default_rng(seed).integers(-4096, 4097, size=shape)
    return torch.from_numpy((drawn / 4096 * gain).astype(np.float32))


def filled(model: nn.Module) -> nn.Module:
    """The model with weights of `numbers`, in evaluation mode."""
    for seed, (name, value) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        if not value.is_floating_point():
            continue
        fan = max(int(value[0].numel()), 1) if value.dim() > 1 else 4
        made = numbers(*value.shape, seed=100 + seed, gain=(3 / fan) ** 0.5)
        value.data.copy_(made.abs() + 0.5 if "var" in name or name.endswith(("norm.weight", "1.weight")) else made)
    return model.eval()


def images(*shape: int, count: int = 24) -> list[torch.Tensor]:
    return [numbers(1, *shape, seed=i) for i in range(count)]


class Separable(nn.Module):
    """[1, 1, 20, 10] -> [1, 6]: a keyword spotter in small, with batch norms."""

    def __init__(self) -> None:
        super().__init__()

        def block(channels: int) -> nn.Module:
            depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
            return nn.Sequential(
                depthwise, nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 1), nn.ReLU()
            )

        self.layers = nn.Sequential(nn.Conv2d(1, 16, 3, (2, 2), 1), nn.ReLU(), block(16), block(16))
        self.head = nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.head(self.layers(x).mean((2, 3))), -1)


class Recurrent(nn.Module):
    """[T, 1, 8] -> [1, 5]"""

    def __init__(self, kind: type[nn.Module], layers: int = 1) -> None:
        super().__init__()
        self.layers, self.head = kind(8, 12, num_layers=layers), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][-1])


class Attention(nn.Module):
    """[1, 12, 16] -> [1, 12, 16]"""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v)


class Functions(nn.Module):
    """[1, 4, 8, 8] -> [1, 4, 8, 8]: tables, quotients, functions with exact symmetry."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.conv(x)) + torch.tanh(x) * torch.exp(-x.abs())
        return F.interpolate(F.max_pool2d(y, 2) / (1.5 + x[:, :, ::2, ::2].square()), scale_factor=2.0)


class Memory(nn.Module):
    """[1, 4, 3] -> [1, 4, 3], with the frames before in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)
        self.register_buffer("past", torch.zeros(1, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([self.past, x], -1)
        self.past.copy_(whole[..., 3:])
        return torch.sigmoid(self.conv(whole))


def plain() -> nn.Module:
    """[1, 3, 16, 16] -> [1, 10]"""
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU6(), nn.AvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def dense() -> nn.Module:
    """[1, 64] -> [1, 64]"""
    sizes = (64, 48, 8, 48, 64)
    layers = [x for a, b in itertools.pairwise(sizes) for x in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def compiled(model: nn.Module, rows: list[torch.Tensor], target: str, **how: Any) -> bytes:
    import micronpu

    size = int(os.environ.get("MICRONPU_TEST_BATCHES", "1"))
    data: Any = rows
    if size > 1 and rows[0].shape[0] == 1 and not any(True for _ in model.buffers() if isinstance(model, Memory)):
        data = [torch.cat(rows[i : i + size]) for i in range(0, len(rows), size)]
    transforms = how.pop("transforms", None)
    quantization = micronpu.Quantization(**how)
    return micronpu.compile(
        filled(model), (rows[0],), target, calibration=data, quantization=quantization, transforms=transforms
    ).buffer


def _plain(target: str, **how: Any) -> Callable[[], bytes]:
    return lambda: compiled(plain(), images(3, 16, 16), target, **how)


def _separable(target: str, **how: Any) -> Callable[[], bytes]:
    return lambda: compiled(Separable(), images(1, 20, 10), target, **how)


def _recurrent(kind: type[nn.Module], steps: int, target: str, **how: Any) -> Callable[[], bytes]:
    rows = [numbers(steps, 1, 8, seed=i) for i in range(12)]
    return lambda: compiled(Recurrent(kind), rows, target, **how)


def _sparse() -> bytes:
    from micronpu import SparsityOptions

    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten())
    rows = images(3, 16, 16, count=96)
    return compiled(
        nn.Sequential(model, nn.Linear(1024, 10)), rows, "ethos-u85-256", transforms=SparsityOptions(steps=40, points=2)
    )


def _compress() -> Any:
    from micronpu import Transforms

    return Transforms(compress=0.05)


KINDS: Mapping[str, Callable[[], bytes]] = {
    "plain-neutron": _plain("imxrt700"),
    "plain-u55": _plain("ethos-u55-128"),
    "plain-u65": _plain("ethos-u65-256"),
    "plain-u85": _plain("ethos-u85-256"),
    "plain-cortexm": _plain("cortex-m33"),
    "separable-neutron-io": _separable("mcxn947-neutron", io="int8"),
    "separable-u55-io": _separable("ethos-u55-128", io="int8"),
    "separable-u55-int16": _separable("ethos-u55-128", activations="int16"),
    "separable-u85-int16": _separable("ethos-u85-256", activations="int16"),
    "separable-combined": _separable("alif-e8-u85-ethosu-cortexm"),
    "gru": _recurrent(nn.GRU, 8, "imxrt700"),
    "gru-u85": _recurrent(nn.GRU, 8, "ethos-u85-256"),
    "lstm-loop": _recurrent(nn.LSTM, 150, "cortex-m55"),
    "attention": lambda: compiled(Attention(), images(12, 16), "ethos-u85-256"),
    "functions": lambda: compiled(Functions(), images(4, 8, 8), "imxrt700-neutron-cortexm"),
    "states": lambda: compiled(Memory(), [numbers(1, 4, 3, seed=i) for i in range(20)], "ethos-u55-128"),
    "adaptive": _separable("imxrt700", settings={"adaptive_rounding": True, "bias_correction": True}),
    "equalized-mse": _plain("ethos-u55-128", settings={"equalize": True, "default": {
        "activation_observer": "mse", "weight_observer": "mse"}}, per_channel=False),
    "fitted": _separable("cortex-m55", settings={"fit_ranges": True, "bias_correction": True}),
    "percentile": lambda: compiled(
        dense(), images(64), "stm32f746", io="int8", settings={"default": {"activation_observer": "percentile"}}
    ),
    "compressed": lambda: compiled(plain(), images(3, 16, 16, count=96), "ethos-u55-128", transforms=_compress()),
    "sparse": _sparse,
}  # fmt: skip


NETWORKS = 20
"""Random networks at the least, on other kinds of targets each."""
_OPERATORS_RUN_ON = ("ethos-u55-128", "ethos-u85-256", "ethos-u55-128", "imxrt700", "ethos-u65-256", "cortex-m55")
"""Targets of the single operators in turn: most on an Ethos-U, where other packages have the most to say."""


def _operator(overload: str, target: str) -> bytes:
    import micronpu
    from tests.support_rows import Rows, batches

    return micronpu.compile(Rows([overload]), batches()[0], target, calibration=batches(), verify=False).buffer


def _network(seed: int, target: str) -> bytes:
    import micronpu
    from tests.compile.random_networks import RandomNetwork

    network = RandomNetwork(seed, 6, wide=True)
    rows = [network.inputs(i) for i in range(4)]
    return micronpu.compile(network, rows[0], target, calibration=rows, verify=False).buffer


def more(every: int) -> dict[str, Callable[[], bytes]]:
    """Golden programs, random networks for each kind of target in turn, and one of so many operators."""
    from tests.default_install import kinds
    from tests.golden import generate
    from tests.support_rows import overloads

    found: dict[str, Callable[[], bytes]] = {}
    for kind, make in generate.KINDS.items():
        found[f"golden {kind}"] = lambda make=make: make().buffer
    targets = kinds()
    for seed, target in enumerate(targets[:: max(len(targets) // NETWORKS, 1)]):
        found[f"network {seed}, {target}"] = functools.partial(_network, seed, target)
    for overload, target in zip(overloads()[::every], itertools.cycle(_OPERATORS_RUN_ON), strict=False):
        found[f"operator {overload}, {target}"] = functools.partial(_operator, overload, target)
    return found


def digests(kinds: Iterable[str], every: int = 0) -> dict[str, str]:
    """SHA-256 of the program of each kind, or what went wrong."""
    found = {}
    chosen = {kind: KINDS[kind] for kind in kinds} | (more(every) if every else {})
    for kind, make in chosen.items():
        try:
            found[kind] = hashlib.sha256(make()).hexdigest()
        except Exception as error:
            found[kind] = f"{type(error).__name__}: {error}"
    return found


def under(kinds: Iterable[str], *settings: str) -> dict[str, str]:
    """`digests` in a process with the variables of settings."""
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    for setting in settings:
        environment |= SETTINGS[setting]
    command = [sys.executable, "-m", "tests.same_bytes", "--digests", "--kinds", *kinds]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{settings}: {done.stderr[-3000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), help="such as avx2, or several as sse41+hash")
    parser.add_argument("--digests", action="store_true", help="of this process, as JSON")
    parser.add_argument("--against", type=Path, help="a file of such digests, to compare this process's with")
    parser.add_argument("--every", type=int, default=0, help="also one of so many operators, networks, golden programs")
    given = parser.parse_args()
    if unknown := {name for setting in given.settings for name in setting.split("+")} - SETTINGS.keys():
        parser.error(f"no such settings: {sorted(unknown)}; there are {list(SETTINGS)}")
    if given.digests:
        print(json.dumps(digests(given.kinds, given.every)))
        return 0
    if given.against:
        wanted = json.loads(given.against.read_text(encoding="utf-8").splitlines()[-1])
        found = digests(given.kinds, given.every)
        wanted = {kind: wanted.get(kind, "") for kind in found}
        other = [kind for kind in wanted if found[kind] != wanted[kind]]
        print(f"{len(wanted) - len(other)} of {len(wanted)} the same; others: {other}")
        return bool(other)
    wanted = under(given.kinds, given.settings[0])
    failed = {kind: text for kind, text in wanted.items() if ":" in text}
    print(f"{given.settings[0]}: {len(wanted)} programs, not compiled: {failed or 'none'}", flush=True)
    bad = bool(failed)
    for setting in given.settings[1:]:
        found = under(given.kinds, *setting.split("+"))
        other = [kind for kind in wanted if found[kind] != wanted[kind]]
        bad |= bool(other)
        print(f"{setting}: {len(wanted) - len(other)} of {len(wanted)} the same; others: {other}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
