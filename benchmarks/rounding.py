"""How many results are a step off the quantized model: by bits of the weights, and of softmax in int16 behind a mask.

    python -m benchmarks.rounding

The program rounds products twice, as LiteRT does, the quantized model once; the share grows with the steps of weights.
Layers are random, 16 calibration rows and 8 others.  What a mask hides has a weight in an int16 softmax, too: its
exponential ends some steps above zero.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from benchmarks import results
from torch import Tensor, nn

import micronpu
from micronpu.frontend.program import is_dequantize

TARGETS = ("imxrt700", "ethos-u55-128", "ethos-u85-256", "cortex-m55")
BITS = (8, 5, 4)
IMAGE, ROWS = (1, 16, 16, 16), (1, 64, 64)


def _conv(groups: int = 1) -> nn.Module:
    return nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=False)


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "depthwise convolution": (lambda: _conv(16), IMAGE),
    "convolution": (_conv, IMAGE),
    "linear": (lambda: nn.Linear(64, 64, bias=False), ROWS),
    "two convolutions": (lambda: nn.Sequential(_conv(), _conv()), IMAGE),
}


class Hidden(nn.Module):
    """A softmax behind a mask that the program is given."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(x.masked_fill(mask > 0.5, -1e9), -1)


def _steps_off(program: micronpu.CompiledProgram, inputs: tuple[Tensor, ...]) -> Tensor:
    """How many steps each result of a call is off the quantized model."""
    quantized: Any = program.quantized
    step = [n.args[1] for n in quantized.graph.nodes if is_dequantize(n)][-1]
    found: Tensor = ((torch.as_tensor(program.run(*inputs)) - quantized(*inputs)).abs() / step).round()
    return found


def of_layer(name: str, bits: int, target: str) -> dict[str, Any]:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model = make().eval()
    data = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(24)]
    settings = {"default": {"weight_bits": bits}}
    quantization = micronpu.Quantization(settings=settings)
    program = micronpu.compile(model, data[0], target, calibration=data[:16], quantization=quantization)
    off = torch.cat([_steps_off(program, (x,)).flatten() for x in data[16:]])
    percent = round(100 * float((off > 0).float().mean()), 2)
    return {"layer": name, "bits": bits, "target": target, "percent": percent, "most": int(off.max())}


def of_softmax(width: int, activations: Any, target: str) -> dict[str, Any]:
    random = torch.Generator().manual_seed(3)
    data = [(2 * torch.randn(1, 8, width, generator=random), _mask(width, random)) for _ in range(24)]
    quantization = micronpu.Quantization(activations=activations)
    program = micronpu.compile(Hidden().eval(), data[0], target, calibration=data[:16], quantization=quantization)
    hidden = [torch.as_tensor(program.run(*inputs)) * inputs[1] for inputs in data[16:]]
    step = {"int8": 1 / 256, "int16": 1 / 32768}[activations]
    return {
        "softmax": width,
        "activations": activations,
        "target": target,
        "hidden_steps": round(max(float(h.max()) for h in hidden) / step, 2),
        "hidden_share": round(max(float(h.sum(-1).max()) for h in hidden), 6),
    }


def _mask(width: int, random: torch.Generator) -> Tensor:
    mask = (torch.rand(1, 8, width, generator=random) > 0.5).float()
    mask[..., 0] = 0.0
    return mask


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [of_layer(name, bits, target) for target in TARGETS for name in LAYERS for bits in BITS]
    ethosu = [target for target in TARGETS if target.startswith("ethos")]
    rows += [of_softmax(n, kind, t) for t in ethosu for kind in ("int8", "int16") for n in (16, 64, 197)]
    for row in rows:
        print(row)
    results.write("rounding", "python -m benchmarks.rounding", rows)


if __name__ == "__main__":
    main()
