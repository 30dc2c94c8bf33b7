"""An addition for an Ethos-U55, as ExecuTorch's page for beginners has it: quantized by PT2E, lowered, saved."""

import sys
from pathlib import Path

import torch
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


ones = (torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
module = torch.export.export(Sum().eval(), ones).module(check_guards=False)
spec = EthosUCompileSpec(
    "ethos-u55-128",
    system_config="Ethos_U55_High_End_Embedded",
    memory_mode="Shared_Sram",
    extra_flags=["--output-format=raw", "--debug-force-regor"],
)
quantizer = EthosUQuantizer(spec)
quantizer.set_global(get_symmetric_quantization_config())
prepared = prepare_pt2e(module, quantizer)
prepared(*ones)
quantized = torch.export.export(convert_pt2e(prepared), ones)
edge = to_edge_transform_and_lower(
    quantized,
    partitioner=[EthosUPartitioner(spec)],
    compile_config=EdgeCompileConfig(_check_ir_validity=False),
)
program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
Path(sys.argv[1]).write_bytes(program.buffer)
