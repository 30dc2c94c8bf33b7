"""`make canary`: run the tests in a separate environment with the newest torch, torchao and ExecuTorch that pip finds.

    python scripts/canary.py                  the newest within the pins of pyproject.toml
    python scripts/canary.py --beyond         the newest of all, regardless of the pins
    python scripts/canary.py -- tests/unit    other tests than all that are not slow

It prints the versions, the private or deprecated names that do not fit (see `micronpu.upstream`), and the failed tests
by the name in their error.  The environment is kept, for a second run and for repairs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from micronpu.upstream.shim import SEEN  # noqa: E402

_AT_A_SHIM = re.compile(r"(?:has no|has other parameters, \(.*?\), of) `([\w.:]+)`, without which")
ELSEWHERE = "at none of them"
"""Group of failed tests whose errors contain no private name."""


def by_shim(report: str) -> dict[str, list[str]]:
    """Return the failed tests by the private name in their errors.

    Args:
        report: of pytest, in JUnit's XML.
    """
    found: dict[str, list[str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        errors = [e for kind in ("failure", "error") for e in case.findall(kind)]
        if errors:
            texts = " ".join(f"{e.get('message') or ''} {e.text or ''}" for e in errors)
            shims = dict.fromkeys(_AT_A_SHIM.findall(texts)) or {ELSEWHERE: None}
            for shim in shims:
                found.setdefault(shim, []).append(f"{case.get('classname')}.{case.get('name')}")
    return found


def misfits(doctor: Mapping[str, object]) -> list[str]:
    """Return the misfits in the output of `micronpu doctor --upstream --json`."""
    findings = doctor["findings"]
    assert isinstance(findings, list)
    return [f"{f['name']}: {f['found'] or f['remedy']}" for f in findings if not f["good"] and is_shim(f["name"])]


def is_shim(name: str) -> bool:
    """Return True if a finding of the doctor is a private name."""
    return name.partition(":")[0].partition(".")[0] in SEEN and (":" in name or "." in name)


def summary(versions: Mapping[str, str], wrong: Sequence[str], failed: Mapping[str, Sequence[str]]) -> str:
    """Return the result as text."""
    lines = [f"{package} {version} (tested with {SEEN[package]})" for package, version in versions.items()]
    lines += ["", f"{len(wrong)} private names do not fit" + (":" if wrong else ".")]
    lines += [f"  {line}" for line in wrong]
    lines += [
        "",
        f"{sum(map(len, failed.values()))} tests failed" + (", by the name that they failed at:" if failed else "."),
    ]
    for shim, tests in sorted(failed.items(), key=lambda item: -len(item[1])):
        lines += [f"  {shim}: {len(tests)}", *(f"    {test}" for test in tests)]
    return "\n".join(lines)


def _install(python: Path, *, beyond: bool) -> None:
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--upgrade"]
    index = subprocess.run(
        [str(python), "scripts/torch_index.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    options = index.stdout.split()
    pinned = re.findall(r'"(torch(?:vision)?==[0-9.*]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    subprocess.run([*pip, *pinned, *options], cwd=ROOT, check=True)
    subprocess.run([*pip, "-e", ".[dev]", *options], cwd=ROOT, check=True)
    if beyond:  # pip reports the pins that this violates, and continues
        subprocess.run([*pip, *SEEN, "torchvision", *options], cwd=ROOT, check=True)


def _versions(python: Path) -> dict[str, str]:
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", program, *SEEN], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _doctor(python: Path) -> list[str]:
    done = subprocess.run(
        [str(python), "-m", "micronpu.cli", "doctor", "--upstream", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    try:
        return misfits(json.loads(done.stdout))
    except ValueError:
        return [
            f"`micronpu doctor` itself: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'nothing'}"
        ]


def _test(python: Path, report: Path, tests: Iterable[str]) -> dict[str, list[str]]:
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-m", "not slow", "--rows", "all", f"--junit-xml={report}", *tests]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if not report.exists():
        return {ELSEWHERE: ["pytest itself, which wrote no report"]}
    return by_shim(report.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beyond", action="store_true", help="the newest versions, regardless of the pins")
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-canary", help="folder of the environment, which is kept"
    )
    parser.add_argument("tests", nargs="*", help="arguments for pytest; default: all tests")
    asked = parser.parse_args()
    python = asked.environment / "bin" / "python"
    if not python.exists():
        print(f"==> making {asked.environment}", flush=True)
        venv.create(asked.environment, with_pip=True)
    print("==> installing the newest versions", flush=True)
    _install(python, beyond=asked.beyond)
    versions, wrong = _versions(python), _doctor(python)
    failed = _test(python, asked.environment / "tests.xml", asked.tests)
    print(summary(versions, wrong, failed))
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
