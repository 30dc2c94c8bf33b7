"""What 2:4 weights gain on Ethos-U85, and what they cost: cycles, bytes, accuracy, from unlabelled inputs.

    python -m benchmarks.sparsity                        # all, about 25 minutes of an idle machine
    python -m benchmarks.sparsity resnet20 mobilenet_v2  # some; the others keep their figures

ResNet-20 and ResNet8 are those of the data folder (`benchmarks/networks`), with its 500 calibration images and 1,405
test images; ResNet8 with three seeds of the training without labels.  A network like MobileNetV3 and a vision
transformer are trained here on 5,000 images of FashionMNIST and judged on 2,000 others; `train` trains them on with
labels, quantization in view, once they are sparse.  MobileNetV2 at 224x224 has random weights: cycles only.

Accuracy is that of the integer network with the corrections that `sparsify` has chosen, and of the dense and the chosen
one without corrections as well.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks import networks, results
from benchmarks.networks.plain import mobilenet_v2
from torch import Tensor, nn

import micronpu
from micronpu import SparsityOptions
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.config import Corrections
from micronpu.targets.registry import device_for
from micronpu.transforms.sparsity.layers import batches
from micronpu.transforms.sparsity.layers import results as outputs_of

TARGET = "ethos-u85-256"
NAME = "sparsity"
RANGES = 100
"""Of the calibration inputs, that accuracy is measured with: the corrections look at no more."""


class SqueezedBlock(nn.Module):
    """MobileNetV3's: expand, depthwise, squeeze and excite, project."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, inner // 4, 1),
            nn.ReLU(),
            nn.Conv2d(inner // 4, inner, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        return x + y if self.adds else y


def mobilenet_v3() -> nn.Module:
    """Like MobileNetV3, for pictures of 28x28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
        SqueezedBlock(16, 64, 24, 1),
        SqueezedBlock(24, 96, 24, 1),
        SqueezedBlock(24, 96, 48, 2),
        SqueezedBlock(48, 192, 48, 1),
        nn.Conv2d(48, 192, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(192, 10),
    )


class VisionTransformer(nn.Module):
    """Patches of 4x4, two layers of four heads."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, 49, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.fc(self.norm(self.layers(x)).mean(1))


def fit(module: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float) -> None:
    """Trains with labels, in place."""
    random = torch.Generator().manual_seed(0)
    steps = epochs * -(-len(x) // 64)
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=random).split(64):
            images = x[rows]
            images = torch.where(torch.rand(len(rows), 1, 1, 1, generator=random) < 0.5, images, images.flip(-1))
            optimizer.zero_grad()
            F.cross_entropy(module(images), y[rows], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()


@dataclass(frozen=True)
class Case:
    """A network with its data."""

    module: nn.Module
    calibration: list[Tensor]
    x: Tensor
    y: Tensor
    options: SparsityOptions
    fine_tune: Callable[[nn.Module], None] | None = None
    seeds: tuple[int, ...] = ()


def trained(name: str, limit: float, points: int, seeds: tuple[int, ...] = ()) -> Case:
    network = networks.load(name)
    options = SparsityOptions(max_cycles=limit, points=points)
    return Case(network.module, network.calibration, network.inputs, network.labels, options, seeds=seeds)


def fashion(make: Callable[[], nn.Module], epochs: int, rate: float) -> Case:
    data = networks.read("fmnist")

    def images(name: str) -> Tensor:
        return (torch.from_numpy(data[name]).float() / 255 - 0.2860)[:, None] / 0.3530

    x, y = images("train_x"), networks.as_classes(data["train_y"])
    torch.manual_seed(0)
    module = make()
    fit(module.train(), x, y, epochs, rate)
    return Case(
        module.eval(),
        list(x[:500].split(1)),
        images("test_x"),
        networks.as_classes(data["test_y"]),
        SparsityOptions(points=2),
        lambda m: fit(m, x, y, 1, rate / 10),
    )


CASES: dict[str, Callable[[], Case]] = {
    "resnet20": lambda: trained("resnet20", 0.62, 3),
    "resnet8": lambda: trained("resnet8", 0.80, 1, seeds=(1, 2)),
    "mobilenet_v3": lambda: fashion(mobilenet_v3, 4, 8e-3),
    "vit": lambda: fashion(VisionTransformer, 5, 3e-3),
}


def accuracy(outputs: Tensor, y: Tensor) -> float:
    return round(networks.accuracy(outputs, y), 2)


def integer_answers(model: Any, case: Case, corrections: Mapping[str, bool]) -> Tensor:
    """Of the integer network in eager mode, whose results are those of the program up to single steps."""
    rows = [(c,) for c in case.calibration[:: len(case.calibration) // RANGES]]
    quantizer = device_for(TARGET).quantizer().set_corrections(Corrections(**corrections))
    module = quantize(copy.deepcopy(model), [rows], quantizer)
    return outputs_of(module, batches(module, [(x,) for x in case.x.split(1)]))[0]


def same(outputs: Tensor, wanted: Tensor) -> float:
    """Percent of the rows with the same answer."""
    return round(100 * float((outputs.argmax(1) == wanted.argmax(1)).double().mean()), 2)


def sparse(case: Case, wanted: Tensor, seed: int, every: bool = True) -> tuple[micronpu.Sparsified, dict[str, Any]]:
    """A sparse network, and its points.

    Args:
        wanted: what the float network answers.
        every: whether all points are judged, and not only the chosen one.
    """
    start, busy = time.perf_counter(), time.process_time()
    found = micronpu.sparsify(case.module, case.calibration, target=TARGET, sparsity=replace(case.options, seed=seed))
    seconds, cpu = time.perf_counter() - start, time.process_time() - busy
    first, points = found.report.points[0].cycles, []
    for number, point in enumerate(found.report.points):
        row: dict[str, Any] = {
            "sparse_layers": len(point.layers),
            "cycles": point.cycles,
            "of_dense": round(point.cycles / first, 3),
            "bytes": point.bytes,
            "agreement": point.agreement,
            "corrections": list(point.corrections),
        }
        points.append(row)
        if not every and number != found.report.chosen:
            continue
        made = found.at(number)
        answers = integer_answers(made.model, case, made.quantization)
        row |= {"int8_accuracy": accuracy(answers, case.y), "as_float": same(answers, wanted)}
        if number in (0, found.report.chosen):
            plain = integer_answers(made.model, case, {}) if made.quantization else answers
            row |= {"uncorrected_accuracy": accuracy(plain, case.y), "uncorrected_as_float": same(plain, wanted)}
    chosen = {"chosen": found.report.chosen, "seconds": round(seconds), "processor_seconds": round(cpu)}
    return found, {"points": points} | chosen


def measure(name: str) -> dict[str, Any]:
    case = CASES[name]()
    with torch.no_grad():
        wanted = torch.cat([case.module(x) for x in case.x.split(100)])
    found, figures = sparse(case, wanted, case.options.seed)
    row = {"network": name, "rows": len(case.x), "float_accuracy": accuracy(wanted, case.y)} | figures
    row["layers"] = [
        {"name": r.name, "sparse": r.sparse, "dense_cycles": r.cycles_dense, "cycles": r.cycles, "why": r.why}
        for r in found.report.layers
    ]
    if case.seeds:
        row["seeds"] = [{"seed": seed} | sparse(case, wanted, seed, every=False)[1] for seed in case.seeds]
    if case.fine_tune is not None:
        program = micronpu.compile(found.model, case.calibration[0], TARGET, train=case.fine_tune, verify=False)
        with torch.no_grad():
            answers = torch.cat([program.quantized(x) for x in case.x.split(1)])
        row["train"] = {
            "cycles": sum(part.cycles for part in program.partitions),
            "int8_accuracy": accuracy(answers, case.y),
            "sparse_operations": sum(o.sparse for o in program.report.operations),
        }
    return row


def untrained() -> dict[str, Any]:
    """MobileNetV2 at 224x224 with random weights."""
    torch.manual_seed(0)
    module = mobilenet_v2(1.0).eval()
    rows = list(torch.randn(24, 3, 224, 224).split(1))
    options = SparsityOptions(steps=0, points=1, held_back=0.125, least_samples=0.0, corrections=False)
    found = micronpu.sparsify(module, rows, target=TARGET, sparsity=options)
    points = [{"sparse_layers": len(p.layers), "cycles": p.cycles, "bytes": p.bytes} for p in found.report.points]
    left = [{"name": r.name, "cycles": r.cycles, "why": r.why} for r in found.report.layers if not r.sparse]
    return {"network": "mobilenet_v2", "points": points, "left_dense": left}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = (*CASES, "mobilenet_v2")
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(every)}; all unless given")
    names = parser.parse_args(arguments).networks or every
    figures = {row["network"]: row for row in results.read(NAME)} if results.is_there(NAME) else {}
    for name in names:
        figures[name] = untrained() if name == "mobilenet_v2" else measure(name)
        print({key: value for key, value in figures[name].items() if key != "layers"}, flush=True)
        results.write(NAME, "python -m benchmarks.sparsity", [figures[n] for n in every if n in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
