"""Runs the tests that are nearest to what a change touches, as many as a minute allows: ``make quick``.

python -m tests.quick                          what differs from the branch `main`, committed or not
python -m tests.quick src/micronpu/ops/tiling.py  the files that are named
python -m tests.quick --list                   which test files, and how near they are

A test file is as near as the number of imports between it and a changed file.  Where it stands for the package of a
changed file, as `tests/compile/targets` does for `src/micronpu/targets`, it is near, too: what a test reaches through
`micronpu.compile` are imports that are made when they are needed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.layers import ROOT, SOURCE

SECONDS = 50.0
"""Of imports and tests; a test that has begun is finished."""
FAR = 3
"""Imports between a test file and a change, beyond which `make test` looks."""
TESTS = ROOT / "tests"


def module_of(path: Path) -> str:
    """``micronpu.ops.reduction`` of `src/micronpu/ops/reduction.py`, ``tests.layers`` of `tests/layers.py`."""
    parts = path.relative_to(SOURCE.parent if path.is_relative_to(SOURCE) else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files() -> dict[str, Path]:
    """The modules of the package and of the tests."""
    return {module_of(path): path for folder in (SOURCE, TESTS) for path in sorted(folder.rglob("*.py"))}


_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)|import\s+([\w.]+))", re.M)


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The known modules that a file imports, also in functions; a syntax tree of each file would take ten seconds."""
    for module, names, alone in _IMPORT.findall(path.read_text(encoding="utf-8")):
        found = [alone] if alone else [module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))]
        yield from (name for name in found if name in known and known[name] != path)


def stands_for(test: Path, changed: Path) -> bool:
    """Whether a test file is in the folder of a changed file's package, or has the name of the changed file."""
    if not changed.is_relative_to(SOURCE):
        return False
    package = changed.relative_to(SOURCE).parts[:-1]
    folder = test.relative_to(TESTS).parts[1:-1]  # behind unit, compile or runtime
    return bool(package) and (folder[: len(package)] == package or test.stem == f"test_{changed.stem}")


def nearest(changed: Iterable[Path], known: Mapping[str, Path]) -> dict[Path, int]:
    """Test files by how many imports lie between them and a change, the nearest first; none that are `FAR`."""
    importers = defaultdict(set)
    for path in known.values():
        for imported in imports(path, known):
            importers[known[imported]].add(path)
    changed = sorted(set(changed) & set(known.values()))
    distance = dict.fromkeys(changed, 0)
    for far in range(FAR):
        edge = [path for path, found in distance.items() if found == far]
        distance |= {path: far + 1 for near in edge for path in importers[near] if path not in distance}
    tests = [path for path in known.values() if path.name.startswith("test_") and path.is_relative_to(TESTS)]
    near = {t: distance.get(t, FAR + 1) for t in tests}
    found = {t: 1 if any(stands_for(t, path) for path in changed) else far for t, far in near.items()}
    return dict(sorted(((t, d) for t, d in found.items() if d <= FAR), key=lambda p: (p[1], near[p[0]], p[0])))


def differing() -> list[Path]:
    """Files that differ from the branch `main`, or from its state where this branch left it."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    (base,) = git("merge-base", "HEAD", "main")
    names = {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    return [ROOT / name for name in sorted(names)]


class Deadline:
    """A plug-in of pytest that ends a run at a time of `time.monotonic`."""

    def __init__(self, end: float) -> None:
        self._end = end

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self._end:
            item.session.shouldstop = "the time is over"


def run(tests: Sequence[Path], seconds: float) -> int:
    """Runs test files one after the other, since importing all of them may take longer than there is."""
    end, codes = time.monotonic() + seconds, {0}
    for number, path in enumerate(tests):
        if time.monotonic() > end:
            print(f"{len(tests) - number} of {len(tests)} test files are left, the farthest. Try: make test")
            break
        print(path.relative_to(ROOT), flush=True)
        arguments = ["-q", "--no-header", "-m", "not slow", str(path)]
        codes.add(int(pytest.main(arguments, plugins=[Deadline(end)])))
    failed = codes - {int(pytest.ExitCode.OK), int(pytest.ExitCode.NO_TESTS_COLLECTED)}
    return max(failed - {int(pytest.ExitCode.INTERRUPTED)}, default=0)


def main(arguments: Sequence[str]) -> int:
    """Runs or lists them; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args(arguments)
    known = files()
    found = nearest([path.resolve() for path in given.files] or differing(), known)
    if given.list:
        print(*(f"{distance} {path.relative_to(ROOT)}" for path, distance in found.items()), sep="\n")
        return 0
    if not found:
        print("No test is near to what differs.")
        return 0
    return run([*found], given.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
