"""`micronpu new`: what it writes works as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from micronpu import __version__
from micronpu.cli.deploy import ACTIONS
from micronpu.cli.main import app

ROOT = Path(__file__).parents[3]


@pytest.mark.sweep
@pytest.mark.parametrize("target", ("imxrt700", "ethos-u55-128", "cortex-m33"))
def test_its_own_workflow_passes(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "fresh", "-t", target])
    assert done.exit_code == 0, done.output
    assert sorted(p.relative_to("fresh").as_posix() for p in Path("fresh").rglob("*") if p.is_file()) == [
        ".github/workflows/micronpu.yml",
        ".gitignore",
        "README.md",
        "model.py",
    ]
    workflow = Path("fresh/.github/workflows/micronpu.yml").read_text()
    command = re.search(r"run: >-\n((?: {10}.*\n)+)", workflow)
    assert command is not None and "$" not in workflow
    monkeypatch.chdir(tmp_path / "fresh")
    micronpu, *words = shlex.split(command[1])
    assert micronpu == "micronpu"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert Path("fresh.pte").stat().st_size > 0
    over = CliRunner().invoke(app, [*words, "--budget", "flash=1K"])
    assert over.exit_code == 3


def test_it_installs_what_can_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a wheel file of the project until the package is on PyPI, which one constant says."""
    monkeypatch.chdir(tmp_path)
    for published in (False, True):
        monkeypatch.setattr("micronpu.base.installed.PUBLISHED", published)
        folder = Path("published" if published else "fresh")
        assert CliRunner().invoke(app, ["new", str(folder), "-t", "corstone300"]).exit_code == 0
        readme, workflow = (folder / name for name in ("README.md", ".github/workflows/micronpu.yml"))
        commands = [line for line in readme.read_text().splitlines() if line.startswith("pip ")]
        install = re.findall(r"run: (pip install \S*micronpu\S*)", workflow.read_text())
        assert install == [commands[-1]] and "-t corstone300" in readme.read_text()
        if published:
            assert install == [f"pip install micronpu=={__version__}"]
            continue
        *_, get, _ = map(shlex.split, commands)
        assert (
            get[:-1] == ["pip", "wheel", "--no-deps", "-w", "wheels"] and (Path(get[-1]) / "pyproject.toml").is_file()
        )
        assert Path("wheels", f"micronpu-{__version__}-py3-none-any.whl").match(install[0].split()[-1])
        assert "wheels" not in (folder / ".gitignore").read_text()


def test_actions_are_those_of_our_own_workflows() -> None:
    ours = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert all(action in ours for action in ACTIONS.values())


@pytest.mark.parametrize(
    ("words", "said"),
    (
        (["fresh"], "No target is given"),
        (["full", "-t", "imxrt700"], "full holds files already"),
        (["my network", "-t", "imxrt700"], "'my network' is the program's too"),
        (["fresh", "-t", "imxrt9000"], "imxrt9000"),
        (["no/such/parent", "-t", "imxrt700"], "does not exist"),
    ),
)
def test_bad_input_writes_nothing(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    done = CliRunner().invoke(app, ["new", *words])
    assert done.exit_code == 1 and said in " ".join(done.output.split())
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "mine"]
