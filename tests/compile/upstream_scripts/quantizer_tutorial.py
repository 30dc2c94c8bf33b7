"""Parts of a network on grids of their own, as the tutorial on ExecuTorch's quantizers for Ethos-U has it."""

import sys
from pathlib import Path

import torch
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import (
    EthosUQuantizer,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
)
from executorch.backends.arm.quantizer.quantization_config import QuantizationConfig
from executorch.exir import to_edge_transform_and_lower
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationSpec


class Toy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 1, 1)
        self.second = torch.nn.Conv2d(1, 1, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.relu(self.first(x)) * self.second(y)).view((1,))


torch.manual_seed(0)
ones = (torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
spec = EthosUCompileSpec("ethos-u85-256")


def quantized(quantizer: EthosUQuantizer) -> torch.fx.GraphModule:
    module = torch.export.export(Toy().eval(), ones).module(check_guards=False)
    prepared = prepare_pt2e(module, quantizer)
    prepared(*ones)
    return convert_pt2e(prepared)


# by name, by type, and all that is left
parts = EthosUQuantizer(spec, use_composable_quantizer=True)
parts.set_global(get_symmetric_a16w8_quantization_config())
parts.set_module_type(torch.nn.Conv2d, None)
parts.set_node_name(["conv2d", "relu"], get_symmetric_quantization_config())
mixed = quantized(parts)

# with specs and an observer of one's own
symmetric = QuantizationSpec(
    torch.int8, MinMaxObserver, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_symmetric
)
own = EthosUQuantizer(spec, use_composable_quantizer=True)
own.set_global(get_symmetric_quantization_config())
own.set_node_name("conv2d", QuantizationConfig(symmetric, symmetric, None, None))
special = quantized(own)

edge = to_edge_transform_and_lower(torch.export.export(special, ones), partitioner=[EthosUPartitioner(spec)])
Path(sys.argv[1]).write_bytes(edge.to_executorch().buffer)
