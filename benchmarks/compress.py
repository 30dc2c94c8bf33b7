"""What weights of fewer bits gain on Ethos-U, and what they cost: bytes and cycles by Vela, answers that change.

    python -m benchmarks.compress            # all, about 5 minutes of an idle machine
    python -m benchmarks.compress dscnn      # some; the others keep their figures

From 100 unlabelled inputs and no training, on 500 other rows, as `micronpu.compile(..., compress=...)` does it, and
with corrections of quantization.  `same` is the share of the rows with the same answer as the float network.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import torch
from benchmarks import networks, results

from micronpu.frontend.exported import exported_for_any_batch
from micronpu.quantize.config import Corrections
from micronpu.targets.registry import device_for
from micronpu.transforms.sparsity.entry import round_weights, with_bits
from micronpu.transforms.sparsity.judge import integers, price
from micronpu.transforms.sparsity.layers import FloatNetwork, Moments, batches, find_layers
from micronpu.transforms.sparsity.layers import results as outputs_of

TARGET = "ethos-u55-128"
NAME = "compress"
NETWORKS = ("resnet8", "resnet20", "cifarnet", "dscnn", "mobilenetv1")
SEEN, JUDGED = 100, 500
VARIANTS = {"": Corrections(), "corrected_": Corrections(fit_ranges=True, bias_correction=True)}


def measure(name: str) -> dict[str, Any]:
    given = networks.load(name, limit=JUDGED)
    rows = [(x,) for x in given.calibration[:SEEN]]
    network = FloatNetwork.of(exported_for_any_batch(given.module, rows[0]), rows[0], [[row] for row in rows])
    model, device = network.model, device_for(TARGET).unverified()
    layers, _ = find_layers(model)
    judged = list(batches(model, [(x,) for x in given.inputs.split(1)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = outputs_of(model, judged)[0]
        before = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
        moments = Moments(model, layers, len(rows)).collect(batches(model, rows))
        entries = []
        for bits in (8, 7, 6, 5):
            model.load_state_dict(before)
            if bits < 8:
                round_weights(model, layers, moments, bits)
            entry: dict[str, Any] = {"bits": bits}
            for variant, corrections in VARIANTS.items():
                quantizer = with_bits(device.quantizer().set_corrections(corrections), bits)
                quantized = integers(model, rows, quantizer)
                answers = outputs_of(quantized, judged)[0]
                cost = price(quantized, network.examples, layers, device)
                same = 100 * float((answers.argmax(1) == wanted.argmax(1)).double().mean())
                entry |= {
                    f"{variant}bytes": cost.bytes,
                    f"{variant}cycles": cost.cycles,
                    f"{variant}same": round(same, 1),
                }
                entry[f"{variant}accuracy"] = round(networks.accuracy(answers, given.labels), 1)
            entries.append(entry)
    in_float = round(networks.accuracy(torch.as_tensor(wanted), given.labels), 1)
    return {"network": name, "rows": len(given.inputs), "float_accuracy": in_float, "grids": entries}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(NETWORKS)}; all unless given")
    names = parser.parse_args(arguments).networks or NETWORKS
    figures = {row["network"]: row for row in results.read(NAME)} if results.is_there(NAME) else {}
    for name in names:
        figures[name] = measure(name)
        print(figures[name], flush=True)
        results.write(NAME, "python -m benchmarks.compress", [figures[n] for n in NETWORKS if n in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
