"""A network for i.MX RT700 with a profile of its kernels, as ExecuTorch's pages for NXP have it."""

import sys
from pathlib import Path

import torch
from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import NeutronEdgePassManager
from executorch.backends.nxp.edge_passes.remove_additional_quantize_dequantize_nodes_pass import (
    RemoveAdditionalQDQClustersPass,
)
from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
from executorch.backends.nxp.nxp_backend import core_aten_ops_exception_list, generate_neutron_compile_spec
from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer
from executorch.backends.nxp.quantizer.utils import calibrate_and_quantize
from executorch.devtools import generate_etrecord
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)).eval()
image = (torch.rand(1, 3, 10, 10),)
target = NeutronTargetSpec("imxrt700")
module = calibrate_and_quantize(torch.export.export(model, image), [image, image], NeutronQuantizer(target))
compile_spec = generate_neutron_compile_spec("imxrt700", use_profiling="--profile" in sys.argv)
edge = to_edge_transform_and_lower(
    torch.export.export(module, image),
    partitioner=[NeutronPartitioner(compile_spec, target)],
    compile_config=EdgeCompileConfig(
        _check_ir_validity=False, _core_aten_ops_exception_list=core_aten_ops_exception_list
    ),
)
edge = edge.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))
program = edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))
Path(sys.argv[1]).write_bytes(program.buffer)
generate_etrecord(sys.argv[2], edge, program)
