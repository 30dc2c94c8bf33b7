"""Compiles and runs a network for every kind of target with what is installed: `python -m tests.default_install`.

Needs no test package, so that it says what an environment can do into which micronpu alone was installed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from importlib import metadata, util
from typing import Any

EXTRA = ("tosa", "tosa_serializer", "tosa_reference_model")
"""The modules that the extra `host` brings."""


def kinds() -> list[str]:
    """A target for each pair of what computes and what is beside it."""
    from micronpu.targets.registry import all_targets

    seen: dict[tuple[Any, ...], str] = {}
    for name, target in all_targets().items():
        chip = target.chip
        silicon = (chip.npu, chip.core) if chip is not None else (target.silicon,)
        seen.setdefault((target.backend, *silicon, target.entry.leftovers), name)
    return list(seen.values())


def compile_and_run(target: str, run: bool) -> str:
    """What one program says of itself, after its result was compared with the float model's where it is run."""
    import torch

    import micronpu

    class LeftOver(torch.nn.Module):
        """What no NPU takes, so that the core or the host has its part."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x.topk(4).values, -1)

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 4), LeftOver()).eval()
    data = [torch.randn(1, 3, 12, 12) for _ in range(4)]
    program = micronpu.compile(model, (data[0],), target=target, calibration=data, verify=run)
    said = f"{program.report.delegated} of {program.report.operators}, {len(program.buffer):,} bytes"
    if not run:
        return said
    error = float((program.run(data[0]) - model(data[0])).abs().max())
    assert error < 0.05, f"{error} off the float model"
    return f"{said}, error {error:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="without any: one of each kind")
    parser.add_argument("--hide-extras", action="store_true", help="as if the extra packages were not installed")
    parser.add_argument("--compile-only", action="store_true", help="where programs cannot run, as on Windows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.hide_extras:
        sys.modules.update(dict.fromkeys(EXTRA))  # type: ignore[arg-type]  # as Python keeps what must not be imported
    else:
        print(f"numpy {metadata.version('numpy')}, extras {[m for m in EXTRA if util.find_spec(m)] or 'none'}")
    failed = 0
    names = given.targets or kinds()
    for name in names:
        try:
            print(f"ok      {name:24} {compile_and_run(name, not given.compile_only)}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name:24} {traceback.format_exc()}", flush=True)
    print(f"{len(names) - failed} of {len(names)} kinds of targets")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
