"""The Neutron toolchain as an interface, and the open reference implementation of it.

A converter turns the LiteRT model of one partition into the three sections of a `NeutronBackend` payload. The vendor's
converter (`sdk`) makes programs for silicon. `ReferenceConverter` needs no vendor tool: it wraps the LiteRT model in an
open container that the host plug-in runs; a board refuses it, because its magic number is not Neutron's.

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from micronpu.base import flatbuffer
from micronpu.base.arguments import check_switch, check_text
from micronpu.base.errors import ModelError, OptionError
from micronpu.container.payload import Artifacts, reference_artifacts

DEFAULT_TIMEOUT = 600.0
"""Seconds; the longest publicly reported conversion took 154."""

EXCLUDED_GRAPH_PASSES = ("HoistSliceAboveTranspose", "MergeTranspose")
"""Graph passes of the vendor's converter that ExecuTorch's own flow disables; so do we."""

_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PASS = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class ConverterOptions:
    """Options of a conversion.

    Attributes:
        target: the converter's name of the chip, such as "imxrt700".
        extra_flags: passed to the vendor's converter unchanged; each is one argument.
        excluded_graph_passes: passes that the vendor's converter skips.
        fetch_constants_to_sram: prefetch weights from external memory into SRAM.
        dump_kernel_selection_code: also return the C code that names the kernels in use.
        profiling: make a program that measures its kernels; its payload has version 1.
        timeout: seconds after which a converter in a separate process is killed.
        sdk_version: required version of the vendor's SDK, that of the board's firmware, or "" for any.
            another version is refused.

    Raises:
        OptionError: a value has the wrong type or form.
    """

    target: str
    extra_flags: tuple[str, ...] = ()
    excluded_graph_passes: tuple[str, ...] = EXCLUDED_GRAPH_PASSES
    fetch_constants_to_sram: bool = False
    dump_kernel_selection_code: bool = False
    profiling: bool = False
    timeout: float = DEFAULT_TIMEOUT
    sdk_version: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target):
            raise OptionError(
                f"The converter option target is {self.target!r}, but it must be the name of a chip.",
                hint='a name such as "imxrt700"; `micronpu targets` lists them',
            )
        if not isinstance(self.extra_flags, tuple) or not all(isinstance(f, str) and f for f in self.extra_flags):
            raise OptionError(
                f"The converter option extra_flags is {self.extra_flags!r}, but it must be a tuple of filled strings.",
                hint='for instance extra_flags=("--verbose",)',
            )
        passes = self.excluded_graph_passes
        if not isinstance(passes, tuple) or not all(isinstance(p, str) and _PASS.fullmatch(p) for p in passes):
            raise OptionError(
                f"The converter option excluded_graph_passes is {passes!r}, but it must be a tuple of names of passes.",
                hint=f"for instance excluded_graph_passes={EXCLUDED_GRAPH_PASSES!r}, or () for none",
            )
        for name in ("fetch_constants_to_sram", "dump_kernel_selection_code", "profiling"):
            check_switch(name, getattr(self, name))
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not 0 < self.timeout < 1e6:
            raise OptionError(
                f"The converter option timeout is {self.timeout!r}; it is a positive number of seconds.",
                hint="timeout=60.0",
            )
        check_text("sdk_version", self.sdk_version, 'a string such as "3.2.0"')


@runtime_checkable
class NeutronConverter(Protocol):
    """Converts one partition to an NPU program."""

    @property
    def name(self) -> str:
        """Short name for selection, such as "reference" or "sdk"."""

    def convert(self, litert_model: bytes, options: ConverterOptions) -> Artifacts:
        """Convert a LiteRT flatbuffer with one subgraph.

        Raises:
            ModelError: the converter does not support this model.
            ConverterError: the tool is missing, crashed, timed out or returned an invalid program.
        """


class ReferenceConverter:
    """Wraps the LiteRT model in the open container; for the host only, needs no vendor tool.

    The target and flags of the options do not affect the result: the functional simulator is the same for every
    Neutron.
    """

    name = "reference"

    def convert(self, litert_model: bytes, options: ConverterOptions) -> Artifacts:
        """See `NeutronConverter.convert`; deterministic."""
        # Field numbers of tflite schema v3: Model.subgraphs 2; SubGraph.inputs 1, outputs 2, operators 3.
        try:
            subgraphs = flatbuffer.root(litert_model, b"TFL3").vector(2)
            if subgraphs.length != 1:
                raise ModelError(
                    f"The LiteRT model of a Neutron partition has {subgraphs.length} subgraphs, but it must have one.",
                    hint="convert a model without control flow",
                )
            graph = subgraphs.table(0)
            inputs, outputs, operators = (graph.vector(number).length for number in (1, 2, 3))
        except flatbuffer.CorruptFlatbufferError as error:
            raise ModelError(
                f"The reference converter was given bytes that are not a LiteRT model: {error}.",
                hint="pass the contents of a .tflite file",
            ) from error
        return reference_artifacts(litert_model, inputs, outputs, operators)
