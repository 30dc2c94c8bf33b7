"""Random networks whose values are of unequal size: is a program far from float where others are not, without a word?

    python -m tests.fuzz.unequal --networks 300 --targets imxrt700 ethos-u55-128 --out benchmarks/results/unequal.json

The networks of `tests.compile.random_networks`, with inputs and layers whose channels are up to a hundred times larger
than others, as in trained networks and from sensors.  A program is compared with float on inputs that calibration has
not seen, beside three others ways to quantize the same network to int8, which calibrate with the same rows:

- grids: every value of the float program on a grid of its own, from its smallest to its largest value in calibration;
- torchao: `prepare_pt2e` with the quantizer of ExecuTorch's XNNPACK back end, where it leaves nothing in float;
- plain: ours, without any rewrite of the float program.

Wrong is a result more than 3 dB below the best of them, below 30 dB, of which the report says nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from tests.compile.nearness import sqnr_of
from tests.compile.random_networks import RandomNetwork
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.frontend.program import is_dequantize, is_quantize
from micronpu.quantize.data import held_out_rows
from micronpu.quantize.writer import check_rewrites, float_rewrites
from micronpu.targets.registry import device_for

TARGETS = ("imxrt700", "ethos-u55-128", "ethos-u85-256", "cortex-m55")
_ROOT = Path(__file__).resolve().parents[2]
_CALIBRATION, _HELD_OUT = 16, 8
_ALLOWED = 3.0  # dB below the best of the others
_NEAR = 30.0  # dB, above which nobody asks

Row = dict[str, Any]


class Unequal(nn.Module):
    """The network of a seed with channels of unequal size, each input with a size and an offset of its own."""

    def __init__(self, seed: int, length: int = 6) -> None:
        super().__init__()
        self.network = RandomNetwork(seed, length)
        self._random = random.Random(seed + 17)
        for layer in {id(layer): layer for layer in self.network.layers}.values():
            self._stretch(layer)
        self.sizes = [self._sizes(x) for x in self.network.example]

    def forward(self, *inputs: Tensor) -> Any:
        return self.network(*inputs)

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Random inputs."""
        return tuple(x * size + offset for x, (size, offset) in zip(self.network.inputs(seed), self.sizes, strict=True))

    def _sizes(self, x: Tensor) -> tuple[Tensor, float]:
        size = 10 ** self._random.uniform(-1.0, 1.0)
        channels = x.shape[1] if x.dim() > 1 else 1
        factors = torch.tensor([10 ** self._random.uniform(-0.5, 0.5) for _ in range(channels)])
        shape = (1, channels, *[1] * (x.dim() - 2)) if x.dim() > 1 else (1,)
        return size * factors.view(shape), size * self._random.choice((0.0, 0.0, 0.5, 2.0))

    def _stretch(self, layer: nn.Module) -> None:
        """Multiplies the rows of weights with unequal numbers, whose mean stays near 1."""
        weight = getattr(layer, "weight", None)
        if weight is None or weight.dim() == 0:
            return
        factors = torch.tensor([10 ** self._random.uniform(-0.7, 0.3) for _ in range(weight.shape[0])])
        with torch.no_grad():
            weight.mul_(factors.view(-1, *[1] * (weight.dim() - 1)))


class _Ranges(fx.Interpreter):
    """Runs a float program; looks at every value, or puts it on its grid."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.ends: dict[str, tuple[float, float]] = {}
        self.endless: set[str] = set()
        self.rounds = False

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if not isinstance(value, Tensor) or value.dtype != torch.float32 or n.op == "output":
            return value
        if n.op == "get_attr":
            return self._weight(value) if self.rounds and value.dim() > 1 else value
        if not self.rounds:
            low, high = self.ends.get(n.name, (0.0, 0.0))
            known = torch.cat([value.new_zeros(1), value[value.isfinite()]])
            if len(known) <= value.numel():
                self.endless.add(n.name)  # a mask, say
            self.ends[n.name] = min(low, float(known.min())), max(high, float(known.max()))
            return value
        low, high = self.ends[n.name]
        scale = max((high - low) / 255, 1e-12)
        zero = round(-128 - low / scale)
        quantized = torch.fake_quantize_per_tensor_affine(value, scale, max(-128, min(127, zero)), -128, 127)
        return torch.where(value.isfinite(), quantized, value) if n.name in self.endless else quantized

    @staticmethod
    def _weight(value: Tensor) -> Tensor:
        scales = (value.detach().abs().amax(list(range(1, value.dim()))) / 127).clamp(min=1e-12)
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(value.detach(), scales, zeros, 0, -127, 127)


def _exported(model: Unequal) -> fx.GraphModule:
    module = torch.export.export(model, model.inputs(0)).module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def _with_all_qparams(model: Unequal, data: Sequence[Any], held_out: Sequence[Any]) -> list[list[Tensor]]:
    return with_qparams(_exported(model), data, held_out)


def with_qparams(module: fx.GraphModule, data: Sequence[Any], held_out: Sequence[Any]) -> list[list[Tensor]]:
    """What a float program gives for some inputs with every value on a grid of its own, which others have chosen."""
    ranges = _Ranges(module)
    for inputs in data:
        ranges.run(*inputs)
    ranges.rounds = True
    return [_floats(ranges.run(*inputs)) for inputs in held_out]


def _by_torchao(model: Unequal, data: Sequence[Any], held_out: Sequence[Any]) -> list[list[Tensor]]:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    return _prepared(model, data, held_out, quantizer)


def _plain(model: Unequal, data: Sequence[Any], held_out: Sequence[Any], target: str) -> list[list[Tensor]]:
    quantizer = device_for(target).quantizer()
    quantizer.disabled_rewrites = check_rewrites(list(float_rewrites()))
    return _prepared(model, data, held_out, quantizer)


def _prepared(model: Unequal, data: Sequence[Any], held_out: Sequence[Any], quantizer: Any) -> list[list[Tensor]]:
    prepared = prepare_pt2e(_exported(model), quantizer)
    for inputs in data:
        prepared(*inputs)
    converted = convert_pt2e(prepared)
    if left := [n.name for n in converted.graph.nodes if _is_left(n)]:
        raise ValueError(f"in float: {', '.join(left)}")
    return [_floats(converted(*inputs)) for inputs in held_out]


def _is_left(node: fx.Node) -> bool:
    """Whether an operator gives a float that is on no grid."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, Tensor) or value.dtype != torch.float32 or not node.users:
        return False
    return not is_dequantize(node) and not any(map(is_quantize, node.users))


def _floats(results: Any) -> list[Tensor]:
    return [r.detach().float() for r in map(torch.as_tensor, tree_leaves(results))]


def _nearness(wanted: Sequence[list[Tensor]], given: Sequence[list[Tensor]]) -> list[float]:
    pairs = zip(zip(*wanted, strict=True), zip(*given, strict=True), strict=True)
    return [
        round(min(99.0, sqnr_of(torch.cat([w.flatten() for w in ws]), torch.cat([g.flatten() for g in gs]))), 1)
        for ws, gs in pairs
    ]


def look(seed: int, target: str) -> Row:
    """One network on one target."""
    model = Unequal(seed).eval()
    data = [model.inputs(i) for i in range(_CALIBRATION)]
    held_out = [model.inputs(1000 + i) for i in range(_HELD_OUT)]
    row: Row = {"seed": seed, "target": target, "steps": model.network.names}
    with torch.no_grad():
        wanted = [_floats(model(*inputs)) for inputs in held_out]
    row["counts"] = [w.is_floating_point() for w in map(torch.as_tensor, tree_leaves(model(*data[0])))]
    try:
        program = micronpu.compile(model, data[0], target, calibration=data)
        given = [_floats(program.run(*inputs)) for inputs in held_out]
    except MicroNpuError as error:
        return row | {"refused": str(error)}
    row["micronpu"] = _nearness(wanted, given)
    row["warnings"] = [str(w).replace(f"{_ROOT}/", "") for w in program.report.warnings]
    others: dict[str, Callable[..., list[list[Tensor]]]] = {
        "grids": _with_all_qparams,
        "torchao": _by_torchao,
        "plain": partial(_plain, target=target),
    }
    judged = held_out_rows(len(data), None)  # by which the program was judged: others see as little
    seen = [inputs for number, inputs in enumerate(data) if number not in judged]
    for name, other in others.items():
        try:
            row[name] = _nearness(wanted, other(model, seen, held_out))
        except Exception as error:  # a way of others that cannot is none to compare with
            row[name] = f"{type(error).__name__}: {error}"[:100]
    return row | {"wrong": list(_wrong(row))}


def _wrong(row: Row) -> Iterator[str]:
    if row["warnings"]:
        return
    for i, own in enumerate(row["micronpu"]):
        reached = {name: row[name][i] for name in ("grids", "torchao", "plain") if isinstance(row[name], list)}
        best = max(reached, key=reached.__getitem__, default="")
        if best and row["counts"][i] and own < min(_NEAR, reached[best] - _ALLOWED) and math.isfinite(reached[best]):
            yield f"output {i}: {own} dB, {best} {reached[best]} dB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for seed in options.seeds or range(options.first, options.first + options.networks):
        for target in options.targets:
            row = look(seed, target)
            rows.append(row)
            reported = row.get("refused") or f"{row['micronpu']} {row['wrong'] or ''}"
            print(f"{seed} {target}: {reported}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = sum(bool(row.get("wrong")) for row in rows)
    refused = sum("refused" in row for row in rows)
    print(f"{len(rows)} programs, {refused} refused, {wrong} far from float without a word")


if __name__ == "__main__":
    main()
