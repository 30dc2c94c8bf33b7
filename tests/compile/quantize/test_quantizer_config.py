"""Which operators the quantizer annotates and how, and how parts of a model are configured apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

import micronpu
from micronpu.base.errors import OptionError
from micronpu.frontend.program import (
    is_compute,
    is_dequantize,
    is_dequantize_channel,
    is_quantize,
    overload_name,
)
from micronpu.neutron import NeutronQuantizer, NeutronTargetSpec, QuantizationConfig

aten = torch.ops.aten


def exported(model, *inputs, strict=False):
    return torch.export.export(model.eval(), inputs, strict=strict).module(check_guards=False)


class Function(nn.Module):
    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def quantized(model, *inputs, quantizer=None):
    torch.manual_seed(0)
    prepared = prepare_pt2e(exported(model, *inputs), quantizer or NeutronQuantizer())
    prepared(*inputs)
    return convert_pt2e(prepared)


def scale_of(node):
    return node.args[1], node.args[2]


def own(node):
    """Parameters (before, after) of an operator, behind a fused clamp; both sides have to be quantized."""
    after = node
    while not is_quantize(after):
        (after,) = after.users
    before = [n for n in node.all_input_nodes if is_dequantize(n)]
    assert before, f"nothing quantizes the operand of {node}"
    return [scale_of(n) for n in before], scale_of(after)


def float_operators(module):
    """Compute nodes that do not stand between a dequantize and a quantize; a clamp behind a layer belongs to it."""
    found = []
    for node in module.graph.nodes:
        if not is_compute(node):
            continue
        operands = [n for n in node.all_input_nodes if n.op != "get_attr"]
        fused_before = len(operands) == 1 and is_compute(operands[0]) and overload_name(node).startswith(("relu", "ha"))
        fused_behind = len(node.users) == 1 and overload_name(next(iter(node.users))).startswith(("relu", "hardtanh"))
        inside = fused_before or all(is_dequantize(n) or is_dequantize_channel(n) for n in operands)
        if not inside or not (fused_behind or all(is_quantize(n) for n in node.users)):
            found.append(node.name)
    return found


x4, x3, x2 = torch.randn(1, 8, 6, 6) * 2, torch.randn(1, 8, 12) * 2, torch.randn(4, 8) * 2
SHARED, FIXED, OWN = "shared", "fixed", "own"


def row(name, function, *inputs, output, **modules):
    return pytest.param(Function(function, **modules), inputs, output, id=name)


# The 26 entries of the published quantizer list, in its order; in-place forms act on a value computed before.
PUBLISHED = [
    row("abs", lambda m, x: torch.abs(x), x4, output=None),
    row("adaptive_avg_pool2d", lambda m, x: F.adaptive_avg_pool2d(x, 3), x4, output=SHARED),
    row("addmm", lambda m, x: torch.addmm(m.l.bias, x, m.l.weight), x2, output=OWN, l=nn.Linear(8, 8)),
    row("add.Tensor", lambda m, x, z: x + z, x4, x4 * 3, output=OWN),
    row("avg_pool2d", lambda m, x: F.avg_pool2d(x, 2), x4, output=SHARED),
    row("cat", lambda m, x, z: torch.cat([x, z], 1), x4, x4 * 3, output=SHARED),
    row("conv1d", lambda m, x: m.c(x), x3, output=OWN, c=nn.Conv1d(8, 4, 3)),
    row("conv2d", lambda m, x: m.c(x), x4, output=OWN, c=nn.Conv2d(8, 4, 3)),
    row("dropout", lambda m, x: F.dropout(x, 0.3, training=m.training), x4, output=SHARED),
    row("flatten.using_ints", lambda m, x: torch.flatten(x, 1), x4, output=SHARED),
    row("hardtanh", lambda m, x: F.hardtanh(x), x4, output=OWN),
    row("hardtanh_", lambda m, x: F.hardtanh(F.max_pool2d(x, 2), 0.0, 6.0, inplace=True), x4, output=None),
    row("linear", lambda m, x: m.l(x), x2, output=OWN, l=nn.Linear(8, 4)),
    row("max_pool2d", lambda m, x: F.max_pool2d(x, 2), x4, output=SHARED),
    row("mean.dim", lambda m, x: x.mean((2, 3)), x4, output=None),
    row("mul.Tensor", lambda m, x, z: x * z, x4, x4 * 3, output=OWN),
    row("pad", lambda m, x: F.pad(x, (1, 1, 1, 1)), x4, output=SHARED),
    row("permute", lambda m, x: x.permute(0, 2, 3, 1), x4, output=SHARED),
    row("relu", lambda m, x: F.relu(x), x4, output=OWN),
    row("relu_", lambda m, x: F.relu_(F.max_pool2d(x, 2)), x4, output=None),
    row("reshape", lambda m, x: x.permute(0, 2, 3, 1).reshape(1, -1), x4, output=SHARED),
    row("view", lambda m, x: x.view(1, -1), x4, output=SHARED),
    row("softmax.int", lambda m, x: F.softmax(x, -1), x2, output=FIXED),
    row("tanh", lambda m, x: torch.tanh(x), x4, output=FIXED),
    row("tanh_", lambda m, x: torch.tanh_(F.max_pool2d(x, 2)), x4, output=None),
    row("sigmoid", lambda m, x: torch.sigmoid(x), x4, output=FIXED),
    row("slice_copy.Tensor", lambda m, x: x[:, 2:6], x4, output=SHARED),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("model", "inputs", "output"), PUBLISHED)
@torch.no_grad()
def test_published_pattern(model, inputs, output):
    module = quantized(model, *inputs)
    computing = [n for n in module.graph.nodes if is_compute(n)]
    assert computing
    assert float_operators(module) == []
    if output is None:
        return
    before, after = own(computing[-1])
    if output is SHARED:
        assert set(before) == {after}
    else:
        assert after not in before
    if output is FIXED:
        assert after == ((1 / 128, 0) if "tanh" in computing[-1].name else (1 / 256, -128))


# Hardtanh(0, 1) has no code for a fused activation in LiteRT, and keeps its own step.
CLAMPS = [nn.ReLU(), nn.ReLU6(), nn.Hardtanh()]


@pytest.mark.parametrize("clamp", CLAMPS, ids=str)
@torch.no_grad()
def test_clamp_is_one_step_with_what_computes_it(clamp):
    """Nothing is quantized between, so that no value is clipped to a grid of its own before."""
    model = Function(
        lambda m, x, z: (m.a(m.c(x)), m.a(m.l(z)), m.a(x + x * 0.5)),
        a=clamp,
        c=nn.Conv2d(8, 4, 3),
        l=nn.Linear(8, 4),
    )
    module = quantized(model, x4, x2)
    for node in module.graph.nodes:
        if overload_name(node) in ("conv2d.default", "linear.default", "add.Tensor"):
            (user,) = node.users
            assert overload_name(user).startswith(("relu", "hardtanh", "clamp")), node.name
            assert all(is_quantize(n) for n in user.users)


def sqnr(reference, value):
    return float(10 * torch.log10(reference.square().sum() / (reference - value).square().sum()))


@torch.no_grad()
def test_sigmoid_and_tanh_keep_their_own_step():
    """Fusing them as clamps are fused would clip their operand to the range of the result, at 14 to 25 dB."""
    torch.manual_seed(0)
    inputs = (torch.randn(1, 16, 10, 10), torch.randn(4, 64))
    model = Function(
        lambda m, x, z: (torch.sigmoid(m.c(x)), torch.tanh(m.c(x)), torch.sigmoid(m.l(z)), torch.tanh(m.l(z))),
        c=nn.Conv2d(16, 16, 3),
        l=nn.Linear(64, 32),
    )
    with torch.no_grad():
        model.c.weight *= 4
        model.l.weight *= 4
    program = micronpu.compile(model.eval(), inputs, "imxrt700", calibration=[inputs])
    for expected, result in zip(model(*inputs), program.run(*inputs), strict=True):
        assert sqnr(expected, result) > 35


# ---------------------------------------------------------------- configuration


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = self.block2(self.block1(x)) + x
        return self.head(y.mean((2, 3)))


def per_channel_of(module):
    """{module path: weights per channel?, None where float}"""
    found = {}
    for node in module.graph.nodes:
        if overload_name(node) in ("conv2d.default", "linear.default"):
            path = list(node.meta["nn_module_stack"].values())[-1][0]
            weight = node.args[1]
            found[path] = None if weight.op == "get_attr" else is_dequantize_channel(weight)
    return found


PER_TENSOR = QuantizationConfig(per_channel=False)
CONFIGURATIONS = {
    "default": (NeutronQuantizer(), (True, True, True)),
    "per_channel": (NeutronQuantizer(per_channel=False), (False, False, False)),
    "global": (NeutronQuantizer().set_global(PER_TENSOR), (False, False, False)),
    "global float": (NeutronQuantizer().set_global(None).set_module_name("head", PER_TENSOR), (None, None, False)),
    "name": (NeutronQuantizer().set_module_name("block1.0", None), (None, True, True)),
    "name of a group": (NeutronQuantizer().set_module_name("block1", None), (None, True, True)),
    "longest name": (
        NeutronQuantizer().set_module_name("block1.0", PER_TENSOR).set_module_name("block1", None),
        (False, True, True),
    ),
    "type": (NeutronQuantizer().set_module_type(nn.Conv2d, PER_TENSOR), (False, False, True)),
    "type by name": (NeutronQuantizer().set_module_type("torch.nn.modules.linear.Linear", None), (True, True, None)),
    "innermost type": (
        NeutronQuantizer().set_module_type(nn.Sequential, None).set_module_type(nn.Conv2d, PER_TENSOR),
        (False, False, True),
    ),
    "operator": (NeutronQuantizer().set_operator(aten.conv2d.default, None), (None, None, True)),
    "operator packet": (NeutronQuantizer().set_operator(aten.conv2d, None), (None, None, True)),
    "operator name": (NeutronQuantizer().set_operator("aten::linear", PER_TENSOR), (True, True, False)),
    "type over operator": (
        NeutronQuantizer().set_operator("conv2d", None).set_module_type(nn.Conv2d, PER_TENSOR),
        (False, False, True),
    ),
    "name over type": (
        NeutronQuantizer().set_module_type(nn.Conv2d, None).set_module_name("block2.0", PER_TENSOR),
        (None, False, True),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize(("quantizer", "expected"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
@torch.no_grad()
def test_configuration(quantizer, expected):
    module = quantized(Net(), x4, quantizer=quantizer)
    assert per_channel_of(module) == dict(zip(("block1.0", "block2.0", "head"), expected, strict=True))
    again = quantized(Net(), x4, quantizer=quantizer)
    assert per_channel_of(again) == per_channel_of(module), "a quantizer serves any number of models"


@torch.no_grad()
def test_paths_are_the_same_in_a_strict_export():
    prepared = prepare_pt2e(exported(Net(), x4, strict=True), NeutronQuantizer().set_module_name("block1", None))
    prepared(x4)
    assert list(per_channel_of(convert_pt2e(prepared)).values()) == [None, True, True]


@torch.no_grad()
def test_operators_that_rewrites_replace_keep_their_configuration():
    """A division by a constant becomes a multiplication before annotation."""
    model = Function(lambda m, x: x / 3.0)
    assert float_operators(quantized(model, x4)) == []
    (divided,) = float_operators(quantized(model, x4, quantizer=NeutronQuantizer().set_operator("div", None)))
    assert divided.startswith("mul")


@torch.no_grad()
def test_a_float_clamp_is_not_fused():
    module = quantized(Net(), x4, quantizer=NeutronQuantizer().set_operator("relu", None))
    for node in module.graph.nodes:
        if overload_name(node) == "conv2d.default":
            assert all(is_quantize(n) for n in node.users)


OBSERVERS = {
    "histogram": {"SpreadErrorObserver", "FinerObserver", "MinMaxObserver"},
    "minmax": {"FinerObserver", "MinMaxObserver"},
}


@pytest.mark.parametrize(("choice", "observers"), OBSERVERS.items())
def test_activation_observer(choice, observers):
    config = QuantizationConfig(activation_observer=choice)
    prepared = prepare_pt2e(exported(Net(), x4), NeutronQuantizer().set_global(config))
    kinds = {type(m).__name__ for n, m in prepared.named_modules() if "activation_post_process" in n}
    assert kinds - {"WeightObserver"} == observers


MISTAKES = {
    "name": (lambda: NeutronQuantizer().set_module_name("blokc1", None), "no module `blokc1`", "`block1`"),
    "path": (lambda: NeutronQuantizer().set_module_name("block1.conv", None), "no module", "`block1"),
    "type": (lambda: NeutronQuantizer().set_module_type(nn.Conv1d, None), "of type", "Conv2d"),
    "operator": (lambda: NeutronQuantizer().set_operator("softmax", None), "no operator `softmax`", "`add.Tensor`"),
}


@pytest.mark.parametrize(("make", "what", "close"), MISTAKES.values(), ids=MISTAKES)
def test_a_setting_that_fits_nothing(make, what, close):
    with pytest.raises(OptionError) as error:
        prepare_pt2e(exported(Net(), x4), make())
    assert what in str(error.value)
    assert close in error.value.hint


THEIRS: Any = type("QuantizationConfig", (), {"__module__": "theirs"})()
REFUSED = {
    "unknown operator": (lambda: NeutronQuantizer().set_operator("conv2", None), "`conv2`"),
    "unknown overload": (lambda: NeutronQuantizer().set_operator("add.Tensr", None), "`add.Tensr`"),
    "not an operator": (lambda: NeutronQuantizer().set_operator(torch.add, None), "takes an ATen operator"),
    "not a type": (lambda: NeutronQuantizer().set_module_type(3, None), "takes a class of modules"),
    "not a name": (lambda: NeutronQuantizer().set_module_name("", None), "takes the path"),
    "not a configuration": (lambda: NeutronQuantizer().set_global("int8"), "is a str"),
    "not our configuration": (lambda: NeutronQuantizer().set_global(THEIRS), "is a theirs.QuantizationConfig"),
    "observer": (lambda: QuantizationConfig(activation_observer="max"), "one of"),
    "frozen ptq": (lambda: QuantizationConfig(freeze_batch_norm=True), "`is_qat` is False"),
    "number for a flag": (lambda: NeutronQuantizer(per_channel=1), "True or False"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_at_once(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize("is_qat", [False, True])
def test_mixed_use_is_refused(is_qat):
    wrong = prepare_pt2e if is_qat else prepare_qat_pt2e
    with pytest.raises(OptionError, match=f"cannot be used with `{wrong.__name__}`"):
        wrong(exported(Net(), x4), NeutronQuantizer(is_qat=is_qat))


def test_a_float_part_compiles():
    """What stays float runs on the host, and the report says so."""
    module = quantized(Net(), x4, quantizer=NeutronQuantizer().set_module_name("head", None))
    program = micronpu.compile(module, (x4,), "imxrt700")
    assert [v.operator for v in program.report.host] == ["linear.default"]
    (linear,) = (n for n in program.quantized.graph.nodes if overload_name(n) == "linear.default")
    # LiteRT rounds halves away from zero and torch to even, so that every mean may be one step off.
    bound = linear.args[0].args[1] * program.quantized.head.weight.detach().abs().sum(1)
    difference = (program.run(x4) - program.quantized(x4)).detach().abs()
    assert (difference <= 1.001 * bound).all()


@torch.no_grad()
def test_computed_weights_are_quantized_once():
    """A transpose between a parameter and its layer is no activation."""
    model = Function(lambda m, x: F.linear(x, m.l.weight.t() * 2), l=nn.Linear(8, 8))
    module = quantized(model, x2)
    (linear,) = (n for n in module.graph.nodes if overload_name(n) == "linear.default")
    assert is_dequantize_channel(linear.args[1])
    assert linear.args[1].args[0].op == "get_attr"


def test_what_is_set_can_be_read() -> None:
    """Under the names that scripts for ExecuTorch's quantizers read."""
    quantizer = NeutronQuantizer(NeutronTargetSpec("imxrt700"))
    assert quantizer.io_config is None and not quantizer.quantizers
    assert not quantizer.module_type_config and not quantizer.module_name_config
    config = QuantizationConfig(per_channel=False)
    quantizer.set_io(config).set_module_name("block.conv", config).set_module_type(torch.nn.Linear, None)
    assert quantizer.io_config == config and quantizer.module_name_config == {"block.conv": config}
    assert list(quantizer.module_type_config.values()) == [None]
    quantizer.module_name_config.clear()
    assert quantizer.module_name_config, "a copy"
    other = NeutronQuantizer(NeutronTargetSpec("imxrt700"))
    assert quantizer.add_quantizer(other).quantizers == (other,)
