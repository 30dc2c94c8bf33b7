"""The trained networks reach in float what the data folder's README says, and so does the network of the example."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks import networks
from benchmarks.networks import architectures
from examples.keyword_spotting import model as keyword_spotting

pytestmark = pytest.mark.models

POINTS = 0.15
# Name, score on the evaluation rows, and on the calibration rows and these together where the README gives that figure.
TABLE = [
    ("resnet8", 87.83, None),
    ("resnet20", 91.74, None),
    ("cifarnet", 60.07, None),
    ("dscnn", 91.9, 92.1),
    ("dscnn_folded", 90.8, 91.0),
    ("mobilenetv1", 84.9, 85.2),
    ("autoencoder", 0.871, None),
    ("autoencoder_litert", 0.889, None),
    ("wake_word", None, 91.1),
]


@pytest.fixture(scope="module")
def data_folder() -> Path:
    """The data folder; without it the test is skipped, and pytest's summary (-ra) gives this reason."""
    try:
        return networks.data_folder()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_table_is_complete() -> None:
    assert [name for name, _, _ in TABLE] == list(networks.NETWORKS)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "held_out", "whole"), TABLE, ids=[row[0] for row in TABLE])
@torch.no_grad()
def test_float_score(data_folder: Path, name: str, held_out: float | None, whole: float | None) -> None:
    network = networks.load(name)
    tolerance = POINTS if network.metric == "accuracy %" else POINTS / 100
    outputs = network.module(network.inputs)
    if held_out is not None:
        assert network.score(outputs) == pytest.approx(held_out, abs=tolerance)
    if whole is not None:
        assert network.calibration_labels is not None
        outputs = torch.cat([network.module(torch.cat(network.calibration)), outputs])
        labels = torch.cat([network.calibration_labels, network.labels])
        assert networks.accuracy(outputs, labels) == pytest.approx(whole, abs=tolerance)


@pytest.mark.sweep
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_calibration_rows_are_not_evaluated(data_folder: Path, name: str) -> None:
    network = networks.load(name)
    assert all(row.shape[0] == 1 and row.dtype == torch.float32 for row in network.calibration)
    evaluated = {row.numpy().tobytes() for row in network.inputs}
    assert not any(row[0].numpy().tobytes() in evaluated for row in network.calibration)


@pytest.mark.parametrize(("name", "windows"), [("dscnn", 1), ("autoencoder", 96)])
def test_limit(data_folder: Path, name: str, windows: int) -> None:
    network = networks.load(name, limit=20)
    assert len(network.labels) == 20
    assert len(network.inputs) == 20 * windows
    assert len(network.labels.unique()) > 1
    with torch.no_grad():
        assert network.score(network.module(network.inputs)) > 0.5


def test_unknown_network_lists_the_known() -> None:
    with pytest.raises(ValueError, match="Known: resnet8"):
        networks.load("resnet9")


def test_missing_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MICRONPU_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="Try: set MICRONPU_DATA"):
        networks.load("resnet8")


def test_shortcut_takes_every_second_pixel() -> None:
    x = torch.randn(1, 16, 8, 8)
    expected = torch.nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8))
    assert torch.equal(architectures.ResNet20Block(16, 32, 2).shortcut(x), expected)


@torch.no_grad()
def test_example_on_its_held_out_rows() -> None:
    module, example_inputs = keyword_spotting.dscnn()
    x, y, classes = keyword_spotting.test_rows()
    assert module(*example_inputs).shape == (1, len(classes))
    assert networks.accuracy(module(x), y) == pytest.approx(91.67, abs=POINTS)
    calibrated = {batch[0].numpy().tobytes() for batch in keyword_spotting.calibration()}
    assert not any(row.numpy().tobytes() in calibrated for row in x)


def test_example_ships_the_folded_network(data_folder: Path) -> None:
    shipped, trained = keyword_spotting.dscnn()[0].state_dict(), networks.load("dscnn_folded").module.state_dict()
    assert shipped.keys() == trained.keys()
    assert all(torch.equal(shipped[key], trained[key]) for key in trained)
