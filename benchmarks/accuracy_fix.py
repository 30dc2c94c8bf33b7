"""What `micronpu.fix` gains over the default on trained networks, by distance to float and by labels.

    python -m benchmarks.accuracy_fix [NAME ...]      # table, and benchmarks/results/accuracy_fix.json
    python -m benchmarks.accuracy_fix --folds [WAY ...]  # the keyword spotter with BatchNorm, cross-validated
    python -m benchmarks.accuracy_fix --compare "GRU spotter"

Cures are searched with the calibration rows alone, which are split; the rows with labels, on which accuracy is counted,
are seen by nothing but the last step.  Needs the data folder (`benchmarks/networks`).  The GRU, the small vision
transformer and the MobileNetV3 are trained here, in about a minute each, on rows that do not judge them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks import networks
from benchmarks.coverage import library
from numpy.typing import NDArray
from torch import Tensor, nn

import micronpu
from micronpu.accuracy.evaluate import mcnemar
from micronpu.ethosu import EthosUOptions, EthosUQuantizer, calibrate_and_quantize
from micronpu.quantize.settings_file import configure

RESULTS = Path(__file__).parent / "results" / "accuracy_fix.json"
TARGET = "ethos-u55-128"
BUDGET = 150.0
FOLDS = 5


@dataclass(frozen=True)
class Case:
    """A network with rows to search with, and labelled rows to judge by."""

    module: nn.Module
    rows: list[Tensor]
    inputs: Tensor
    score: Callable[[Tensor], float]
    labels: Tensor | None = None
    more: list[Tensor] | None = None
    """Rows that choose and judge the cures, where `rows` are for calibration alone."""


# ---------------------------------------------------------------- networks that are trained here


class Spotter(nn.Module):
    """A GRU over the frames of a clip, three at a time. x [N, 16, 10] -> [N, 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(10, 48, batch_first=True), nn.Linear(48, 12)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.gru(x)[0][:, -1])
        return result


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(n, t, c))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class VisionTransformer(nn.Module):
    """Two blocks over patches of 7x7. x [N, 1, 28, 28] -> [N, 10]."""

    def __init__(self, size: int = 48) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, size, 7, 7), nn.Parameter(0.02 * torch.randn(1, 16, size))
        self.blocks = nn.Sequential(Block(size, 4), Block(size, 4))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.patch(x).flatten(2).transpose(1, 2) + self.place)
        result: Tensor = self.head(self.norm(y).mean(1))
        return result


def mobilenet_v3() -> nn.Module:
    """torchvision's MobileNetV3-small, narrow, for 28x28 images of one channel."""
    model = library("tv").models.mobilenet_v3_small(num_classes=10, width_mult=0.5)
    model.features[0][0] = nn.Conv2d(1, model.features[0][0].out_channels, 3, 1, 1, bias=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # of 0.01 the statistics lag behind in a training as short as this
    made: nn.Module = model
    return made


def trained(model: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float) -> nn.Module:
    """Adam with a one-cycle rate, batches of 64."""
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    steps = epochs * (len(x) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=random).split(64):
            if len(rows) == 64:
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
                schedule.step()
    return model.eval()


def _of_fashion(model: Callable[[], nn.Module], epochs: int, rate: float) -> Case:
    data = networks.read("fmnist")

    def images(x: NDArray[Any]) -> Tensor:
        return (torch.from_numpy(x).float()[:, None] / 255 - 0.2860) / 0.3530

    torch.manual_seed(0)
    x, y = images(data["train_x"]), networks.as_classes(data["train_y"])
    test, labels = images(data["test_x"][:500]), networks.as_classes(data["test_y"][:500])
    module = trained(model(), x, y, epochs, rate)
    return Case(module, list(x[:128].split(1)), test, lambda out: networks.accuracy(out, labels), labels)


def _spotter() -> Case:
    data = networks.read("kws_mfcc")
    x = torch.from_numpy(data["x"])[:, :48].reshape(-1, 16, 3, 10).mean(2)
    mean, spread = x[:500].mean((0, 1)), x[:500].std((0, 1))
    x, y = (x - mean) / spread, networks.as_classes(data["y"])
    torch.manual_seed(0)
    module = trained(Spotter(), x[:500], y[:500], 60, 1e-2)
    return Case(module, list(x[:96].split(1)), x[500:], lambda out: networks.accuracy(out, y[500:]), y[500:])


def _published(name: str, more: int = 0) -> Case:
    """Args: more: labelled rows that the search gets, whose labels it does not."""
    network = networks.load(name)
    labels = network.labels[more:] if network.metric != "AUC" else None
    score = network.score if labels is None else lambda out: networks.accuracy(out, labels)
    own = list(network.inputs[:more].split(1)) if more else None
    return Case(network.module, network.calibration[:128], network.inputs[more:], score, labels, own)


CASES: dict[str, Callable[[], Case]] = {
    "autoencoder (AUC)": lambda: _published("autoencoder"),
    "DS-CNN with BatchNorm": lambda: _published("dscnn"),
    "GRU spotter": _spotter,
    "small vision transformer": lambda: _of_fashion(VisionTransformer, 8, 3e-3),
    "MobileNetV1 0.25": lambda: _published("mobilenetv1", more=160),  # two scores say little of a row
    "MobileNetV3-small": lambda: _of_fashion(mobilenet_v3, 4, 1e-2),
}


# ---------------------------------------------------------------- measuring


@torch.no_grad()
def outputs(module: Any, x: Tensor) -> Tensor:
    """What a quantized module gives for all rows: many at once where it gives the same but for single roundings."""
    single = torch.cat([module(row) for row in x[:2].split(1)])
    try:
        if (module(x[:2]) - single).abs().max() <= 0.02 * single.abs().max():
            return torch.cat([module(rows) for rows in x.split(64)])
    except RuntimeError:  # a shape that holds the batch size
        pass
    return torch.cat([module(row) for row in x.split(1)])


def quantized(case: Case, quantization: Mapping[str, Any]) -> Any:
    """The quantized model that a `.pte` is made of, calibrated with all rows."""
    quantizer = configure(EthosUQuantizer(EthosUOptions(TARGET)), dict(quantization))
    exported = torch.export.export(case.module, (case.rows[0],))
    return calibrate_and_quantize(exported, case.rows, quantizer)


def measure(name: str, budget: float) -> dict[str, Any]:
    """Searches, and judges the default, the best choice that costs nothing, and the nearest to float."""
    case = CASES[name]()
    with torch.no_grad():
        exact = torch.cat([case.module(x) for x in case.inputs.split(64)])
    busy = time.process_time()
    rows, ranges = (case.rows, None) if case.more is None else (case.more, case.rows)
    fixes = micronpu.fix(case.module, rows, target=TARGET, calibration=ranges, budget=budget)
    processor_seconds = time.process_time() - busy
    chosen = {"default": fixes.choices[0], "free": fixes.best, "nearest": max(fixes.choices, key=lambda c: c.sqnr)}
    found: dict[str, Any] = {}
    for kind, choice in chosen.items():
        y = outputs(quantized(case, choice.quantization), case.inputs)
        noise = (y - exact).square().sum()
        entry: dict[str, Any] = {
            "choice": choice.name,
            "quantization": choice.quantization,
            "sqnr": float(10 * torch.log10(exact.square().sum() / noise)),
            "score": case.score(y),
            "cycles": choice.cycles,
            "bytes": choice.bytes,
        }
        if case.labels is not None:
            right, wanted = y.argmax(1) == case.labels, exact.argmax(1) == case.labels
            worse, better = int((wanted & ~right).sum()), int((right & ~wanted).sum())
            entry |= {"worse": worse, "better": better, "p": mcnemar(worse, better)}
            entry["answers that changed"] = int((y.argmax(1) != exact.argmax(1)).sum())
        found[kind] = entry
    return {
        "rows": len(case.inputs),
        "float": case.score(exact),
        "seconds": fixes.seconds,
        "processor seconds": processor_seconds,
        "untried": fixes.untried,
        "attempts": [f"{a.name}: {a.gain}{', kept' if a.kept else ''}" for a in fixes.attempts],
        "choices": [[c.name, c.sqnr, c.cycles, c.bytes, c.best] for c in fixes.choices],
        **found,
    }


SETTINGS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "bias correction": {"bias_correction": True},
    "adaptive rounding": {"adaptive_rounding": True},
    "adaptive rounding + bias correction": {"adaptive_rounding": True, "bias_correction": True},
    "input observer mse": {"default": {"input_observer": "mse"}},
    "input observer mse + adaptive rounding": {"default": {"input_observer": "mse"}, "adaptive_rounding": True},
    "ranges by results": {"fit_ranges": True},
    "ranges by results + bias correction": {"fit_ranges": True, "bias_correction": True},
    "ranges by results + adaptive rounding": {"fit_ranges": True, "adaptive_rounding": True},
    "ranges by results + both": {"fit_ranges": True, "adaptive_rounding": True, "bias_correction": True},
    "stem in int16": {"modules": {"stem": {"activations": "int16"}}},
    "stem in int16 + ranges by results": {"fit_ranges": True, "modules": {"stem": {"activations": "int16"}}},
    "int16": {"default": {"activations": "int16"}},
}


def compare(name: str) -> dict[str, Any]:
    """int8 and int16 without a search."""
    case = CASES[name]()
    with torch.no_grad():
        exact = case.module(case.inputs)
    found: dict[str, Any] = {"rows": len(case.inputs), "float": case.score(exact)}
    for kind, settings in (("default", {}), ("int16", {"default": {"activations": "int16"}})):
        y = outputs(quantized(case, settings), case.inputs)
        noise = (y - exact).square().sum()
        changed = int((y.argmax(1) != exact.argmax(1)).sum())
        sqnr = float(10 * torch.log10(exact.square().sum() / noise))
        found[kind] = {"sqnr": sqnr, "score": case.score(y), "answers that changed": changed}
    return found


def folds(cases: Sequence[str]) -> dict[str, Any]:
    """The keyword spotter with BatchNorm: a tenth of the rows calibrates, in turn, and all others judge."""
    network = networks.load("dscnn")
    calibration = torch.cat(network.calibration)
    x = torch.cat([calibration, network.inputs])
    assert network.calibration_labels is not None
    y = torch.cat([network.calibration_labels, network.labels])
    with torch.no_grad():
        wanted = network.module(x).argmax(1) == y
    found: dict[str, Any] = {}
    for name in cases:
        settings = SETTINGS[name]
        lost, worse, better = [], 0, 0
        for fold in range(FOLDS):
            chosen = torch.zeros(len(x), dtype=torch.bool)
            chosen[fold * 100 : (fold + 1) * 100] = True
            case = Case(network.module, list(x[chosen].split(1)), x[~chosen], lambda out: 0.0)
            right = outputs(quantized(case, settings), case.inputs).argmax(1) == y[~chosen]
            before = wanted[~chosen]
            lost.append(100 * float(before.double().mean() - right.double().mean()))
            worse, better = worse + int((before & ~right).sum()), better + int((right & ~before).sum())
        found[name] = {
            "points lost by fold": lost,
            "mean": float(np.mean(lost)),
            "standard error": float(np.std(lost, ddof=1) / np.sqrt(FOLDS)),
            "worse": worse,
            "better": better,
        }
    return {"rows judged in each fold": len(x) - 100, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--folds", action="store_true")
    parser.add_argument("--compare", action="store_true", help="int8 and int16 of these networks, without a search")
    given = parser.parse_args()
    told: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in given.names if given.compare else []:
        told[f"{name}, int8 and int16"] = compare(name)
        RESULTS.write_text(json.dumps(told, indent=2) + "\n")
        print(json.dumps(told[f"{name}, int8 and int16"], indent=2))
    for name in [] if given.folds or given.compare else given.names or CASES:
        told[name] = measure(name, given.budget)
        RESULTS.write_text(json.dumps(told, indent=2) + "\n")
        entry = told[name]
        line = ", ".join(
            f"{kind} {entry[kind]['score']:.4g} ({entry[kind]['sqnr']:.1f} dB, {entry[kind]['cycles']:,} cycles)"
            for kind in ("default", "free", "nearest")
        )
        print(f"{name}: float {entry['float']:.4g}, {line}", flush=True)
    if given.folds:
        known = told.get("DS-CNN with BatchNorm, folds", {})
        told["DS-CNN with BatchNorm, folds"] = known | folds(given.names or list(SETTINGS))
        RESULTS.write_text(json.dumps(told, indent=2) + "\n")
        print(json.dumps(told["DS-CNN with BatchNorm, folds"], indent=2))


if __name__ == "__main__":
    main()
