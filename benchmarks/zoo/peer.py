"""The same network in int8 by torchao's PT2E with ExecuTorch's XNNPACK quantizer: static, weights per channel.

What that quantizer does not annotate stays in float. It runs in torch: a yardstick for accuracy alone.
"""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo import judge
from benchmarks.zoo.network import Loaded, Network, Outputs
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import micronpu


def run(network: Network, loaded: Loaded) -> Outputs:
    """Quantizes with the calibration rows, and answers the test rows."""
    example = loaded.calibration[0][0] if network.streaming else loaded.calibration[0]
    module = loaded.model
    if module is None:
        shapes = [tuple(t.shape) for t in example] if network.path.suffix == ".onnx" else ()
        module = micronpu.read_model(str(network.path), shapes).module
    exported = torch.export.export(module, tuple(example))
    carried = set(exported.run_decompositions({}).graph_signature.buffers_to_mutate.values())
    states = {k: v.clone() for k, v in module.named_buffers() if k in carried}

    def answer(m: Any, rows: list[Any]) -> Outputs:
        buffers = dict(m.named_buffers())

        def reset() -> None:
            for k, v in states.items():
                buffers[k].copy_(v)

        return judge.outputs(network, rows, m, reset)

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(exported.module(), xnnpack.XNNPACKQuantizer().set_global(config))
    answer(prepared, loaded.calibration)
    return answer(convert_pt2e(prepared), loaded.test)
