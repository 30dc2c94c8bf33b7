"""Rewrites of the float program: each has a name, is listed, and can be left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

import micronpu
from micronpu.base.errors import OptionError
from micronpu.frontend.program import overload_name
from micronpu.ir.lowering import LOWERINGS, Decomposition
from micronpu.neutron import NeutronQuantizer, calibrate_and_quantize, generate_neutron_compile_spec
from micronpu.passes.pipeline import FINISH, SETTLE, SIMPLIFY
from micronpu.quantize.decompose import prepare_for_annotation, scalars_to_constants
from micronpu.quantize.qat import quantize_aware_training
from micronpu.quantize.writer import float_rewrites, is_on
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.registry import catalogue


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        return a + b


class JoinedConvolutions(nn.Module):
    """Two convolutions, one with a batch norm, concatenated with something that has no weights, and clamped."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.norm, self.clamp = nn.BatchNorm2d(8), nn.ReLU(inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.clamp(torch.cat([self.norm(self.first(x)), self.second(x), nn.functional.max_pool2d(x, 1)], 1))


class AddSix(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 6.0


IMAGE = (1, 4, 8, 8)
# name of the rewrite -> module, shape of its input, operator that is there only without the rewrite
ROWS = {
    "gated_linear": (nn.GLU(1), IMAGE, "glu.default"),
    "layer_norm": (nn.LayerNorm(8), IMAGE, "layer_norm.default"),
    "group_norm": (nn.GroupNorm(2, 4), IMAGE, "group_norm.default"),
    "attention": (Attention(), (1, 2, 8, 8), "scaled_dot_product_attention.default"),
    "recurrent": (nn.Sequential(nn.GRU(4, 4)), (3, 1, 4), "gru.input"),
    "split_to_slices": (Halves(), IMAGE, "chunk.default"),
}


def operators(module: GraphModule) -> list[str]:
    return [overload_name(n) for n in module.graph.nodes if n.op == "call_function"]


def quantized(model: nn.Module, shape: tuple[int, ...], *disabled: str) -> GraphModule:
    torch.manual_seed(0)
    batches = [torch.randn(shape) for _ in range(4)]
    exported = torch.export.export(model.eval(), (batches[0],))
    return calibrate_and_quantize(exported, batches, NeutronQuantizer(disabled_rewrites=disabled))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS)
def test_a_rewrite_that_is_left_out_leaves_its_operator(name: str) -> None:
    model, shape, operator = ROWS[name]
    assert operator not in operators(quantized(model, shape))
    assert operator in operators(quantized(model, shape, name))


def test_scalars_stay_numbers() -> None:
    with_it, without = (quantized(AddSix(), IMAGE, *names) for names in ((), ("scalars_to_constants",)))
    assert sum(name.startswith("dequantize") for name in operators(with_it)) == 3
    assert sum(name.startswith("dequantize") for name in operators(without)) < 3


def test_a_batch_norm_without_a_layer_before_it_stays() -> None:
    """Those behind a convolution are folded by torchao's `prepare_pt2e` as well."""
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)).eval()
    batch = (torch.randn(IMAGE),)
    for disabled, expected in ((frozenset[str](), "conv2d.default"), ({"fold_batch_norms"}, "batch_norm.default")):
        module = torch.export.export(model, batch).module()
        assert isinstance(module, GraphModule)
        assert expected in operators(prepare_for_annotation(module, disabled))


def test_every_rewrite_is_registered_and_listed() -> None:
    listed = float_rewrites()
    lowerings = [w for lowerings in LOWERINGS.values() for w in lowerings if isinstance(w, Decomposition)]
    assert {w.name for w in lowerings} <= set(listed)
    assert len({w.name for w in lowerings}) == len({w.decompose for w in lowerings}), "two have one name"
    kinds = list(catalogue().values())
    assert kinds[0] == listed
    assert list(kinds[1]) == [p.name for p in (*SIMPLIFY, *SETTLE, *FINISH)]
    assert list(kinds[2]) == [r.name for r in REWRITES]
    assert all(sentence for kind in kinds for sentence in kind.values())
    assert not is_on(scalars_to_constants, ("scalars_to_constants",))


def test_the_command_lists_them() -> None:
    from typer.testing import CliRunner

    from micronpu.cli.main import app

    shown = CliRunner().invoke(app, ["passes"]).output
    for kind, entries in catalogue().items():
        assert kind in " ".join(shown.split()), "as wide as the terminal is"
        assert all(f"  {name}  " in shown for name in entries)


def test_the_switch_reaches_the_quantizer() -> None:
    x = torch.randn(IMAGE)
    model, options = nn.GLU(1).eval(), NeutronOptions(disabled_passes=("gated_linear",))
    program = micronpu.compile(model, x, "imxrt700", calibration=[x], options=options)
    assert [v.operator for v in program.report.verdicts] == ["glu.default"]
    assert "glu.default" not in [
        v.operator for v in micronpu.compile(model, x, "imxrt700", calibration=[x]).report.verdicts
    ]


@pytest.mark.parametrize("given", ["silly", "fold_pads"])
def test_the_quantizer_refuses_what_is_no_rewrite(given: str) -> None:
    with pytest.raises(OptionError, match=f"There is no rewrite '{given}'.*lists all"):
        NeutronQuantizer(disabled_rewrites=[given])
    with pytest.raises(OptionError, match="list of names"):
        NeutronQuantizer(disabled_rewrites="gated_linear")


def test_the_options_refuse_what_is_no_pass() -> None:
    with pytest.raises(OptionError, match=r"There is no pass 'silly'.*one of .*`micronpu passes` lists all"):
        generate_neutron_compile_spec("imxrt700", disabled_passes=["gated_linear", "silly"])
    names = ("gated_linear", "fold_pads", "activation_before_concat", "pad_channels")
    options = NeutronOptions(disabled_passes=names)
    assert options.disabled_rewrites == ("gated_linear", "activation_before_concat")
    assert options.disabled_graph_passes == ("fold_pads", "activation_before_concat")
    assert options.disabled_node_rewrites == ("pad_channels",)


# ---------------------------------------------------------------- activation before concat


@pytest.mark.parametrize("inplace", [True, False])
def test_a_clamp_goes_into_the_layers_before_a_cat(inplace: bool) -> None:
    model, shape = JoinedConvolutions(inplace), (1, 3, 8, 8)
    names = operators(quantized(model, shape))
    assert names.count("relu.default") == 3
    assert "relu.default" not in names[names.index("cat.default") :]
    apart = operators(quantized(model, shape, "activation_before_concat"))
    assert apart.count("relu.default") == 1
    assert "relu.default" in apart[apart.index("cat.default") :]


def test_it_saves_steps_and_computes_the_same() -> None:
    torch.manual_seed(0)
    model = JoinedConvolutions().eval()
    batches = [torch.randn(1, 3, 8, 8) for _ in range(20)]
    program = micronpu.compile(model, batches[0], "imxrt700", calibration=batches)
    assert program.report.partitions == 1 and not program.report.host
    nodes = program.partitions[0].graph.nodes
    assert [str(n.op.activation.name) for n in nodes if n.op.name == "conv2d"] == ["RELU", "RELU"]
    y = model(batches[1])
    noise = (program.run(batches[1]) - y).square().sum()
    assert 10 * torch.log10(y.square().sum() / noise) > 25
    assert torch.equal(program.run(batches[1]) == 0, program.quantized(batches[1]) == 0)


def test_the_largest_bound_is_not_lost() -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(torch.cat([self.a(x), self.b(x)], dim=1), 0.0, 6.0)

    module = quantized(Clamped(), (1, 3, 8, 8))
    clamps = [n for n in module.graph.nodes if overload_name(n).startswith("clamp")]
    assert [n.args[1:] for n in clamps] == [(0.0, 6.0)] * 2


def test_it_works_in_training() -> None:
    x = torch.randn(4, 3, 8, 8)

    def train(module: nn.Module) -> None:
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

    model = JoinedConvolutions().eval()
    module = quantize_aware_training(model, (x,), train, NeutronQuantizer(is_qat=True))
    names = operators(module)
    assert names.count("relu.default") == 3
    assert not micronpu.compile(module, (x,), "imxrt700").report.host
