"""The quantized program: which grids there are, who shares them, and what the quantizer leaves alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import Small, batches, conv, find, image, linear, quantized
from torch import nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from micronpu.base.errors import ModelError, OptionError
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.frontend.program import (
    is_compute,
    is_dequantize,
    is_dequantize_channel,
    is_quantize,
    overload_name,
    qualified_name,
)
from micronpu.neutron import NeutronQuantizer, NeutronTargetSpec, calibrate_and_quantize

Grid = tuple[float, int]


def qparams(node: Node) -> Grid:
    """Scale and zero point of a quantize or dequantize node."""
    return float(node.args[1]), int(node.args[2])


def before(node: Node) -> list[Grid]:
    """Grids of the operands of an operator, weights excluded."""
    return [qparams(n) for n in node.all_input_nodes if is_dequantize(n) and n.args[0].op != "get_attr"]


def after(node: Node) -> Grid:
    """Grid of the result of an operator, behind a fused clamp."""
    (reader,) = node.users
    return qparams(reader) if is_quantize(reader) else after(reader)


def steps(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if is_quantize(n)]


# ---------------------------------------------------------------- grids that are shared

SHARING = {
    "max_pool2d.default": lambda s, x: F.max_pool2d(x, 2),
    "avg_pool2d.default": lambda s, x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d.default": lambda s, x: F.adaptive_avg_pool2d(x[:, :, :1, :2], 1),
    "mean.dim": lambda s, x: x[:, :, :1, :2].mean((2, 3)),
    "view.default": lambda s, x: x.view(1, -1),
    "flatten.using_ints": lambda s, x: x.flatten(1),
    "permute.default": lambda s, x: x.permute(0, 2, 3, 1),
    "pad.default": lambda s, x: F.pad(x, (1, 0, 2, 1)),
    "dropout.default": lambda s, x: F.dropout(x, 0.5, False),
}


@pytest.mark.sweep
@pytest.mark.parametrize("overload", SHARING)
@pytest.mark.parametrize("source", ["input", "conv", "sigmoid"])
def test_an_operator_that_moves_or_selects_shares_the_qparams_of_its_operand(overload: str, source: str):
    """Whatever made the operand, a fixed grid included."""

    def forward(s, x):
        x = {"input": x, "conv": s.c(x), "sigmoid": torch.sigmoid(x)}[source]
        return SHARING[overload](s, x)

    module = quantized(Small(forward, c=conv()), (image(),))
    node = find(module, overload)
    assert [after(node)] == before(node)
    if source == "sigmoid":
        assert after(node) == (1 / 256, -128)


def with_torchao(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> GraphModule:
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), NeutronQuantizer())
    for rows in batches(inputs):
        prepared(*rows)
    return convert_pt2e(prepared)


AVERAGING = {
    "mean.dim": lambda s, x: x.mean((2, 3)),
    "avg_pool2d.default": lambda s, x: F.avg_pool2d(x, 12),
    "adaptive_avg_pool2d.default": lambda s, x: F.adaptive_avg_pool2d(x, 1),
}


@pytest.mark.sweep
@pytest.mark.parametrize("overload", AVERAGING)
@pytest.mark.parametrize("flow", [quantized, with_torchao])
def test_an_average_has_its_own_qparams_where_values_cancel_out(overload: str, flow: Callable[..., GraphModule]):
    """Few steps would be left to it on the grid of its operand."""
    model = Small(lambda s, x: AVERAGING[overload](s, s.c(x)), c=conv())
    module = flow(model, (image(1, 8, 12, 12),))
    node = find(module, overload)
    ((scale, _),) = before(node)
    assert 8 * after(node)[0] < scale
    moved = Small(lambda s, x: AVERAGING[overload](s, s.c(x) + 3.0), c=conv())
    node = find(flow(moved, (image(1, 8, 12, 12),)), overload)
    assert [after(node)] == before(node)


def test_parts_of_a_concatenation_share_qparams_that_cover_them_all():
    module = quantized(Small(lambda s, x: torch.cat([x, 5 * s.c(x), s.c(x)], 1), c=conv()), (image(),))
    cat = find(module, "cat.default")
    assert len({*before(cat), after(cat)}) == 1
    scale, _ = after(cat)
    assert 256 * scale > max(float(x.abs().max()) for (x,) in batches((image(),)))


def test_concatenations_of_the_same_values_in_another_order():
    """torchao ran into endless recursion when two concatenations were each tied to the other's first part."""

    def forward(s, x):
        y = torch.cumsum(x, 1)
        return torch.cat([y, x], 1), torch.cat([x, y], 1), torch.cat([F.max_pool2d(y, 3, 1, 1), y], 1)

    module = quantized(Small(forward), (image(),))
    all_qparams = {g for number in range(3) for g in before(find(module, "cat.default", number))}
    assert len(all_qparams) == 1


def test_a_concatenation_of_a_concatenation():
    module = quantized(
        Small(lambda s, x: torch.cat([torch.cat([s.a(x), s.b(x)], 1), x], 1), a=conv(), b=conv(8, 4)), (image(),)
    )
    inner, outer = find(module, "cat.default", 0), find(module, "cat.default", 1)
    assert len({*before(inner), after(inner), *before(outer), after(outer)}) == 1


def test_a_chain_of_sharing_operators_has_one_set_of_qparams():
    module = quantized(
        Small(lambda s, x: F.max_pool2d(F.pad(s.c(x).permute(0, 1, 3, 2), (1, 1)), 2).flatten(1), c=conv()), (image(),)
    )
    assert len({qparams(n) for n in steps(module)}) == 2  # the input's, and that of everything behind the convolution


def test_a_value_with_several_readers_is_quantized_once():
    module = quantized(
        Small(lambda s, x: (lambda y: s.a(y) + s.b(y) + y)(s.c(x)), a=conv(), b=conv(), c=conv()), (image(),)
    )
    assert len([n for n in steps(module) if n.args[0] is find(module, "conv2d.default")]) == 1
    assert sum(n.args[0].op == "placeholder" for n in steps(module)) == 1


# ---------------------------------------------------------------- grids that are fixed

FIXED = {
    "sigmoid.default": (lambda s, x: torch.sigmoid(x), (1 / 256, -128)),
    "tanh.default": (lambda s, x: torch.tanh(x), (1 / 128, 0)),
    "softmax.int": (lambda s, x: F.softmax(x, -1), (1 / 256, -128)),
}


@pytest.mark.parametrize("overload", FIXED)
def test_fixed_output_parameters(overload: str):
    function, expected = FIXED[overload]
    module = quantized(Small(function), (image(2, 8),))
    assert after(find(module, overload)) == expected


def quantized_again(module: GraphModule) -> list[Node]:
    """Where a value goes from one grid to another and nothing is computed."""
    return [n for n in steps(module) if is_dequantize(n.args[0])]


@pytest.mark.parametrize("overload", FIXED)
def test_readers_take_fixed_qparams_as_they_are(overload: str):
    """Gates, and the peaks of a heat map: two grids would have no value in common that the comparison could find."""
    function, _ = FIXED[overload]

    def peaks(h: torch.Tensor) -> torch.Tensor:
        return h * (F.max_pool2d(h, 3, 1, 1) == h).float() + 2 * h

    module = quantized(Small(lambda s, x: peaks(function(s, x))), (image(1, 2, 6, 8),))
    assert not quantized_again(module)


def attention(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
    q, k, v = s.qkv(x).reshape(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def test_queries_keys_and_values_of_one_layer_are_quantized_once():
    module = quantized(Small(attention, qkv=nn.Linear(8, 24)), (torch.randn(1, 5, 8),))
    assert after(find(module, "linear.default"))[1] == 0
    assert [n.args[0].args[0] for n in quantized_again(module)] == [next(iter(find(module, "softmax.int").users))]


def test_products_of_matrices_on_any_zero_point():
    """Half of the integers would be lost on weights of attention, which are never below 0."""
    quantizer = EthosUQuantizer(EthosUOptions("ethos-u55-128"))
    module = quantized(Small(attention, qkv=nn.Linear(8, 24)), (torch.randn(1, 5, 8),), quantizer)
    assert before(find(module, "matmul.default", 1))[0] == after(find(module, "softmax.int")) == (1 / 256, -128)
    assert not quantized_again(module)


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("model", "x", "axis", "channels"),
    [
        (Small(lambda s, x: s.c(x), c=conv(8, 5)), image(), 0, 5),
        (Small(lambda s, x: s.c(x), c=conv(8, 8, groups=8)), image(), 0, 8),
        (Small(lambda s, x: s.l(x), l=linear(8, 3)), image(2, 8), 0, 3),
    ],
)
def test_weights_are_symmetric(model: nn.Module, x: torch.Tensor, axis: int, channels: int, per_channel: bool):
    module = quantized(model, (x,), NeutronQuantizer(per_channel=per_channel))
    (weight,) = (n for n in module.graph.nodes if n.op == "get_attr" and _value(module, n).dtype is torch.int8)
    (dequantize,) = weight.users
    assert is_dequantize_channel(dequantize) == per_channel
    if per_channel:
        scales, zeros = (_value(module, n) for n in dequantize.args[1:3])
        assert scales.shape == (channels,) and not zeros.any() and dequantize.args[3] == axis
    else:
        assert dequantize.args[2] == 0
    values = _value(module, weight)
    assert values.min() >= -127
    largest = values.abs().amax(dim=tuple(range(1, values.dim()))) if per_channel else values.abs().max()
    assert (largest == 127).all()


def _value(module: GraphModule, node: Node) -> torch.Tensor:
    value = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def test_the_bias_stays_float():
    module = quantized(Small(lambda s, x: s.c(x), c=conv()), (image(),))
    layer = find(module, "conv2d.default")
    assert layer.args[2].op == "get_attr" and _value(module, layer.args[2]).dtype is torch.float32


def test_activations_use_all_of_int8():
    module = quantized(Small(lambda s, x: s.c(x), c=conv()), (image(),))
    assert all(n.args[3:6] == (-128, 127, torch.int8) for n in steps(module))


# ---------------------------------------------------------------- fusion, numbers, other types


@pytest.mark.parametrize("clamp", [F.relu, F.relu6, lambda x: F.hardtanh(x, -1.0, 1.0), lambda x: x.clamp(min=0.0)])
def test_no_step_between_a_layer_and_the_clamp_behind_it(clamp):
    module = quantized(Small(lambda s, x: clamp(s.c(x)), c=conv()), (image(),))
    (reader,) = find(module, "conv2d.default").users
    assert is_compute(reader)
    assert len(steps(module)) == 2


def test_a_clamp_with_another_reader_before_it_has_a_step_of_its_own():
    module = quantized(Small(lambda s, x: (lambda y: F.relu(y) + y)(s.c(x)), c=conv()), (image(),))
    assert before(find(module, "relu.default")) == [after(find(module, "conv2d.default"))]


@pytest.mark.parametrize("operand", [3.0, 2, -0.5])
def test_a_number_becomes_a_constant_with_qparams(operand: float):
    model = Small(lambda s, x: F.relu(s.c(x)) + operand, c=conv())
    module = quantized(model, (image(),))
    add = find(module, "add.Tensor")
    assert all(isinstance(a, Node) for a in add.args[:2])
    x = batches((image(),))[0][0]
    assert torch.allclose(module(x), model(x), atol=0.1)


def test_integers_are_left_alone():
    model = Small(lambda s, x, i: (s.c(x), i + i, s.e(i)), c=conv(), e=nn.Embedding(5, 8))
    module = quantized(model, (image(), torch.tensor([3, 1])))
    assert not any(is_dequantize(n) for n in find(module, "add.Tensor").all_input_nodes)
    _, doubled, _ = module(image(), torch.tensor([3, 1]))
    assert doubled.tolist() == [6, 2]


def test_what_nobody_knows_stays_float():
    module = quantized(Small(lambda s, x: torch.erfinv(torch.erf(x))), (image(),))
    assert not steps(module)


def test_an_output_of_float_between_quantized_layers():
    module = quantized(Small(lambda s, x: s.b(torch.erf(s.a(x))), a=conv(), b=conv()), (image(),))
    erf = find(module, "erf.default")
    assert [qualified_name(n) for n in (erf.args[0], *erf.users)] == [
        "quantized_decomposed::dequantize_per_tensor",
        "quantized_decomposed::quantize_per_tensor",
    ]


# ---------------------------------------------------------------- batch norm


def norm(layer: nn.Module, channels: int = 8) -> nn.Module:
    """With statistics as after training."""
    random = torch.Generator().manual_seed(5)
    for name, low, high in (
        ("running_mean", -0.5, 0.5),
        ("running_var", 0.2, 3.0),
        ("weight", 0.5, 2.0),
        ("bias", -1, 1),
    ):
        getattr(layer, name).data = torch.rand(channels, generator=random) * (high - low) + low
    return layer


FOLDED = {
    "conv": Small(lambda s, x: s.b(s.c(x)), c=conv(), b=norm(nn.BatchNorm2d(8))),
    "conv_without_bias": Small(lambda s, x: s.b(s.c(x)), c=conv(bias=False), b=norm(nn.BatchNorm2d(8))),
    "depthwise": Small(lambda s, x: s.b(s.c(x)), c=conv(groups=8), b=norm(nn.BatchNorm2d(8))),
    "linear": Small(lambda s, x: s.b(s.l(x[:, :, 0, 0])), l=linear(), b=norm(nn.BatchNorm1d(8))),
    "shared_weights": Small(lambda s, x: s.b(s.c(x)) + s.c(x), c=conv(), b=norm(nn.BatchNorm2d(8))),
    "two_readers": Small(lambda s, x: (lambda y: s.b(y) + y)(s.c(x)), c=conv(), b=norm(nn.BatchNorm2d(8))),
    "standalone": Small(lambda s, x: s.c(s.b(x)), c=conv(), b=norm(nn.BatchNorm2d(8))),
    "without_affine": Small(lambda s, x: s.b(s.c(x)), c=conv(), b=nn.BatchNorm2d(8, affine=False)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_batch_norm_leaves_no_operator(name: str):
    model, x = FOLDED[name], image()
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    module = quantized(model, (x,))
    assert not any("batch_norm" in overload_name(n) for n in module.graph.nodes)
    assert not any(is_compute(n) and not before(n) for n in module.graph.nodes), "an operator stayed in float"
    (item,) = batches((x,))[0]
    error = (module(item) - model(item)).abs()
    assert error.max() < 0.05 * model(item).abs().max()
    for key, value in model.state_dict().items():
        assert torch.equal(value, weights[key]), f"quantization changed {key} of the user's model"


# ---------------------------------------------------------------- the user's flow


def test_by_hand_and_by_function_give_the_same_program():
    """But for the last bits of scales: who runs the prepared module by hand runs it in float32."""
    model, inputs = Small(lambda s, x: F.relu(s.b(s.c(x))) + x, c=conv(), b=norm(nn.BatchNorm2d(8))), (image(),)
    quantizer = NeutronQuantizer(NeutronTargetSpec("imxrt700"))
    exported = torch.export.export(model, inputs)
    prepared = prepare_pt2e(exported.module(check_guards=False), quantizer)
    for batch in batches(inputs):
        prepared(*batch)
    by_hand = convert_pt2e(prepared)
    by_function = quantized(model, inputs, NeutronQuantizer())
    for mine, theirs in zip(map(qparams, steps(by_hand)), map(qparams, steps(by_function)), strict=True):
        assert mine[1:] == theirs[1:] and mine[0] == pytest.approx(theirs[0], rel=1e-6)
    largest = max(qparams(n)[0] for n in steps(by_function))
    for batch in batches(inputs):
        assert (by_hand(*batch) - by_function(*batch)).abs().max() <= largest


def test_one_quantizer_for_two_models():
    first, second = Small(lambda s, x: s.c(x), c=conv()), Small(lambda s, x: s.l(F.relu(x)), l=linear())
    quantizer = NeutronQuantizer()
    used = [quantized(first, (image(),), quantizer), quantized(second, (image(2, 8),), quantizer)]
    fresh = [quantized(first, (image(),)), quantized(second, (image(2, 8),))]
    for a, b in zip(used, fresh, strict=True):
        assert [qparams(n) for n in steps(a)] == [qparams(n) for n in steps(b)]


def test_the_exported_program_is_not_changed():
    exported = torch.export.export(FOLDED["conv"], (image(),))
    text = str(exported.graph)
    calibrate_and_quantize(exported, batches((image(),)), NeutronQuantizer())
    assert str(exported.graph) == text


def test_calibration_takes_tensors_tuples_and_arrays():
    model, x = Small(lambda s, x: s.c(x), c=conv()), image()
    data = [batch[0] for batch in batches((x,))]
    forms = [data, [(d,) for d in data], [d.numpy() for d in data], torch.cat(data)[:, None]]
    all_qparams = []
    for calibration in forms:
        module = calibrate_and_quantize(torch.export.export(model, (x,)), calibration, NeutronQuantizer())
        all_qparams.append([qparams(n) for n in steps(module)])
    assert all(g == all_qparams[0] for g in all_qparams)


def test_no_warnings_reach_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(Small(lambda s, x: F.relu(s.c(x)), c=conv()), (image(),))


@pytest.mark.parametrize(
    ("calibration", "sentence"),
    [
        ([], "The calibration data is empty."),
        (None, "A float model needs calibration data"),
        (
            [torch.zeros(1, 8, 6, 5)],
            "Calibration item 0, input 0 has shape [1, 8, 6, 5], the model takes [1, 8, 6, 6].",
        ),
        ([torch.zeros(1, 8, 6, 6, dtype=torch.int32)], "Calibration item 0, input 0 has dtype int32"),
        ([torch.full((1, 8, 6, 6), torch.nan)], "Calibration item 0, input 0 holds NaN or infinity"),
        ([(torch.zeros(1, 8, 6, 6), 3)], "Calibration item 0 has 2 inputs, the model has 1."),
        (["abc"], "Calibration item 0, input 0 is a str, not a tensor."),
        ({"x": 1}, "Calibration data is of type dict, not a list of inputs."),
    ],
)
def test_calibration_that_does_not_fit(calibration, sentence: str):
    exported = torch.export.export(Small(lambda s, x: s.c(x), c=conv()), (image(),))
    with pytest.raises(ModelError) as caught:
        calibrate_and_quantize(exported, calibration, NeutronQuantizer())
    assert str(caught.value).startswith(sentence)


def test_a_model_that_is_not_exported():
    with pytest.raises(ModelError, match=r"A Small cannot be quantized as it is\. Try: export it first"):
        calibrate_and_quantize(Small(lambda s, x: x), [image()], NeutronQuantizer())


def test_wrong_arguments_of_the_quantizer():
    with pytest.raises(OptionError, match="neutron_target_spec"):
        NeutronQuantizer("imxrt700")
    with pytest.raises(OptionError, match="per_channel"):
        NeutronQuantizer(per_channel="yes")
