"""Map every operation of an NPU's program to an operator of the user's model. Standard library only.

The map is stored as named data beside the payload, about a hundred bytes for a small network: deflated JSON with the
version, kind and source of each operator that the NPU's compiler received, and the operator's index for each operation.
`micronpu deploy` removes it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from micronpu.base.errors import PayloadError
from micronpu.base.parsing import parse_json

KEY = "micronpu_trace_"
_VERSION = 1
_MOST_BYTES = 1 << 26
"""Maximum size of the text in bytes; larger traces are not ours."""


@dataclass(frozen=True)
class TracedOperator:
    """An operator that the NPU's compiler received, and ``file:line`` of the user's model without folders, or ""."""

    kind: str
    source: str

    def __str__(self) -> str:
        return f"{self.kind} {self.source}".rstrip()


@dataclass(frozen=True)
class StreamTrace:
    """Origin of the operations of a stream.

    Attributes:
        operators: input of the compiler, in order.
        sources: operator index of each operation of the stream in order, transfers included, or -1.
    """

    operators: tuple[TracedOperator, ...]
    sources: tuple[int, ...]

    def of(self, operation: int) -> TracedOperator | None:
        """The operator that an operation of the stream implements, if known."""
        source = self.sources[operation] if 0 <= operation < len(self.sources) else -1
        return self.operators[source] if source >= 0 else None

    def pack(self) -> bytes:
        rows = [[o.kind, o.source] for o in self.operators]
        text = json.dumps([_VERSION, rows, self.sources], separators=(",", ":"))
        return zlib.compress(text.encode(), 9)


def traced(kind: str, source: str) -> TracedOperator:
    """Return an operator with its ``path:line`` without folders, which stay private."""
    return TracedOperator(kind, PurePath(source).name)


def graph_key(payload: bytes) -> str:
    """Key of a payload's integer graph, as computed by the native loader."""
    return f"micronpu_graph_{_identity(payload)}"


def key_of(payload: bytes, trace: bytes) -> str:
    """Key of a payload's trace.

    Equal payloads may originate from several places of a model, but a key has one content: so it ends with a checksum.
    """
    return f"{_begin(payload)}{zlib.crc32(trace):08x}"


def _begin(payload: bytes) -> str:
    return f"{KEY}{_identity(payload)}_"


def _identity(payload: bytes) -> str:
    return f"{zlib.crc32(payload):08x}_{len(payload):x}"


def trace_of(payload: bytes, named_data: Mapping[str, bytes]) -> StreamTrace | None:
    """Return the first trace of a payload in its named data; None if there is none."""
    begin = _begin(payload)
    data = next((named_data[key] for key in sorted(named_data) if key.startswith(begin)), None)
    if data is None:
        return None
    try:
        inflater = zlib.decompressobj()
        version, rows, sources = parse_json(inflater.decompress(data, _MOST_BYTES))
        operators = tuple(TracedOperator(str(kind), str(source)) for kind, source in rows)
        found = StreamTrace(operators, tuple(map(int, sources)))
        if version != _VERSION or any(not -1 <= s < len(operators) for s in found.sources):
            raise ValueError(version)
    except (zlib.error, ValueError, TypeError, OverflowError) as error:
        raise PayloadError(
            "The names of the operations that travel with the program are damaged, or of another version.",
            hint="compile the model again with this version of micronpu",
        ) from error
    return found
