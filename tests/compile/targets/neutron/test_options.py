"""What options do to the finished program.  Their values and errors: test_neutron_options.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executorch.exir.backend.compile_spec_schema import CompileSpec
from tests.compile.partition.test_edge_entry import lower, partitioner, payloads
from tests.compile.small import Small, batches, conv, image, linear, quantized

import micronpu
from micronpu.base.errors import OptionError
from micronpu.container.payload import TensorSlot, parse
from micronpu.neutron import (
    CustomDelegationOptions,
    NeutronCompileSpecBuilder,
    NeutronPartitioner,
    generate_neutron_compile_spec,
)
from micronpu.runtime import HostProgram
from micronpu.targets.neutron.options import NeutronOptions

# ---------------------------------------------------------------- key-value pairs


def test_pairs_are_read_by_key_in_any_order():
    specs = generate_neutron_compile_spec(
        "imxrt700", operators_not_to_delegate=["aten.add.Tensor"], use_neutron_for_format_conversion=False
    )
    options = NeutronOptions.from_specs(specs)
    assert options.operators_not_to_delegate == ("aten.add.Tensor",)
    assert not options.use_neutron_for_format_conversion
    assert NeutronOptions.from_specs(specs[::-1]) == options
    assert NeutronOptions.from_specs(options.to_specs()) == options


def test_pairs_that_are_left_out_keep_their_defaults():
    (config,) = (s for s in generate_neutron_compile_spec("imxrt700") if s.key == "config")
    assert NeutronOptions.from_specs([config]) == NeutronOptions()
    assert NeutronOptions.from_specs([]) == NeutronOptions()


def test_builder_and_function_are_the_same():
    built = NeutronCompileSpecBuilder().neutron_compile_spec("imxrt700", fetch_constants_to_sram=True).build()
    assert built == generate_neutron_compile_spec("imxrt700", fetch_constants_to_sram=True)


def test_an_unknown_key_lists_the_known_ones():
    with pytest.raises(OptionError) as caught:
        NeutronPartitioner([CompileSpec("confg", b'"imxrt700"')])
    message = str(caught.value)
    assert message.startswith("There is no compile spec 'confg'. Try: one of ")
    assert all(spec.key in message for spec in generate_neutron_compile_spec("imxrt700"))


@pytest.mark.parametrize(
    "make",
    [generate_neutron_compile_spec, NeutronCompileSpecBuilder().neutron_compile_spec, CustomDelegationOptions],
)
def test_an_option_of_another_release_is_refused_with_its_name(make: Callable[..., Any]) -> None:
    """ExecuTorch 1.3 had it in all three."""
    chip = [] if make is CustomDelegationOptions else ["imxrt700"]
    with pytest.raises(OptionError, match=r"no option .use_new_flow_neutron_c.*\. Try: "):
        make(*chip, use_new_flow_neutron_c=True)


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([CompileSpec("config", b"imxrt700")], "The compile spec 'config' holds b'imxrt700', which is not JSON."),
        ([CompileSpec("config", b'"imxrt7"')], "'imxrt7' has no Neutron. Try: one of "),
        ([CompileSpec("config", b'"imxrt700"')] * 2, "The compile spec 'config' is given twice."),
        ([CompileSpec("fetch_constants_to_sram", b"1")], "`fetch_constants_to_sram` is 1; it is True or False."),
        (
            [CompileSpec("operators_not_to_delegate", b'["aten.ad.Tensor"]')],
            "There is no operator 'aten.ad.Tensor' in `operators_not_to_delegate`.",
        ),
    ],
)
def test_wrong_pairs(specs: list[CompileSpec], sentence: str):
    with pytest.raises(OptionError) as caught:
        NeutronPartitioner(specs)
    assert str(caught.value).startswith(sentence)


# ---------------------------------------------------------------- conversion of layouts


def network() -> Small:
    """Inputs that are read channels-last only, in both orders, and not as images; outputs likewise."""

    def forward(s, x, y, z):
        a = s.c(x)
        b = s.d(y)
        return a, F.max_pool2d(b, 2), b.mean((2, 3)), s.l(z), y.permute(0, 1, 3, 2) + 1.0

    return Small(forward, c=conv(), d=conv(8, 4), l=linear())


INPUTS = (image(), image(1, 8, 4, 4), image(2, 8))


@pytest.fixture(scope="module")
def converted() -> dict[bool, micronpu.CompiledProgram]:
    """By whether the NPU converts."""
    return {
        by_npu: micronpu.compile(
            network(),
            INPUTS,
            "imxrt700",
            calibration=batches(INPUTS),
            options=NeutronOptions(use_neutron_for_format_conversion=by_npu),
        )
        for by_npu in (True, False)
    }


def test_the_npu_converts_by_default(converted):
    layout = parse(converted[True].partitions[0].payload).layout
    assert not any(slot.channels_last for slot in (*layout.inputs, *layout.outputs))


def test_the_runtime_converts_where_all_readers_are_channels_last(converted):
    part = converted[False].partitions[0]
    layout = parse(part.payload).layout
    assert layout.inputs == (TensorSlot(0, True), TensorSlot(1), TensorSlot(2))
    assert layout.outputs == (
        TensorSlot(0, True),
        TensorSlot(1, True),
        TensorSlot(2),
        TensorSlot(3),
        TensorSlot(4),
    )
    assert part.graph.inputs[0].shape == (1, 6, 6, 8)
    assert part.graph.outputs[0].shape == (1, 6, 6, 8)


def test_both_compute_the_same(converted):
    for batch in batches(INPUTS, 4):
        for a, b in zip(converted[True].run(*batch), converted[False].run(*batch), strict=True):
            assert torch.equal(a, b)


def test_less_is_left_for_the_npu(converted):
    counts = [
        sum(n.op.name == "transpose" for n in converted[by_npu].partitions[0].graph.nodes) for by_npu in (True, False)
    ]
    assert counts[1] <= counts[0] - 3


def test_the_second_entry_makes_the_same_payload(converted):
    chosen = partitioner(use_neutron_for_format_conversion=False)
    program = lower(converted[False].quantized, INPUTS, chosen)
    assert payloads(program) == [p.payload for p in converted[False].partitions]
    with HostProgram(program.buffer) as host:
        (batch,) = batches(INPUTS, 1)
        for a, b in zip(host.run(*batch), converted[True].run(*batch), strict=True):
            assert torch.equal(a, b)


def test_an_input_that_is_also_an_output():
    """It cannot be converted for the NPU and handed through as it is."""
    model = Small(lambda s, x: (s.c(x), x + 0.0, F.dropout(x, 0.5, False)), c=conv())
    runs = []
    for by_npu in (True, False):
        options = NeutronOptions(use_neutron_for_format_conversion=by_npu)
        program = micronpu.compile(model, (image(),), "imxrt700", calibration=batches((image(),)), options=options)
        runs.append(program.run(image()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


# ---------------------------------------------------------------- the rest


def test_an_operator_that_is_not_to_be_delegated_computes_on_the_host():
    model = Small(lambda s, x: F.relu(s.c(x) + x), c=conv())
    options = NeutronOptions(operators_not_to_delegate=("aten.add.Tensor",))
    program = micronpu.compile(model, (image(),), "imxrt700", calibration=batches((image(),)), options=options)
    assert {v.operator for v in program.report.host} == {"add.Tensor", "relu.default"}
    x = batches((image(),))[0][0]
    assert torch.allclose(program.run(x), program.quantized(x), atol=1e-6)


def test_options_that_do_not_change_the_reference_program():
    """Flags for the vendor's converter and prefetching; they travel with the program all the same."""
    module, x = quantized(Small(lambda s, x: s.c(x), c=conv()), (image(),)), image()
    plain = lower(module, (x,), partitioner())
    special = lower(module, (x,), partitioner(extra_flags="--a --b=1", fetch_constants_to_sram=True))
    assert payloads(plain) == payloads(special)
    (plan,) = special.executorch_program.execution_plan
    specs = {s.key: bytes(s.value) for s in plan.delegates[0].compile_specs}
    assert specs["extra_flags"] == b'["--a", "--b=1"]' and specs["fetch_constants_to_sram"] == b"true"


@pytest.mark.parametrize(("target", "rules"), [("mcxn947", ["no-silicon"]), ("imxrt700", [])])
def test_a_chip_without_programs_for_silicon_is_named_in_what_to_do_next(target, rules):
    model, examples = linear().eval(), (torch.randn(1, 8),)
    checked = micronpu.check(model, examples, target).report
    compiled = micronpu.compile(model, examples, target, calibration=batches(examples, 4), verify=False).report
    for report in (checked, compiled):
        assert [w.rule for w in report.warnings if w.rule == "no-silicon"] == rules
        assert any("only reference programs" in step for step in report.next_steps) == bool(rules)


def test_a_function_that_several_operators_compute_is_named_in_what_to_do_next():
    examples = (torch.randn(1, 16, 8, 8),)
    for function, said in ((torch.nn.GELU(), "compute gelu(x) as x * sigmoid(1.702 x)"), (torch.nn.Hardswish(), "")):
        model = torch.nn.Sequential(conv(16, 16), function, conv(16, 16)).eval()
        made = micronpu.compile(model, examples, "imxrt700", calibration=batches(examples, 4), verify=False).report
        steps = [step for step in made.next_steps if "of the NPU's cycles, compute" in step]
        assert [said in step for step in steps] == [True] * bool(said)
