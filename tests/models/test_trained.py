"""Trained networks from PyTorch to a `.pte` that runs: delegation, bits, accuracy.

The example's network and two others with some rows run with all tests; every network with all of its rows is slow.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from benchmarks import networks, trained
from benchmarks.networks import TrainedNetwork
from benchmarks.trained import Evaluated
from examples.keyword_spotting import model as keyword_spotting

pytestmark = pytest.mark.models

FEW = {"resnet8": 50, "autoencoder": 10}
# Points of accuracy, and area under the curve. The DS-CNN with BatchNorm loses 0.44 points to its input alone: int8
# steps of 0.6 are coarse for cepstral coefficients with a standard deviation of 1.
MOST_LOSS = dict.fromkeys(networks.NETWORKS, 0.3) | {"autoencoder": 0.015, "autoencoder_litert": 0.015, "dscnn": 0.5}
LEAST_SAME_CLASS = 99.0


def example_network() -> TrainedNetwork:
    """The network that the example ships, with the example's rows; needs no data folder."""
    module, _ = keyword_spotting.dscnn()
    inputs, labels, classes = keyword_spotting.test_rows()
    calibration = [row for (row,) in keyword_spotting.calibration()]
    return TrainedNetwork("example", module, calibration, inputs, labels, tuple(classes), "accuracy %")


@cache
def evaluated(name: str, limit: int | None = None) -> Evaluated:
    if name == "example":
        return trained.evaluate(example_network())
    try:
        network = networks.load(name, limit=limit)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return trained.evaluate(network)


@pytest.fixture(params=["example", *FEW])
def some_rows(request: pytest.FixtureRequest) -> Evaluated:
    return evaluated(request.param, FEW.get(request.param))


@pytest.fixture(params=networks.NETWORKS)
def all_rows(request: pytest.FixtureRequest) -> Evaluated:
    return evaluated(request.param)


def check_exactness(result: Evaluated, interpreted: int) -> None:
    """Reference interpreter, LiteRT's reference kernels and the `.pte` give the same bits."""
    inputs, integers = result.network.inputs, result.integers
    litert = trained.run_rows(integers.litert, inputs)
    assert trained.rows_equal(litert, result.outputs) == len(inputs)
    step = max(1, len(inputs) // interpreted)
    by_definition = trained.run_rows(integers.interpret, inputs[::step])
    assert trained.rows_equal(by_definition, result.outputs[::step]) == len(by_definition)
    assert len(result.outputs.unique()) > 10  # of something


def check_delegation(result: Evaluated) -> None:
    report = result.program.report
    assert (report.delegated, report.partitions, report.host) == (len(report.verdicts), 1, ())
    assert report.delegated > 5


def signal_to_noise(result: Evaluated) -> float:
    """Decibels of the `.pte` against the float network."""
    noise = (result.outputs - result.float_outputs).square().mean()
    return float(10 * torch.log10(result.float_outputs.square().mean() / noise))


@pytest.mark.sweep
def test_delegation(some_rows: Evaluated) -> None:
    check_delegation(some_rows)


@pytest.mark.sweep
def test_three_ways_give_the_same_bits(some_rows: Evaluated) -> None:
    check_exactness(some_rows, interpreted=10)


def test_int8_is_near_float(some_rows: Evaluated) -> None:
    # Measured: 27.4 dB and more.
    assert signal_to_noise(some_rows) > 25.0


def test_single_operators_are_one_step_from_eager_mode(some_rows: Evaluated) -> None:
    """Given the same integers, every operator computes what the `convert_pt2e` model does, to one step."""
    differences = trained.operator_steps(some_rows, some_rows.network.inputs[:3])
    assert len(differences) > len(some_rows.integers.graph.nodes) // 2
    assert max(int(d.abs().max()) for d in differences.values()) <= 1
    # A step is the exception: two roundings instead of one, and float32 in eager mode.
    assert torch.cat(list(differences.values())).ne(0).double().mean() < 0.01


def test_example_accuracy() -> None:
    """One of 300 rows is 0.33 points."""
    result = evaluated("example")
    assert result.network.score(result.float_outputs) - result.network.score(result.outputs) < 0.5
    assert trained.same_class(result.outputs, result.eager_outputs) >= LEAST_SAME_CLASS


@pytest.mark.slow
def test_every_network_is_delegated(all_rows: Evaluated) -> None:
    check_delegation(all_rows)


@pytest.mark.slow
def test_every_network_is_exact(all_rows: Evaluated) -> None:
    check_exactness(all_rows, interpreted=50)


@pytest.mark.slow
def test_every_operator_is_one_step_from_eager_mode(all_rows: Evaluated) -> None:
    differences = trained.operator_steps(all_rows, all_rows.network.inputs[:10])
    assert max(int(d.abs().max()) for d in differences.values()) <= 1


@pytest.mark.slow
def test_loss(all_rows: Evaluated) -> None:
    network = all_rows.network
    loss = network.score(all_rows.float_outputs) - network.score(all_rows.outputs)
    assert loss <= MOST_LOSS[network.name]


@pytest.mark.slow
def test_not_below_the_published_int8_files(all_rows: Evaluated) -> None:
    network = all_rows.network
    reference = trained.run_reference(network)
    if reference is None:
        assert network.name not in trained.REFERENCE_FILES
        return
    most = 0.3 if network.metric == "accuracy %" else 0.015
    assert network.score(all_rows.outputs) > network.score(reference) - most


@pytest.mark.slow
def test_same_class_as_eager_mode(all_rows: Evaluated, request: pytest.FixtureRequest) -> None:
    if all_rows.network.metric != "accuracy %":
        assert all_rows.steps.abs().le(1).double().mean() > 0.99
        return
    if all_rows.network.name == "resnet8":
        reason = "98.93 %: 15 rows of 1405; in 7 of them the two highest scores are the same int8 number"
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=False))
    assert trained.same_class(all_rows.outputs, all_rows.eager_outputs) >= LEAST_SAME_CLASS
