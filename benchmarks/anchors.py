"""Published measurements: `benchmarks/anchors.toml` as values, and the networks that they are of.

Latency depends on shapes alone, so the networks have random weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from benchmarks.networks.architectures import Autoencoder, MobileNetV1, ResNet8
from benchmarks.networks.classifiers import efficientnet_lite0, mobilenet_v3_large, resnet50
from benchmarks.networks.plain import fomo, mobilenet_v1, mobilenet_v2
from examples.keyword_spotting.model import DSCNN
from torch import Tensor, nn

from micronpu.base.parsing import parse_toml

FILE = Path(__file__).with_suffix(".toml")
KINDS = ("ms", "cycles", "instructions", "beats", "uJ")
TRUST = ("vendor", "project", "own")


def _with_softmax(network: nn.Module) -> nn.Module:
    """The published files of MLPerf Tiny's classifiers end with it."""
    return nn.Sequential(network, nn.Softmax(dim=-1))


Network = tuple[Callable[[], nn.Module], tuple[int, ...]]
"""What builds it, and the shape of its input."""

NETWORKS: dict[str, Network] = {
    "DS-CNN": (lambda: _with_softmax(DSCNN(norm=nn.BatchNorm2d)), (1, 1, 49, 10)),
    "autoencoder": (Autoencoder, (1, 640)),
    "ResNet-8": (lambda: _with_softmax(ResNet8()), (1, 3, 32, 32)),
    "MobileNetV1-0.25-96 (VWW)": (lambda: _with_softmax(MobileNetV1()), (1, 3, 96, 96)),
    "MobileNetV1-0.25-128": (lambda: mobilenet_v1(0.25), (1, 3, 128, 128)),
    "MobileNetV1-0.25-224": (lambda: mobilenet_v1(0.25), (1, 3, 224, 224)),
    "MobileNetV1-1.0-224": (lambda: mobilenet_v1(1.0), (1, 3, 224, 224)),
    "MobileNetV2-1.0-224": (lambda: mobilenet_v2(1.0), (1, 3, 224, 224)),
    "MobileNetV3-Large": (mobilenet_v3_large, (1, 3, 224, 224)),
    "ResNet-50": (resnet50, (1, 3, 224, 224)),
    "EfficientNet-lite0": (efficientnet_lite0, (1, 3, 224, 224)),
    "FOMO 64": (fomo, (1, 3, 64, 64)),
    "FOMO 72": (fomo, (1, 3, 72, 72)),
}


@dataclass(frozen=True)
class Anchor:
    """A published measurement; the head of `anchors.toml` says what its fields are.

    Raises:
        ValueError: it makes no sense.
    """

    network: str
    target: str
    figure: float
    kind: str
    source: str
    trust: str
    processor: str = "npu"
    clock_mhz: float | None = None
    memory: str = ""
    memory_mode: str = ""
    tool: str = ""
    resolution: float = 0.0
    counter: str = ""
    fitted: bool = False
    left_out: str = ""

    def __post_init__(self) -> None:
        for given, known in ((self.kind, KINDS), (self.trust, TRUST), (self.processor, ("npu", "core"))):
            if given not in known:
                raise ValueError(f"{self.network} on {self.target}: {given!r} is none of {', '.join(known)}.")
        if not self.source or not self.figure > 0:
            raise ValueError(f"{self.network} on {self.target}: a figure above 0, and its source.")
        if self.kind == "ms" and self.clock_mhz is None:
            raise ValueError(f"{self.network} on {self.target}: milliseconds without a clock.")
        if (self.kind == "beats") != bool(self.counter):
            raise ValueError(f"{self.network} on {self.target}: a counter belongs to beats, and to them alone.")
        if self.network not in NETWORKS and not self.left_out:
            raise ValueError(f"There is no network {self.network!r} to hold {self.source} against.")

    @property
    def cycles(self) -> float:
        """Of the processor; instructions are taken for cycles."""
        return self.figure * self.clock_mhz * 1000 if self.kind == "ms" and self.clock_mhz else self.figure

    @property
    def milliseconds(self) -> float:
        """At the processor's clock."""
        assert self.clock_mhz is not None
        return self.cycles / self.clock_mhz / 1000

    def build(self) -> tuple[nn.Module, Tensor]:
        """The network with random weights, the same each time, and an input; images are channels last."""
        make, shape = NETWORKS[self.network]
        torch.manual_seed(0)
        x = torch.randn(shape)
        return make().eval(), x.to(memory_format=torch.channels_last) if x.dim() == 4 else x


@functools.cache
def anchors() -> tuple[Anchor, ...]:
    """All of them, as the file has them.

    Raises:
        ValueError: a row has a field that there is not, or makes no sense.
    """
    known = {f.name for f in fields(Anchor)}
    rows = parse_toml(FILE.read_text(encoding="utf-8"))["anchor"]
    for row in rows:
        if more := row.keys() - known:
            unknown = ", ".join(sorted(more))
            raise ValueError(f"{row.get('network')} on {row.get('target')}: there is no field {unknown}.")
    return tuple(Anchor(**row) for row in rows)


def npu_anchors(backend: str) -> tuple[Anchor, ...]:
    """Those of the NPUs of a family, such as "ethos-u", whose network can be built."""
    from micronpu.targets.registry import find_target

    found = (a for a in anchors() if a.processor == "npu" and a.network in NETWORKS and a.kind != "beats")
    return tuple(a for a in found if find_target(a.target).backend == backend)


def core_anchors() -> tuple[Anchor, ...]:
    """Times of cores alone, but for those of another compiler's kernels, which stand for the energy beside them."""
    known = (a for a in anchors() if a.processor == "core" and a.kind != "uJ")
    return tuple(a for a in known if a.tool != "STM32Cube.AI")
