"""How much of common networks runs on the NPU, in how many partitions, and how long the compilation takes.

    python -m benchmarks.coverage                          # all networks
    python -m benchmarks.coverage tv:resnet18 own:unet     # some
    python -m benchmarks.coverage --peer --json rows.json  # beside ExecuTorch's own Neutron flow
    python -m benchmarks.coverage --target ethos-u85-256 --activations int16
    python -m benchmarks.coverage --check --size 64        # decisions on many networks
    python -m benchmarks.coverage --whole 20 --size 64     # compiled, as many as 20 minutes of CPU time do

The networks have random weights with a fixed seed and are calibrated with random data: only operators, partitions and
times are measured. `tv:` and `timm:` need those libraries, which are no dependency of micronpu; without them their
networks are skipped. This gives them without CUDA:

    pip install --no-deps torchvision==0.28.0 timm==1.0.31 huggingface_hub safetensors pyyaml
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks import results
from benchmarks.networks.small import NETWORKS as SMALL
from benchmarks.peers.child import ChildError
from benchmarks.peers.nxp import measure
from torch import Tensor, nn

import micronpu
from micronpu.quantize.config import Activations

TARGET = "imxrt700-neutron"


class DoubleConv(nn.Sequential):
    """Two convolutions with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Segmentation: three levels down by max pool, up by transposed convolution or interpolation, with skips."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.down = nn.ModuleList([DoubleConv(a, b) for a, b in zip((3, 16, 32), widths, strict=True)])
        self.middle = DoubleConv(64, 64)
        self.up = nn.ConvTranspose2d(64, 64, 2, 2)
        self.sides = nn.ModuleList([DoubleConv(128, 32), DoubleConv(64, 16), DoubleConv(32, 16)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.up(self.middle(x))
        for number, block in enumerate(self.sides):
            if number:
                x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skips[-1 - number]], 1))
        result: Tensor = self.head(x)
        return result


class TCN(nn.Module):
    """Time series: causal dilated convolutions with residuals."""

    def __init__(self, width: int = 32, levels: int = 5) -> None:
        super().__init__()
        self.first = nn.Conv1d(12, width, 1)
        self.layers = nn.ModuleList([nn.Conv1d(width, width, 3, dilation=2**i) for i in range(levels)])
        self.head = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            padded = nn.functional.pad(x, (2 * int(layer.dilation[0]), 0))  # type: ignore[index,arg-type]
            x = x + torch.relu(layer(padded))
        result: Tensor = self.head(x[:, :, -1])
        return result


class Recurrent(nn.Module):
    """Time series: one recurrent layer, and a classifier of its last state."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(12, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x)[0][:, -1])
        return result


IMAGE = (1, 3, 224, 224)
_FIXED_SIZE = (
    "deit_tiny_patch16_224",
    "levit_128s",
    "efficientformer_l1",
    "inception_v3",
    "swiftformer_xs",
    "efficientvit_m0",
)

OWN: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "unet": (UNet, ((1, 3, 96, 96),)),
    "tcn": (TCN, ((1, 12, 128),)),
    "gru": (lambda: Recurrent(nn.GRU), ((1, 16, 12),)),
    "lstm": (lambda: Recurrent(nn.LSTM), ((1, 16, 12),)),
    **SMALL,
}

NETWORKS = (
    *(f"tv:{name}" for name in ("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0")),
    *(f"tv:{name}" for name in ("mnasnet0_5", "shufflenet_v2_x0_5", "squeezenet1_1", "resnet18", "resnet50")),
    *(f"tv:{name}" for name in ("regnet_y_400mf", "googlenet", "inception_v3")),
    *(f"timm:{name}" for name in ("mobilenetv4_conv_small", "efficientnet_lite0", "deit_tiny_patch16_224")),
    "timm:convnext_atto",
    *(f"own:{name}" for name in OWN),
)

TIMM = (
    *(
        "levit_128s",
        "mobilevit_xxs",
        "mobilevitv2_050",
        "edgenext_xx_small",
        "fastvit_t8",
        "poolformer_s12",
        "mobileone_s0",
    ),
    *("repvgg_a0", "ghostnet_050", "ghostnetv2_100", "lcnet_050", "tinynet_e", "efficientformer_l1", "convnext_atto"),
    *("convnextv2_atto", "deit_tiny_patch16_224", "coat_lite_tiny", "mnasnet_small", "semnasnet_075", "fbnetc_100"),
    *(
        "mobilenetv4_conv_small",
        "regnetx_002",
        "regnety_002",
        "resnet10t",
        "dla46_c",
        "pvt_v2_b0",
        "tf_efficientnetv2_b0",
    ),
    *("mixnet_s", "skresnet18", "starnet_s1", "repghostnet_050", "efficientvit_b0", "efficientvit_m0", "rexnet_100"),
    *("repvit_m0_9", "swiftformer_xs", "hardcorenas_a", "mobilenetv1_100", "mobilenetv3_small_050", "ese_vovnet19b_dw"),
)
"""Of the small ones; timm's own names."""

WIDE = (*NETWORKS, *(name for name in map("timm:{}".format, TIMM) if name not in NETWORKS))
"""What `--check` and `--whole` look at: classes of networks, not only those that anything was tuned to."""

WIDE_TARGETS = ("imxrt700-neutron", "imxrt700", "ethos-u55-128", "ethos-u85-256")
CHECKED = "coverage_check"
"""The file of their figures."""
ON_ETHOSU = "coverage_ethosu"
"""The file of the figures of `NETWORKS` on Ethos-U."""

_LIBRARIES = {"tv": "torchvision", "timm": "timm"}
_schemas: list[torch.library.Library] = []


class LibraryMissingError(RuntimeError):
    """The library of a network is not installed."""


def library(source: str) -> Any:
    """torchvision or timm.

    Raises:
        LibraryMissingError: it is not installed or cannot be imported.
    """
    # torchvision's wheel is built for CUDA; it imports beside CPU torch once the schemas that it extends are there,
    # and timm imports torchvision.
    if not _schemas:
        _schemas.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                _schemas[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        return importlib.import_module(_LIBRARIES[source])
    except (ImportError, RuntimeError) as error:
        raise LibraryMissingError(f"{_LIBRARIES[source]} cannot be imported: {error}") from error


def build(name: str, size: int = 0) -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    """A network in evaluation mode with random weights, and the shapes of its inputs.

    Args:
        size: height and width of the picture, where the network takes one of any size; its own unless given.

    Raises:
        LibraryMissingError: its library is not installed.
        KeyError: there is no network of this name among micronpu's own.
    """
    source, _, plain = name.partition(":")
    torch.manual_seed(0)
    if source == "own":
        make, shapes = OWN[plain]
        return make().eval(), shapes
    if source == "tv":
        options = {"init_weights": True} if plain in ("googlenet", "inception_v3") else {}
        model = library(source).models.get_model(plain, weights=None, **options)
    else:
        model = library(source).create_model(plain, pretrained=False)
    wanted = 299 if plain == "inception_v3" else IMAGE[-1]
    if size and plain not in _FIXED_SIZE:
        wanted = size
    return model.eval(), ((1, 3, wanted, wanted),)


@torch.no_grad()
def settle(model: nn.Module, x: Tensor) -> None:
    """Gives batch norms the statistics of an input, in place; untrained, they let values vanish."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def train(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        # One row has no deviation: what normalizes single values per channel stays as it is.
        norm.train(given[0].numel() > given[0].shape[1])

    for norm in norms:
        norm.momentum = 1.0
    hooks = [norm.register_forward_pre_hook(train) for norm in norms]
    if norms:
        try:
            model(x)
        except RuntimeError:  # it takes one row only
            model(x[:1])
    for hook in hooks:
        hook.remove()
    model.eval()


def decibels(result: Any, real: Any) -> float:
    """Signal to noise of results against what they should be, all of them together."""
    found, wanted = (
        torch.cat([y.double().flatten() for y in torch.utils._pytree.tree_leaves(ys)]) for ys in (result, real)
    )
    noise = float((found - wanted).square().sum())
    return 10 * math.log10(float(wanted.square().sum()) / max(noise, 1e-30))


def coverage(
    name: str, *, target: str = TARGET, activations: Activations = "int8", samples: int = 2, sqnr: bool = False
) -> dict[str, Any]:
    """Compiles one network.

    Args:
        name: such as "tv:resnet18".
        target: see ``micronpu targets``.
        activations: "int8" or "int16".
        samples: how many random calibration inputs.
        sqnr: whether to run the program, and the quantized module in eager mode, on the first calibration input.

    Returns:
        Counts of operators and partitions, the share of the multiply-accumulates on the NPU, seconds per step and in
        total (building the network excluded), `sqnr` in decibels against the float network, and for every operator on
        the host its count and reasons.

    Raises:
        LibraryMissingError: the network's library is not installed.
        micronpu.MicroNpuError: the network does not compile.
    """
    model, shapes = build(name)
    batches = [tuple(torch.randn(shape) for shape in shapes) for _ in range(samples)]
    if sqnr and len(shapes) == 1:
        settle(model, torch.cat([x for (x,) in batches]))
    start = time.perf_counter()
    program = micronpu.compile(model, batches[0], target, calibration=batches, quantization=activations)
    total = time.perf_counter() - start
    report = program.report
    host: dict[str, dict[str, Any]] = {}
    for verdict in report.host:
        entry = host.setdefault(verdict.operator, {"count": 0, "reasons": Counter()})
        entry["count"] += 1
        entry["reasons"].update(f"{reason.rule}: {reason.detail}" for reason in verdict.reasons)
    row = {
        "network": name,
        "target": report.target,
        "activations": activations,
        "operators": len(report.verdicts),
        "delegated": report.delegated,
        "partitions": report.partitions,
        "macs": report.macs,
        "macs_delegated": report.delegated_macs,
        "cycles": sum(latency.cycles for latency in report.latency),
        "seconds": {"total": total} | program.seconds,
        "host": host,
        "notes": report.notes,
        "pte_bytes": len(program.buffer),
    }
    if sqnr:
        with torch.no_grad():
            real, eager = model(*batches[0]), program.quantized(*batches[0])
            result = program.run(*batches[0], fast=True)
        row["sqnr"] = {"program": decibels(result, real), "eager": decibels(eager, real)}
    return row


def decisions(
    names: Sequence[str],
    targets: Sequence[str],
    size: int,
    *,
    compile_seconds: float = 0.0,
    finished: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Partitions and what stays on the host, of programs that are compiled and run or as `micronpu.check` decides it.

    Args:
        size: of pictures, where a network takes any; 0 for its own.
        compile_seconds: of CPU time, within which networks are begun to be compiled; the others are decided.
        finished: is given each row as soon as it is there.

    Returns:
        A row per network: operators, and per target whether it was compiled or decided, the partitions, the host's
        operators with their counts and one reason each, and of what was run the share of elements that are the
        quantized model's and the largest difference in steps, or an error.
    """
    rows = []
    begun = _cpu_seconds()
    for name in names:
        try:
            model, shapes = build(name, size)
        except LibraryMissingError as error:
            print(f"{name} is skipped: {error}", flush=True)
            continue
        row: dict[str, Any] = {"network": name, "inputs": [list(shape) for shape in shapes], "targets": {}}
        text = f"{name:36}"
        inputs = tuple(torch.randn(shape) for shape in shapes)
        whole = _cpu_seconds() - begun < compile_seconds
        quantized: dict[bool, nn.Module] = {}
        for target in targets:
            of_arm = target.startswith("ethos")  # a family has one quantized module for all of its targets
            found: dict[str, Any] = {"how": "compiled" if whole else "decided"}
            try:
                if whole:
                    source = quantized.get(of_arm, model)
                    data = [inputs] if source is model else None
                    program = micronpu.compile(
                        source, inputs, target, calibration=data, verify=micronpu.Verification(held_out=0)
                    )
                    quantized[of_arm], report = program.quantized, program.report
                    found["bytes"], ran = len(program.buffer), report.agreement
                    if ran is not None and not ran.reason:
                        found["equal"], found["largest"] = ran.equal, ran.largest
                else:
                    report = micronpu.check(model, inputs, target).report
            except micronpu.MicroNpuError as error:
                row["targets"][target] = found | {"error": str(error)}
                text += f"  {target}: error {error}"
                continue
            row["operators"] = len(report.verdicts)
            found |= {
                "partitions": report.partitions,
                "host": dict(Counter(v.operator for v in report.host)),
                "reasons": {v.operator: v.reasons[0].detail for v in report.host if v.reasons},
            }
            row["targets"][target] = found
            text += f"  {target}: {found['how']}, {report.partitions}, host {found['host'] or 'nothing'}"
        rows.append(row)
        finished(row)
        print(text, flush=True)
    return rows


def _cpu_seconds() -> float:
    """Of this process and of those that it has ended."""
    return sum(os.times()[:4])


def keep(row: dict[str, Any]) -> None:
    """Puts a row into the file of figures; what it does not say stays as it was."""
    try:
        rows = {known["network"]: known for known in results.read(CHECKED)}
    except FileNotFoundError:
        rows = {}
    known = rows.get(row["network"], {"targets": {}})
    # A size that is not the one of before makes other figures.
    same = known.get("inputs") == row["inputs"]
    rows[row["network"]] = row | {"targets": (known["targets"] if same else {}) | row["targets"]}
    results.write(CHECKED, "python -m benchmarks.coverage --whole 20 --size 64", list(rows.values()))


def keep_on_ethosu(row: dict[str, Any]) -> None:
    """Writes down a row, beside those of other accelerators and networks that were measured before."""
    before = results.read(ON_ETHOSU) if results.is_there(ON_ETHOSU) else []
    shown = ("network", "target", "operators", "delegated", "partitions", "cycles", "sqnr")
    new = {key: row[key] for key in shown}
    known = {(found["network"], found["target"]): found for found in (*before, new)}
    places = {network: place for place, network in enumerate(NETWORKS)}
    order = sorted(known, key=lambda key: (places.get(key[0], len(places)), *key))
    command = "python -m benchmarks.coverage --sqnr --target ethos-u55-128, and ethos-u85-256"
    results.write(ON_ETHOSU, command, [known[key] for key in order])


def line(row: dict[str, Any]) -> str:
    """One row of the table, and below it the operators on the host."""
    share = f"{row['delegated']}/{row['operators']}"
    text = f"{row['network']:32}{share:>10}{row['partitions']:>6}{row['seconds']['total']:>9.1f}"
    peer = row.get("peer")
    if peer is not None:
        shown = f"{peer['delegated']}/{peer['nodes']}" if "delegated" in peer else "failed"
        text += f"{shown:>12}{peer.get('partitions', ''):>6}{peer.get('seconds', float('nan')):>9.1f}"
    if "sqnr" in row:
        text += f"\n    SQNR: program {row['sqnr']['program']:.1f} dB, eager {row['sqnr']['eager']:.1f} dB"
    for operator, entry in row["host"].items():
        reasons = "; ".join(f"{r} ({n}x)" if n > 1 else r for r, n in entry["reasons"].most_common(3))
        text += f"\n    host: {entry['count']} x {operator}: {reasons}"
    return text


def peer_row(name: str, samples: int) -> dict[str, Any]:
    """What the peer makes of the network; an entry `error` where it fails."""
    try:
        row = measure(name, samples=samples)
    except ChildError as error:
        return {"error": str(error)}
    return {
        "delegated": row["delegated"],
        "nodes": row["edge_compute"],
        "partitions": row["partitions"],
        "seconds": row["seconds"]["total"],
    }


def _with_peers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows; where the peer was not run again, with what it made of the network before."""
    try:
        before = {row["network"]: row["peer"] for row in results.read("coverage") if "peer" in row}
    except FileNotFoundError:
        before = {}
    known = [{"peer": before[row["network"]]} if row["network"] in before else {} for row in rows]
    return [peer | row for peer, row in zip(known, rows, strict=True)]


def main() -> None:
    """Command line: a table, as each network is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--target", default=TARGET, help="see `micronpu targets`; default: %(default)s")
    parser.add_argument("--activations", default="int8", choices=("int8", "int16"))
    parser.add_argument("--samples", type=int, default=2, help="random calibration inputs")
    parser.add_argument("--sqnr", action="store_true", help="run the programs and compare them with the float network")
    parser.add_argument("--peer", action="store_true", help="measure executorch.backends.nxp, too (tv: and timm: only)")
    parser.add_argument("--check", action="store_true", help="decide for many networks, and compile none")
    parser.add_argument("--whole", type=float, default=0.0, metavar="MINUTES", help="compile many, within a CPU time")
    parser.add_argument("--targets", default=",".join(WIDE_TARGETS), help="for --check and --whole, by commas")
    parser.add_argument("--size", type=int, default=0, help="for --check and --whole, height and width of pictures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, - for standard output")
    options = parser.parse_args()
    unknown = [name for name in options.networks if name.partition(":")[0] not in ("own", *_LIBRARIES)]
    unknown += [n for n in options.networks if n.startswith("own:") and n.removeprefix("own:") not in OWN]
    if unknown:
        parser.error(f"no such network: {', '.join(unknown)}. Try: one of {', '.join(NETWORKS)}")
    if options.check or options.whole:
        names = WIDE if options.networks == NETWORKS else options.networks
        seconds = 60 * options.whole
        rows = decisions(names, options.targets.split(","), options.size, compile_seconds=seconds, finished=keep)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=2) + "\n")
        return
    header = f"{'network':32}{'NPU/all':>10}{'parts':>6}{'seconds':>9}"
    print(header + (f"{'peer':>12}{'parts':>6}{'seconds':>9}" if options.peer else ""), flush=True)
    rows = []
    for name in options.networks:
        try:
            row = coverage(
                name,
                target=options.target,
                activations=options.activations,
                samples=options.samples,
                sqnr=options.sqnr,
            )
        except LibraryMissingError as error:
            print(f"{name} is skipped: {error}", flush=True)
            continue
        except micronpu.MicroNpuError as error:
            print(f"{name} does not compile: {error}", flush=True)
            rows.append({"network": name, "error": str(error)})
            continue
        if options.peer and not name.startswith("own:"):
            row["peer"] = peer_row(name, options.samples)
        rows.append(row)
        print(line(row), flush=True)
        if options.sqnr and options.activations == "int8" and options.target.startswith("ethos-u"):
            keep_on_ethosu(row)
    whole = [row["network"] for row in rows] == list(NETWORKS) and options.activations == "int8"
    if whole and options.target == TARGET:
        results.write("coverage", "python -m benchmarks.coverage --peer", _with_peers(rows))
    if options.json is not None:
        text = json.dumps(rows, indent=2)
        if str(options.json) == "-":
            print(text)
        else:
            options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
