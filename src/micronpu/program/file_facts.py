"""Facts of a model file besides its operators: names, labels of classes, normalization.

All of it is untrusted: texts are limited in number and length, and have printable characters only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 200
"""Maximum characters of a name or label; longer ones are cut."""
MAX_LABELS = 10_000
MAX_CHARACTERS = 1 << 18
"""Maximum of all labels together."""
MAX_CHANNELS = 4096
"""Maximum length of a mean or a standard deviation."""
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, one for all channels or one of each; the model's input is ``(x - mean) / deviation``."""


def clean(text: str) -> str:
    """Return a text without unprintable characters, at most `MAX_TEXT` long."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT])


def labels_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return labels of classes; raise `ValueError` if they are too many."""
    found = tuple(clean(str(text).strip()) for text in texts)
    if len(found) > MAX_LABELS or sum(map(len, found)) > MAX_CHARACTERS:
        raise ValueError(f"{len(found):,} labels; {MAX_LABELS:,} of {MAX_CHARACTERS:,} characters are read")
    return found


def normalization_of(mean: Sequence[float], deviation: Sequence[float]) -> Normalization | None:
    """Return a normalization; None for values that are none."""
    usable = 0 < len(mean) <= MAX_CHANNELS and 0 < len(deviation) <= MAX_CHANNELS
    is_finite = usable and all(map(math.isfinite, (*mean, *deviation))) and all(v > 0 for v in deviation)
    return (tuple(map(float, mean)), tuple(map(float, deviation))) if is_finite else None


@dataclass(frozen=True)
class FileFacts:
    """Names, labels and normalization of a model file.

    Attributes:
        inputs, outputs: names in the file, in order.
        labels: of the classes, by their index.
        normalization: by the number of the input.
        notes: about what is left out; not stored in programs.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    normalization: Mapping[int, Normalization] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def content(self) -> list[Any]:
        """Return it for JSON; [] if nothing is known."""
        content: list[object] = [self.inputs, self.outputs, self.labels, sorted(self.normalization.items())]
        return content if any(content) else []

    @classmethod
    def parsed(cls, content: Any) -> FileFacts:
        """Return what `content` has returned, as parsed JSON; [] for a program without."""
        if not content:
            return cls()
        inputs, outputs, labels, numbers = content
        given, made = (tuple(clean(str(name)) for name in names[:MAX_LABELS]) for names in (inputs, outputs))
        found = {int(number): normalization_of(*pair) for number, pair in numbers}
        return cls(given, made, labels_of(labels), {n: pair for n, pair in found.items() if pair is not None})

    def name(self, io: str) -> str:
        """Return the file's name of "input_0" and so on; "" if it is unknown."""
        side, _, number = io.rpartition("_")
        names = self.inputs if side == "input" else self.outputs
        return names[int(number)] if int(number) < len(names) else ""

    def lines(self) -> list[str]:
        """Return sentences for the report: labels, normalization, and what is left out."""
        found = []
        if self.labels:
            more = f" and {len(self.labels) - 3:,} more" if len(self.labels) > 3 else ""
            found.append(f"Labels of the file, for the C header and `evaluate`: {', '.join(self.labels[:3])}{more}.")
        for number, (mean, deviation) in self.normalization.items():
            values = " / ".join("[" + ", ".join(f"{v:g}" for v in part[:4]) + "]" for part in (mean, deviation))
            found.append(
                f"The file normalizes input {number} outside of the program: (x - mean) / deviation, {values}."
            )
        return [*found, *self.notes]
