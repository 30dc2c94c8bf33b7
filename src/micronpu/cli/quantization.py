"""The option --quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from micronpu.cli import console
from micronpu.cli.lists import entries, names_of, only_one, value_of

if TYPE_CHECKING:
    import micronpu

How = Annotated[
    list[str] | None,
    console.option(
        "int8|int16|auto|FILE.toml",
        "Type of activations (weights are always int8), or a settings file as `micronpu fix` writes it. auto: int8 if "
        "near float, otherwise the most accurate program in 1.1 times its time. Single settings may follow: "
        "int16,equalize,activation_observer=mse; see docs/quantization.md.",
        default="auto; int8 with other settings",
    ),
]


def quantization_of(given: Sequence[str] | None, io: str | None = None) -> micronpu.Quantization:
    """Return the value for the argument ``quantization``; settings override those of a file.

    Raises:
        FileError, OptionError: the file cannot be read, or there is no such type or setting.
    """
    import micronpu
    from micronpu.quantize.config import check_io
    from micronpu.quantize.corrections import Corrections
    from micronpu.quantize.settings_file import read_quantization

    switches = names_of(Corrections)
    words, pairs = entries(given or ())
    settings: dict[str, Any] = {word: True for word in words if word in switches}
    parts = [(word, micronpu.Quantization.of(word)) for word in words if word not in switches]
    types = [word for word, part in parts if part.settings is None]
    files = [word for word, part in parts if part.settings is not None]
    activations = only_one("--quantization", types, "one type")
    file = only_one("--quantization", files, "one file")
    own: dict[str, Any] = {} if io is None else {"io": check_io(io, "--io")}
    default: dict[str, Any] = {}
    for name, text in pairs.items():
        part = own if name in ("per_channel", "max_slowdown") else settings if name in switches else default
        part[name] = value_of(text)
    if default or settings:
        base = {} if file is None else read_quantization(file)
        own["settings"] = {**base, **settings}
        if default:
            own["settings"]["default"] = {**base.get("default", {}), **default}
    elif file is not None:
        own["settings"] = file
    return micronpu.Quantization(activations=activations, **own)  # type: ignore[arg-type]  # `of` has checked it
