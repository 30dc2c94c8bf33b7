"""Parameters of public functions: few, and in one order."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import micronpu
from micronpu.base.errors import OptionError

NET, X = nn.Linear(4, 4).eval(), torch.randn(1, 4)


def test_another_order_names_the_right_one():
    with pytest.raises(OptionError, match=r"Try: evaluate\(model, data, program, labels\), in this order"):
        micronpu.evaluate(NET, "net.pte", [X])
    with pytest.raises(OptionError, match=r"Try: sparsify\(model, calibration, target, \.\.\.\)"):
        micronpu.sparsify(NET, [X], (X,))


PUBLIC = (micronpu.compile, micronpu.check, micronpu.blame, micronpu.fix, micronpu.sparsify, micronpu.evaluate)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_few_parameters_in_one_order(function):
    """The model, then data, then what it is for; the rest by name, in the order of `compile`."""
    names = list(inspect.signature(function).parameters)
    assert len(names) <= 10 and names[0] == "model"
    assert names[1] in ("example_inputs", "data", "calibration") and names[2] in ("target", "program")
    order = ["calibration", "train", "example_inputs", "quantization", "options", "callback"]
    shared = [name for name in order if name in names[3:]]
    assert [name for name in names[3:] if name in shared] == shared


def test_the_shortcuts_are_what_they_stand_for():
    of = micronpu.Quantization.of
    assert of(None) == micronpu.Quantization() and of("int16") == micronpu.Quantization(activations="int16")
    assert of({"equalize": True}).settings == {"equalize": True} and of("a.toml").settings == "a.toml"
    budgets = micronpu.Budgets(max_ms=1)
    assert micronpu.Verification.of(budgets) == micronpu.Verification(budgets=budgets)
    assert micronpu.Verification.of(False) == micronpu.Verification(run=False)
    assert micronpu.Transforms.of("2:4") == micronpu.Transforms(sparsity="2:4")
