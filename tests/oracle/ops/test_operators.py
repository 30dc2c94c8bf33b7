"""Every row of the operator tests: reference interpreter, LiteRT's reference kernels and the `.pte`, bit for bit."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import SAMPLES, Array, Case, all_cases, case, i8
from tests.runtime import neutron_programs as programs
from torch import fx

from micronpu.emit.litert import to_litert
from micronpu.ir import Graph, Stage, interpret, verify
from micronpu.ops.softmax import Softmax
from micronpu.partition.outline import DelegateCall
from micronpu.partition.write import MethodInput, written
from micronpu.passes.pipeline import LEGALIZE
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.compile import NeutronPartition, compile_graph
from micronpu.targets.neutron.options import NeutronOptions

ROWS = all_cases()
ROWS_PER_PROGRAM = 60  # a delegate call has at most 255 inputs


def operator_of(row: Case) -> tuple[str, str]:
    return row.family, row.op.name


def programs_of(rows: list[Case]) -> Iterator[Any]:
    """Rows of one operator at a time.  Transposes at the border may also be left to the core, as an option says."""
    for (family, name), found in groupby(sorted(rows, key=operator_of), key=operator_of):
        together = list(found)
        for start in range(0, len(together), ROWS_PER_PROGRAM):
            some = together[start : start + ROWS_PER_PROGRAM]
            yield pytest.param(some, False, id=f"{family}-{name}-{start}")
            if name == "transpose":
                yield pytest.param(some, True, id=f"{family}-{name}-{start}-core_converts")


PROGRAMS = list(programs_of(ROWS))


def legal(graph: Graph) -> Graph:
    """The graph in a form that LiteRT can express, and nothing else done to it: the operator of the row stays."""
    for step in LEGALIZE:
        step.run(graph)
    graph.rename()
    verify(graph, Stage.LITERT)
    return graph


def difference(expected: Array, got: Array, what: str) -> str:
    """One line on where two results differ, or ""."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{what}: {got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
    wrong = np.argwhere(expected != got)
    if not len(wrong):
        return ""
    first = tuple(int(i) for i in wrong[0])
    return f"{what}: {len(wrong)} of {got.size} elements differ, {list(first)} is {got[first]}, not {expected[first]}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_reference_is_litert(row: Case):
    graph = row.graph()
    legalized = legal(graph.clone())
    model = programs.interpreter(to_litert(legalized).data)
    problems = []
    for number in row.litert_samples:
        inputs = row.samples[number]
        (expected,) = interpret(graph, inputs)
        (after_passes,) = interpret(legalized, inputs)
        (got,) = programs.invoke(model, *inputs)
        problems += [difference(expected, after_passes, f"sample {number}, legalized graph")]
        problems += [difference(expected, got, f"sample {number}, LiteRT")]
    assert not any(problems), "\n".join([str(row), *filter(None, problems)])


def union(graphs: Sequence[Graph]) -> Graph:
    """One graph that computes all of them side by side, so that a whole family is one program."""
    return Graph(
        [t for g in graphs for t in g.inputs],
        [t for g in graphs for t in g.outputs],
        [n for g in graphs for n in g.nodes],
    )


def finished(compiled: NeutronPartition, inputs: tuple[torch.Tensor, ...], outputs: list[torch.Tensor]) -> bytes:
    """The `.pte` of a program that is one partition, made as `micronpu.compile` makes it."""
    graph, root = fx.Graph(), torch.nn.Module()
    root.call = DelegateCall("NeutronBackend", compiled, [], inputs, outputs)
    called = graph.call_module("call", tuple(graph.placeholder(f"x{i}") for i in range(len(inputs))))
    graph.output(tuple(graph.call_function(operator.getitem, (called, i)) for i in range(len(outputs))))
    return written({"forward": MethodInput(fx.GraphModule(root, graph), inputs)}).buffer


@pytest.mark.sweep
@pytest.mark.parametrize(("rows", "core_converts"), PROGRAMS)
def test_program_is_reference(rows: list[Case], core_converts: bool):
    """The way of a real partition: all passes, emission, converter, payload, `.pte`, ExecuTorch's runtime."""
    graphs = [row.graph() for row in rows]
    references = [graph.clone() for graph in graphs]
    options = NeutronOptions(use_neutron_for_format_conversion=not core_converts)
    compiled = compile_graph(union(graphs), options)

    def tensors(sample: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(a) for row in rows for a in row.samples[sample])

    outputs = [torch.zeros(g.outputs[0].shape, dtype=getattr(torch, g.outputs[0].type.dtype.value)) for g in references]
    problems = []
    with HostProgram(finished(compiled, tensors(0), outputs)) as program:
        for sample in range(SAMPLES):
            results = program.run(*tensors(sample))
            for row, reference, result in zip(rows, references, results, strict=True):
                (expected,) = interpret(reference, row.samples[sample])
                found = difference(expected, result.numpy(), f"{row.name}, sample {sample}")
                problems += [f"{found}\n    {row}"] if found else []
    assert not problems, "\n".join(problems)


def test_the_comparison_sees_a_difference():
    """A result that is off by one in one place must be found; otherwise nothing above could fail."""
    row = ROWS[0]
    (expected,) = interpret(row.graph(), row.samples[4])
    changed = expected.copy()
    changed.reshape(-1)[-1] ^= 1
    assert difference(expected, expected, "x") == ""
    assert "1 of" in difference(expected, changed, "x")
    assert "instead of" in difference(expected, expected[..., None], "x")


def test_a_wide_softmax_does_not_end_the_process(tmp_path: Path):
    """LiteRT's reference kernel aborts where exponentials add up to 512 or more, so the runtime computes it itself."""
    row = case(Softmax(), x=i8(2, 512, scale=0.1))
    graph = row.graph()
    flat = np.zeros((2, 512), np.int8)
    flat[1, ::5] = 3
    (expected,) = interpret(graph, [flat])
    x = torch.from_numpy(flat)
    with HostProgram(finished(compile_graph(graph, NeutronOptions()), (x,), [x])) as program:
        (got,) = program.run(x)
        (recorded,) = program.profile(x, etdump=tmp_path / "etdump")
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(recorded.numpy(), expected)
