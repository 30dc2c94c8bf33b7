"""What quantization-aware training regains where quantization after training loses much.

    python -m benchmarks.qat
    python -m benchmarks.qat --weight-bits 4 --epochs 8
    python -m benchmarks.qat --weight-bits 4 --per-tensor --corrected   # adds what needs no training

The hard case is MobileNetV1-0.25 of the visual wake words with weights of few bits, simulated on the int8 grid
that holds them, so that the programs are ordinary int8 programs that run.  Half of the labelled images trains,
with the float network's answers as the aim; the other half judges the finished `.pte`.  Needs the data folder
(`benchmarks/networks`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from benchmarks import networks, results
from benchmarks.networks import TrainedNetwork
from benchmarks.trained import run_eager, run_rows
from torch import Tensor, nn
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import micronpu
from micronpu.neutron import NeutronQuantizer, QuantizationConfig, calibrate_and_quantize
from micronpu.quantize.config import Corrections
from micronpu.quantize.observers import for_weights
from micronpu.quantize.qat import quantize_aware_training

TARGET = "imxrt700-neutron"
TEMPERATURE = 2.0
BATCH = 32
LEAST_REGAINED = 0.5


@dataclass(frozen=True)
class FewBits(QuantizationConfig):
    """Weights of fewer bits than the int8 that holds them: symmetric in [-(2**(bits-1) - 1), 2**(bits-1) - 1]."""

    bits: int = 8

    def weight(self, axis: int) -> QuantizationSpec:
        most = 2 ** (self.bits - 1) - 1
        return replace(super().weight(axis), quant_min=-most, quant_max=most)


@dataclass(frozen=True)
class Figures:
    """Accuracy in percent on the rows that nothing was trained or calibrated with, and wall time in seconds."""

    weight_bits: int
    per_channel: bool
    rows: int
    float_accuracy: float
    ptq_accuracy: float
    qat_accuracy: float
    train_seconds: float

    @property
    def regained(self) -> float:
        """Part of what PTQ loses that QAT brings back; 1 where it loses nothing."""
        lost = self.float_accuracy - self.ptq_accuracy
        return (self.qat_accuracy - self.ptq_accuracy) / lost if lost > 0 else 1.0


def split(network: TrainedNetwork) -> tuple[Tensor, TrainedNetwork]:
    """Images to train with, and the network with those that judge it."""
    half = len(network.inputs) // 2
    images = torch.cat([*network.calibration, network.inputs[:half]])
    return images, replace(network, inputs=network.inputs[half:], labels=network.labels[half:])


def teaching(images: Tensor, teacher: nn.Module, epochs: int, rate: float) -> Callable[[nn.Module], None]:
    """A training function: the quantized network learns to answer as the float network does."""

    def train(module: nn.Module) -> None:
        random = torch.Generator().manual_seed(0)
        steps = epochs * (len(images) // BATCH)
        optimizer = torch.optim.Adam(module.parameters(), rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(images), generator=random).split(BATCH):
                if len(rows) < BATCH:
                    continue
                batch = images[rows]
                if torch.rand((), generator=random) < 0.5:
                    batch = batch.flip(3)
                with torch.no_grad():
                    aim = F.softmax(teacher(batch) / TEMPERATURE, 1)
                optimizer.zero_grad()
                F.cross_entropy(module(batch) / TEMPERATURE, aim).backward()
                optimizer.step()
                schedule.step()

    return train


def accuracy(network: TrainedNetwork, quantized: nn.Module) -> float:
    """Of the finished program."""
    program = micronpu.compile(quantized, network.example_inputs, TARGET)
    return network.score(run_rows(program.run, network.inputs))


def after_training(network: TrainedNetwork, config: QuantizationConfig, corrections: Corrections) -> float:
    """Of the program that calibration makes."""
    quantizer = NeutronQuantizer().set_global(config).set_corrections(corrections)
    exported = torch.export.export(network.module, network.example_inputs)
    return accuracy(network, calibrate_and_quantize(exported, network.calibration, quantizer))


def measure(
    weight_bits: int = 4,
    *,
    per_channel: bool = True,
    epochs: int = 8,
    rate: float = 1e-3,
    equalized: bool = False,
    weight_observer: str = "minmax",
) -> Figures:
    """Quantizes after training and in training, and runs both programs.

    Args:
        equalized: layers in a row share their ranges before the training.
        weight_observer: of the training.
    """
    images, network = split(networks.load("mobilenetv1"))
    settings = {"per_channel": per_channel, "bits": weight_bits}
    ptq = after_training(network, FewBits(**settings), Corrections())

    training = FewBits(is_qat=True, freeze_batch_norm=True, weight_observer=weight_observer, **settings)
    during = NeutronQuantizer(is_qat=True).set_global(training).set_corrections(Corrections(equalize=equalized))
    start = time.perf_counter()
    train = teaching(images, network.module, epochs, rate)
    trained = quantize_aware_training(network.module, network.example_inputs, train, during)
    seconds = time.perf_counter() - start
    return Figures(
        weight_bits=weight_bits,
        per_channel=per_channel,
        rows=len(network.inputs),
        float_accuracy=network.score(run_eager(network.module, network.inputs)),
        ptq_accuracy=ptq,
        qat_accuracy=accuracy(network, trained),
        train_seconds=seconds,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weight-bits", type=int, default=4, choices=range(2, 9))
    parser.add_argument("--per-tensor", action="store_true", help="one weight scale per tensor")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate at the beginning")
    parser.add_argument("--equalize", action="store_true", help="equalize layers in a row before the training")
    parser.add_argument("--weight-observer", default="minmax", choices=for_weights(), help="in training")
    parser.add_argument("--corrected", action="store_true", help="only calibration with corrections, beside the rest")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    name = f"qat_{given.weight_bits}_bits" + ("_per_tensor" if given.per_tensor else "")
    name += ("_equalized" if given.equalize else "") + ("_mse" if given.weight_observer == "mse" else "")
    if given.corrected:
        _, network = split(networks.load("mobilenetv1"))
        config = FewBits(per_channel=not given.per_tensor, bits=given.weight_bits)
        both = Corrections(bias_correction=True, adaptive_rounding=True)
        path = results.FOLDER / f"{name}.json"
        told = json.loads(path.read_text())
        told["figures"]["corrected_accuracy"] = after_training(network, config, both)
        path.write_text(json.dumps(told, indent=1) + "\n")
        print(f"{name}: with bias correction and adaptive rounding {told['figures']['corrected_accuracy']:.2f} %")
        return 0
    figures = measure(
        given.weight_bits,
        per_channel=not given.per_tensor,
        epochs=given.epochs,
        rate=given.rate,
        equalized=given.equalize,
        weight_observer=given.weight_observer,
    )
    found = asdict(figures) | {"regained": figures.regained, "epochs": given.epochs}
    results.write(name, " ".join(("python -m benchmarks.qat", *sys.argv[1:])), found)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        scales = "per channel" if figures.per_channel else "per tensor"
        print(f"MobileNetV1-0.25, {figures.weight_bits} weight bits, one scale {scales}, {figures.rows} images")
        print(f"float {figures.float_accuracy:6.2f} %")
        print(f"PTQ   {figures.ptq_accuracy:6.2f} %")
        print(f"QAT   {figures.qat_accuracy:6.2f} %, after {figures.train_seconds:.0f} s of training")
        print(f"QAT regains {100 * figures.regained:.0f} % of what PTQ loses.")
    return 0 if figures.regained >= LEAST_REGAINED else 1


if __name__ == "__main__":
    sys.exit(main())
