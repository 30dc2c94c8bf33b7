"""What becomes of a model before it is compiled, as one value."""

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
    """What is done to the weights of a float model, in this order, and to the graphs that are compiled.

    Attributes:
        sparsity: "2:4" or `SparsityOptions`: makes two of every four weights zero, where the target computes such
            layers in half the cycles; takes some hundred calibration inputs, with ``train`` as well. See
            ``report.sparsity`` and `micronpu.sparsify`.
        compress: gives weights fewer bits, which Vela stores in fewer bytes, while at most this share of the inputs
            kept back gets another answer; 0.01 for one in a hundred.
        passes: the `Pipeline` that the graphs of the program go through, with passes of your own.

    Raises:
        OptionError: a value does not fit.
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
        """From what `micronpu.compile` takes: a pattern or `SparsityOptions` are `sparsity`, a `Pipeline` is `passes`.

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
        """The work to do for a device, or None where there is none."""
        return Sparsity.of(self.sparsity, self.compress, device)
