"""What can be compiled for: the targets of the chips, bare Ethos-U accelerators, and chips from a user's own files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from micronpu.chips.chip import ETHOS_U, Chip, EthosUNpu, TargetEntry, load_chip, load_chips
from micronpu.chips.core import Core, find_core
from micronpu.errors import OptionError
from micronpu.targets.ethosu.accelerators import accelerators, find_accelerator

_SUFFIX = ".toml"
SRAM = "sram"
"""Name of the memory in a chip file that the NPU shares with the core."""
_own: dict[str, Chip] = {}


@dataclass(frozen=True)
class Target:
    """A way to use an NPU that `micronpu.compile` accepts.

    Attributes:
        entry: name, title and other names.
        family: of the NPU, see `Npu`.
        device: by which the family knows the NPU: id of the chip with the Neutron, or name of the Ethos-U.
        chip: None for an Ethos-U by itself.
    """

    entry: TargetEntry
    family: str
    device: str
    chip: Chip | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def core(self) -> Core | None:
        """The core that computes in int8 what the NPU does not take, or None where portable kernels do in float."""
        return find_core(self.chip.core) if self.chip is not None and self.entry.leftovers else None

    def defaults(self) -> dict[str, Any]:
        """Options of the family that the chip decides, by name."""
        npu = self.chip.npu if self.chip is not None else None
        if not isinstance(npu, EthosUNpu):
            return {}
        return {
            "system_config": npu.system_config,
            "memory_mode": npu.memory_mode,
            "max_sram_bytes": next((m.bytes for m in self.chip.memories if m.name == SRAM), 0) if self.chip else 0,
        }

    def check(self) -> None:
        """Refuses a chip whose Ethos-U, system configuration or memory mode Vela does not know.

        Raises:
            OptionError: which it is, with the known ones.
        """
        if self.family == ETHOS_U:
            from micronpu.targets.ethosu.options import EthosUCompileSpec

            EthosUCompileSpec(self.device, **self.defaults())


def all_chips() -> tuple[Chip, ...]:
    """The chips that come with the package, and those from a user's files that this process has read."""
    return (*load_chips(), *_own.values())


def chip_targets(chip: Chip) -> list[Target]:
    """The targets of one chip.

    Raises:
        OptionError: its Ethos-U does not exist.
    """
    device = chip.name
    if isinstance(chip.npu, EthosUNpu):
        device = find_accelerator(chip.npu.accelerator).name
    return [Target(entry, chip.npu.family, device, chip) for entry in chip.targets]


def all_targets() -> dict[str, Target]:
    """Every target that needs no file of the user, by name, aliases excluded."""
    found = {t.name: t for chip in load_chips() for t in chip_targets(chip)}
    for name in accelerators():
        found[name] = Target(TargetEntry(name, "an Ethos-U whatever the chip"), ETHOS_U, name)
    return found


def find_target(name: str) -> Target:
    """The target of a name or alias, or of a user's chip file.

    Args:
        name: such as "imxrt700", or a path that ends in ".toml"; behind a path, ":target" chooses one of several.

    Raises:
        OptionError: there is none; the message lists the known ones.
    """
    path, colon, wanted = name.rpartition(f"{_SUFFIX}:")
    if colon or name.endswith(_SUFFIX):
        return _from_file(f"{path}{_SUFFIX}" if colon else name, wanted if colon else "")
    targets = all_targets().values()
    for target in targets:
        if name == target.name or name in target.entry.aliases:
            return target
    known = [n for t in targets for n in (t.name, *t.entry.aliases)]
    raise OptionError(f"There is no target {name!r}.", hint=f"one of {', '.join(sorted(known))}, or a chip file")


def _from_file(path: str, wanted: str) -> Target:
    """The target of a chip file, the first one unless named; from now on this process knows the chip by its id."""
    chip = load_chip(Path(path))
    if any(chip.name == known.name for known in load_chips()):
        raise OptionError(
            f"The chip file {path} is called `{chip.name}`, as a chip that micronpu brings along.", hint="another name"
        )
    try:
        targets = chip_targets(chip)
        for target in targets:
            target.check()
    except OptionError as error:
        raise OptionError(f"The chip file {path} cannot be used: {error.what}", hint=error.hint) from error
    if not targets:
        raise OptionError(f"The chip file {path} has no target.", hint="add a table [[target]]")
    chosen = [t for t in targets if wanted in ("", t.name, *t.entry.aliases)]
    if not chosen:
        raise OptionError(
            f"The chip file {path} has no target {wanted!r}.", hint=f"one of {', '.join(t.name for t in targets)}"
        )
    _own[chip.name] = chip
    return chosen[0]
