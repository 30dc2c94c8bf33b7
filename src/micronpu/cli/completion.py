"""Option for the target, and shell completion of targets and chips. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated

from micronpu.base.errors import MicroNpuError
from micronpu.cli import console


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return targets and aliases that start with ``incomplete``, each with the chip's title."""
    from micronpu.targets.registry import BACKENDS, all_targets

    try:
        targets = sorted(all_targets().items())
    except MicroNpuError:
        return []  # a message would disturb the line that is being typed
    found = []
    for name, target in targets:
        title = target.chip.title if target.chip is not None else BACKENDS[target.backend].title
        found += [(word, title) for word in (name, *target.entry.aliases) if word.startswith(incomplete)]
    return found


Target = Annotated[
    str,
    console.option(
        "NAME",
        "Target chip, NPU, core or chip file (required); see `micronpu targets`.",
        "--target",
        "-t",
        complete=complete_target,
    ),
]
"""Required, but "" by default: `find_target` rejects "" with an example of each kind of target."""
