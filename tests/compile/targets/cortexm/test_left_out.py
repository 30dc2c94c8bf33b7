"""Cores whose maker has left out an extension, under our names, ExecuTorch's, and in a chip file."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.cortex_m.library import cmsis_nn
from torch import nn

import micronpu
from micronpu.base.errors import OptionError
from micronpu.chips.core import CORES, InstructionSet, find_core
from micronpu.cortexm import CortexM, CortexMOptions, CortexMPassManager, CortexMQuantizer, CortexMTargetConfig
from micronpu.neutron import QuantizationConfig
from micronpu.targets.registry import device_for, find_target

CHIP = """
name = "lean"
title = "A Cortex-M55 without MVE"
source = "made up"
[core]
name = "{core}"
instructions = "{instructions}"
[[target]]
name = "lean-core"
title = "the core"
"""


def chip(tmp_path, core: str = "cortex-m55", instructions: str = "DSP") -> str:
    path = tmp_path / "lean.toml"
    path.write_text(CHIP.format(core=core, instructions=instructions))
    return str(path)


@pytest.mark.parametrize("core", CORES)
def test_only_what_can_be_left_out_is(core: str):
    own = CORES[core].instructions
    able = [i.value for i in InstructionSet if _is_possible(core, i.value)]
    assert own.value in able and len(able) <= 2
    assert find_core(core, own.value) == find_core(core)
    assert find_core(core, able[0]).instructions is InstructionSet(able[0])
    optional = {"cortex-m33": "SCALAR", "cortex-m35p": "SCALAR", "cortex-m55": "DSP", "cortex-m85": "DSP"}
    assert [i for i in able if i != own.value] == ([optional[core]] if core in optional else [])


def _is_possible(core: str, instructions: str) -> bool:
    try:
        find_core(core, instructions)
    except OptionError as error:
        assert f"A {core.title()} cannot have '{instructions}'" in str(error)
        return False
    return True


def test_executorchs_names():
    config = CortexMTargetConfig(CortexM.M55, isa=cmsis_nn.Backend.DSP)
    assert (config.target_string, config.backend) == ("cortex-m55", InstructionSet.DSP)
    assert config.options == CortexMOptions("cortex-m55", instructions="DSP")
    assert CortexMTargetConfig.from_target_string("cortex-m55") == CortexMTargetConfig("cortex-m55")
    assert CortexMTargetConfig(CortexM.M55).options == CortexMOptions("cortex-m55")
    with pytest.raises(OptionError, match="A Cortex-M0 cannot have 'MVE'"):
        CortexMTargetConfig(CortexM.M0, isa="MVE")
    with pytest.raises(OptionError, match="`isa` is"):
        CortexMTargetConfig(CortexM.M55, isa="NEON")
    with pytest.raises(OptionError, match="CMSIS-NN does not run on the core 'cortex-m99'"):
        CortexMTargetConfig.from_target_string("cortex-m99")
    with pytest.raises(OptionError, match=r"the device does not compute with int16"):
        CortexMQuantizer(QuantizationConfig(activations="int16"))
    program = torch.export.export(nn.ReLU(), (torch.zeros(1, 2),))
    with pytest.raises(OptionError, match="`passes` are ExecuTorch's own"):
        CortexMPassManager(program, passes=[])  # type: ignore[arg-type]


def test_a_chip_without_mve(tmp_path):
    path = chip(tmp_path)
    assert find_target(path).core == find_core("cortex-m55", "DSP")
    rows = [torch.randn(1, 8) for _ in range(3)]
    model = nn.Linear(8, 4).eval()
    how = micronpu.Quantization(io="int8", per_channel=False)
    lean, whole = (
        micronpu.compile(model, rows[0], target, calibration=rows, quantization=how) for target in (path, "cortex-m55")
    )
    x = torch.randint(-128, 128, (1, 8), dtype=torch.int8)
    assert torch.equal(lean.run(x), whole.run(x)) and lean.buffer != whole.buffer
    lean.deploy(tmp_path / "out", name="lean", target=path)
    assert "-mcpu=cortex-m55+nomve -mfloat-abi=hard" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(OptionError, match=r"for a core with Helium \(MVE\), and the cortex-m55"):
        whole.deploy(tmp_path / "no", name="whole", target=path)
    assert not (tmp_path / "no").exists()


def test_the_options_go_before_the_chip(tmp_path):
    device = device_for("corstone300", None)
    assert device.core is not None and device.core.instructions is InstructionSet.MVE
    alone = device_for("cortex-m33", CortexMOptions("cortex-m33", instructions="SCALAR"))
    assert alone.core is not None and alone.core.instructions is InstructionSet.SCALAR


def test_a_chip_file_with_what_the_core_cannot_have(tmp_path):
    with pytest.raises(OptionError, match="A Cortex-M7 cannot have 'SCALAR'"):
        find_target(chip(tmp_path, "cortex-m7", "SCALAR"))
