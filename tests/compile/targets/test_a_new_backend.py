"""A family is its folder and its place in the list: a toy that stands nowhere else goes through every door."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from tests.compile.targets.toy import CHIP
from tests.compile.targets.toy.backend import Toy, ToyOptions, ToyRecipeType
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError
from micronpu.cli import inspection
from micronpu.cli.main import app
from micronpu.recipes.providers import provider_of
from micronpu.targets.registry import BACKENDS, all_targets, catalogue, device_for, find_target, options_for


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setitem(BACKENDS, "toy", Toy())


@pytest.fixture
def chip(tmp_path):
    path = tmp_path / "toyboard.toml"
    path.write_text(CHIP)
    return path


def test_its_targets(chip):
    assert all_targets()["toy-1"].backend == "toy"
    target = find_target(str(chip))
    assert (target.name, target.backend, target.silicon) == ("toyboard-toy", "toy", "toy-4")
    assert options_for(target) == ToyOptions(silicon="toy-4", bounces=50)
    assert device_for(str(chip)).target == "toyboard-toy"
    listing = CliRunner().invoke(app, ["targets", str(chip)]).stdout
    assert "toyboard-toy" in listing and "Toy T1" in listing and "toy-1" in listing


def test_what_is_refused(chip):
    chip.write_text(CHIP.replace("lanes = 4", "lanes = 4\nrubber = true"))
    with pytest.raises(OptionError, match="has the field `rubber`, which there is not"):
        find_target(str(chip))
    chip.write_text(CHIP.replace("lanes = 4", "lanes = 3"))
    with pytest.raises(OptionError, match="cannot be used: There is no toy 'toy-3'"):
        find_target(str(chip))
    chip.write_text(CHIP.replace('family = "toy"', 'family = "tyo"'))
    with pytest.raises(OptionError, match=r"is 'tyo'.*Try: one of .neutron., .*.toy."):
        find_target(str(chip))
    with pytest.raises(OptionError, match="The target ethos-u55-128 takes EthosUOptions"):
        options_for(find_target("ethos-u55-128"), ToyOptions())


def test_its_options_on_the_command_line(chip):
    text = CliRunner().invoke(app, ["compile", "--help-all"]).stdout
    assert "--bounces" in text and "--silicon" not in text  # the target decides that one
    done = CliRunner().invoke(app, ["check", "m.py:f", "-t", "imxrt700", "--bounces", "3"])
    assert done.exit_code and "The option --bounces is for Toy, but" in " ".join(done.stderr.split())


def test_its_payloads_and_rewrites():
    assert inspection._delegate("ToyBackend", b"TOY1").kind == "made for play"
    assert inspection._delegate("ToyBackend", b"dog").objection == "No toy. Try: a toy."
    assert catalogue()["Games"] == {"catch": "Catches."}


@pytest.mark.slow  # the plug-in is compiled with the toy's file in it
def test_its_delegate_and_its_simulator(tmp_path):
    """In a process of its own: a `.pte` whose calls the toy's simulator computes, with the right numbers."""
    done = subprocess.run([sys.executable, "-m", "tests.compile.targets.toy", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["backends"] == ["ToyBackend", "ToyBackend"]
    assert reported["delegated"] == ["sigmoid.default", "tanh.default"]
    assert any("The toy computes functions of one int8 number." in reason for reason in reported["reasons"])
    verified, runs = reported["runs"]
    assert verified > 0 and runs >= verified + 2 * 2 * 8  # two calls, of two programs, for eight inputs
    assert reported["equal"] == [True, True] and "The payload is no toy." in reported["refused"]
    assert "2 toys were thrown." in reported["notes"]


def test_what_its_device_takes():
    device = device_for("toy-1")
    x = (torch.randn(1, 8, generator=torch.Generator().manual_seed(0)),)
    found = micronpu.check(nn.Sequential(nn.Sigmoid(), nn.Linear(8, 8)).eval(), x, "toy-1")
    (partition,) = found.partitions
    assert [node.op.name for node in partition.chosen.nodes] == ["sigmoid"] and device.backend == "ToyBackend"


def test_its_recipes(chip):
    x = (torch.ones(1, 8),)
    assert micronpu.get_chip_recipe(str(chip), calibration=[x], bounces=3).name == "toyboard-toy_int8"
    provider = provider_of(BACKENDS["toy"])()
    assert (type(provider).__name__, provider.backend_name) == ("ToyRecipeProvider", "toy")
    assert provider.get_supported_recipes() == (ToyRecipeType.INT8,) and provider.backend.options is ToyOptions
    assert provider.create_recipe(ToyRecipeType.INT8, calibration=[x], bounces=3).name == "ToyRecipeType.INT8"
    with pytest.raises(OptionError, match="There is no toy 'yo-yo'"):
        provider.create_recipe(ToyRecipeType.INT8, silicon="yo-yo")
