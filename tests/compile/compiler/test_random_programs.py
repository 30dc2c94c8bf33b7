"""Random networks (`random_networks`) on every family of targets: they compile, run, and mean the same everywhere.

The seeds are a sample, and those that once found a defect.  Sweeps of some hundreds of seeds per target are a loop
over the same functions.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from tests.compile.random_networks import RandomNetwork

import micronpu
from micronpu.base.quiet import quiet
from micronpu.ethosu import EthosUOptions, EthosUPartitioner
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView
from micronpu.ir import Graph, interpret
from micronpu.ops.matmul import FullyConnected
from micronpu.program.pte import read_pte
from micronpu.quantize.config import Activations
from micronpu.runtime import HostProgram
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for

U55, U85 = "ethos-u55-128", "ethos-u85-256"

# Seed, target, activations, format for Vela.
ROWS: list[tuple[int, str, Activations, str]] = [
    (11, U55, "int8", "auto"),  # a picture channels last: the host's graph took it for contiguous
    (32, U55, "int8", "auto"),  # a slice behind a reduction behind a transpose that others read
    (217, U55, "int8", "tosa"),  # Vela loses an output
    (806, "ethos-u65-512", "int8", "litert"),  # channels last with one channel, read by the host
    (913, "imxrt700-neutron", "int8", "auto"),  # the same for Neutron
    (622, "imxrt700", "int8", "auto"),  # CMSIS-NN asks for too little scratch memory
    (2, "corstone300", "int8", "auto"),
    (43, U55, "int8", "litert"),
    (46, U85, "int8", "auto"),
    (35, U85, "int16", "auto"),
    (25, U55, "int16", "tosa"),
    (29, "imxrt700", "int8", "auto"),
    (38, "imxrt700-neutron", "int8", "auto"),
]


def options(target: str, via: str) -> Options | None:
    return EthosUOptions(target, via=via) if target.startswith("ethos") else None


def compiled(
    seed: int, target: str, activations: Activations, via: str
) -> tuple[RandomNetwork, micronpu.CompiledProgram]:
    network = RandomNetwork(seed)
    calibration = [network.inputs(number) for number in range(4)]
    program = micronpu.compile(
        network,
        network.example,
        target,
        calibration=calibration,
        quantization=activations,
        options=options(target, via),
    )
    return network, program


def tensors(results: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def drawn(graph: Graph) -> list[np.ndarray]:
    """Random inputs over the whole range of integers."""
    rng = np.random.default_rng(1)
    limits = [(t.type.dtype.limits, t) for t in graph.inputs]
    return [rng.integers(low, high + 1, t.shape).astype(t.type.dtype.numpy) for (low, high), t in limits]


@pytest.mark.sweep
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_program_is_the_quantized_network(row: tuple[int, str, Activations, str]) -> None:
    network, program = compiled(*row)
    x = network.inputs(1)
    with torch.no_grad():
        quantized, real = tensors(program.quantized(*x)), tensors(network(*x))
    results = tensors(program.run(*x))
    assert len(results) == len(quantized)
    for y, wanted, exact in zip(results, quantized, real, strict=True):
        assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype)
        # Where eager mode and integers round apart, the step may be amplified as any other error of quantization is.
        allowed = (wanted - exact).abs().max() + 3 * wanted.abs().max() / 127
        assert (y - wanted).abs().max() <= allowed

    device, view = device_for(row[1], options(row[1], row[3])), ProgramView(program.quantized)
    decisions = device.decisions(view)
    partitioning = device.settle(decisions, decisions.partitioning())
    parts = [device.compile(group) for group in partitioning.partitions]
    assert [p.payload for p in parts] == [p.payload for p in program.partitions]
    for group, part in zip(partitioning.partitions, parts, strict=True):
        graph = import_nodes(view, group.nodes, group.inputs, group.outputs, group.images)
        integers = drawn(graph)
        # A fully connected layer of an Ethos-U is a convolution, which rounds a few results the other way.
        exact = "ethos" not in row[1] or not any(isinstance(n.op, FullyConnected) for n in graph.nodes)
        graphs = [*([graph] if exact else []), group.graph, part.graph]
        results = [interpret(g, [i.reshape(t.shape) for i, t in zip(integers, g.inputs, strict=True)]) for g in graphs]
        for found in zip(*results, strict=True):
            for values in found[1:]:
                np.testing.assert_array_equal(found[0].reshape(-1), values.reshape(-1))


@pytest.mark.sweep
@pytest.mark.parametrize(("seed", "target"), [(13, U55), pytest.param(46, U85, marks=pytest.mark.slow)])
def test_both_entries_give_the_same_payloads(seed: int, target: str) -> None:
    """13 has a comparison, whose cast to float ExecuTorch writes in its own words."""
    network, program = compiled(seed, target, "int8", "litert")
    partitioner = EthosUPartitioner(EthosUOptions(target, via="litert"))
    with quiet():
        exported = torch.export.export(program.quantized, network.example)
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
        config = ExecutorchBackendConfig(extract_delegate_segments=False)
        buffer = bytes(edge.to_executorch(config=config).buffer)
    assert read_pte(buffer).payloads == read_pte(program.buffer).payloads
    with HostProgram(buffer) as host:
        for a, b in zip(host.run(*network.example), tensors(program.run(*network.example)), strict=True):
            assert torch.equal(a, b)


SOME: list[tuple[int, str, Activations, str]] = [(19, U55, "int8", "auto"), (18, "imxrt700", "int8", "auto")]


def digests() -> list[str]:
    return [hashlib.sha256(compiled(*row)[1].buffer).hexdigest() for row in SOME]
