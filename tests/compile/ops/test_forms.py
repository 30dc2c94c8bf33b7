"""Forms that are put together from other operators: the same function in float, and whole on the NPU of each family."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.compile.ops.test_operators import as_tuple, function, inputs_for, output_qparams, quantized_inputs
from torch import nn

import micronpu
from micronpu.base.quiet import quiet
from micronpu.compiler.compile import check_model
from micronpu.frontend.functional import functional
from micronpu.frontend.program import overload_name
from micronpu.ir import interpret
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.decompose import prepare_for_annotation
from micronpu.targets.cortexm.rules import CAPABILITIES

aten = torch.ops.aten
Size = tuple[int, ...]
IMAGE: Size = (1, 8, 6, 6)
LINES: Size = (1, 8, 12)
ROWS_OF: Size = (4, 8)
BATCH: Size = (2, 6, 8)
VOLUME: Size = (1, 4, 4, 6, 6)


@dataclass(frozen=True)
class Form:
    """A function of modules and inputs.

    Attributes:
        tables: only on chips that look results up.
        rough: by exp and log, whose error in int8 is that of a logarithm's grid, or a decision, which may fall
            otherwise where it is close.
    """

    name: str
    call: Callable[..., Any]
    shapes: tuple[Size, ...] = (IMAGE,)
    make: Callable[[], list[nn.Module]] = list
    tables: bool = False
    rough: bool = False


def norm(kind: type[nn.Module], channels: int) -> nn.Module:
    made: Any = kind(channels)
    for values, low, high in ((made.running_mean, -1, 1), (made.running_var, 0.5, 1.5)):
        nn.init.uniform_(values, low, high)
    nn.init.uniform_(made.weight, 0.5, 1.5)
    nn.init.uniform_(made.bias, -1, 1)
    return made


def assigned(m, x):
    y = x.clone()
    y[:, :4] = 0
    y[:, :, 3] = x[:, :, 0]
    return y


def pasted(m, x):
    y = torch.zeros_like(x)
    y[:, 2:6] = x[:, :4]
    return y


def shifted(m, x):
    """The temporal shift of TSM."""
    n, c, h, w = x.shape
    x = x.view(1, n, c, h, w)
    out = torch.zeros_like(x)
    out[:, :-1, :2] = x[:, 1:, :2]
    out[:, 1:, 2:4] = x[:, :-1, 2:4]
    out[:, :, 4:] = x[:, :, 4:]
    return out.view(n, c, h, w)


def masked(m, x):
    y = x.clone()
    y[y > 0.4] = 0.25
    return y


def resized(**options: Any) -> Callable[..., Any]:
    return lambda m, x: F.interpolate(x, **options)


NORMS = [
    Form(
        "BatchNorm1d -> Linear",
        lambda m, x: m[1](m[0](x)),
        (ROWS_OF,),
        lambda: [norm(nn.BatchNorm1d, 8), nn.Linear(8, 4)],
    ),
    Form(
        "Linear -> BatchNorm1d",
        lambda m, x: m[1](m[0](x)),
        (ROWS_OF,),
        lambda: [nn.Linear(8, 4), norm(nn.BatchNorm1d, 4)],
    ),
    Form(
        "Linear -> flatten -> BatchNorm1d, as LeViT",
        lambda m, x: m[1](m[0](x).flatten(0, 1)).reshape(2, 6, 4),
        (BATCH,),
        lambda: [nn.Linear(8, 4), norm(nn.BatchNorm1d, 4)],
    ),
    Form(
        "Linear -> BatchNorm1d over rows",
        lambda m, x: m[1](m[0](x)),
        (LINES,),
        lambda: [nn.Linear(12, 4), norm(nn.BatchNorm1d, 8)],
    ),
    Form("BatchNorm1d of rank 2", lambda m, x: m[0](x), (ROWS_OF,), lambda: [norm(nn.BatchNorm1d, 8)]),
    Form("BatchNorm1d of rank 3", lambda m, x: m[0](x), (LINES,), lambda: [norm(nn.BatchNorm1d, 8)]),
    Form("BatchNorm3d", lambda m, x: m[0](x), (VOLUME,), lambda: [norm(nn.BatchNorm3d, 4)]),
]
PASTES = [
    Form("slices assigned", assigned),
    Form("pasted into zeros", pasted),
    Form("temporal shift", shifted, ((4, 8, 4, 4),)),
    Form("select_scatter", lambda m, x: aten.select_scatter(x, x[:, 0] * 2, 1, 3)),
    Form("slice_scatter with a step", lambda m, x: aten.slice_scatter(x, x[:, 2:6], 1, 0, 8, 2)),
    Form("index_copy, in place", lambda m, x: (x * 2).index_copy_(1, torch.tensor([0, 3]), x[:, 5:7])),
    Form("index_put", lambda m, x: aten.index_put(x, [None, torch.tensor([0, 3])], x[:, 5:7])),
    Form("masked_fill, known mask", lambda m, x: x.masked_fill(torch.arange(6) > 3, 0.5)),
    Form("where, known mask", lambda m, x: torch.where(torch.arange(6) > 3, x, 0.0)),
    Form("tril, triu", lambda m, x: torch.tril(x) + 2 * torch.triu(x, 1)),
    Form("zeros_like, ones_like", lambda m, x: torch.cat([x + torch.ones_like(x), torch.zeros_like(x)], 1)),
    Form("new_zeros, new_full", lambda m, x: torch.cat([x, x.new_zeros(1, 2, 6, 6), x.new_full((1, 1, 6, 6), 0.5)], 1)),
    Form("full, arange", lambda m, x: x * torch.full((8, 1, 1), 0.5) + torch.arange(6)),
    Form("copy, in place", lambda m, x: torch.zeros(1, 8, 6, 6).copy_(x) + x * 2),
    Form("diagonal", lambda m, x: torch.diagonal(x, 1, -2, -1)),
    Form("rot90", lambda m, x: torch.rot90(x, 1, (2, 3))),
    Form("diff", lambda m, x: torch.diff(x)),
    Form("index_select", lambda m, x: x.index_select(1, torch.tensor([3, 1, 0]))),
    Form("unfold", lambda m, x: x.unfold(2, 4, 2), (LINES,)),
    Form("frames of 80", lambda m, x: x.unfold(1, 80, 32), ((2, 180),)),
    Form("unfold of images, twice", lambda m, x: x.unfold(2, 4, 2).unfold(3, 3, 3)),
    Form("fold", lambda m, x: F.fold(x, (5, 5), 2, stride=2, padding=1), ((1, 8, 9),)),
]
RESIZES = [
    Form("bilinear by 2, corners aligned", resized(scale_factor=2, mode="bilinear", align_corners=True)),
    Form("bilinear by 3", resized(scale_factor=3, mode="bilinear")),
    Form("bilinear by 1/2", resized(scale_factor=0.5, mode="bilinear")),
    Form("bilinear by 1.5", resized(scale_factor=1.5, mode="bilinear")),
    Form("bilinear to a size", resized(size=(11, 7), mode="bilinear")),
    Form(
        "bilinear from one element",
        lambda m, x: F.interpolate(x[:, :, :1, :1], size=(5, 7), mode="bilinear", align_corners=True),
    ),
    Form("linear by 2", resized(scale_factor=2, mode="linear"), (LINES,)),
    Form("linear by 2, corners aligned", resized(scale_factor=2, mode="linear", align_corners=True), (LINES,)),
    Form("bicubic by 2", resized(scale_factor=2, mode="bicubic")),
    Form("bicubic, corners aligned", resized(size=(9, 9), mode="bicubic", align_corners=True)),
    Form("trilinear by 2", resized(scale_factor=2, mode="trilinear"), (VOLUME,)),
    Form("bilinear by 1/2, smooth", resized(scale_factor=0.5, mode="bilinear", antialias=True)),
    Form("bicubic to a size, smooth", resized(size=(4, 9), mode="bicubic", antialias=True)),
    Form(
        "bilinear, smooth, corners aligned", resized(size=(4, 9), mode="bilinear", antialias=True, align_corners=True)
    ),
    Form("nearest by 1.5", resized(scale_factor=1.5)),
    Form("nearest by 1/2", resized(scale_factor=0.5)),
    Form("nearest by 3", resized(scale_factor=3)),
    Form("nearest-exact to a size", resized(size=(9, 4), mode="nearest-exact")),
    Form("area to a larger size", resized(size=(13, 11), mode="area")),
    Form("nearest of a volume", resized(scale_factor=2), ((1, 2, 3, 4, 4),)),
]
VOLUMES = [
    Form("conv3d in groups", lambda m, x: m[0](x), (VOLUME,), lambda: [nn.Conv3d(4, 8, 3, (2, 1, 2), 1, groups=4)]),
    Form(
        "conv3d in 2 groups",
        lambda m, x: m[0](x),
        (VOLUME,),
        lambda: [nn.Conv3d(4, 4, (2, 3, 3), dilation=(2, 1, 1), groups=2)],
    ),
    Form("conv_transpose3d", lambda m, x: m[0](x), (VOLUME,), lambda: [nn.ConvTranspose3d(4, 4, 2, 2)]),
    Form("conv_transpose3d, padded", lambda m, x: m[0](x), (VOLUME,), lambda: [nn.ConvTranspose3d(4, 2, 3, 2, 1, 1)]),
    Form(
        "dilated conv_transpose2d", lambda m, x: m[0](x), make=lambda: [nn.ConvTranspose2d(8, 4, 3, 2, dilation=(2, 3))]
    ),
    Form("max_pool3d", lambda m, x: F.max_pool3d(x, 2), (VOLUME,)),
    Form("max_pool3d, padded", lambda m, x: F.max_pool3d(x - 3, 3, 2, 1), (VOLUME,)),
    Form("avg_pool3d", lambda m, x: F.avg_pool3d(x, 2), (VOLUME,)),
    Form("avg_pool3d, padded", lambda m, x: F.avg_pool3d(x, 3, 1, 1, count_include_pad=False), (VOLUME,)),
    Form("adaptive_avg_pool3d", lambda m, x: F.adaptive_avg_pool3d(x, 2), (VOLUME,)),
    Form("avg_pool2d by a number", lambda m, x: F.avg_pool2d(x, 2, divisor_override=3)),
]
SUMS = [
    Form(
        "einsum of three",
        lambda m, x, y, z: torch.einsum("bij,bjk,bkl->bil", x, y, z),
        ((1, 4, 6), (1, 6, 5), (1, 5, 8)),
    ),
    Form("einsum of any axes", lambda m, x, y: torch.einsum("...ij,...kj", x, y), (IMAGE, (1, 8, 3, 6))),
    Form("einsum of diagonals", lambda m, x, y: torch.einsum("bhii,hik->bhk", x, y), (IMAGE, (8, 6, 3))),
    Form("einsum of one", lambda m, x: torch.einsum("...ij->...j", x).reshape(-1) + torch.einsum("bhii->hi", x)[0, 0]),
    Form("addmv", lambda m, b, w, x: torch.addmv(b, w, x, beta=0.5), ((4,), (4, 6), (6,))),
    Form("cosine_similarity", lambda m, x, y: F.cosine_similarity(x, y, dim=-1), (BATCH, BATCH)),
    Form("pairwise_distance", lambda m, x, y: F.pairwise_distance(x, y), (ROWS_OF, ROWS_OF), rough=True),
    Form("cdist", lambda m, x, y: torch.cdist(x, y), (BATCH, BATCH), rough=True),
    Form("logsumexp", lambda m, x: torch.logsumexp(x, -1), (BATCH,)),
    Form("var_mean", lambda m, x: torch.cat(torch.var_mean(x, -1, keepdim=True), -1), (BATCH,)),
    Form("std_mean", lambda m, x: torch.cat(torch.std_mean(x, -1, keepdim=True), -1), (BATCH,), rough=True),
    Form("addcmul, lerp", lambda m, x, y: torch.lerp(torch.addcmul(x, x, y, value=0.5), y, 0.3), (BATCH, BATCH)),
    Form("outer", lambda m, x, y: torch.outer(x, y), ((8,), (6,))),
    Form("prod", lambda m, x: x.prod(-1), ((4, 5),)),
    Form("clamp by tensors", lambda m, x, y: torch.clamp(x, y, y + 1), (BATCH, BATCH)),
    Form("Bilinear", lambda m, x, y: m[0](x, y), (ROWS_OF, ROWS_OF), lambda: [nn.Bilinear(8, 8, 4)]),
    Form("1 / x", lambda m, x: 1 / (x.clamp(-2, 2) + 4), (BATCH,), rough=True),
    Form("x / z", lambda m, x, y: x / (y.clamp(-2, 2) - 4), (BATCH, BATCH), rough=True),
    Form("local_response_norm", lambda m, x: F.local_response_norm(x, 3), rough=True),
    Form("hypot", lambda m, x, y: torch.hypot(x, y), (BATCH, BATCH), rough=True),
    Form("cross", lambda m, x, y: torch.linalg.cross(x, y), ((4, 3), (4, 3))),
    Form("cross of the first axis of three", lambda m, x, y: torch.cross(x, y, dim=1), ((1, 3, 5), (2, 3, 5))),
    Form("inner", lambda m, x, y: torch.inner(x, y[:, 0]) + torch.inner(y[0, 0], x[0]), (ROWS_OF, BATCH)),
    Form("tensordot", lambda m, x, y: torch.tensordot(x, y, ([1, 2], [1, 0])), ((2, 3, 4), (4, 3, 5))),
    Form("log2, log10", lambda m, x: torch.log2(x * x + 1) + torch.log10(x * x + 2), (BATCH,), rough=True),
    Form("exp2, 3 ** x", lambda m, x: torch.exp2(x * 0.5) + 3 ** (x * 0.3), (BATCH,), rough=True),
    Form("softshrink", lambda m, x: F.softshrink(x, 0.3), (BATCH,)),
    Form("cumprod", lambda m, x: torch.cumprod(x * 0.2 + 1, 1), ((3, 7),)),
    Form("normalized by all", lambda m, x: (x - x.mean()) / (x.std() + 0.1), rough=True),
    Form("conv2d with computed weights", lambda m, x, w: F.conv2d(x, w), (IMAGE, (3, 8, 3, 3))),
    Form(
        "conv2d in groups with computed weights",
        lambda m, x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), 2, 4),
        (IMAGE, (12, 2, 3, 2), (12,)),
    ),
    Form("conv1d with computed weights", lambda m, x, w: F.conv1d(x, w, padding=1, groups=8), (LINES, (8, 1, 3))),
]
CHOICES = [
    Form("where by a number", lambda m, x: torch.where(x > 0.3, x, x * 0.1), rough=True),
    Form("where by a tensor", lambda m, x, y: torch.where(x >= y, x, y * 0.5), (BATCH, BATCH), rough=True),
    Form("masked_fill by a comparison", lambda m, x: x.masked_fill(x < -0.5, 0.25), rough=True),
    Form("assigned by a mask", masked, rough=True),
    Form("and, or, not", lambda m, x: ((x > 0.3) & (x < 0.9) | ~(x > 0)).float(), (BATCH,), rough=True),
    Form("xor, ne", lambda m, x: torch.logical_xor(x > 0.3, x != 0).float(), (BATCH,), rough=True),
    Form("any, all", lambda m, x: (x > 0.9).any(1).float() + (x > -0.9).all(1).float(), (BATCH,), rough=True),
    Form("how many", lambda m, x: (x > 0.5).sum(1).float(), (BATCH,), rough=True),
    Form("sign", lambda m, x: torch.sign(x), (BATCH,), rough=True),
    Form("floor_divide", lambda m, x: x // 0.7, (BATCH,), tables=True),
    Form("remainder", lambda m, x: x % 0.7, (BATCH,), tables=True),
    Form("kept by a comparison", lambda m, x: x * (x >= x.amax(1, keepdim=True)) + (x > 0.5), (BATCH,), rough=True),
    Form("hardshrink", lambda m, x: F.hardshrink(x, 0.3), (BATCH,), rough=True),
    Form("threshold", lambda m, x: F.threshold(x, 0.1, -0.2), (BATCH,), rough=True),
    Form("rounded to a decimal", lambda m, x: x.round(decimals=1), (BATCH,), tables=True),
]
STAYING = [
    Form("truth of floats", lambda m, x, y: torch.where(x.relu().bool() & y.relu().bool(), x, y), (BATCH, BATCH)),
    Form("any of floats", lambda m, x: x.relu().bool().any(1).float(), (BATCH,)),
    Form("whole numbers", lambda m, x: (x * 3).to(torch.int64).to(torch.float32) + x, (BATCH,)),
]
"""What is cast to a truth value or an integer is no number 0 or 1 to compute with."""
FORMS = {"norms": NORMS, "pastes": PASTES, "resizes": RESIZES, "volumes": VOLUMES, "sums": SUMS, "choices": CHOICES}
ALL = [form for forms in FORMS.values() for form in forms]


class Side(nn.Module):
    """Forms side by side, each behind an operator of its own and with inputs of its own."""

    def __init__(self, forms: list[Form]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.forms = forms
        self.parts = nn.ModuleList([nn.ModuleList(form.make()) for form in forms])
        self.eval()

    def forward(self, *inputs):
        results, start = [], 0
        for form, part in zip(self.forms, self.parts, strict=True):
            own = inputs[start : start + len(form.shapes)]
            start += len(form.shapes)
            results.append(form.call(part, *(F.hardtanh(x, -2.0, 2.0) for x in own)))
        return tuple(results)


def shapes_of(forms: list[Form]) -> list[Size]:
    return [shape for form in forms for shape in form.shapes]


@pytest.mark.sweep
@pytest.mark.parametrize("form", [*ALL, *STAYING], ids=lambda form: form.name)
@pytest.mark.parametrize("capabilities", [Capabilities(), CAPABILITIES], ids=["without tables", "tables"])
def test_the_same_function_in_float(form: Form, capabilities: Capabilities):
    """What quantization sees computes what the user wrote."""
    model = Side([form])
    inputs = inputs_for(shapes_of([form]), 3)
    with quiet(), warnings.catch_warnings(), torch.no_grad():
        module = functional(torch.export.export(model, inputs)).module(check_guards=False)
        before = len(list(module.graph.nodes))
        made = prepare_for_annotation(module, (), capabilities)(*inputs)
    assert before > 2
    for got, want in zip(as_tuple(made), as_tuple(model(*inputs)), strict=True):
        assert got.shape == want.shape
        assert torch.allclose(got.float(), want.float(), rtol=1e-3, atol=2e-4), float((got - want).abs().max())


def test_constants_behind_a_dropout_are_folded():
    """Such as relative positions, which a small network computes of constants alone."""
    add = lambda m, x: x + F.dropout(m[0](torch.ones(6)), 0.1, False)  # noqa: E731
    model = Side([Form("positions", add, make=lambda: [nn.Linear(6, 6)])])
    with quiet(), torch.no_grad():
        module = torch.export.export(model, inputs_for([IMAGE], 3)).module(check_guards=False)
        prepare_for_annotation(module, (), CAPABILITIES)
    assert not {"linear.default", "dropout.default"} & {overload_name(node) for node in module.graph.nodes}


def on(target: str, forms: list[Form]) -> Any:
    shapes = shapes_of(forms)
    calibration = [inputs_for(shapes, seed) for seed in range(1, 4)]
    return micronpu.compile(Side(forms), inputs_for(shapes, 0), target, calibration=calibration)


@pytest.mark.sweep
@pytest.mark.parametrize("group", FORMS)
def test_on_neutron(group: str):
    """One partition, the reference's integers, the quantized model up to rounding, near the float model.

    Compilation compares the program with the quantized model, see `micronpu.verify.program`.
    """
    forms = [form for form in FORMS[group] if not form.tables]
    program = on("imxrt700-neutron", forms)
    assert not program.report.host and program.report.partitions == 1
    assert program.report.agreement is not None and not program.report.agreement.reason
    inputs, graph = inputs_for(shapes_of(forms), 7), program.partitions[0].graph
    integers = interpret(graph, quantized_inputs(program, inputs))
    reals = [  # in the order of the partition
        torch.from_numpy(y.astype(np.float32) - tensor.type.zero_point) * np.float32(tensor.type.scale)
        for y, tensor in zip(integers, graph.outputs, strict=True)
    ]
    for form, got in zip(forms, program.run(*inputs), strict=True):
        assert any(real.shape == got.shape and torch.equal(real, got) for real in reals), form.name
    near_float(program, forms)


def near_float(program: Any, forms: list[Form]) -> None:
    inputs = inputs_for(shapes_of(forms), 1)
    problems = []
    with torch.no_grad():
        wanted = Side(forms)(*inputs)
    results = zip(forms, program.run(*inputs), wanted, output_qparams(program), strict=True)
    for form, got, want, step in results:
        noise = float((got - want).square().mean().sqrt())
        signal = max(float(want.square().mean().sqrt()), 4 * step)
        if noise > (0.35 if form.rough else 0.12) * signal:
            problems.append(f"{form.name}: noise of {noise / signal:.2f}")
    assert not problems, problems


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("group", FORMS)
def test_on_ethosu(group: str, target: str):
    """Vela's stream, which the compilation runs beside the graph; nothing is left on the host."""
    forms = FORMS[group]
    program = on(target, forms)
    left = [f"{v.operator} {v.node}: {v.reasons}" for v in program.report.host]
    assert not left, left
    assert program.report.partitions == 1
    near_float(program, forms)


def test_what_has_no_table_says_so():
    report = check_model(
        function("floor", lambda x: torch.relu(x // 0.7)).module().eval(), inputs_for([BATCH], 0), "imxrt700"
    ).report
    assert any("floor_divide" in v.operator and v.reasons for v in report.host)
