"""Inputs and outputs in regions of their own, as the driver of Linux wants them: the same integers; who takes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.compile.random_networks import RandomNetwork
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError, PayloadError, UnsupportedError
from micronpu.board import read_model
from micronpu.cli.main import app
from micronpu.ethosu import EthosUOptions
from micronpu.targets.ethosu.host.simulator import EthosUSimulator, SimulationError
from micronpu.targets.ethosu.payload import parse
from micronpu.targets.registry import find_target, options_for

pytestmark = pytest.mark.filterwarnings("ignore")
INT8 = micronpu.Quantization(io="int8")


class Several(torch.nn.Module):
    """Two inputs and two outputs, one of which is returned as it is computed in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.conv(x)
        return torch.relu(z) + y, z.mean((2, 3))


def pair(model: torch.nn.Module, rows: list[tuple[torch.Tensor, ...]], target: str, **how: object):
    """A program with inputs and outputs apart, and one with them in the scratch memory."""
    spec = options_for(find_target(target))
    made = []
    for separate in (True, False):
        options = EthosUOptions(
            spec.silicon, system_config=spec.system_config, memory_mode=spec.memory_mode, separate_io=separate
        )
        made.append(
            micronpu.compile(
                model, rows[0], target, calibration=rows, options=options, quantization=how.get("quantization", INT8)
            )
        )
    return made


def regions(program: micronpu.CompiledProgram) -> set[int]:
    held = [parse(p.payload) for p in program.partitions]
    return {b.region for h in held for b in (*h.inputs, *h.outputs)}


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imx93", "ethos-u55-128", "ethos-u85-256"])
def test_several_inputs_and_outputs(target: str) -> None:
    torch.manual_seed(0)
    rows = [(torch.randn(1, 3, 8, 8), torch.randn(1, 8, 6, 6)) for _ in range(3)]
    apart, inside = pair(Several().eval(), rows, target)
    assert regions(apart) == {3, 4} and regions(inside) == {1}
    assert parse(apart.partitions[0].payload).commands[:4] == b"COP2"
    x = [torch.randint(-128, 128, t.shape, dtype=torch.int8) for t in rows[0]]
    for a, b in zip(apart.run(*x), inside.run(*x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_random_networks(seed: int) -> None:
    made = RandomNetwork(seed, 6, wide=True)
    rows = [made.inputs(number) for number in range(3)]
    kind = "int16" if seed % 4 == 3 else "int8"
    apart, inside = pair(made, rows, "imx93", quantization=micronpu.Quantization(activations=kind))
    assert regions(apart) == {3, 4}
    for row in rows:
        found, wanted = (p.run(*row) for p in (apart, inside))
        found, wanted = (v if isinstance(v, tuple) else (v,) for v in (found, wanted))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_which_targets_have_them_apart() -> None:
    """A chip whose core runs Linux; not the same chip with ExecuTorch on its microcontroller."""
    assert options_for(find_target("imx93")).separate_io
    for name in ("imx93-m33", "corstone300", "ethos-u65-256"):
        assert not options_for(find_target(name)).separate_io


def test_flags() -> None:
    for flags in (("--separate-io-regions",), ("--separate-io-regions", "--cop-format", "COP2")):
        assert EthosUOptions("ethos-u65-256", extra_flags=flags).is_io_separate
    assert not EthosUOptions("ethos-u65-256", extra_flags=("--cop-format=COP2",)).is_io_separate
    with pytest.raises(OptionError, match="need the driver actions COP2"):
        EthosUOptions("ethos-u65-256", extra_flags=("--separate-io-regions", "--cop-format=COP1"))
    with pytest.raises(OptionError, match="separate_io"):
        EthosUOptions("ethos-u65-256", separate_io="yes")  # type: ignore[arg-type]
    given = EthosUOptions("ethos-u65-256", separate_io=True)
    assert EthosUOptions.from_specs(given.to_specs()) == given
    assert b"separate_io" not in b"".join(k.encode() for k, _ in EthosUOptions("ethos-u65-256").to_pairs())


def test_who_takes_them(tmp_path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    rows = [(torch.randn(1, 3, 8, 8),) for _ in range(3)]
    apart, inside = pair(network, rows, "imx93")
    with pytest.raises(UnsupportedError, match="lie apart from the scratch memory"):
        read_model(apart.buffer)
    assert apart.to_litert(vela=True) == inside.to_litert(vela=True), "LiteRT's delegate has them inside"
    path = tmp_path / "model.pte"
    path.write_bytes(apart.buffer)
    said = CliRunner().invoke(app, ["inspect", str(path)]).output
    assert "inputs + 0" in said and "outputs + 0" in said


def test_damaged_places() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    apart, _ = pair(network, [(torch.randn(1, 3, 8, 8),)] * 2, "imx93")
    payload = bytearray(apart.partitions[0].payload)
    place = payload.index(b"inputs\0") + 32 + 4 + 4 * 7
    x = np.zeros((1, 3, 64), np.int8)
    simulator = EthosUSimulator("ethos-u65-256")
    assert simulator.run(bytes(payload), [x])
    for address in (-1, 1 << 30, 1 << 31):
        payload[place : place + 4] = (address & 0xFFFFFFFF).to_bytes(4, "little")
        with pytest.raises((SimulationError, PayloadError)):
            simulator.run(bytes(payload), [x])
