"""Fuzzes everything that reads files: ``python -m tests.fuzz`` (`make fuzz`).

    python -m tests.fuzz --files 50000                 so many mutated files, shared out among the targets
    python -m tests.fuzz --seconds 3600 --seed 7       as many as an hour takes
    python -m tests.fuzz --target chips --files 1000   one target
    python -m tests.fuzz --show chips 17 > file.toml   the mutated file of a number

Programs that are not among the golden ones are compiled first, unless MICRONPU_FUZZ_PROGRAMS names a folder that
`python -m tests.fuzz.programs` has written.  The plug-in is built with AddressSanitizer and UndefinedBehaviorSanitizer,
in a cache of its own, and the process starts itself again with the sanitizer in front.  Counts go to
`benchmarks/results/fuzz.json`.  The exit code is 1 where there is a defect: an exception that is no `MicroNpuError`, a
report of a sanitizer that names our library, or a hang.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.harness import Counts, file_of, fuzz
from tests.fuzz.targets import FURTHER, TARGETS

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
SANITIZED = "g++ -fsanitize=address,undefined -fno-sanitize=vptr -fno-omit-frame-pointer -g1"
_MARK = "MICRONPU_FUZZ_SANITIZED"


def restart_with_sanitizers() -> None:
    """Replaces this process by one with AddressSanitizer in front of everything, if it is none."""
    if os.environ.get(_MARK):
        return
    logs = Path(tempfile.mkdtemp(prefix="micronpu-fuzz-"))
    # The second as well, or the sanitizer does not find the function that throws exceptions.
    names = ("libasan.so", "libstdc++.so.6")
    ask = [["g++", f"-print-file-name={name}"] for name in names]
    libraries = [subprocess.run(a, capture_output=True, text=True, check=True).stdout.strip() for a in ask]
    cache = Path(tempfile.gettempdir()) / f"micronpu-fuzz-cache-{os.getuid()}"
    asan = (
        "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096:hard_rss_limit_mb=6000:handle_abort=1"
    )
    environment = {
        **os.environ,
        _MARK: str(logs),
        "CXX": SANITIZED,
        "MICRONPU_CACHE_DIR": str(cache),
        "ASAN_OPTIONS": f"{asan}:log_path={logs}/sanitizer:detect_odr_violation=0:fast_unwind_on_malloc=1",
        "UBSAN_OPTIONS": f"symbolize=0:print_stacktrace=1:halt_on_error=1:log_path={logs}/sanitizer",
        "OMP_NUM_THREADS": "1",
    }
    # The compiler itself must not run with the sanitizer in front.
    subprocess.run([sys.executable, "-c", "from micronpu.runtime import build_plugin; build_plugin()"], env=environment)
    if FURTHER not in os.environ:
        environment[FURTHER] = tempfile.mkdtemp(prefix="micronpu-fuzz-programs-")
        subprocess.run([sys.executable, "-m", "tests.fuzz.programs", environment[FURTHER]], check=True)
    environment["LD_PRELOAD"] = " ".join(libraries)
    os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]], environment)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Mutated files against all that reads.")
    parser.add_argument("--files", type=int, default=10**9, help="mutated files in all")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="all unless given")
    parser.add_argument("--show", nargs=2, metavar=("TARGET", "NUMBER"), help="write one mutated file")
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.show:
        sys.stdout.buffer.write(file_of(TARGETS[options.show[0]](), options.seed, int(options.show[1])))
        return 0
    restart_with_sanitizers()
    logs = Path(os.environ[_MARK])
    targets = [TARGETS[name]() for name in options.target or TARGETS]
    shares = sum(t.share for t in targets)
    started, counts = time.monotonic(), dict[str, Counts]()
    for each in targets:
        part = each.share / shares
        found = counts[each.name] = fuzz(
            each, options.seed, max(1, round(options.files * part)), logs, options.seconds * part
        )
        print(f"{each.name}: {found.files} files in {found.seconds:.0f} s, {dict(found.outcomes)}", flush=True)
        for defect in found.defects[:10]:
            print(f"  {defect}", flush=True)
        if found.crashes:
            print(f"  crashes elsewhere: files {found.crashes[:10]}", flush=True)
    total = {
        "files": sum(c.files for c in counts.values()),
        "crashes in micronpu": sum(c.outcomes["crash in micronpu"] for c in counts.values()),
        "crashes elsewhere, which isolation turns into sentences": sum(
            c.outcomes["crash elsewhere"] for c in counts.values()
        ),
        "hangs over 10 s": sum(c.outcomes["hang"] for c in counts.values()),
        "other defects": sum(c.outcomes["defect"] for c in counts.values()),
        "peak megabytes of a process, under AddressSanitizer": max(c.peak_megabytes for c in counts.values()),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(total, indent=1))
    content = {"seeds": [options.seed], "total": total, "targets": {n: c.to_dict() for n, c in counts.items()}}
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{options.result}; sanitizer logs and files that showed something: {logs}")
    return 1 if any(c.defects for c in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
