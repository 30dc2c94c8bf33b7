"""Programs that take and give bytes 0 to 255: what the int8 program computes, shifted by 128."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.ethosu import (
    EthosUOptions,
    EthosUPartitioner,
    EthosUQuantizer,
    QuantizationConfig,
    calibrate_and_quantize,
    get_uint8_io_quantization_config,
)
from micronpu.frontend.integers import to_integer_io

U55 = "ethos-u55-128"
ORDERS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def rows(order: str = "contiguous") -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return [(torch.rand(1, 3, 6, 6, generator=made) * 2 - 0.3).to(memory_format=ORDERS[order]) for _ in range(4)]


def compiled(
    target: str, io: str, order: str = "contiguous", model: nn.Module | None = None
) -> micronpu.CompiledProgram:
    batches = rows(order)
    how = micronpu.Quantization(io=io)
    return micronpu.compile((model or Net()).eval(), batches[0], target, calibration=batches, quantization=how)


def picture(order: str = "contiguous") -> torch.Tensor:
    every = torch.arange(108, dtype=torch.int32) * 255 // 107
    return every.to(torch.uint8).reshape(1, 3, 6, 6).to(memory_format=ORDERS[order])


def signed(x: torch.Tensor) -> torch.Tensor:
    return (x.to(torch.int16) - 128).to(torch.int8)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "order"),
    [
        (U55, "contiguous"),
        (U55, "channels last"),
        ("ethos-u85-256", "contiguous"),
        ("imxrt700", "contiguous"),
        ("imxrt700-neutron", "channels last"),
        ("cortex-m55", "contiguous"),
    ],
)
def test_bytes_mean_the_same_qparams(target: str, order: str):
    plain, program = compiled(target, "int8", order), compiled(target, "uint8", order)
    x = picture(order)
    y = program.run(x)
    assert y.dtype is torch.uint8
    assert torch.equal(signed(y), plain.run(signed(x)))
    assert plain.integer_io is not None and program.integer_io is not None
    for own, other in zip(
        (*program.integer_io.inputs, *program.integer_io.outputs),
        (*plain.integer_io.inputs, *plain.integer_io.outputs),
        strict=True,
    ):
        assert (own.scale, own.zero_point) == (other.scale, other.zero_point + 128)
    assert b"quantize_per_tensor" not in program.buffer  # no floats in between
    on_npu = target.startswith("ethos-u")
    assert (b"bitwise_xor" in program.buffer) is not on_npu


def test_a_file_says_what_its_bytes_mean(tmp_path):
    program = compiled("imxrt700", "uint8")
    assert program.integer_io is not None
    x = rows()[1]
    (given,) = program.integer_io.quantize((x,))
    assert given.dtype is torch.uint8
    program.deploy(tmp_path / "out", name="net")
    header = (tmp_path / "out" / "net.h").read_text()
    assert "static inline uint8_t net_quantize_input_0(float value)" in header
    assert f"#define NET_INPUT_0_ZERO_POINT ({program.integer_io.inputs[0].zero_point})" in header


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, 3, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.last
        self.last.copy_(x)
        return torch.relu(y)


def test_states_stay_as_they_are():
    plain, program = compiled(U55, "int8", model=Remembers()), compiled(U55, "uint8", model=Remembers())
    for _ in range(2):
        assert torch.equal(signed(program.run(picture())), plain.run(signed(picture())))


def test_executorchs_flow():
    spec, batches = EthosUOptions(U55), rows()
    quantizer = EthosUQuantizer(spec).set_io(get_uint8_io_quantization_config())
    assert quantizer.io_config is not None and quantizer.io_config.as_bytes
    module = calibrate_and_quantize(torch.export.export(Net().eval(), (batches[0],)), batches, quantizer)
    integer_io = to_integer_io(module, as_bytes=True)
    (x,) = integer_io.quantize((batches[1],))
    expected = module(x)
    lowered = to_edge_transform_and_lower(torch.export.export(module, (x,)), partitioner=[EthosUPartitioner(spec)])
    nodes = [n for n in lowered.exported_program().graph.nodes if n.op == "call_function"]
    assert [n.name for n in nodes if "getitem" not in n.name] == ["executorch_call_delegate"]
    assert expected.dtype is torch.uint8


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Rows(nn.Module):
    def forward(self, x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return x + numbers.float()


def test_what_is_signed_is_refused():
    with pytest.raises(OptionError, match=r"`as_bytes` is about 8 bits.*int16"):
        QuantizationConfig(activations="int16", as_bytes=True)
    with pytest.raises(OptionError, match="`as_bytes` is about inputs and outputs"):
        EthosUQuantizer(EthosUOptions(U55)).set_global(QuantizationConfig(as_bytes=True))
    with pytest.raises(OptionError, match="`io` is 'uint4'; inputs and outputs are int8, uint8, int16"):
        micronpu.Quantization(io="uint4")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="uint8"):
        micronpu.Quantization(activations="uint8")  # type: ignore[arg-type]
    batches = rows()
    wide = EthosUQuantizer(EthosUOptions(U55), io="int16")
    module = calibrate_and_quantize(torch.export.export(Wide().eval(), (batches[0],)), batches, wide)
    with pytest.raises(ModelError, match=r"`x` is int16 .*which cannot be uint8.*io=\"uint8\""):
        to_integer_io(module, as_bytes=True)
    numbers = torch.ones(1, 3, 6, 6, dtype=torch.int8)
    with pytest.raises(MicroNpuError, match="`numbers` is int8; integer inputs are quantized"):
        micronpu.compile(
            Rows().eval(),
            (batches[0], numbers),
            U55,
            calibration=[(b, numbers) for b in batches],
            quantization=micronpu.Quantization(io="uint8"),
        )
