"""Compile specs of a Neutron with the function names of ExecuTorch's own backend."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from micronpu.base.arguments import check_switch, check_type, described, strings
from micronpu.base.errors import FileError, OptionError
from micronpu.base.files import check_name
from micronpu.targets.neutron.converter import DEFAULT_TIMEOUT, EXCLUDED_GRAPH_PASSES
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.target_spec import LATEST

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

_FLAVOR = "SDK_"


def _one(name: str, *given: Any) -> Any:
    """Return the value of an option with several names; None if none is given."""
    values = [value for value in given if value is not None]
    if any(value != values[0] for value in values):
        raise OptionError(f"`{name}` is given under several names: {', '.join(map(repr, values))}.", hint="one of them")
    return values[0] if values else None


def generate_neutron_compile_spec(
    config: str,
    system_config: str | None = None,
    extra_flags: Sequence[str] | str | None = None,
    intermediates_dir: str | os.PathLike[str] | None = None,
    operators_not_to_delegate: Sequence[str] | None = None,
    use_neutron_for_format_conversion: bool = True,
    fetch_constants_to_sram: bool = False,
    dump_kernel_selection_code: bool = False,
    use_profiling: bool = False,
    *,
    profiling: bool | None = None,
    converter: str = "auto",
    converter_flavor: str | None = None,
    neutron_converter_flavor: str | None = None,
    converter_timeout: float = DEFAULT_TIMEOUT,
    sdk_version: str = "",
    disabled_passes: Sequence[str] = (),
    excluded_graph_passes: Sequence[str] = EXCLUDED_GRAPH_PASSES,
) -> list[CompileSpec]:
    """Compile specs for `NeutronPartitioner`; see `NeutronOptions` for the arguments.

    Names and order are those of ExecuTorch's own backend, so that its scripts run.

    Args:
        system_config: ignored, as in ExecuTorch; a converter flavor is accepted here, since it was in this position in
            the first releases.
        use_profiling: another name of ``profiling``.
        neutron_converter_flavor: another name of ``converter_flavor``.

    Raises:
        OptionError: a value has the wrong type, a name does not exist, or two names of one option have different
            values.
    """
    check_switch("use_profiling", use_profiling)
    check_type("profiling", profiling, bool, type(None))
    for name, given in (
        ("system_config", system_config),
        ("converter_flavor", converter_flavor),
        ("neutron_converter_flavor", neutron_converter_flavor),
    ):
        check_type(name, given, str, type(None))
    flags = extra_flags.split() if isinstance(extra_flags, str) else () if extra_flags is None else extra_flags
    excluded = () if operators_not_to_delegate is None else operators_not_to_delegate
    older = system_config if str(system_config).startswith(_FLAVOR) else None
    flavor = _one("converter_flavor", converter_flavor, neutron_converter_flavor, older)
    profile = _one("profiling", profiling, use_profiling or None)
    return NeutronOptions(
        silicon=config,
        extra_flags=strings("extra_flags", flags),
        operators_not_to_delegate=strings("operators_not_to_delegate", excluded),
        use_neutron_for_format_conversion=use_neutron_for_format_conversion,
        fetch_constants_to_sram=fetch_constants_to_sram,
        dump_kernel_selection_code=dump_kernel_selection_code,
        profiling=False if profile is None else profile,
        intermediates_dir=_folder(intermediates_dir),
        converter=converter,
        converter_flavor=LATEST if flavor is None else flavor,
        converter_timeout=converter_timeout,
        sdk_version=sdk_version,
        disabled_passes=strings("disabled_passes", disabled_passes),
        excluded_graph_passes=strings("excluded_graph_passes", excluded_graph_passes),
    ).to_specs()


def _folder(given: str | os.PathLike[str] | None) -> str:
    """Return a folder in the form of the options."""
    if given is None or isinstance(given, str):
        return given or ""
    try:
        return str(check_name(given))
    except FileError as error:
        raise OptionError(
            f"`intermediates_dir` is {described(given)}; it is the path of a folder.", hint="a path such as 'out'"
        ) from error


_OPTIONS = tuple(inspect.signature(generate_neutron_compile_spec).parameters)[1:]


class NeutronCompileSpecBuilder:
    """Builder of compile specs: ``NeutronCompileSpecBuilder().neutron_compile_spec("imxrt700").build()``."""

    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None

    def neutron_compile_spec(
        self,
        config: str,
        intermediates_dir: str | os.PathLike[str] | None = None,
        extra_flags: Sequence[str] | str | None = None,
        operators_not_to_delegate: Sequence[str] | None = None,
        use_neutron_for_format_conversion: bool = True,
        fetch_constants_to_sram: bool = False,
        dump_kernel_selection_code: bool = False,
        use_profiling: bool = False,
        **options: Any,
    ) -> NeutronCompileSpecBuilder:
        """Set chip and options; see `generate_neutron_compile_spec`, whose arguments have another order."""
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            hint = f"one of {', '.join(_OPTIONS)}"
            raise OptionError(f"There is no option {unknown[0]!r} of a Neutron compilation.", hint=hint)
        self._options = {
            "config": config,
            "intermediates_dir": intermediates_dir,
            "extra_flags": extra_flags,
            "operators_not_to_delegate": operators_not_to_delegate,
            "use_neutron_for_format_conversion": use_neutron_for_format_conversion,
            "fetch_constants_to_sram": fetch_constants_to_sram,
            "dump_kernel_selection_code": dump_kernel_selection_code,
            "use_profiling": use_profiling,
            **options,
        }
        generate_neutron_compile_spec(**self._options)  # raise errors here rather than in build()
        return self

    def build(self) -> list[CompileSpec]:
        """Return the compile specs."""
        if self._options is None:
            raise OptionError(
                "The compile spec has no chip.", hint='call neutron_compile_spec("imxrt700") before build()'
            )
        return generate_neutron_compile_spec(**self._options)
