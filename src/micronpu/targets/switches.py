"""Options that disable passes and rewrites, common to all backends."""

from __future__ import annotations

from typing import ClassVar

from micronpu.passes import pipeline
from micronpu.passes.rewrite import Rewrite


class Switches:
    """Options with a field `disabled_passes`.

    Attributes:
        disabled_passes: names of passes and rewrites to skip.
        switchable_rewrites: optional rewrites of single operators of a graph.
        needed_rewrites: required ones.
    """

    disabled_passes: tuple[str, ...]
    switchable_rewrites: ClassVar[tuple[Rewrite, ...]] = ()
    needed_rewrites: ClassVar[tuple[Rewrite, ...]] = ()

    @property
    def disabled_graph_passes(self) -> tuple[str, ...]:
        """The disabled passes that work on a whole graph."""
        return tuple(name for name in self.disabled_passes if name in pipeline.switchable_passes())

    def passes_of(self, passes: pipeline.Pipeline) -> pipeline.Pipeline:
        """A pipeline without the disabled passes."""
        return passes.without(*(name for name in self.disabled_graph_passes if name in passes.names))

    @property
    def disabled_node_rewrites(self) -> tuple[str, ...]:
        """The disabled passes that rewrite one operator of a graph."""
        known = {rewrite.name for rewrite in self.switchable_rewrites}
        return tuple(name for name in self.disabled_passes if name in known)

    @property
    def disabled_rewrites(self) -> tuple[str, ...]:
        """The disabled passes that work on the float program, for the quantizer."""
        return tuple(name for name in self.disabled_passes if name in _float_rewrites()) if self.disabled_passes else ()

    def check_switches(self) -> None:
        """Refuse names that cannot be disabled.

        Raises:
            OptionError: there is no such pass or rewrite, or it is required.
        """
        names = tuple(rewrite.name for rewrite in self.switchable_rewrites)
        if set(self.disabled_passes).difference(pipeline.switchable_passes(), names):
            needed = {rewrite.name for rewrite in self.needed_rewrites}.difference(names)
            pipeline.check_disabled(self.disabled_passes, (*names, *_float_rewrites()), needed)


def _float_rewrites() -> dict[str, str]:
    # Imported here because these modules import torch, which reading options must not wait for.
    from micronpu.quantize.switches import float_rewrites

    return float_rewrites()
