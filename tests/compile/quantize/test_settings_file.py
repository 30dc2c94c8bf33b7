"""Quantization from a file or a dictionary: the same as the calls that it stands for, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app
from micronpu.ethosu import EthosUOptions, EthosUQuantizer
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import is_quantize
from micronpu.neutron import NeutronQuantizer, QuantizationConfig
from micronpu.quantize.calibrate import quantize
from micronpu.quantize.config import Corrections
from micronpu.quantize.settings_file import configure, read_quantization

WHOLE = {
    "equalize": True,
    "adaptive_rounding": True,
    "default": {"activation_observer": "mse", "percentile": 99.5},
    "modules": {"0": {"activations": "int16"}},
    "nodes": {"linear": {"weight_observer": "mse"}},
    "operators": {"relu": {"float": True}},
}


FILE = """
equalize = true
adaptive_rounding = true

[default]
activation_observer = "mse"
percentile = 99.5

[modules.0]
activations = "int16"

[nodes.linear]
weight_observer = "mse"

[operators.relu]
float = true
"""


def test_a_file_says_what_the_calls_say(tmp_path):
    path = tmp_path / "q.toml"
    path.write_text(FILE)
    assert read_quantization(path) == WHOLE
    spec = EthosUOptions("ethos-u55-128")
    default = QuantizationConfig(activation_observer="mse", percentile=99.5)
    by_hand = (
        EthosUQuantizer(spec)
        .set_global(default)
        .set_module_name("0", replace(default, activations="int16"))
        .set_node_name("linear", replace(default, weight_observer="mse"))
        .set_operator("relu", None)
        .set_corrections(Corrections(equalize=True, adaptive_rounding=True))
    )
    assert configure(EthosUQuantizer(spec), path).settings == by_hand.settings
    assert configure(EthosUQuantizer(spec), WHOLE).settings == by_hand.settings
    assert configure(EthosUQuantizer(spec, per_channel=False), {"equalize": True}).settings.default.per_channel is False


REFUSED = {
    "another name": ({"equalise": True}, "There is no 'equalise' in `quantization`. Try: one of equalize, "),
    "another field": ({"default": {"bits": 4}}, "There is no 'bits' in [default] of `quantization`."),
    "another value": ({"default": {"activation_observer": "x"}}, "it is one of ['histogram', 'minmax', "),
    "no truth value": ({"equalize": "yes"}, "`equalize` is 'yes'; it is True or False."),
    "no table": ({"modules": {"0": "int16"}}, "[modules.0] of `quantization` is 'int16', not a table."),
    "no tables": ({"nodes": 3}, "`nodes` in `quantization` is 3, not a table."),
    "float and more": ({"modules": {"0": {"float": True, "percentile": 99.0}}}, "float = true and nothing else"),
    "int16 on Neutron": ({"default": {"activations": "int16"}}, "does not compute with int16"),
    "a module that there is not": ({"modules": {"head": {}}}, 'set_module_name("head", ...) fits nothing'),
    "a list": ([1], "`quantization` is of type list."),
    "no file": ("none.toml", "none.toml"),
}
X = torch.randn(1, 4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    given, said = REFUSED[name]
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    with pytest.raises(MicroNpuError) as caught:
        micronpu.compile(model, X, "imxrt700-neutron", calibration=[X], quantization=given)
    assert said in str(caught.value), str(caught.value)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["mse", "percentile", "minmax", "moving_average", "weights"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_every_observer_goes_through(kind, per_channel):
    """A few large values among many: what is clipped shows which observer it was."""
    default = {"weight_observer": "mse"} if kind == "weights" else {"activation_observer": kind, "percentile": 99.0}
    settings = {"default": {"per_channel": per_channel, **default}}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    data = [(x[None],) for x in torch.randn(200, 4) ** 3]
    exported = graph_module(torch.export.export(model, data[0]))
    module = quantize(exported, [data], configure(NeutronQuantizer(), settings))
    steps = [float(n.args[1]) for n in module.graph.nodes if is_quantize(n)]
    with torch.no_grad():
        hidden = torch.cat([model[1](model[0](*row)) for row in data])
    everything = float(hidden.max()) / 255
    if kind == "percentile":
        assert steps[1] == pytest.approx(float(hidden.quantile(0.99)) / 255, rel=0.1)
    elif kind == "minmax":
        assert everything <= steps[1] <= 1.2 * everything  # of 3,200 values, a margin of at most 19 %
    elif kind == "moving_average":
        assert steps[1] < 0.95 * everything


def test_files_that_are_none(tmp_path):
    (tmp_path / "bad.toml").write_text("equalize = ")
    with pytest.raises(MicroNpuError, match=r"bad\.toml is no TOML: "):
        configure(NeutronQuantizer(), tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    with pytest.raises(MicroNpuError, match=r"binary\.toml is no TOML: "):
        configure(NeutronQuantizer(), tmp_path / "binary.toml")
    with pytest.raises(MicroNpuError, match="are both given"):
        micronpu.compile(
            nn.ReLU(),
            X,
            "imxrt700",
            calibration=[X],
            quantization=micronpu.Quantization(quantizer=NeutronQuantizer(), settings={"equalize": True}),
        )


def test_the_command_takes_file_and_options(tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), (torch.zeros(1, 6),)\n"
        "def calibration():\n    torch.manual_seed(1)\n    return list(torch.randn(8, 6))\n"
    )
    (tmp_path / "q.toml").write_text('adaptive_rounding = true\n[default]\nactivation_observer = "minmax"\n')
    said = ["compile", f"{tmp_path}/model.py:net", "-t", "imxrt700-neutron", "--no-verify", "-o"]
    options = ["--quantization", f"{tmp_path}/q.toml", "--quantization", "weight_observer=mse"]
    options += ["--quantization", "bias_correction"]
    done = CliRunner().invoke(app, [*said, f"{tmp_path}/out.pte", *options])
    assert done.exit_code == 0, done.output
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    torch.manual_seed(1)
    data = list(torch.randn(8, 6))
    whole = {
        "adaptive_rounding": True,
        "bias_correction": True,
        "default": {"activation_observer": "minmax", "weight_observer": "mse"},
    }
    made = micronpu.compile(
        model, torch.zeros(1, 6), "imxrt700-neutron", calibration=data, verify=False, quantization=whole
    )
    assert (tmp_path / "out.pte").read_bytes() == made.buffer
    plain = micronpu.compile(model, torch.zeros(1, 6), "imxrt700-neutron", calibration=data, verify=False)
    assert plain.buffer != made.buffer
    wrong = CliRunner().invoke(app, [*said, f"{tmp_path}/out.pte", "--quantization", "activation_observer=best"])
    assert wrong.exit_code == 1 and "`activation_observer` is 'best'" in wrong.output
