"""The four MLPerf Tiny networks, lowered for a Cortex-M33 by ExecuTorch's own pipeline, on the host's kernels."""

from __future__ import annotations

import copy
import functools
import time
from typing import NamedTuple

import executorch.examples.models.mlperf_tiny as mlperf_tiny
import pytest
import torch
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
from executorch.backends.cortex_m.target_config import CortexMTargetConfig
from executorch.exir import to_edge
from tests.cortexm_interpreter import call_reference, reference_name, run_reference
from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from micronpu.base.errors import ModelError
from micronpu.runtime import HostProgram

NETWORKS = {
    "DeepAutoEncoder": (640,),
    "DSCNNKWS": (1, 49, 10),
    "MobileNetV1025": (3, 96, 96),
    "ResNet8": (3, 32, 32),
}


class Lowered(NamedTuple):
    edge: ExportedProgram
    program: HostProgram
    inputs: list[torch.Tensor]


def examples(shape: tuple[int, ...], count: int, seed: int = 0) -> list[torch.Tensor]:
    """Inputs of few large patches: noise would look the same to a network that averages over the image."""
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 1:
        return [torch.rand((1, *shape), generator=generator) * 2 - 1 for _ in range(count)]
    patches = [torch.randn((1, shape[0], 3, 3), generator=generator) for _ in range(count)]
    # `to` and not `contiguous`: with one channel the memory is both, and what counts for the export is the strides.
    return [torch.nn.functional.interpolate(x, shape[1:]).to(memory_format=torch.channels_last) for x in patches]


@functools.cache
def lowered(name: str) -> Lowered:
    torch.manual_seed(0)
    model = getattr(mlperf_tiny, name)()
    shape = NETWORKS[name]
    if len(shape) == 3:
        model = model.to(memory_format=torch.channels_last)
    # Untrained weights let the signal fade; statistics of one batch bring each layer's numbers back to size.
    for module in model.modules():
        if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
            module.momentum = 1.0
    with torch.no_grad():
        model(torch.cat(examples(shape, 16)))
    model.eval()
    (x, *_) = inputs = examples(shape, 6, seed=1)
    prepared = prepare_pt2e(
        torch.export.export(model, (x,), strict=True).module(check_guards=False), CortexMQuantizer()
    )
    for example in inputs:
        prepared(example)
    quantized = torch.export.export(convert_pt2e(prepared), (x,), strict=True)
    manager = to_edge(quantized, compile_config=cortex_m_edge_compile_config())
    target = CortexMTargetConfig.from_target_string("cortex-m33")
    edge = CortexMPassManager(manager.exported_program(), target_config=target).transform()
    manager._edge_programs["forward"] = edge
    kept = copy.deepcopy(edge)  # to_executorch() changes the program that it is given
    return Lowered(kept, HostProgram(bytes(manager.to_executorch().buffer)), inputs)


def some(name: str) -> object:
    """The largest network has no operator that the others lack."""
    return pytest.param(name, marks=pytest.mark.slow) if name == "MobileNetV1025" else name


@pytest.mark.sweep
@pytest.mark.parametrize("name", [some(name) for name in NETWORKS])
def test_runtime_is_the_integer_reference(name: str) -> None:
    edge, program, inputs = lowered(name)
    calls = [reference_name(node.target) for node in edge.graph.nodes if node.op == "call_function"]
    assert sum(call is not None for call in calls) >= 12
    outputs = [program.run(x)[0] for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        (expected,) = run_reference(edge, x)
        assert torch.equal(y, expected)
    assert len(torch.cat(outputs).unique()) >= 10, "too little depends on the input"


# With one channel contiguous memory is channels-last memory.
@pytest.mark.parametrize("name", [some(name) for name, shape in NETWORKS.items() if len(shape) == 3 and shape[0] > 1])
def test_contiguous_input_is_refused(name: str) -> None:
    _, program, (x, *_) = lowered(name)
    with pytest.raises(ModelError, match="compiled for channels-last inputs"):
        program.run(x.contiguous())


def test_keyword_spotting_takes_less_than_10_ms() -> None:
    """Of the processor, the best of twenty: a busy machine must not fail the test."""
    _, program, (x, *_) = lowered("DSCNNKWS")
    times = []
    for _ in range(20):
        start = time.process_time()
        program.run(x)
        times.append(time.process_time() - start)
    assert min(times) < 0.010


def test_reference_wants_every_input() -> None:
    edge, _, (x, *_) = lowered("DeepAutoEncoder")
    with pytest.raises(ModelError, match=r"takes 1 input, but got 2\. Try: one per input"):
        run_reference(edge, x, x)


def test_unknown_operator_has_no_reference() -> None:
    with pytest.raises(ModelError, match=r"cortex_m::quantized_lstm has no integer reference"):
        call_reference("quantized_lstm", ())
