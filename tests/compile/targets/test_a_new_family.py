"""A family is its folder and its place in the list: a toy that stands nowhere else goes through every door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from executorch.export import RecipeType
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError, PayloadError
from micronpu.chips import Chip
from micronpu.chips.core import Core
from micronpu.cli import inspection
from micronpu.cli.main import app
from micronpu.recipes.providers import provider_of
from micronpu.report.inspection import Delegate
from micronpu.targets.catalogue import catalogue
from micronpu.targets.cortexm.device import CortexMDevice
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.family import Family, Target
from micronpu.targets.options import Options
from micronpu.targets.registry import FAMILIES, all_targets, device_for, find_target, options_for

CHIP = """
name = "toyboard"
title = "Toy board"
source = "imagination"
core = { name = "cortex-m33", clock_mhz = 100 }
target = [{ name = "toyboard-toy", title = "Toy", aliases = ["toyboard"] }]

[npu]
family = "toy"
variant = "T1"
clock_mhz = 50
lanes = 4
"""


@dataclass(frozen=True, kw_only=True)
class ToyOptions(Options):
    """What a user can choose about a toy.

    Attributes:
        silicon: its name.
        bounces: how high it is thrown.
    """

    maker: ClassVar[str] = "ToyOptions().to_specs()"

    silicon: str = "toy-1"
    bounces: int = 1

    def __post_init__(self) -> None:
        if self.silicon not in ("toy-1", "toy-4"):
            raise OptionError(f"There is no toy {self.silicon!r}.", hint="toy-1 or toy-4")


class ToyRecipeType(RecipeType):
    INT8 = "toy_int8"

    @classmethod
    def get_backend_name(cls) -> str:
        return "toy"


class Toy(Family):
    name = "toy"
    title = "Toy"
    usual = "toy-1"
    backend = "ToyBackend"

    @property
    def options(self) -> type[ToyOptions]:
        return ToyOptions

    def silicon(self, chip: Chip) -> str:
        return f"toy-{chip.npu.fields('lanes').integer('lanes')}"

    def bare(self) -> Mapping[str, str]:
        return {"toy-1": "a toy whatever the chip"}

    def defaults(self, target: Target) -> dict[str, Any]:
        return {"bounces": int(target.chip.npu.clock_mhz)} if target.chip is not None else {}

    def device(self, options: ToyOptions, name: str = "", core: Core | None = None) -> CortexMDevice:
        return CortexMDevice(CortexMOptions(silicon="cortex-m33"), name or options.silicon)

    def inspect(self, payload: bytes) -> Delegate:
        if not payload.startswith(b"toy"):
            raise PayloadError("No toy.", hint="a toy")
        return Delegate(self.backend, len(payload), kind="made for play")

    def rewrites(self) -> dict[str, dict[str, str]]:
        return {"Games": {"catch": "Catches."}}

    def recipes(self) -> type[RecipeType]:
        return ToyRecipeType


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", Toy())


@pytest.fixture
def chip(tmp_path):
    path = tmp_path / "toyboard.toml"
    path.write_text(CHIP)
    return path


def test_its_targets(chip):
    assert all_targets()["toy-1"].family == "toy"
    target = find_target(str(chip))
    assert (target.name, target.family, target.silicon) == ("toyboard-toy", "toy", "toy-4")
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
    text = CliRunner().invoke(app, ["compile", "--help"]).stdout
    assert "--bounces" in text and "--silicon" not in text  # the target decides that one
    done = CliRunner().invoke(app, ["check", "m.py:f", "-t", "imxrt700", "--bounces", "3"])
    assert done.exit_code and "The option --bounces is for Toy, but" in " ".join(done.stderr.split())


def test_its_payloads_and_rewrites():
    assert inspection._delegate("ToyBackend", b"toy").kind == "made for play"
    assert inspection._delegate("ToyBackend", b"dog").objection == "No toy. Try: a toy."
    assert catalogue()["Games"] == {"catch": "Catches."}


def test_its_programs_and_recipes(chip):
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), (torch.ones(1, 8),)
    program = micronpu.compile(model, x, str(chip), calibration=[x], options=ToyOptions(silicon="toy-4", bounces=2))
    assert program.report.target == "toyboard-toy"
    assert micronpu.get_chip_recipe(str(chip), calibration=[x], bounces=3).name == "toyboard-toy_int8"
    provider = provider_of(FAMILIES["toy"])()
    assert (type(provider).__name__, provider.backend_name) == ("ToyRecipeProvider", "toy")
    assert provider.get_supported_recipes() == (ToyRecipeType.INT8,) and provider.options is ToyOptions
    assert provider.create_recipe(ToyRecipeType.INT8, calibration=[x], bounces=3).name == "ToyRecipeType.INT8"
    with pytest.raises(OptionError, match="There is no toy 'yo-yo'"):
        provider.create_recipe(ToyRecipeType.INT8, silicon="yo-yo")
