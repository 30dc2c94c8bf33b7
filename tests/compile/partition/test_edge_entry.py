"""ExecuTorch's own entry, `to_edge_transform_and_lower`: the same payloads and integers as `micronpu.compile`."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from executorch.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.dialects._ops import ops
from tests.compile.small import Small, batches, conv, find, image, linear, quantized
from torch import nn
from torch.fx.passes.infra.pass_base import PassResult

import micronpu
from micronpu.base.quiet import quiet
from micronpu.ethosu import EthosUOptions, EthosUPartitioner
from micronpu.frontend.program import is_dequantize
from micronpu.neutron import (
    NeutronEdgePassManager,
    NeutronPartitioner,
    NeutronTargetSpec,
    generate_neutron_compile_spec,
)
from micronpu.runtime import HostProgram
from micronpu.targets.ethosu import compile, plans

EXAMPLE = Path(__file__).parents[3] / "examples" / "keyword_spotting" / "model.py"


def partitioner(**options) -> NeutronPartitioner:
    return NeutronPartitioner(generate_neutron_compile_spec("imxrt700", **options), NeutronTargetSpec("imxrt700"))


def lower(module, inputs, chosen: Partitioner, **options):
    """The `.pte` as ExecuTorch's users make it."""
    with quiet():
        exported = torch.export.export(module, inputs)
        edge = to_edge_transform_and_lower(exported, partitioner=[chosen], **options)
        return edge.to_executorch(config=ExecutorchBackendConfig(extract_delegate_segments=False))


def payloads(program) -> list[bytes]:
    """Delegate blobs of a program in the order of its calls."""
    emitted = program.executorch_program
    (plan,) = emitted.execution_plan
    return [bytes(emitted.backend_delegate_data[d.processed.index].data) for d in plan.delegates]


def assert_both_entries_agree(
    model: nn.Module,
    *inputs: torch.Tensor,
    data=None,
    partitions: int = 1,
    same_arguments=True,
    copies: int = 0,
    **options,
):
    """Same verdicts, same payload bytes, same results; returns what the second entry made.

    Args:
        copies: of results whose axes lie in an order that no payload can name, which only ExecuTorch's entry needs.
    """
    data = data or batches(inputs)
    compiled = micronpu.compile(model, inputs, "imxrt700-neutron", calibration=data)
    chosen = partitioner()
    program = lower(compiled.quantized, inputs, chosen, **options)
    entries = payloads(program), [p.payload for p in compiled.partitions]
    if same_arguments:
        assert entries[0] == entries[1]
    else:
        assert list(map(len, entries[0])) == list(map(len, entries[1])) and entries[0][0] == entries[1][0]
    assert chosen.report is not None
    assert chosen.report.partitions == compiled.report.partitions == partitions
    assert chosen.report.delegated == compiled.report.delegated + copies
    with HostProgram(program.buffer) as host:
        for batch in data:
            expected = compiled.run(*batch)
            expected = expected if isinstance(expected, tuple) else (expected,)
            results = host.run(*batch)
            assert len(results) == len(expected)
            assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    return SimpleNamespace(report=chosen.report, program=program, compiled=compiled)


# ---------------------------------------------------------------- the same as the front door


@pytest.mark.slow
def test_the_example():
    spec = importlib.util.spec_from_file_location("keyword_spotting", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, inputs = example.dscnn()
    made = assert_both_entries_agree(model, *inputs, data=example.calibration()[:6])
    assert made.report.share == 1.0


def test_a_residual_block_of_two_inputs():
    def forward(s, x, y):
        return F.relu(s.b(s.d(F.relu(s.c(x)))) + y), x

    model = Small(forward, c=conv(), d=conv(), b=nn.BatchNorm2d(8))
    made = assert_both_entries_agree(model, image(), image(1, 8, 6, 6))
    assert made.report.share == 1.0


def test_the_plans_of_a_partition_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitioner, which sees no weights, asks Vela once whether it takes a partition; the back end plans."""
    asked: Counter[str] = Counter()
    real = plans.compiled

    def counted(graph, emitted, *arguments):
        asked[graph.first_operator()] += 1
        return real(graph, emitted, *arguments)

    for module in (plans, compile):
        monkeypatch.setattr(module, "compiled", counted)
    model = Small(lambda s, x: s.d(F.relu(s.c(x))), c=conv(), d=conv())
    compiled = micronpu.compile(model, image(), "ethos-u55-128", calibration=batches((image(),)), verify=False)
    assert len(compiled.partitions) == len(asked) == 1
    by_compile = sum(asked.values())
    asked.clear()
    program = lower(compiled.quantized, (image(),), EthosUPartitioner(EthosUOptions("ethos-u55-128")))
    assert sum(asked.values()) == by_compile + 1
    assert payloads(program) == [p.payload for p in compiled.partitions]


@pytest.mark.sweep
def test_every_kind_of_operator_behind_a_convolution():
    """Those that ExecuTorch would decompose are kept whole for the NPU."""

    def forward(s, x):
        y = s.c(x)
        return (
            y.view(1, -1),
            y.permute(0, 2, 3, 1),
            F.softmax(y, 1),
            F.hardtanh(y, -1.0, 1.0),
            F.hardtanh(y, -0.7, 1.3),
            F.max_pool2d(y, 2),
            F.max_pool2d(y, 3, 2, 1),
            F.avg_pool2d(y, 2),
            F.adaptive_avg_pool2d(y, 1),
            y.mean((2, 3)),
            torch.cat([y, x, s.d(x)], 1),
            F.relu6(y),
            torch.sigmoid(y) + 1.0,
            F.dropout(y, 0.5, False),
            s.l(F.max_pool2d(y, 6).flatten(1)),
        )

    made = assert_both_entries_agree(Small(forward, c=conv(), d=conv(8, 4), l=linear()), image(), copies=1)
    assert made.report.share == 1.0


@pytest.mark.sweep
def test_host_operators_between_partitions():
    """Weights are read by two partitions; branches of the second differ in length, so that sorting may mix them."""

    def forward(s, x):
        y = s.c(x)
        z = torch.erf(y) * 2
        left, right = s.c(F.relu(s.c(z))), F.max_pool2d(s.d(z), 3, 1, 1)
        return F.softmax(s.l((left + right + s.d(z)).mean((2, 3))), -1), y

    model = Small(forward, c=conv(), d=conv(8, 8, 1), l=linear())
    made = assert_both_entries_agree(model, image(), partitions=2)
    assert {v.operator for v in made.report.host} == {"erf.default"}


@pytest.mark.sweep
def test_a_later_partition_of_several_inputs():
    """ExecuTorch may pass the arguments in another order; apart from that all is the same."""

    def forward(s, x):
        y = s.c(x)
        z = torch.erf(y)
        return s.l(s.c(z).mean((2, 3))) + s.l(y.mean((2, 3))) + s.l(torch.erf(y.mean((2, 3)))), z

    made = assert_both_entries_agree(Small(forward, c=conv(), l=linear()), image(), partitions=2, same_arguments=False)
    assert [v.operator for v in made.report.host] == ["erf.default"] * 2


def test_outputs_that_are_inputs_or_one_value_twice():
    def forward(s, x):
        y = s.c(x)
        return x, y, y, F.dropout(x, 0.5, False)

    assert_both_entries_agree(Small(forward, c=conv()), image())


def test_a_program_that_stays_on_the_host():
    made = assert_both_entries_agree(Small(lambda s, x: torch.erf(x.reshape(1, -1))), image(), partitions=0)
    assert payloads(made.program) == []


def test_integers_beside_the_npu():
    def forward(s, x, i):
        return s.c(x) + s.e(i).view(1, 8, 1, 1), i + i

    model = Small(forward, c=conv(), e=nn.Embedding(5, 8))
    assert_both_entries_agree(model, image(), torch.tensor([3]))


def test_a_channels_last_input():
    model = Small(lambda s, x: F.max_pool2d(s.c(x), 2), c=conv())
    inputs = (image().to(memory_format=torch.channels_last),)
    data = [(x.to(memory_format=torch.channels_last),) for (x,) in batches(inputs)]
    assert_both_entries_agree(model.to(memory_format=torch.channels_last), *inputs, data=data)


def test_the_pass_manager_changes_nothing():
    model = Small(lambda s, x: (lambda y: (F.relu(y), torch.erf(y)))(s.c(x)), c=conv())
    assert_both_entries_agree(model, image(), transform_passes=NeutronEdgePassManager())


# ---------------------------------------------------------------- the partitioner as an object


def test_one_partitioner_for_two_models():
    chosen = partitioner()
    assert chosen.report is None
    first = quantized(Small(lambda s, x: s.c(x), c=conv()), (image(),))
    second = quantized(Small(lambda s, x: torch.erf(s.l(x)), l=linear()), (image(2, 8),))
    for module, inputs, host in ((first, (image(),), 0), (second, (image(2, 8),), 1), (first, (image(),), 0)):
        lower(module, inputs, chosen)
        assert len(chosen.report.host) == host


def test_methods_of_one_program():
    chosen = partitioner()
    modules = {"small": (image(1, 8, 4, 4),), "large": (image(),)}
    programs = {
        name: torch.export.export(quantized(Small(lambda s, x: F.relu(s.c(x)), c=conv()), inputs), inputs)
        for name, inputs in modules.items()
    }
    with quiet():
        program = to_edge_transform_and_lower(programs, partitioner=[chosen]).to_executorch()
    for name, inputs in modules.items():
        with HostProgram(program.buffer, method=name) as host:
            assert host.delegates == ("NeutronBackend",)
            step = find(programs[name].graph_module, "quantize_per_tensor.default", 1).args[1]
            assert (host.run(*inputs)[0] - programs[name].module()(*inputs)).abs().max() < 1.01 * step


def test_options_reach_the_partitioner():
    model = Small(lambda s, x: s.c(x) + x, c=conv())
    chosen = partitioner(operators_not_to_delegate=["aten.add.Tensor"])
    lower(quantized(model, (image(),)), (image(),), chosen)
    assert [v.operator for v in chosen.report.host] == ["add.Tensor"]


def test_the_older_entry():
    """`to_edge` and `to_backend` decompose everything first, so that fewer are recognised, but all is right."""
    model = Small(lambda s, x: F.softmax(s.l(F.relu(s.c(x)).mean((2, 3))), -1), c=conv(), l=linear())
    module, x = quantized(model, (image(),)), image()
    with quiet():
        program = to_edge(torch.export.export(module, (x,))).to_backend(partitioner()).to_executorch()
    with HostProgram(program.buffer) as host:
        assert "NeutronBackend" in host.delegates
        assert (host.run(x)[0] - module(x)).abs().max() <= 1 / 256


# ---------------------------------------------------------------- kept whole and refused in the end


def spoil(graph_module):
    """A pass of the user that makes floats of operands: no operator behind it stands between two quantizations."""
    for node in list(graph_module.graph.nodes):
        if is_dequantize(node):
            with graph_module.graph.inserting_after(node):
                absolute = graph_module.graph.call_function(ops.edge.aten.abs.default, (node,))
            node.replace_all_uses_with(absolute, delete_user_cb=lambda user, absolute=absolute: user is not absolute)
            absolute.meta = dict(node.meta)
    graph_module.recompile()
    return PassResult(graph_module, True)


@pytest.mark.sweep
def test_whatever_is_kept_whole_and_then_refused_runs_on_the_host():
    """The host has no kernel for most of these; they are decomposed after all."""

    def forward(s, x):
        y = s.c(x)
        return (
            s.l(y.mean((2, 3))),
            F.softmax(y, 1),
            F.hardswish(y),
            F.adaptive_avg_pool2d(y, 2),
            F.relu6(y),
            F.hardtanh(s.d(y), -0.5, 0.5).flatten(1),
            F.dropout(F.max_pool2d(y, 2), 0.5, False),
            torch.cat(y.chunk(2, 1), 2),
            F.interpolate(y, scale_factor=2.0),
        )

    module = quantized(Small(forward, c=conv(), d=conv(padding="same"), l=linear()), (image(),))
    chosen = partitioner()
    program = lower(module, (image(),), chosen, transform_passes=[spoil])
    assert payloads(program) == [] and chosen.report.delegated == 0

    class Absolute(torch.fx.Interpreter):
        def run_node(self, node):
            value = super().run_node(node)
            return value.abs() if is_dequantize(node) else value

    expected = Absolute(module).run(image())
    with HostProgram(program.buffer) as host:
        results = host.run(image())
    assert len(results) == len(expected) == 9
    for number, (a, b) in enumerate(zip(results, expected, strict=True)):
        assert torch.allclose(a, b, atol=1e-5), number


class Idle(Partitioner):
    """A partitioner that wants nothing."""

    def partition(self, program):
        return PartitionResult(tagged_exported_program=program, partition_tags={})


def test_another_partitioner_beside_ours():
    module = quantized(Small(lambda s, x: s.l(F.relu(s.c(x)).mean((2, 3))), c=conv(), l=linear()), (image(),))
    chosen = partitioner()
    with quiet():
        exported = torch.export.export(module, (image(),))
        edge = to_edge_transform_and_lower(exported, partitioner=[Idle(), chosen])
        program = edge.to_executorch()
    assert chosen.report.share == 1.0
    with HostProgram(program.buffer) as host:
        assert torch.equal(host.run(image())[0], module(image()))
