"""Options of a Neutron compilation: a typed value, and the key-value pairs that travel through ExecuTorch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from micronpu.errors import OptionError
from micronpu.neutron.converter import ConverterOptions
from micronpu.neutron.devices import neutron_chips
from micronpu.ops import ATEN_IMPORTS

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


@dataclass(frozen=True)
class NeutronCompileOptions:
    """What a user can choose about a Neutron compilation.

    Attributes:
        config: id of the chip.
        extra_flags: further flags for the vendor's converter.
        operators_not_to_delegate: ATen overloads that shall stay on the host, such as "aten.add.Tensor".
        use_neutron_for_format_conversion: the NPU itself converts between the program's NCHW tensors and its own
            channels-last ones; otherwise the runtime does it on the core before and after the call.
        fetch_constants_to_sram: the converter arranges for weights to be fetched from flash to SRAM.
    """

    config: str = "imxrt700"
    extra_flags: tuple[str, ...] = ()
    operators_not_to_delegate: tuple[str, ...] = ()
    use_neutron_for_format_conversion: bool = True
    fetch_constants_to_sram: bool = False

    def __post_init__(self) -> None:
        for name in ("extra_flags", "operators_not_to_delegate"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        for name in ("use_neutron_for_format_conversion", "fetch_constants_to_sram"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"`{name}` is {getattr(self, name)!r}; it is True or False.")
        if self.config not in neutron_chips():
            raise OptionError(f"{self.config!r} has no Neutron.", hint=f"one of {', '.join(neutron_chips())}")
        excluded = tuple(_overload(o) for o in self.operators_not_to_delegate)
        object.__setattr__(self, "operators_not_to_delegate", excluded)

    @property
    def converter(self) -> ConverterOptions:
        return ConverterOptions(
            target=self.config,
            extra_flags=self.extra_flags,
            fetch_constants_to_sram=self.fetch_constants_to_sram,
        )

    def to_specs(self) -> list[CompileSpec]:
        """Key-value pairs, values as JSON."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [CompileSpec(key, json.dumps(value).encode()) for key, value in asdict(self).items()]

    @classmethod
    def from_specs(cls, specs: Iterable[CompileSpec]) -> NeutronCompileOptions:
        """The options from key-value pairs; keys that are left out keep their defaults."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for spec in specs:
            if spec.key not in known:
                raise OptionError(f"There is no compile spec {spec.key!r}.", hint=f"one of {', '.join(sorted(known))}")
            if spec.key in values:
                raise OptionError(f"The compile spec {spec.key!r} is given twice.")
            try:
                value = json.loads(bytes(spec.value))
            except ValueError as error:
                raise OptionError(
                    f"The compile spec {spec.key!r} holds {bytes(spec.value)!r}, which is not JSON.",
                    hint="make the list with generate_neutron_compile_spec",
                ) from error
            values[spec.key] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


def _strings(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(g, str) for g in given):
        raise OptionError(f"`{name}` is {given!r}; it is a list of strings.")
    return tuple(given)


def _overload(name: str) -> str:
    """``aten.add.Tensor`` for any usual way to write it."""
    bare = name.replace("::", ".").removeprefix("torch.ops.").removeprefix("aten.")
    if bare not in ATEN_IMPORTS:
        close = [o for o in sorted(ATEN_IMPORTS) if o.split(".")[0] == bare.split(".")[0]]
        hint = (
            f"one of {', '.join(f'aten.{o}' for o in close)}"
            if close
            else "`micronpu check` prints the names in a model"
        )
        raise OptionError(f"There is no operator {name!r} in `operators_not_to_delegate`.", hint=hint)
    return f"aten.{bare}"


def generate_neutron_compile_spec(
    config: str,
    *,
    extra_flags: Sequence[str] | str | None = None,
    operators_not_to_delegate: Sequence[str] | None = None,
    use_neutron_for_format_conversion: bool = True,
    fetch_constants_to_sram: bool = False,
) -> list[CompileSpec]:
    """Compile specs for `NeutronPartitioner`; see `NeutronCompileOptions` for the arguments."""
    flags = extra_flags.split() if isinstance(extra_flags, str) else tuple(extra_flags or ())
    return NeutronCompileOptions(
        config=config,
        extra_flags=tuple(flags),
        operators_not_to_delegate=tuple(operators_not_to_delegate or ()),
        use_neutron_for_format_conversion=use_neutron_for_format_conversion,
        fetch_constants_to_sram=fetch_constants_to_sram,
    ).to_specs()


class NeutronCompileSpecBuilder:
    """The same, step by step: ``NeutronCompileSpecBuilder().neutron_compile_spec("imxrt700").build()``."""

    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None

    def neutron_compile_spec(self, config: str, **options: Any) -> NeutronCompileSpecBuilder:
        """Sets chip and options; see `generate_neutron_compile_spec`."""
        generate_neutron_compile_spec(config, **options)  # refuses what is wrong here rather than in build()
        self._options = {"config": config, **options}
        return self

    def build(self) -> list[CompileSpec]:
        """The compile specs."""
        if self._options is None:
            raise OptionError(
                "The compile spec has no chip.", hint='call neutron_compile_spec("imxrt700") before build()'
            )
        return generate_neutron_compile_spec(**self._options)
