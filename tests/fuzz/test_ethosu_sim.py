"""Command streams changed at random, under AddressSanitizer and UBSan: no crash, no hang, always an answer."""

from __future__ import annotations

import re
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cases import all_cases
from tests.ethosu_differences import known

from micronpu.base.errors import MicroNpuError
from micronpu.host.build import find_compiler, source_directory
from micronpu.targets.ethosu.compile import compile_graph
from micronpu.targets.ethosu.options import EthosUOptions

HARNESS = Path(__file__).with_name("ethosu_sim_fuzz.cpp")
FLAGS = ("-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TARGETS = {
    "ethos-u55-32": (55, 32),
    "ethos-u65-512": (65, 512),
    "ethos-u85-256": (85, 256),
    "ethos-u85-1024": (85, 1024),
}
ROWS_PER_TARGET = 40
CHANGES = 100


def seeds(folder: Path) -> list[Path]:
    """Streams that Vela makes of our rows, other ones for every target."""
    files = []
    rows = all_cases()
    for number, (target, (family, macs)) in enumerate(TARGETS.items()):
        for row in rows[number :: len(rows) // ROWS_PER_TARGET]:
            try:
                compiled = compile_graph(row.graph(), EthosUOptions(target))
            except MicroNpuError:
                continue
            if known(row, compiled.plan.format, target):  # Vela's own stream may already be refused
                continue
            program = compiled.program
            head = struct.pack(
                "<6I",
                family,
                macs,
                len(program.commands),
                len(program.constants),
                program.scratch_size,
                program.fast_scratch_size,
            )
            files.append(folder / f"{target}-{row.name}")
            files[-1].write_bytes(head + program.commands + program.constants)
    return files


@pytest.mark.slow
def test_changed_streams(tmp_path: Path) -> None:
    sources = [*sorted((source_directory() / "ethosu_sim").glob("*.cpp")), HARNESS]
    include = source_directory() / "ethosu_sim"

    def compiled(source: Path) -> Path:
        object_ = tmp_path / f"{source.stem}.o"
        command = (*find_compiler(), *FLAGS, "-I", str(include), "-c", str(source), "-o", str(object_))
        subprocess.run(command, check=True)
        return object_

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    harness = tmp_path / "fuzz"
    subprocess.run((*find_compiler(), *FLAGS, *map(str, objects), "-o", str(harness)), check=True)
    files = seeds(tmp_path)
    assert len(files) > 2 * ROWS_PER_TARGET
    command = (str(harness), "0", str(CHANGES), *map(str, files))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    counts = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", done.stdout)}
    assert sum(counts.values()) == len(files) * CHANGES
    # The streams as they are run, and some changes go unnoticed; others are refused.
    assert counts["ok"] >= len(files) // 2 and counts["invalid"] >= len(files)
