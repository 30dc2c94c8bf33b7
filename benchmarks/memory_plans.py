"""Bytes planned for the tensors between calls: ours, the bound that nothing beats, and ExecuTorch's greedy planner.

    python -m benchmarks.memory_plans               # benchmarks/results/memory_plans.json
    python -m benchmarks.memory_plans tv:resnet18   # one of them, and no file

The networks have random weights and are compiled for a core alone, where every tensor is planned.
All three get the same tensors with the same lives, in the same process.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from benchmarks import results
from benchmarks.cortexm_latency import NETWORKS as SMALL
from benchmarks.coverage import build, settle
from executorch.exir.memory_planning import greedy

import micronpu
from micronpu.partition import lower
from micronpu.partition.memory import Lifetime, lower_bound, plan

TARGET = "cortex-m33"
NETWORKS = (
    *SMALL,
    "own:unet",
    "own:tcn",
    "tv:mobilenet_v3_small",
    "tv:shufflenet_v2_x0_5",
    "tv:squeezenet1_1",
    "tv:mnasnet0_5",
    "tv:mobilenet_v2",
    "tv:resnet18",
)
"""Those of MLPerf Tiny, and of `benchmarks.coverage` those that are compiled in a minute."""


def measured(name: str) -> dict[str, Any]:
    """One row: the three sizes, and how long ours takes."""
    found: dict[str, Any] = {}

    def watched(alignment: int, specs: Any, graph_module: Any, signature: Any, extra_padding: int = 0) -> Any:
        specs = list(specs)
        theirs = greedy(alignment, specs, graph_module, signature, extra_padding)
        start = time.perf_counter()
        ours = plan(alignment, specs, graph_module, signature, extra_padding)
        seconds = time.perf_counter() - start
        lives = [Lifetime(s.allocated_memory, *s.lifetime) for s in specs]
        sizes = {"planned": sum(ours.bufsizes), "bound": lower_bound(lives), "greedy": sum(theirs.bufsizes)}
        found.update(network=name, target=TARGET, tensors=len(specs), **sizes, seconds=round(seconds, 3))
        return ours

    lower.plan, before = watched, lower.plan
    try:
        make, shape = SMALL.get(name, (None, ()))
        model, shape = (make().eval(), shape) if make is not None else build(name)
        x = torch.randn(shape)
        if name not in SMALL:
            settle(model, x)
        x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
        micronpu.compile(model, (x,), TARGET, calibration=[(x,)], verify=False)
    finally:
        lower.plan = before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    names = tuple(parser.parse_args().networks)
    rows = []
    for name in names:
        row = measured(name)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if names == NETWORKS:
        results.write("memory_plans", "python -m benchmarks.memory_plans", rows)


if __name__ == "__main__":
    main()
