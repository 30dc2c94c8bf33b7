"""Quantization-aware training: what is trained is what runs, whatever the batch norms look like."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e import (
    FakeQuantizeBase,
    allow_exported_model_train_eval,
    move_exported_model_to_eval,
    move_exported_model_to_train,
    qat_utils,
    quantize_pt2e,
    utils,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError
from micronpu.frontend.program import is_dequantize_channel, overload_name
from micronpu.ir.interpreter import interpret
from micronpu.neutron import NeutronQuantizer, QuantizationConfig
from micronpu.quantize import pt2e
from micronpu.quantize.qat import allow_train_and_eval, quantize_aware_training


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def classifier():
    """conv + BN (eps and momentum of their own) + ReLU, a residual block, dropout, linear + BN, linear."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8, eps=1e-3, momentum=0.2),
        nn.ReLU(),
        Residual(8),
        nn.AvgPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 9, 16),
        nn.BatchNorm1d(16),
        nn.ReLU6(),
        nn.Linear(16, 4),
    )


def patterns(count, seed=0):
    """Noisy images [N, 1, 12, 12] of four kinds of stripes, and their kinds."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 4, (count,), generator=generator)
    place = torch.arange(12.0)
    rows, columns = place[:, None].expand(12, 12), place[None, :].expand(12, 12)
    images = torch.stack([torch.sin(v) for v in (rows, columns, rows + columns, rows - columns)])
    noise = torch.randn(count, 12, 12, generator=generator)
    return (images[kinds] + 0.7 * noise)[:, None], kinds


def trainer(steps, rate=5e-3, batch=32, losses=None):
    def train(module):
        x, y = patterns(batch * steps)
        optimizer = torch.optim.Adam(module.parameters(), rate)
        for i in range(steps):
            rows = slice(i * batch, (i + 1) * batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            if losses is not None:
                losses.append(loss.item())

    return train


@torch.no_grad()
def accuracy(module, count=256):
    x, y = patterns(count, seed=1)
    return float((module(x).argmax(1) == y).float().mean())


def one_by_one(function, x):
    return torch.cat([function(row[None]) for row in x])


@pytest.fixture(scope="module")
def trained():
    """The float network after training, in evaluation mode."""
    model = classifier().train()
    trainer(40)(model)
    return model.eval()


@pytest.fixture(scope="module")
def example():
    return (patterns(1)[0],)


def prepared_from(model, *inputs, quantizer=None):
    """Prepared as torchao documents it; the batch size is free."""
    shapes = tuple({0: torch.export.Dim.AUTO} for _ in inputs)
    module = torch.export.export(model.eval(), inputs, dynamic_shapes=shapes).module(check_guards=False)
    return prepare_qat_pt2e(module, quantizer or NeutronQuantizer(is_qat=True))


# ---------------------------------------------------------------- the whole way


@pytest.fixture(scope="module")
def from_scratch(example):
    """A network trained with fake quantization from random weights: losses, results of training, the program."""
    losses, seen = [], {}

    def train(module):
        trainer(40, losses=losses)(module)
        seen["gradients"] = {n: p.grad for n, p in module.named_parameters()}
        module.eval()
        seen["accuracy"] = accuracy(module)
        with torch.no_grad():
            seen["fake"] = module(patterns(32, seed=1)[0])
        module.train()

    model = classifier().eval()
    before = copy.deepcopy(model.state_dict())
    program = micronpu.compile(model, example, "imxrt700", train=train)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()), "the user's model is left alone"
    return losses, seen, program


def test_loss_falls(from_scratch):
    losses, seen, _ = from_scratch
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 3
    assert seen["accuracy"] > 0.9


def test_every_parameter_gets_a_gradient(from_scratch):
    _, seen, _ = from_scratch
    assert set(seen["gradients"]) == set(dict(classifier().named_parameters()))
    for name, gradient in seen["gradients"].items():
        assert gradient is not None and gradient.abs().sum() > 0, name


def test_everything_runs_on_the_npu(from_scratch):
    _, _, program = from_scratch
    assert len(program.partitions) == 1
    targets = [overload_name(n) for n in program.quantized.graph.nodes]
    assert not [t for t in targets if "batch_norm" in t or t.startswith(("div", "mul", "rsqrt", "sqrt"))]
    for node in program.quantized.graph.nodes:
        if overload_name(node) in ("conv2d.default", "linear.default"):
            assert is_dequantize_channel(node.args[1])
            assert node.args[2].op == "get_attr"


def test_fake_quantization_is_what_is_converted(from_scratch):
    """In evaluation mode the module in training gives what the converted one gives."""
    _, seen, program = from_scratch
    with torch.no_grad():
        converted = one_by_one(program.quantized, patterns(32, seed=1)[0])
    step = float(converted.abs().max()) / 127
    # The batch size decides how torch orders its sums, and so where a value on the edge between two steps goes.
    assert (converted - seen["fake"]).abs().max() <= 4 * step
    assert (converted - seen["fake"]).abs().mean() < step / 4


def test_program_is_bit_exact_and_agrees(from_scratch):
    _, seen, program = from_scratch
    (part,) = program.partitions
    x, _ = patterns(32, seed=1)
    results = one_by_one(program.run, x)
    nodes = list(program.quantized.graph.nodes)
    first = next(n for n in nodes if overload_name(n).startswith("quantize_per_tensor"))
    last = next(n for n in reversed(nodes) if overload_name(n).startswith("dequantize_per_tensor"))
    for row, result in zip(x[:8], results, strict=False):
        integers = torch.round(row[None] / first.args[1] + first.args[2]).clamp(-128, 127).to(torch.int8)
        operand = integers.numpy().reshape(part.graph.inputs[0].shape)
        (expected,) = interpret(part.graph, [operand])
        assert np.array_equal(
            np.float32((expected.astype(np.float32) - last.args[2]) * last.args[1])[0], result.numpy()
        )
    assert (results.argmax(1) == seen["fake"].argmax(1)).float().mean() >= 0.95
    assert accuracy(lambda x: one_by_one(program.run, x), 64) > 0.9


@pytest.fixture(scope="module")
def quantized(trained, example):
    """The trained network after one step with fake quantization."""
    return quantize_aware_training(trained, example, trainer(1, batch=64), NeutronQuantizer(is_qat=True))


def test_one_step_does_not_destroy_a_trained_network(trained, quantized):
    before = accuracy(trained, 128)
    assert before > 0.95
    assert accuracy(lambda x: one_by_one(quantized, x), 128) >= before - 0.03


# ---------------------------------------------------------------- batch norms of every kind


class Shared(nn.Module):
    """One convolution read by two batch norms with different statistics."""

    def __init__(self):
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.one(self.conv(x)) + self.two(self.conv(x * 0.5))


class Branch(nn.Module):
    """A convolution whose result is also read without the batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


def image(channels=3):
    return torch.randn(16, channels, 8, 8)


NORMS = {
    "bias": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), image()),
    "no bias, relu": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()), image()),
    "eps": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.5, momentum=0.01)), image()),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.BatchNorm2d(3), nn.ReLU6()), image()),
    "no weight": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), image()),
    "linear": (lambda: nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU()), torch.randn(16, 12)),
    "linear, no weight": (
        lambda: nn.Sequential(nn.Linear(12, 6, bias=False), nn.BatchNorm1d(6, affine=False)),
        torch.randn(16, 12),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)), torch.randn(16, 3, 20)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.BatchNorm2d(4)), image()),
    "shared": (Shared, image()),
    "branch": (Branch, image()),
    "first": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), image()),
    "behind a pool": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(3), nn.ReLU()), image()),
}


def with_statistics(make):
    torch.manual_seed(3)
    model = make().eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.01, 2)
            if module.weight is not None:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model


def sqnr(reference, value):
    reference, value = reference.detach(), value.detach()
    return float(10 * torch.log10(reference.square().sum() / (reference - value).square().sum()))


@pytest.mark.sweep
@pytest.mark.parametrize(("make", "x"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("freeze", [False, True], ids=["", "frozen"])
def test_batch_norm_trains(make, x, freeze):
    """Training sees and notes the batch's statistics, or the model's where they are frozen."""
    model = with_statistics(make)
    config = QuantizationConfig(is_qat=True, freeze_batch_norm=freeze)
    prepared = prepared_from(copy.deepcopy(model), x, quantizer=NeutronQuantizer(is_qat=True).set_global(config))
    assert set(dict(prepared.named_parameters())) == set(dict(model.named_parameters()))
    move_exported_model_to_train(prepared)
    expected_mode = model if freeze else copy.deepcopy(model).train()
    result = prepared(x)
    with torch.no_grad():
        expected = expected_mode(x)
    assert sqnr(expected, result) > 25
    result.square().mean().backward()
    assert all(p.grad is not None for p in prepared.parameters())
    statistics = dict(prepared.named_buffers())
    for name, value in expected_mode.named_buffers():
        if "running" in name:
            # Statistics of a layer whose weights and input are on int8 grids.
            assert torch.allclose(statistics[name], value, rtol=0.05, atol=0.02), name


@pytest.mark.sweep
@pytest.mark.parametrize(("make", "x"), NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("freeze", [False, True], ids=["", "frozen"])
@torch.no_grad()
def test_batch_norm_converts(make, x, freeze):
    """Evaluation has the model's statistics; conversion folds, and keeps the result of every element."""
    model = with_statistics(make)
    config = QuantizationConfig(is_qat=True, freeze_batch_norm=freeze)
    prepared = prepared_from(copy.deepcopy(model), x, quantizer=NeutronQuantizer(is_qat=True).set_global(config))
    evaluated = prepared(x)
    assert sqnr(model(x), evaluated) > 25
    converted = convert_pt2e(prepared)
    assert not [n for n in converted.graph.nodes if "batch_norm" in n.name or n.op == "call_module"]
    # Folded arithmetic rounds floats elsewhere, so that a value between two steps may take the other one.
    different = ~torch.isclose(evaluated, converted(x), atol=1e-6)
    assert different.float().mean() < 0.005
    assert sqnr(evaluated, converted(x)) > 45


def test_a_weight_of_zero_trains():
    """Residual blocks start with gamma = 0; torchao's own rewrite divides by it."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    nn.init.zeros_(model[1].weight)
    nn.init.ones_(model[1].bias)
    x = image()
    prepared = prepared_from(model, x)
    move_exported_model_to_train(prepared)
    result = prepared(x)
    assert torch.allclose(result, torch.ones(()), atol=0.02)
    (result * torch.randn_like(result)).sum().backward()
    gradients = {n: p.grad for n, p in prepared.named_parameters()}
    assert gradients["1.weight"].abs().min() > 0
    assert all(torch.isfinite(g).all() for g in gradients.values())
    move_exported_model_to_eval(prepared)
    with torch.no_grad():
        assert torch.allclose(convert_pt2e(prepared)(x), torch.ones(()), atol=0.02)


def test_small_weights_keep_their_qparams():
    """torch's fused fake quantization has no scale below 6.1e-5; converted weights do."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False))
    with torch.no_grad():
        model[0].weight *= 1e-3
    x = image()
    prepared = prepared_from(copy.deepcopy(model), x)
    with torch.no_grad():
        assert sqnr(model(x), prepared(x)) > 30
        assert sqnr(prepared(x), convert_pt2e(prepared)(x)) > 60


def test_a_float_layer_is_folded_in_float():
    model = with_statistics(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    x = image()
    prepared = prepared_from(copy.deepcopy(model), x, quantizer=NeutronQuantizer(is_qat=True).set_global(None))
    with torch.no_grad():
        converted = convert_pt2e(prepared)
        assert [overload_name(n) for n in converted.graph.nodes if n.op == "call_function"] == ["conv2d.default"]
        assert torch.allclose(converted(x), model(x), atol=1e-5)


# ---------------------------------------------------------------- dropout, shared ranges, modes


def test_dropout_works_in_training_alone(example):
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
    seen = {}

    def train(module):
        seen["training"] = torch.equal(module(example[0]), module(example[0]))
        ranges = [
            m.activation_post_process.max_val.clone() for m in module.modules() if isinstance(m, FakeQuantizeBase)
        ]
        module.eval()
        seen["evaluation"] = torch.equal(module(example[0]), module(example[0]))
        module(example[0] * 100)
        after = [m.activation_post_process.max_val for m in module.modules() if isinstance(m, FakeQuantizeBase)]
        seen["ranges"] = all(torch.equal(a, b) for a, b in zip(ranges, after, strict=True))
        module.train()

    quantized = quantize_aware_training(model.eval(), example, train, NeutronQuantizer(is_qat=True))
    assert seen == {"training": False, "evaluation": True, "ranges": True}
    (dropout,) = (n for n in quantized.graph.nodes if overload_name(n) == "dropout.default")
    assert dropout.args[1:] == (0.5, False)
    torch.manual_seed(0)
    program = micronpu.compile(quantized, example, "imxrt700")
    assert torch.equal(program.run(*example), program.run(*example))


def test_dropout_does_not_widen_the_qparams():
    """It doubles what it lets through, which nothing on the chip does."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    x = torch.randn(64, 16)
    prepared = prepared_from(model, x)
    move_exported_model_to_train(prepared)
    for _ in range(3):
        prepared(x)
    move_exported_model_to_eval(prepared)
    converted = convert_pt2e(prepared)
    (relu,) = (n for n in converted.graph.nodes if overload_name(n) == "relu.default")
    (quantize,) = relu.users
    with torch.no_grad():
        largest = float(model[:2](x).max())
    assert quantize.args[1] * 255 == pytest.approx(largest, rel=0.02)


def test_shared_qparams_cover_all_that_share_it():
    """A moving average of the ranges of a concatenation's operands would clip the wider one."""

    class Net(nn.Module):
        def forward(self, x, z):
            return F.avg_pool2d(torch.cat([x, z], 1), 4)

    inputs = (torch.randn(4, 2, 8, 8), 20 * torch.randn(4, 2, 8, 8))
    prepared = prepared_from(Net(), *inputs)
    with torch.no_grad():
        for _ in range(5):
            prepared(*inputs)
        (cat,) = (n for n in convert_pt2e(prepared).graph.nodes if overload_name(n) == "cat.default")
    (quantize,) = cat.users
    assert quantize.args[1] * 255 >= 0.98 * float(inputs[1].max() - inputs[1].min())


def test_modes_keep_what_the_model_says():
    """torchao's own switch would write p = 0.5, momentum = 0.1 and eps = 1e-5 into every model."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.5, momentum=0.01), nn.Dropout(0.1))
    prepared = allow_exported_model_train_eval(prepared_from(model, image()))
    for mode in (True, False, True):
        prepared.train() if mode else prepared.eval()
        (norm,) = (n for n in prepared.graph.nodes if overload_name(n) == "batch_norm.default")
        (dropout,) = (n for n in prepared.graph.nodes if overload_name(n) == "dropout.default")
        assert norm.args[5:8] == (mode, 0.01, 0.5)
        assert dropout.args[1:] == (0.1, mode)


@pytest.fixture
def no_patterns(monkeypatch):
    """torchao's fusion of batch norms alone exports a hundred patterns, 19 s for a small network; now it may not."""

    def export(*args, **options):
        raise AssertionError("a pattern is exported")

    for module in (qat_utils, utils):
        monkeypatch.setattr(module, "_get_aten_graph_module_for_pattern", export)


def test_preparation_and_conversion_export_no_patterns(no_patterns):
    prepared = prepared_from(classifier(), patterns(8)[0])
    move_exported_model_to_train(prepared)
    prepared(patterns(8)[0])
    move_exported_model_to_eval(prepared)
    move_exported_model_to_eval(convert_pt2e(prepared))


def test_a_leftover_batch_norm_exports_no_patterns(no_patterns):
    """Post-training quantization, too, waited 17 s where one batch norm has nothing to be folded into."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)).eval()
    x = torch.randn(2, 6)
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(check_guards=False), NeutronQuantizer())
    prepared(x)
    convert_pt2e(prepared)


@pytest.mark.sweep
def test_what_torchao_can_fuse_it_still_fuses():
    """The check that saves the patterns has to see what another quantizer leaves to torchao."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    module = torch.export.export(model, (image(),)).module(check_guards=False)
    assert pt2e.can_match(module)
    quantize_pt2e._fuse_conv_bn_qat(module)
    assert "div" in {overload_name(n).split(".")[0] for n in module.graph.nodes}
    assert pt2e.can_match(module)


def test_parameters_that_rewrites_know_are_trained():
    """Rewrites make constants of what they know, which would take it from the optimizer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.shift = nn.Linear(8, 8), nn.Parameter(torch.randn(8))
            self.matrix, self.divisor = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.rand(1) + 1)

        def forward(self, x):
            return (self.linear(x) + self.shift) @ self.matrix / self.divisor

    model, x = Net(), torch.randn(16, 8)
    prepared = prepared_from(model, x)
    prepared(x).square().sum().backward()
    assert {n for n, p in prepared.named_parameters() if p.grad is not None} == set(dict(model.named_parameters()))


def test_a_state_of_the_batch_size_becomes_a_constant():
    """Training knows the size of the batch when it runs, the program from the start."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(x) + torch.ones(x.shape[0], 8)

    x = torch.randn(1, 8)
    quantized = quantize_aware_training(
        Net().eval(), (x,), lambda module: module(torch.randn(16, 8)), NeutronQuantizer(is_qat=True)
    )
    assert not [n for n in quantized.graph.nodes if overload_name(n) and not n.all_input_nodes]
    assert len(micronpu.compile(quantized, (x,), "imxrt700").partitions) == 1


# ---------------------------------------------------------------- bad input


def test_model_that_fixes_its_batch(example):
    """A shape in the code needs the example's batch size in training, too."""

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(144, 4)

        def forward(self, x):
            return self.linear(x.reshape(1, 144))

    quantized = quantize_aware_training(Fixed().eval(), example, lambda m: m(example[0]), NeutronQuantizer(is_qat=True))
    assert quantized(*example).shape == (1, 4)


def nan(module):
    module(patterns(4)[0])
    with torch.no_grad():
        next(module.parameters()).fill_(float("nan"))


REFUSED = {
    "no function": (lambda m, e: micronpu.compile(m, e, "imxrt700", train=3), "not a function"),
    "never run": (lambda m, e: micronpu.compile(m, e, "imxrt700", train=lambda module: None), "has not run the module"),
    "nan": (lambda m, e: micronpu.compile(m, e, "imxrt700", train=nan), "NaN or infinity"),
    "both": (lambda m, e: micronpu.compile(m, e, "imxrt700", train=nan, calibration=[e]), "both given"),
    "quantizer": (lambda m, e: quantize_aware_training(m, e, nan, NeutronQuantizer()), "is_qat=False"),
    "not a model": (lambda m, e: quantize_aware_training("model", e, nan, NeutronQuantizer(is_qat=True)), "str"),
    "prepared": (
        lambda m, e: micronpu.compile(prepared_from(copy.deepcopy(m), patterns(4)[0]), e, "imxrt700"),
        "not converted",
    ),
    "nothing": (lambda m, e: micronpu.compile(m, e, "imxrt700"), "calibration"),
}


@pytest.mark.sweep
@pytest.mark.parametrize(("run", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(run, message, trained, example):
    with pytest.raises(MicroNpuError, match=message):
        run(trained, example)


def test_a_quantized_model_cannot_be_trained(quantized, example):
    with pytest.raises(ModelError, match="quantized already"):
        micronpu.compile(quantized, example, "imxrt700", train=trainer(1))


def test_ranges_need_the_right_kind_of_quantizer():
    with pytest.raises(OptionError, match="is_qat"):
        NeutronQuantizer(is_qat=True).set_module_name("a", QuantizationConfig())


def test_documented_flow_compiles(trained, example):
    """prepare, train, convert as in torchao's guide; the converted module goes into compile as it is."""
    x, _ = patterns(64)
    prepared = allow_train_and_eval(prepared_from(copy.deepcopy(trained), x))
    prepared.train()
    trainer(2, rate=1e-5)(prepared)
    program = micronpu.compile(convert_pt2e(prepared), example, "imxrt700")
    assert len(program.partitions) == 1
    assert accuracy(lambda x: one_by_one(program.run, x), 64) > 0.9
