"""Each repair of torchao is needed by the version that is installed; a test that fails says that it can go."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e import qat_utils
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
from torchao.quantization.pt2e.quantizer import ComposableQuantizer, Quantizer

from micronpu.base.errors import OptionError
from micronpu.frontend.program import overload_name
from micronpu.neutron import NeutronQuantizer
from micronpu.quantize import pt2e
from micronpu.upstream import torchao as upstream

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True, scope="module")
def repaired():
    repairs = pt2e.Repairs()
    assert repairs.are_made, "the repairs are for the version of torchao that is installed"
    yield repairs


def exported(model: nn.Module, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    return torch.export.export(model, inputs or (X,)).module(check_guards=False)


def arguments_of(module: torch.fx.GraphModule, operator: str) -> tuple:
    (node,) = (n for n in module.graph.nodes if overload_name(n).startswith(operator))
    return node.args


def dropout_is_rewritten(original) -> bool:
    module = exported(nn.Dropout(0.1).train())
    original(module, True)
    # Only its own p of 0.5 is found at all, so that another one is left in training mode.
    return arguments_of(module, "dropout")[1:] != (0.1, False)


def batch_norm_is_rewritten(original) -> bool:
    module = exported(nn.BatchNorm1d(4, eps=0.5, momentum=0.01).train())
    original(module, True)
    return arguments_of(module, "batch_norm")[5:8] != (False, 0.01, 0.5)


class PatternError(Exception):
    pass


def exports_patterns_in_vain(original) -> bool:
    def export(*args, **options):
        raise PatternError

    module = exported(nn.BatchNorm1d(4).train())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qat_utils, "_get_aten_graph_module_for_pattern", export)
        try:
            original(module)
        except PatternError:
            return True
    return False


def composed_is_not_asked(original) -> bool:
    asked = []

    class Asked(NeutronQuantizer):
        def prepare_obs_or_fq_callback(self, model, observers):
            asked.append(self)

    composed = ComposableQuantizer([Asked()])
    original(composed, exported(nn.ReLU()), {})
    return not asked


def mixed_use_goes_unnoticed(original) -> bool:
    quantizer = NeutronQuantizer(is_qat=True)
    module = quantizer.transform_for_annotation(exported(nn.ReLU()))
    try:
        original(quantizer.annotate(module), {}, False, obs_or_fq_callback=quantizer.prepare_obs_or_fq_callback)
    except OptionError:
        return False
    return True


NEEDED = {
    "dropout": dropout_is_rewritten,
    "batch_norm": batch_norm_is_rewritten,
    "_fuse_conv_bn_qat": exports_patterns_in_vain,
    "_fold_conv_bn_qat": exports_patterns_in_vain,
    "ask_each": composed_is_not_asked,
    "prepare": mixed_use_goes_unnoticed,
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", upstream.REPAIRS)
def test_a_repair_is_needed(name):
    needed, shim = NEEDED[name], upstream.REPAIRS[name]
    assert needed(upstream.ORIGINALS[name]), f"torchao no longer does it: {shim.use}; the repair can go"
    assert not needed(shim.find()), "the repair changes nothing"


def test_a_repair_that_does_not_fit_is_not_made(monkeypatch):
    shim = upstream.REPAIRS["dropout"]
    monkeypatch.setattr(upstream, "ORIGINALS", {})
    monkeypatch.setitem(upstream.REPAIRS, "dropout", replace(shim, parameters=("model",)))
    repaired = shim.find()
    with pytest.warns(UserWarning, match=r"torchao is left as it is: .* has other parameters, \(m, train_to_eval\)"):
        assert not pt2e.Repairs().are_made
    monkeypatch.setitem(upstream.REPAIRS, "dropout", shim)
    monkeypatch.setattr(upstream, "installed", lambda package: "0.19.0")
    monkeypatch.setattr(upstream, "is_seen", lambda package: False)
    with pytest.warns(UserWarning, match=r"torchao 0\.19\.0 is left as it is: its repairs are for 0\.18"):
        assert not pt2e.Repairs().are_made
    assert shim.find() is repaired and not upstream.ORIGINALS


UNCHANGED = """
import logging, sys
import torch, micronpu.quantize
print(logging.root.manager.disable)
print("imported", file=sys.stderr)

import gc, operator, types, warnings
warnings.simplefilter("ignore")
import torch.ao.quantization.fx.utils, torchao.utils
from torch import nn
import micronpu, micronpu.quantize.pt2e, micronpu.recipes, executorch.export
from micronpu.neutron import NeutronQuantizer
from torchao.quantization.pt2e import allow_exported_model_train_eval, quantize_pt2e

PACKAGES = ("torch", "torchao", "executorch", "numpy")

class Net(nn.Module):
    def __init__(self, *norms):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), *norms, nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)

def held():
    # what every module and class has now, and the module or class itself
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES or not isinstance(module, types.ModuleType):
            continue
        found[name] = (module, dict(vars(module)))
        for key, kind in found[name][1].items():
            if isinstance(kind, type):
                found[f"{name}.{key}"] = (kind, dict(vars(kind)))
    return found

def changed(before):
    # functions that are others now; most modules have what they had
    found = []
    for home, (owner, old) in before.items():
        new = vars(owner)
        if all(map(operator.is_, old.values(), map(new.get, old))):
            continue
        for key, value in old.items():
            if new.get(key) is not value and (callable(value) or isinstance(value, property)):
                if not is_own(home, new.get(key)):
                    found.append(f"{home}.{key}")
    return found

def is_own(home, value):
    # ExecuTorch's writer replaces methods of its own generated classes.
    return f"/{home.partition('.')[0]}/" in getattr(getattr(value, "__code__", None), "co_filename", "")

X, NORMED = torch.randn(4, 6), Net(nn.BatchNorm1d(8, eps=0.5), nn.Dropout(0.1))

def prepared(model, prepare, quantizer):
    return prepare(torch.export.export(model, (X,)).module(check_guards=False), quantizer)

def post_training():
    module = prepared(Net().eval(), quantize_pt2e.prepare_pt2e, NeutronQuantizer())
    module(X)
    return quantize_pt2e.convert_pt2e(module)

def training():
    module = prepared(NORMED.train(), quantize_pt2e.prepare_qat_pt2e, NeutronQuantizer(is_qat=True))
    allow_exported_model_train_eval(module).train()
    module(X)
    module.eval()
    quantize_pt2e.convert_pt2e(module)

def failing():
    class Failing(NeutronQuantizer):
        def annotate(self, model):
            raise KeyError("annotate")
    try:
        prepared(Net().eval(), quantize_pt2e.prepare_pt2e, Failing())
    except KeyError:
        pass

def recipe():
    executorch.export.export(Net().eval(), [(X,)], micronpu.recipes.get_imxrt700_recipe(calibration=[(X,)] * 4))

CALLS = {
    "compile": lambda: micronpu.compile(Net().eval(), (X,), "imxrt700", calibration=[(X,)] * 4),
    "train": lambda: micronpu.compile(NORMED.eval(), (X,), "imxrt700", train=lambda module: module(X)),
    "check": lambda: micronpu.check(Net().eval(), (X,), "ethos-u55-128"),
    "pt2e": post_training,
    "qat": training,
    "failing": failing,
    "blame": lambda: micronpu.blame(Net().eval(), [(X,)] * 4, "imxrt700"),
    "fix": lambda: micronpu.fix(Net().eval(), [(torch.randn(4, 6),) for _ in range(24)], "imxrt700", budget=1.0),
    "recipe": recipe,
}
for name, call in CALLS.items():
    before = held()
    result = call()
    if name in ("qat", "failing"):  # functions stay replaced while a module with a batch norm or a dropout lives
        torch.ao.quantization.fx.utils.assert_and_get_unique_device.cache_clear()
        torchao.utils._assert_and_get_unique_device.cache_clear()
        result = gc.collect()
    assert not changed(before), f"{name} left {changed(before)}"
    print(name)
"""


@pytest.fixture(scope="module")
def fresh() -> subprocess.CompletedProcess[str]:
    """A fresh interpreter: earlier tests of this process may have replaced functions, and have imported everything."""
    return subprocess.run([sys.executable, "-W", "default", "-c", UNCHANGED], capture_output=True, text=True)


@pytest.mark.sweep
def test_functions_of_other_packages_are_back_after_every_public_call(fresh):
    assert fresh.returncode == 0, fresh.stderr
    assert fresh.stdout.split()[-1] == "recipe"


def test_a_quantizer_of_another_package_is_none_of_our_business():
    class Theirs(Quantizer):
        is_qat = True

        def annotate(self, model):
            return model

        def validate(self, model):
            pass

    prepare_pt2e(exported(nn.ReLU()), Theirs())
    with pytest.raises(OptionError, match=r"NeutronQuantizer\(is_qat=True\) cannot be used with `prepare_pt2e`"):
        prepare_pt2e(exported(nn.ReLU()), ComposableQuantizer([Theirs(), NeutronQuantizer(is_qat=True)]))


@pytest.mark.sweep
def test_the_silence_at_import_is_needed(fresh):
    code = "import torch, torchao.quantization.pt2e"
    done = subprocess.run([sys.executable, "-W", "default", "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr, "torchao is silent by now; `import_torchao` can go"
    assert fresh.stderr.startswith("imported\n") and fresh.stdout.startswith("0\n")
