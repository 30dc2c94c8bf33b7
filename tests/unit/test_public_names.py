"""Names of earlier versions are refused with what they are called now, and options of all families are of one form."""

from __future__ import annotations

import dataclasses
import pickle
from types import ModuleType

import pytest

import micronpu
from micronpu import compat, ethosu, neutron
from micronpu.base import errors
from micronpu.base.errors import MicroNpuError, MovedError, OptionError
from micronpu.targets.registry import BACKENDS

SILICON = {"neutron": "imx95", "ethos-u": "ethos-u85-256", "cortex-m": "cortex-m55"}


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        (neutron, "RemoveIOQuantOpsPass", "from micronpu.compat import RemoveIOQuantOpsPass"),
        (ethosu, "ArmPassPipelineConfig", "from micronpu.compat import ArmPassPipelineConfig"),
        (ethosu, "VelaExternalBlockPlacements", "from micronpu.compat import VelaExternalBlockPlacements"),
    ],
)
def test_an_old_name_says_where_it_is(module: ModuleType, name: str, now: str) -> None:
    with pytest.raises(MovedError, match=f"has no `{name}`. Try: {now}") as caught:
        exec(f"from {module.__name__} import {name}", {})
    assert isinstance(caught.value, ImportError)
    exec(now, {})
    assert name not in dir(module)


@pytest.mark.parametrize("name", ["NXPRecipeType", "NXPRecipeProvider", "NeutronRecipeConfig"])
def test_a_name_of_other_releases_of_executorch_says_what_is_used_here(name: str) -> None:
    with pytest.raises(MovedError, match=rf"has no `{name}`.*NeutronRecipeType\.INT8 of micronpu\.recipes"):
        getattr(neutron, name)


def test_options_of_other_releases_of_executorch() -> None:
    with pytest.raises(OptionError, match=r"no option `max_scratch_size`\. Try: verify=Budgets\(max_sram=\.\.\.\)"):
        compat.EthosUCompileSpec("ethos-u55-128", max_scratch_size=4096)
    with pytest.raises(OptionError, match=r"no option `force_delegate_cat`\. Try: leave it out"):
        neutron.CustomDelegationOptions(force_delegate_cat=True)
    assert neutron.CustomDelegationOptions(True) == neutron.CustomDelegationOptions(allow_no_op_partitions=True)
    spelled = {n: micronpu.NeutronOptions("imxrt700", operators_not_to_delegate=(n,)) for n in LOWER}
    assert {n: made.operators_not_to_delegate for n, made in spelled.items()} == {n: (LOWER[n],) for n in LOWER}
    assert compat.default_preserve_ops == []


LOWER = {"aten_add_tensor": "aten.add.Tensor", "aten_convolution_default": "aten.convolution.default"}


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for module in (micronpu, neutron, ethosu, compat):
        assert not hasattr(module, "NoSuchThing")


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_options_of_every_backend_are_public_frozen_and_of_one_form(backend) -> None:
    options = backend.options
    assert getattr(micronpu, options.__name__) is options
    fields = dataclasses.fields(options)
    assert fields[0].name == "silicon" and all(f.kw_only for f in fields[1:])
    assert not [n for n in vars(options) if n.startswith(("set_", "dump_to", "dump_debug"))]
    made = options(SILICON[backend.name])
    for field in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, getattr(made, field.name))
    assert hash(made) == hash(options(silicon=SILICON[backend.name])) and pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(OptionError, match=rf"has no option `{options.silicon_key}` any more. Try: silicon="):
        options(**{options.silicon_key: SILICON[backend.name]})
    assert options.silicon_key != "silicon"
    other = dataclasses.replace(made, disabled_passes=("pad_channels",)) if backend.name == "neutron" else made
    assert other.silicon == made.silicon


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_compile_specs_keep_the_keys_of_programs_that_are_there(backend) -> None:
    key = {"neutron": "config", "ethos-u": "target", "cortex-m": "core"}[backend.name]
    made = backend.options(SILICON[backend.name])
    pairs = made.to_pairs(for_program=True)
    assert pairs[0] == (key, f'"{SILICON[backend.name]}"'.encode())
    specs = [type("Spec", (), {"key": k, "value": v})() for k, v in made.to_pairs()]
    assert backend.options.owns(specs) and backend.options.from_specs(specs) == made


def test_every_error_is_public() -> None:
    ours = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, MicroNpuError)}
    assert ours <= set(micronpu.__all__)
