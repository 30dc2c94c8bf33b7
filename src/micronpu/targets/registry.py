"""The registry of backends, and all targets: chips, NPUs and cores without chip, and user-defined chips."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from micronpu.base.errors import OptionError, RuntimeUnavailableError, first_line
from micronpu.base.extensions import BACKEND_POINTS, PASSES, extensions, load, package_of
from micronpu.chips import Chip, Chips, TargetEntry, shipped_chips
from micronpu.chips.core import Core
from micronpu.targets.backend import Backend, Target, sentences
from micronpu.targets.cortexm.backend import CortexM
from micronpu.targets.ethosu.backend import EthosU
from micronpu.targets.firmware import Firmware, KernelLibrary
from micronpu.targets.neutron.backend import Neutron

if TYPE_CHECKING:
    from micronpu.partition.device import Device
    from micronpu.targets.options import Options

BROKEN: dict[str, OptionError] = {}
"""Unusable backends of other packages, by the name of their entry point, with the reason."""


def _backends() -> Iterator[Backend]:
    """Our backends, and those of other packages that can be loaded."""
    own = (Neutron(), EthosU(), CortexM())
    yield from own
    taken = {name for backend in own for name in (backend.name, backend.backend_id)}
    for name, point in extensions(BACKEND_POINTS).items():
        try:
            backend = load(point, Backend, "class derived from micronpu.targets.backend.Backend")()
            if backend.name in taken or (backend.backend_id and backend.backend_id in taken):
                clash = f"The backend `{name}` of the package {package_of(point)} has the name of another one."
                raise OptionError(clash, hint="another `name` and `backend_id`")
        except OptionError as error:
            BROKEN[name] = error
            continue
        except Exception as error:  # any exception of its constructor
            what = f"The backend `{name}` of the package {package_of(point)} cannot be made: {first_line(error)}."
            BROKEN[name] = OptionError(what, hint="a newer version, or pip uninstall")
            continue
        taken |= {backend.name, backend.backend_id}
        yield backend


BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _backends()}
"""Backends by `Backend.name`."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_SUFFIX = ".toml"


def backend_with(backend_id: str) -> Backend | None:
    """Return the backend of a delegate by its name; None if no backend has it."""
    return next(
        (backend for backend in BACKENDS.values() if backend.backend_id and backend.backend_id == backend_id), None
    )


def firmware_of(backend_id: str) -> Firmware | None:
    """Firmware requirements of a delegate by its name; None if no backend has it."""
    backend = backend_with(backend_id)
    return backend.firmware() if backend is not None else None


def core_libraries() -> list[KernelLibrary]:
    return [library for backend in BACKENDS.values() if (library := backend.kernels()) is not None]


def core_library(namespace: str) -> KernelLibrary | None:
    """Return the library of a namespace's operators; None if no backend provides it."""
    return next((library for library in core_libraries() if library.name == namespace), None)


def core_device(core: Core) -> Device:
    """Return a device that runs non-delegated operators on a core in int8."""
    devices = (backend.core_device(core) for backend in BACKENDS.values())
    found = next((device for device in devices if device is not None), None)
    if found is None:
        raise OptionError(f"No family has kernels for the core {core.name}.", hint="a target without a core")
    return found


def backend_of(chip: Chip) -> Backend:
    """Return the backend of a chip."""
    for backend in BACKENDS.values():
        if backend.has(chip):
            return backend
    given = chip.npu.family if chip.npu is not None else ""
    known = ", ".join(f'"{backend.name}"' for backend in BACKENDS.values() if backend.backend_id)
    raise OptionError(
        f"The NPU family in the chip file {chip.file or chip.name} is {given!r}.",
        hint=f"one of {known}, or no table [npu] for a core alone",
    )


def chip_targets(chip: Chip) -> list[Target]:
    """Return the targets of one chip."""
    backend = backend_of(chip)
    return [Target(entry, backend.name, backend.silicon(chip), chip) for entry in chip.targets]


def all_targets(chips: Chips | None = None) -> dict[str, Target]:
    """Return every target by name, without aliases; by default of the package's chips."""
    chips = shipped_chips() if chips is None else chips
    found = {t.name: t for chip in chips.values() for t in chip_targets(chip)}
    for backend in BACKENDS.values():
        for name, title in backend.bare().items():
            found[name] = Target(TargetEntry(name, title), backend.name, name)
    return found


def target_examples() -> dict[str, str]:
    """Examples of targets with descriptions: per backend a chip and an NPU or core without chip, and a chip file."""
    found: dict[str, str] = {}
    for backend in BACKENDS.values():
        own = [target for target in all_targets().values() if target.backend == backend.name]
        chips = [(t.chip, t.entry.aliases) for t in own if t.chip and t.entry.aliases and t.silicon == backend.usual]
        # Prefer chips that are sold on a board; several aliases mean several chips.
        chips.sort(key=lambda known: (not known[0].boards, len(known[1])))
        found |= {aliases[0]: f"{chip.title}, {backend.title}" for chip, aliases in chips[:1]}
        found |= {name: what for name, what in backend.bare().items() if name == backend.usual}
    return found | {f"my_chip{_SUFFIX}": "a chip file of your own"}


def no_target() -> OptionError:
    examples = ", ".join(f"{name} ({what})" for name, what in target_examples().items())
    return OptionError(
        "No target is given, and there is no default: a program runs only on what it was compiled for.",
        hint=f"{examples}; `micronpu targets` lists all",
    )


def target_required(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function raise `no_target` if it is called without its argument ``target``."""
    position = list(inspect.signature(function).parameters).index("target")

    @functools.wraps(function)
    def called(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if len(arguments) <= position and "target" not in keywords:
            raise no_target()
        return function(*arguments, **keywords)

    return called


def find_target(name: str) -> Target:
    """Return the target of a name or alias, the first of a chip, or that of a user-defined chip file.

    Args:
        name: such as "imxrt700", or a path that ends in ".toml"; ":target" after a path selects one of several.

    Raises:
        OptionError: there is none, the message names the nearest; or the name is "" or None.
    """
    if name is None or name == "":
        raise no_target()
    if not isinstance(name, str):
        raise OptionError(
            f"The target is of type {type(name).__name__}; it is a name.",
            hint='"imxrt700"; `micronpu targets` lists all',
        )
    path, colon, wanted = name.rpartition(f"{_SUFFIX}:")
    if colon or name.endswith(_SUFFIX):
        return _from_file(f"{path}{_SUFFIX}" if colon else name, wanted if colon else "")
    targets = all_targets().values()
    for target in targets:
        if name in (target.name, *target.entry.aliases, target.chip and target.chip.name):
            return target
    known = sorted(n for t in targets for n in (t.name, *t.entry.aliases))
    near = [n for n in known if name.lower() in n][:3] or difflib.get_close_matches(name.lower(), known, 3)
    broken = "".join(f" {error.what}" for error in BROKEN.values())
    raise OptionError(
        f"There is no target {name!r}.{broken}",
        hint=f"{', '.join(near) or 'the name of a chip'}; of another chip its core or NPU, such as cortex-m55 or "
        "ethos-u55-128, or a chip file; `micronpu targets` lists all",
    )


def _from_file(path: str, wanted: str) -> Target:
    """Return the target of a chip file, by default the first one."""
    chip = next(c for c in shipped_chips().with_files(path).values() if c.file)
    try:
        targets = chip_targets(chip)
        for target in targets:
            options_for(target)  # raises for unknown values
    except OptionError as error:
        raise OptionError(f"The chip file {path} cannot be used: {error.what}", hint=error.hint) from error
    if not targets:
        raise OptionError(f"The chip file {path} has no target.", hint="add a table [[target]]")
    chosen = [t for t in targets if wanted in ("", t.name, *t.entry.aliases)]
    if not chosen:
        raise OptionError(
            f"The chip file {path} has no target {wanted!r}.", hint=f"one of {', '.join(t.name for t in targets)}"
        )
    return chosen[0]


def options_for(target: Target, options: Options | None = None, given: Mapping[str, object] | None = None) -> Any:
    """Return the options given for a target, or its defaults.

    Args:
        options: as a value; or else
        given: some of them by name.

    Raises:
        OptionError: they are for another backend or other silicon.
        RuntimeUnavailableError: the backend's compiler is not installed.
    """
    backend = BACKENDS[target.backend]
    _check_installed(backend)
    if options is None:
        unknown = set(given or ()) - {field.name for field in fields(backend.options)}
        if unknown:
            raise OptionError(f"{backend.title} has no option `{min(unknown)}`.", hint="leave it out")
        options = backend.choose(target, given)
    hint = f'{backend.options.__name__}("{target.silicon}")'
    if not isinstance(options, backend.options):
        raise OptionError(
            f"The target {target.name} takes {backend.options.__name__}, but the options are of type "
            f"{type(options).__name__}.",
            hint=hint,
        )
    if options.silicon != target.silicon:
        raise OptionError(f"The target is {target.silicon}, but the options are for {options.silicon}.", hint=hint)
    return backend.checked(target, options)


def _check_installed(backend: Backend) -> None:
    what, remedy = backend.missing()
    if what:
        others = [f.title for f in BACKENDS.values() if not f.missing()[0]]
        raise RuntimeUnavailableError(
            f"A program for {backend.title} needs {what}, which is not installed.",
            hint=f"{remedy}, or a target of another family: {', '.join(others)}" if others else remedy,
        )


def device_for(name: str, options: Options | None = None) -> Device:
    """Return the device of a target, by default with the target's own options."""
    target = find_target(name)
    device = BACKENDS[target.backend].device(options_for(target, options), target.name, target.core)
    device.chip = target.chip
    return device


def catalogue() -> dict[str, dict[str, str]]:
    """Return for each kind of pass, in order of execution, the description of each by name."""
    from micronpu.passes.pipeline import FINISH, SETTLE, SIMPLIFY
    from micronpu.quantize.writer import float_rewrites

    found = {
        "Rewrites of the float program, before it is quantized": float_rewrites(),
        "Passes over the graph of a partition": sentences((*SIMPLIFY, *SETTLE, *FINISH)),
    }
    for backend in BACKENDS.values():
        found |= backend.rewrites()
    if installed := {name: package_of(point) for name, point in extensions(PASSES).items()}:
        found["Passes of installed packages, for Pipeline.before and Pipeline.after"] = installed
    return found
