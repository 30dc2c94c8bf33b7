"""Cache entries for Ethos-U, and their keys."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from micronpu.base.cache import CACHE, Entry, in_short
from micronpu.targets.ethosu.accelerators import vela_package

if TYPE_CHECKING:
    from micronpu.targets.ethosu.options import EthosUOptions

_TOOLS = ("ethos-u-vela", "ai-edge-litert", "flatbuffers", "numpy")
_NO_MATTER = (
    *("intermediates_dir", "debug_info", "config_ini", "carry_graph"),
    *("external_commands", "external_weights", "shared_weights", "search", "ray"),
)
"""Options that no plan depends on: their effect is in the Vela configuration, or in the payload."""


def entry_of(kind: str, *inputs: Any) -> Entry:
    """Return the cache entry of a result from Vela, or from the code that writes and runs programs for it."""
    return CACHE.entry(kind, _TOOLS, _vela(), *inputs)


def options_of(spec: EthosUOptions) -> Any:
    """The options of a compilation that its cached results depend on."""
    return _options(spec, spec.ini)


@functools.lru_cache(maxsize=16)
def _options(spec: EthosUOptions, ini: str) -> Any:
    values = tuple((f.name, getattr(spec, f.name)) for f in fields(spec) if f.name not in _NO_MATTER)
    return in_short((values, ini))


@functools.cache
def _vela() -> tuple[str, ...]:
    """Identity of Vela's core: its files and version."""
    package = vela_package()
    found = sorted(package.glob("regor*")) if package is not None else []
    return tuple(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in found if path.is_file())
