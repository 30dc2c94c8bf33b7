"""A stream beside its graph while a program runs: what is compared, and what is said of the first difference."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deploy.programs import program
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import OptionError, PayloadError
from micronpu.cli.main import app
from micronpu.compiler.program import CompiledProgram
from micronpu.ethosu import EthosUOptions
from micronpu.host.proof import Reference, reference_of
from micronpu.ops.convolution import Conv2d
from micronpu.runtime import ArrayProgram, HostProgram, RunOptions


def shown(host: HostProgram) -> list[tuple[int, int]]:
    return [(c.equal, c.steps) for c in host.checks.values()]


# In int8 the average of the picture is a transposition and a product, whose result has finer steps than the pool's.
# Of the int16 program Vela makes the transposition in seven parts that are no slices of the result.
@pytest.mark.parametrize(("kind", "compared"), [("ethosu", (5, 5)), ("ethosu_int8", (5, 5)), ("ethosu_int16", (3, 4))])
def test_every_operation_is_compared(kind: str, compared: tuple[int, int]) -> None:
    compiled = program(kind)
    (row, *_) = compiled.rows
    assert torch.equal(compiled.run(*row, check=True), compiled.run(*row))
    assert shown(compiled._host[RunOptions(check=True), "forward"]) == [compared]


def test_what_vela_was_given_judges() -> None:
    """TOSA rounds some sums once that micronpu's interpreter, as LiteRT, rounds twice: its model has the last word."""
    torch.manual_seed(0)
    rows = [torch.randn(1, 24) for _ in range(4)]
    compiled = micronpu.compile(
        torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Softmax(-1)).eval(),
        rows[0],
        "ethos-u85-256",
        calibration=rows,
        quantization="int16",
        options=EthosUOptions("ethos-u85-256", via="tosa"),
    )
    (part,) = compiled.partitions
    graph = part.graph.clone()
    bias = next(t for node in graph.nodes for t in node.inputs if t.data is not None and t.data.dtype == np.int64)
    assert bias.data is not None
    bias.data = bias.data + 100_000
    for reference, refused in (
        (Reference(None, graph, part.written), True),
        (reference_of(graph, part.written, part.flatbuffer), False),
    ):
        host = HostProgram(compiled.buffer, RunOptions(check=True), references={part.payload: reference})
        with pytest.raises(PayloadError, match="another result") if refused else nullcontext():
            host.run(rows[0])


def test_methods_with_one_copy_of_weights_are_compared() -> None:
    from tests.compile.targets.ethosu.test_shared_weights import compiled, rows

    program = compiled("ethos-u55-128", "int8")
    for name, count in (("many", 16), ("one", 1)):
        program.reset()
        program.run(rows(count, 3), method=name, check=True)
    hosts = [host for options, host in vars(program.methods["one"])["_host"].items() if options[0].check]
    assert hosts and all(equal > 0 for host in hosts for equal, _ in shown(host))


def test_the_carried_graph_is_enough() -> None:
    compiled = program("ethosu_int8")
    with ArrayProgram(compiled.buffer, RunOptions(check=True)) as host:
        (got,) = host.run_arrays(*(t.numpy() for t in compiled.rows[0]))
        assert np.array_equal(got, compiled.run(*compiled.rows[0]).numpy())
        assert [(c.equal == c.steps) for c in host.checks.values()] == [True]


def test_the_first_difference_is_named() -> None:
    """A graph of other weights in the first convolution: its operation differs first, with its line."""
    compiled = program("ethosu_int8")
    (part,) = compiled.partitions
    graph = part.graph.clone()
    number, first = next((i, n) for i, n in enumerate(graph.nodes) if isinstance(n.op, Conv2d))
    bias = first.inputs[2]
    assert bias.data is not None
    bias.data = bias.data + 1000
    wrong = {part.payload: Reference(None, graph, part.written)}
    host = HostProgram(compiled.buffer, RunOptions(check=True), references=wrong)
    with pytest.raises(PayloadError) as caught:
        host.run(*compiled.rows[0])
    assert "The command stream computes another result than its graph" in caught.value.what
    assert "values, by up to" in caught.value.what
    line = Path(first.origin.source).name
    assert "; the first that differ inside are " in caught.value.what
    assert f"of step {number}, Conv2d {line}" in caught.value.what


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(OptionError, match=r"carries no integer graph.*carry_graph=True"):
        HostProgram(program("ethosu").buffer, RunOptions(check=True))
    with pytest.raises(OptionError, match="no command stream that runs here, so that there is nothing to check"):
        HostProgram(program("neutron").buffer, RunOptions(check=True))
    with pytest.raises(OptionError, match="check and graph are both on"):
        RunOptions(check=True, graph=True)


def test_a_run_that_fails_leaves_the_next_one_whole() -> None:
    compiled: CompiledProgram = program("ethosu_int8")
    row = compiled.rows[0]
    host = HostProgram(compiled.buffer, RunOptions(check=True))
    (check,) = host.checks.values()
    kept = check.reference
    assert kept is not None

    class Wrong:
        def compute(self, inputs):
            known, outputs = kept.compute(inputs)
            return known, [outputs[0] ^ 1]

        def step(self, operator):
            return kept.step(operator)

    check.reference = Wrong()
    with pytest.raises(PayloadError, match=r"values, by up to 1, of output 0\."):
        host.run(*row)
    check.reference = kept
    assert torch.equal(host.run(*row)[0], compiled.run(*row))


def test_command_line(tmp_path: Path) -> None:
    compiled = program("ethosu_int8")
    path = compiled.save(tmp_path / "model.pte")
    np.save(tmp_path / "x.npy", compiled.rows[0][0].numpy())
    result = CliRunner().invoke(app, ["run", str(path), "-i", str(tmp_path / "x.npy"), "--check"])
    assert result.exit_code == 0, result.output
    assert "The command stream computes what its graph does: all outputs, and" in " ".join(result.output.split())
