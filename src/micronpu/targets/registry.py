"""The device that a target stands for."""

from __future__ import annotations

from typing import TypeAlias

from micronpu.chips import ETHOS_U
from micronpu.errors import OptionError
from micronpu.partition.device import Device
from micronpu.targets.ethosu.device import EthosUDevice
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import NeutronCompileOptions
from micronpu.targets.target import Target, find_target

Options: TypeAlias = NeutronCompileOptions | EthosUCompileSpec


def device_for(target: str, options: Options | None = None) -> Device:
    """The device of a target.

    Args:
        target: see ``micronpu targets``.
        options: of the NPU's family; its defaults unless given.

    Raises:
        OptionError: there is no such target, or the options are for another one.
    """
    chosen = find_target(target)
    if chosen.family == ETHOS_U:
        return EthosUDevice(_ethosu_options(chosen, options), chosen.name, core=chosen.core)
    return NeutronDevice(_neutron_options(chosen, options), chosen.name, core=chosen.core)


def _neutron_options(target: Target, options: Options | None) -> NeutronCompileOptions:
    hint = f'NeutronCompileOptions(config="{target.device}")'
    if options is None:
        return NeutronCompileOptions(config=target.device)
    if not isinstance(options, NeutronCompileOptions):
        raise OptionError(
            f"The target {target.name} has a Neutron, but the options are of type {type(options).__name__}.", hint=hint
        )
    if options.config != target.device:
        raise OptionError(f"The target is {target.device}, but the options are for {options.config}.", hint=hint)
    return options


def _ethosu_options(target: Target, options: Options | None) -> EthosUCompileSpec:
    hint = f'EthosUCompileSpec("{target.device}")'
    if options is None:
        return EthosUCompileSpec(target.device, **target.defaults())
    if not isinstance(options, EthosUCompileSpec):
        raise OptionError(
            f"The target {target.name} has an Ethos-U, but the options are of type {type(options).__name__}.", hint=hint
        )
    if options.target != target.device:
        raise OptionError(f"The target is {target.device}, but the options are for {options.target}.", hint=hint)
    return options
