"""A network for a Cortex-M with CMSIS-NN, as ExecuTorch's example has it: pass manager and bundled program."""

import sys
from pathlib import Path

import torch
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.devtools import BundledProgram
from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
from executorch.exir import ExecutorchBackendConfig, to_edge
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6()),
    *(nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
).eval()
images = [torch.randn(1, 3, 12, 12).to(memory_format=torch.channels_last) for _ in range(4)]
prepared = prepare_pt2e(torch.export.export(model, (images[0],)).module(check_guards=False), CortexMQuantizer())
for image in images:
    prepared(image)
quantized = torch.export.export(convert_pt2e(prepared), (images[0],))
edge = to_edge(quantized, compile_config=cortex_m_edge_compile_config())
passes = CortexMPassManager(edge.exported_program(), target_config=CortexMTargetConfig(CortexM.M55))
edge._edge_programs["forward"] = passes.transform()
program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
case = MethodTestCase(inputs=(images[0],), expected_outputs=quantized.module(check_guards=False)(images[0]))
bundle = BundledProgram(program, [MethodTestSuite(method_name="forward", test_cases=[case])])
Path(sys.argv[1]).write_bytes(program.buffer)
Path(sys.argv[2]).write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))
