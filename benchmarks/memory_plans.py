"""Bytes planned for the tensors between calls: ours, the bound that nothing beats, and ExecuTorch's greedy planner.

    python -m benchmarks.memory_plans               # benchmarks/results/memory_plans.json
    python -m benchmarks.memory_plans tv:resnet18   # one of them; the others keep their figures

The networks have random weights and are compiled for a core alone, where every tensor is planned.
All three get the same tensors with the same lives, in the same process.  Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import Any

import torch
from benchmarks import results
from benchmarks.cortexm_latency import NETWORKS as SMALL
from benchmarks.coverage import WIDE, build, settle
from executorch.exir.memory_planning import greedy

import micronpu
from micronpu.partition import lower
from micronpu.partition.memory import Lifetime, lower_bound, plan

NAME = "memory_plans"
TARGET = "cortex-m33"
NETWORKS = (*SMALL, *WIDE)
"""Those of MLPerf Tiny, and all of `benchmarks.coverage`."""


def measured(name: str) -> dict[str, Any]:
    """One row: the three sizes, and how long ours takes."""
    found: dict[str, Any] = {}

    def watched(alignment: int, specs: Any, graph_module: Any, signature: Any, extra_padding: int = 0) -> Any:
        specs = list(specs)
        theirs = greedy(alignment, specs, graph_module, signature, extra_padding)
        start = time.process_time()
        ours = plan(alignment, specs, graph_module, signature, extra_padding)
        seconds = time.process_time() - start
        lives = [Lifetime(s.allocated_memory, *s.lifetime) for s in specs]
        sizes = {"planned": sum(ours.bufsizes), "bound": lower_bound(lives), "greedy": sum(theirs.bufsizes)}
        found.update(network=name, target=TARGET, tensors=len(specs), **sizes, seconds=round(seconds, 3))
        return ours

    lower.plan, before = watched, lower.plan
    try:
        if name in SMALL:
            make, shape = SMALL[name]
            model, shapes = make().eval(), (shape,)
        else:
            model, shapes = build(name)
        inputs = tuple(torch.randn(shape) for shape in shapes)
        if name not in SMALL and len(inputs) == 1:
            settle(model, inputs[0])
        inputs = tuple(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs)
        micronpu.compile(model, inputs, TARGET, calibration=[inputs], verify=False)
    finally:
        lower.plan = before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    rows = {row["network"]: row for row in results.read(NAME)} if results.is_there(NAME) else {}
    for name in parser.parse_args().networks:
        rows[name] = measured(name)
        print(json.dumps(rows[name]), flush=True)
        gc.collect()  # large modules refer to themselves
        known = sorted(rows, key=lambda name: NETWORKS.index(name) if name in NETWORKS else len(NETWORKS))
        results.write(NAME, "python -m benchmarks.memory_plans", [rows[name] for name in known])


if __name__ == "__main__":
    main()
