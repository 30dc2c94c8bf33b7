"""Options with a list: ``--budget ms=5,sram=256K`` with the data to evaluate on, ``--quantization int16,equalize``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import micronpu
from micronpu.base.errors import OptionError
from micronpu.cli import console
from micronpu.cli.sources import load_labels, load_metric

if TYPE_CHECKING:
    from micronpu import CompiledProgram, Verification
    from micronpu.cli.files import Model
    from micronpu.report.budgets import Budgets
    from micronpu.report.warnings import BudgetResult


def entries(texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split the values of an option at their commas into words and pairs ``name=value``."""
    words: list[str] = []
    pairs: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, equals, value = part.partition("=")
        if equals:
            pairs[name.strip().replace("-", "_")] = value.strip()
        else:
            words.append(part)
    return words, pairs


def value_of(text: str) -> bool | int | float | str:
    """Return the value of a text: true, false, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    kinds: tuple[Callable[[str], int | float], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def only_one(flag: str, words: Sequence[str], hint: str) -> str | None:
    if len(words) > 1:
        raise OptionError(f"{flag} has {len(words)} values: {', '.join(words)}.", hint=hint)
    return words[0] if words else None


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in fields(kind))


How = Annotated[
    list[str] | None,
    console.option(
        "int8|int16|auto|FILE.toml",
        "Type of activations, or a settings file of `micronpu fix`. auto: the cheapest program near float, in at most "
        "twice int8's time. Settings may follow: int16,equalize,activation_observer=mse.",
        default="auto; int8 with other settings",
    ),
]


def quantization_of(given: Sequence[str] | None, io: str | None = None) -> micronpu.Quantization:
    """Return the value for the argument ``quantization``; settings override those of a file."""
    from micronpu.quantize.config import Corrections, check_io
    from micronpu.quantize.settings_file import read_quantization

    switches = names_of(Corrections)
    words, pairs = entries(given or ())
    if given and not words and not pairs:
        raise OptionError("--quantization is empty.", hint="int8, int16, auto or a settings file")
    settings: dict[str, Any] = {word: True for word in words if word in switches}
    try:
        parts = [(word, micronpu.Quantization.of(word)) for word in words if word not in switches]
    except OptionError as error:
        settings_of = ", ".join(switches)
        hint = f"{error.hint}; settings without a value are {settings_of}, others NAME=VALUE"
        raise OptionError(error.what, hint=hint) from error
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


_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)

ACCURACY = "min_accuracy"
NAMES = {
    "ms": "max_ms",
    "sram": "max_sram",
    "flash": "max_flash",
    "sqnr": "min_sqnr",
    "top1": "min_agreement",
    "accuracy": ACCURACY,
}
"""Fields of `Budgets`, and the accuracy on labelled data, by their names on the command line."""
_FLAGS = {field: f"--budget {name}" for name, field in NAMES.items()}
flag_of = _FLAGS.__getitem__


def bytes_of(flag: str, text: str) -> int:
    """Parse ``262144``, ``256K`` or ``1.5M`` into bytes."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2].lower()] if match is not None else 0.5
    if size != int(size):
        raise OptionError(f"{flag} is {text!r}; it is a number of bytes.", hint=f"{flag}=256K")
    return int(size)


ModelName = Annotated[
    str,
    console.argument(
        "MODEL",
        "file.py:function, which returns (torch.nn.Module, example inputs); a file .pt2, .tflite or .onnx; or a model "
        "of an installed library with its weights, torchvision:NAME or timm:NAME (NAME:untrained without weights).",
    ),
]
OWN = "`calibration` of MODEL's file"


def inputs(purpose: str, *flags: str, default: str = "") -> Any:
    """An option with inputs of the model, which every command takes in the same forms."""
    forms = "FILE.npy, FILE.npz (an array per input, a row per sample; FILE.npz:name,... picks arrays), or "
    forms += "file.py:function, which returns a list of inputs (with states: of sequences)"
    return console.option("DATA", f"{purpose}: {forms}.", *flags, default=default)


Calibration = Annotated[str | None, inputs("Typical inputs of a float model", default=OWN)]
JUDGE = "Inputs to judge on"
Labels = Annotated[
    str | None,
    console.option("FILE", "Labels of --data or --images, in order: FILE.npy or FILE.npz:name, one a row or sequence."),
]
MetricName = Annotated[
    str | None,
    console.option(
        "NAME",
        "top1, auc, f1, iou, mae, or file.py:function, of outputs and labels (and inputs), which returns a number: "
        "more is better.",
        default="top1 where there are labels",
    ),
]


@dataclass(frozen=True)
class Scoring:
    """Options about labels, one for each field."""

    labels: Labels = None
    metric: MetricName = None

    def check(self, *, has_data: bool = True) -> None:
        """Check the options before the work is done."""
        if self.labels is not None and not has_data:
            raise OptionError("--labels is given without --data.", hint="--data DATA")
        if self.metric is not None and self.labels is None:
            raise OptionError("--metric is given, and no labels to compute it with.", hint="--labels y.npy")

    @property
    def name(self) -> str | None:
        """The metric, by default top1; None without labels."""
        return self.metric or (None if self.labels is None else "top1")

    def of(self, rows: object) -> object:
        """Return inputs with the labels and the metric, if there are labels."""
        self.check()
        if self.labels is None:
            return rows
        return micronpu.Verification(data=rows, labels=load_labels(self.labels), metric=load_metric(self.name))


NO_SCORING = Scoring()
"""No labels."""


@dataclass(frozen=True)
class Limits:
    """Options about budgets, one for each field."""

    budget: Annotated[
        list[str] | None,
        console.option(
            "NAME=LIMIT,...",
            "Write no program that takes more ms, sram or flash, or has less sqnr (dB), top1 (agreement with float, 0 "
            "to 1) or accuracy (--metric on --data with --labels): ms=5,sram=256K,top1=0.9.",
        ),
    ] = None
    data: Annotated[str | None, inputs(f"{JUDGE} in place of held-out rows of --calibration")] = None
    labels: Labels = None
    metric: MetricName = None

    def _limits(self) -> dict[str, float]:
        """Return limits by the fields of `Budgets`, and the accuracy."""
        from micronpu.report.budgets import check_limit

        words, pairs = entries(self.budget or ())
        if unknown := [*words, *(name for name in pairs if name not in NAMES)]:
            raise OptionError(
                f"There is no budget {unknown[0]!r}.", hint=f"--budget NAME=LIMIT,... of {', '.join(NAMES)}"
            )
        found: dict[str, float] = {}
        for name, text in pairs.items():
            flag, field = f"--budget {name}", NAMES[name]
            value = bytes_of(flag, text) if field in ("max_sram", "max_flash") else value_of(text)
            check_limit(field, value, flag, f"{flag}=100")
            found[field] = value  # type: ignore[assignment]  # a text was refused
        return found

    def budgets(self) -> Budgets:
        """Return all budgets but the accuracy, which needs a run of the program."""
        from micronpu.report.budgets import Budgets

        given = self._limits()
        if self.labels is not None and self.data is None:
            raise OptionError("--labels is given without --data.", hint="--data DATA")
        is_bound = given.pop(ACCURACY, None) is not None
        if is_bound and self.labels is None:
            raise OptionError(f"{flag_of(ACCURACY)} needs labelled samples.", hint="--data DATA --labels FILE")
        return Budgets(**given)  # type: ignore[arg-type]

    def verification(self, loaded: Model, *, run: bool, held_out: int | None, missing: bool) -> Verification:
        """Return how to verify the program, with the evaluation samples and the metric."""
        from micronpu.cli.files import load_calibration

        checks = micronpu.Verification(run=run, held_out=held_out, allow_missing_kernels=missing)
        is_bound = ACCURACY in self._limits()
        if is_bound and loaded.is_quantized:
            return checks  # there is no float model: `accuracy` measures all
        return replace(
            checks,
            data=None if self.data is None else load_calibration(self.data, loaded),
            labels=load_labels(self.labels),
            metric=load_metric(Scoring(self.labels, self.metric).name),
        )

    def accuracy(self, loaded: Model, program: CompiledProgram) -> tuple[BudgetResult, ...]:
        """Return the program's value of the metric on the labelled data beside its budget, if there is one."""
        limit = self._limits().get(ACCURACY)
        if limit is None or self.data is None or self.labels is None:
            return ()
        from micronpu.cli.files import load_calibration
        from micronpu.report.budgets import result

        data, labels = load_calibration(self.data, loaded), load_labels(self.labels)
        found = micronpu.evaluate(loaded.module, data, program, labels, metric=load_metric(self.metric))
        if not found.larger_is_better or found.program.score is None:
            raise OptionError(
                f"{flag_of(ACCURACY)} is a budget on {found.metric}, of which less is better.",
                hint="--metric top1, auc or f1, or a function of yours of which more is better",
            )
        return (result(ACCURACY, limit, found.program.score.value),)


UNLIMITED = Limits()
"""Limits when no option is given."""
