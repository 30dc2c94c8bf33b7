"""Transformations of a model before it is compiled, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from micronpu.base.arguments import check_type, described
from micronpu.base.errors import OptionError
from micronpu.partition.device import Device
from micronpu.passes.pipeline import Pipeline
from micronpu.transforms.sparsity.compress import check_compress
from micronpu.transforms.sparsity.entry import Sparsity
from micronpu.transforms.sparsity.options import SparsityOptions, sparsity_options


@dataclass(frozen=True, kw_only=True)
class Transforms:
    """Transformations of a float model's weights, in this order, and of the compiled graphs.

    Attributes:
        sparsity: "2:4" or `SparsityOptions`: make two of every four weights zero if the target computes such layers in
            half the cycles; needs some hundred calibration inputs, with ``train`` as well. See ``report.sparsity`` and
            `micronpu.sparsify`.
        compress: maximum fraction of held-out samples that may change their top-1 result, e.g. 0.01; reduces the bits
            of the weights, which Vela stores in fewer bytes, within this limit.
        passes: the `Pipeline` for the graphs of the program, with user-defined passes.

    Raises:
        OptionError: a value is invalid.
    """

    sparsity: str | SparsityOptions | None = None
    compress: float | None = None
    passes: Pipeline | None = None

    def __post_init__(self) -> None:
        sparsity_options(self.sparsity)
        check_compress(self.compress)
        check_type("passes", self.passes, Pipeline, type(None), hint='Pipeline().without("fuse_activations")')

    @classmethod
    def of(cls, given: Any) -> Transforms:
        """Convert an argument of `micronpu.compile`: a pattern or `SparsityOptions` is `sparsity`, a `Pipeline` is
        `passes`.

        Raises:
            OptionError: it is none of these.
        """
        if given is None:
            return cls()
        if isinstance(given, Transforms):
            return given
        if isinstance(given, str | SparsityOptions):
            return cls(sparsity=given)
        if isinstance(given, Pipeline):
            return cls(passes=given)
        raise OptionError(f"`transforms` is {described(given)}.", hint='Transforms(sparsity="2:4", compress=0.01)')

    def on(self, device: Device) -> Sparsity | None:
        """Return the transformations for a device, or None if there are none."""
        return Sparsity.of(self.sparsity, self.compress, device)
