"""Every row of the operator tests: reference interpreter, LiteRT's reference kernels and the `.pte`, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pytest
import torch
from tests.cases import SAMPLES, Array, Case, all_cases
from tests.runtime import neutron_programs as programs

from micronpu.emit.litert import to_litert
from micronpu.ir import Graph, Stage, interpret, verify
from micronpu.neutron.compile import compile_graph
from micronpu.neutron.options import NeutronCompileOptions
from micronpu.passes.pipeline import LEGALIZE
from micronpu.runtime import HostProgram

ROWS = all_cases()
PROGRAMS = [
    pytest.param(rows[start : start + 60], id=f"{family}-{start}")
    for family, found in groupby(ROWS, key=lambda row: row.family)
    for rows in [list(found)]
    for start in range(0, len(rows), 60)
]


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
    for number, inputs in enumerate(row.samples):
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


@pytest.mark.parametrize("rows", PROGRAMS)
@pytest.mark.parametrize("channels_last_border", [False, True], ids=["plain", "channels_last_border"])
def test_program_is_reference(rows: list[Case], channels_last_border: bool):
    """The way of a real partition: all passes, emission, converter, payload, `.pte`, ExecuTorch's runtime."""
    graphs = [row.graph() for row in rows]
    references = [graph.clone() for graph in graphs]
    options = NeutronCompileOptions(use_neutron_for_format_conversion=not channels_last_border)
    compiled = compile_graph(union(graphs), options)

    def tensors(sample: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(a) for row in rows for a in row.samples[sample])

    outputs = tuple(torch.zeros(g.outputs[0].shape, dtype=torch.int8) for g in references)
    problems = []
    with HostProgram(programs.pte(compiled.payload, tensors(0), outputs)) as program:
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
