"""A user's data: checks against the example inputs, digests, and the samples that calibrate and that evaluate.

A model without states takes samples; one with states takes sequences of calls, each from the initial state on.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from micronpu.base.arguments import described
from micronpu.base.arrays import Array
from micronpu.base.errors import ErrorsAs, ModelError, OptionError, attempted, first_line
from micronpu.base.texts import plural
from micronpu.frontend.checks import all_finite
from micronpu.frontend.export import from_numpy
from micronpu.frontend.exported import Exported
from micronpu.frontend.functional import in_float32, writes_what_others_see
from micronpu.frontend.graphs import GraphModule, nodes_where
from micronpu.frontend.integers import IntegerIO, IntegerTensor
from micronpu.frontend.program import CHANNELS_LAST, axes_in_memory, origin_of
from micronpu.frontend.tensors import States, read, results_of, written
from micronpu.frontend.units import multiply_accumulates
from micronpu.quantize import thresholds
from micronpu.quantize.running import Row, run_recordings
from micronpu.quantize.solver.neighbours import dtype_name
from micronpu.report.accuracy import LEAST, LEAST_RECORDINGS
from micronpu.report.metrics import Metric, metric_of

Item = TypeVar("Item")


def calibration_sequences(
    calibration: object, examples: Sequence[torch.Tensor], kind: str = "calibration", io: IntegerIO | None = None
) -> list[list[Row]]:
    """Calibration data as a list of sequences, each the inputs of one call after the other.

    Args:
        calibration: a list of sequences. A sequence is a list of calls, as `calibration_batches` takes them, or a
            tensor or array with several rows for a model of batch 1. Separate calls, tensors of one row or tuples, form
            one sequence, in their order.
        examples: the example inputs.
        kind: what the data are for, in errors.
        io: see `calibration_batches`.
    """
    if isinstance(calibration, (NoneType, dict, str)) or not isinstance(calibration, Iterable):
        return [calibration_batches(calibration, examples, kind=kind, io=io)]
    found: list[list[Row]] = []
    before_is_call = False
    for number, item in enumerate(calibration):
        if isinstance(item, list) and not item:
            what = f"The {kind} sequence {number} is shorter than one call: it is empty."
            raise ModelError(what, hint="a list of the inputs of the calls, one after the other")
        rows = calibration_batches(item if isinstance(item, list) else [item], examples, kind=kind, io=io)
        is_call = not isinstance(item, list) and len(rows) == 1
        if is_call and before_is_call:
            found[-1] += rows
        else:
            found.append(rows)
        before_is_call = is_call
    return found or [calibration_batches([], examples, kind=kind)]


def calibration_calls(
    calibration: object, examples: Sequence[torch.Tensor], *, in_turn: bool, kind: str = "calibration"
) -> list[list[Row]]:
    """Calibration data as sequences of calls; for a model without states each call is a sequence."""
    if in_turn:
        return calibration_sequences(calibration, examples, kind)
    return [[row] for row in calibration_batches(calibration, examples, kind=kind)]


def calibration_batches(
    calibration: object, examples: Sequence[torch.Tensor], *, kind: str = "calibration", io: IntegerIO | None = None
) -> list[Row]:
    """Calibration data as a list of input tuples, each checked against the example inputs.

    Args:
        calibration: an iterable of inputs.  An item is a tuple of tensors, or a tensor where the model has one
            input; NumPy arrays will do.  An item that holds several rows of a batch-1 model is cut into rows.
        examples: the example inputs.
        kind: what the data is for, as messages call it.
        io: meaning of integers of the model's file, which are then accepted in place of floats.

    Of a generator for calibration, rows are kept up to `STREAM_BYTES`, evenly spread: if they are more, every second,
    fourth, and so on.

    Raises:
        ModelError: there is none, or an item has another number of inputs, shape, dtype, or holds NaN or infinity.
    """
    if calibration is None:
        raise ModelError(
            "A float model needs calibration data to choose the ranges of its quantized tensors.",
            hint="calibration=[...] with some dozens of typical inputs, or a model that is quantized already",
        )
    if isinstance(calibration, (dict, str)) or not isinstance(calibration, (Iterable, np.ndarray, torch.Tensor)):
        what = f"{kind.capitalize()} data is of type {type(calibration).__name__}, not a list of inputs."
        raise ModelError(what, hint="numpy.load(path)" if isinstance(calibration, (str, PathLike)) else "[x1, x2, ...]")
    batches: list[Row] = []
    is_stream = kind == "calibration" and not hasattr(calibration, "__len__")
    step, seen = 1, 0
    for number, item in enumerate(in_turn(calibration, kind)):
        for row in _rows(_checked(f"{kind.capitalize()} item {number}", item, examples, io), examples):
            if seen % step == 0:
                batches.append(tuple(map(torch.clone, row)) if is_stream else row)
            seen += 1
        size = sum(t.nbytes for t in batches[0]) * len(batches) if is_stream and batches else 0
        if size > thresholds.STREAM_BYTES and len(batches) > thresholds.LEAST_OF_STREAM:
            batches, step = batches[::2], 2 * step
    if not batches:
        raise ModelError(f"The {kind} data is empty.", hint="pass some dozens of typical inputs")
    return batches


def in_turn(data: Iterable[Item], kind: str) -> Iterator[Item]:
    """Yield the items of a user's data; raise `ModelError` if the user's code fails, or a generator does not end."""
    number = 0

    def broken(error: Exception) -> ModelError:
        what = f"The {kind} data breaks off at item {number}: {type(error).__name__}: {first_line(error)}."
        return ModelError(what, hint="list(...) of it, which fails alike")

    with ErrorsAs(broken):
        for item in data:
            if number >= thresholds.MOST_ITEMS and not hasattr(data, "__len__"):
                what = f"The {kind} data is a generator of more than {thresholds.MOST_ITEMS:,} items; it may not end."
                raise ModelError(what, hint="itertools.islice(data, 1000)")
            yield item
            number += 1


def _checked(where: str, item: object, examples: Sequence[torch.Tensor], io: IntegerIO | None) -> Row:
    values = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(examples):
        what = f"{where} has {plural(len(values), 'input')}, the model has {len(examples)}."
        raise ModelError(what, hint="give one tuple of inputs per item, without labels")
    meanings = io.inputs if io is not None else (None,) * len(examples)
    return tuple(
        _checked_input(f"{where}, input {position}", value, example, meaning)
        for position, (value, example, meaning) in enumerate(zip(values, examples, meanings, strict=True))
    )


def _checked_input(where: str, value: object, example: torch.Tensor, meaning: IntegerTensor | None) -> torch.Tensor:
    tensor = _tensor(where, value)
    if meaning is not None and example.is_floating_point() and dtype_name(tensor.dtype) == meaning.dtype:
        tensor = meaning.dequantize(tensor)
    tensor = in_float32(tensor) if example.dtype is torch.float32 else tensor
    if tensor.dtype != example.dtype:
        raise ModelError(
            f"{where} has dtype {dtype_name(tensor.dtype)}, the model takes {dtype_name(example.dtype)}.",
            hint=f"values as in training{'' if meaning is None else f', or the integers of the file, {meaning}'}"
            if example.is_floating_point()
            else "convert the data as the model's inputs are converted",
        )
    if example.shape[:1] == (1,) and tensor.shape == example.shape[1:]:
        tensor = tensor.unsqueeze(0)
    if tensor.shape != example.shape and not (example.shape[:1] == (1,) and tensor.shape[1:] == example.shape[1:]):
        to = 1 - example.dim()
        last = to < -1 and tensor.dim() >= -to and tensor.movedim(-1, to).shape[to:] == example.shape[1:]
        raise ModelError(
            f"{where} has shape {list(tensor.shape)}, the model takes {list(example.shape)}.",
            hint=f"channels first: x.movedim(-1, {to})" if last else "shape the data as the example inputs",
        )
    if tensor.is_floating_point() and not all_finite(tensor):
        what = f"{where} holds NaN or infinity, from which no range can be learnt."
        raise ModelError(what, hint="look for missing values or a division by zero in the preprocessing")
    last = not example.is_contiguous() and axes_in_memory(example) == CHANNELS_LAST
    layout = torch.channels_last if last else torch.contiguous_format
    return tensor.detach().contiguous(memory_format=layout)  # programs take images of no other layout


def _tensor(where: str, value: object) -> torch.Tensor:
    tensor = from_numpy(value)
    if not isinstance(tensor, torch.Tensor):
        kind = f"a NumPy array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        what = f"{where} is {kind}, not a tensor."
        raise ModelError(what, hint="give tensors or NumPy arrays, one per input of the model")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        where_it_is = tensor.device if tensor.layout is torch.strided else tensor.layout
        what = f"{where} is a tensor on {str(where_it_is).removeprefix('torch.')}, from which no range can be learnt."
        raise ModelError(what, hint="dense tensors on the CPU")
    return tensor.resolve_neg()


def _rows(item: Row, examples: Sequence[torch.Tensor]) -> list[Row]:
    if all(t.shape == e.shape for t, e in zip(item, examples, strict=True)):
        return [item]
    counts = {t.shape[0] for t, e in zip(item, examples, strict=True) if t.shape != e.shape}
    if len(counts) != 1 or 0 in counts:
        if counts == {0}:
            return []
        what = f"The inputs of one calibration item have different numbers of rows: {sorted(counts)}."
        raise ModelError(what, hint="one row of each input per item")
    (count,) = counts
    return [
        tuple(t if t.shape == e.shape else t[i : i + 1] for t, e in zip(item, examples, strict=True))
        for i in range(count)
    ]


def check_stateless(states: States) -> None:
    """Raise `ModelError` if a model for training has a state."""
    if states:
        raise ModelError(
            f"The model keeps a state, `{states.values[0].name}`, from one call to the next, and quantization-aware "
            "training shows it single inputs.",
            hint="calibration with sequences, or a model to train that takes its states and returns them",
        )


def check_lifted(model: GraphModule) -> None:
    """Raise `ModelError` if a model still writes into its buffers, so that only their initial values would be
    calibrated, or through a view into what it reads elsewhere, so that an observer behind the view would lose it."""
    if names := written(model):
        raise ModelError(
            f"The model keeps a state, `{next(iter(names))}`, from one call to the next, and `prepare_pt2e` "
            "knows no sequences of calls.",
            hint="micronpu.compile, or calibrate_and_quantize with the exported program",
        )
    for node in nodes_where(model, lambda n: writes_what_others_see(n, inputs=False)):
        raise ModelError(
            f"The model writes into a part of a tensor at {origin_of(node).source or node.name}, and between "
            "`prepare_pt2e` and `convert_pt2e` parts are no views.",
            hint="torch.export.export(model, inputs).run_decompositions({}).module(), or micronpu.compile",
        )


# ---------------------------------------------------------------- digests


@dataclass(frozen=True)
class Digests:
    """Digests of the parts of the model and of the data, by name; see `micronpu.report.manifest.Basis`."""

    model: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


def of_model(given: Exported) -> dict[str, str]:
    """Return digests of the graph, of the example inputs, and of each tensor that the graph reads, by its path.

    They do not depend on the machine: neither the place of source files nor the layout of tensors matters.
    """
    lines: list[str] = []
    found = {"graph": "", "inputs": of_tensors(given.examples)}
    found |= {name: of_tensors([tensor]) for name, tensor in _tensors(given.module, lines)}
    for state in given.states.values:
        found[f"state {state.name}"] = of_tensors([state.initial])
    return found | {"graph": _digest("\n".join(lines).encode())}


def of_recording(calls: Sequence[Row]) -> str:
    """Return the digest of one recording's calls, independent of its position."""
    return of_tensors([tensor for row in calls for tensor in row])


def of_rows(sequences: Sequence[Sequence[Row]]) -> dict[str, str]:
    """Return digests of the samples in order, numbered from 0, and of the starts of sequences."""
    rows = [row for sequence in sequences for row in sequence]
    size = -(-len(rows) // thresholds.MOST_DIGESTS)
    found = {}
    for start in range(0, len(rows), size):
        name = f"row {start}" if size == 1 else f"rows {start} to {min(start + size, len(rows)) - 1}"
        found[name] = of_tensors([tensor for row in rows[start : start + size] for tensor in row])
    if any(len(sequence) > 1 for sequence in sequences):
        found["sequences"] = _digest(repr([len(sequence) for sequence in sequences]).encode())
    return found


def _tensors(module: GraphModule, lines: list[str], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a graph and its subgraphs read, each once; add a line for each node."""
    seen: set[str] = set()
    for node in module.graph.nodes:
        lines.append(repr((node.op, node.name, str(node.target), node.args, node.kwargs)))
        if node.op != "get_attr" or str(node.target) in seen:
            continue
        seen.add(str(node.target))
        value: object = read(module, node)
        if isinstance(value, GraphModule):
            yield from _tensors(value, lines, f"{path}{node.target}.")
        elif isinstance(value, torch.Tensor):
            yield f"{path}{node.target}", value


def of_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Return one digest of the dtypes, shapes and values of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        own = tensor.detach()
        digest.update(f"{own.dtype}{list(own.shape)}".encode())
        digest.update(own.contiguous().reshape(-1).as_strided((own.numel(),), (1,)).view(torch.uint8).numpy().data)
    return digest.hexdigest()[: thresholds.DIGEST_DIGITS]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[: thresholds.DIGEST_DIGITS]


# ---------------------------------------------------------------- samples for the evaluation


Recording: TypeAlias = Sequence[Row]
"""Inputs of the calls from the initial state on; a sample of a model without states is a recording of one call."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The user's options for the evaluation samples."""

    held_out: int | None = None  # number of held-out calibration samples; None for the default
    data: Any = None  # separate samples instead of those; None for none
    labels: Any = None  # of `data`, an entry for each call; None to use the float model's outputs
    metric: Any = None  # name or function, see `metric_of`, or a dictionary of these by method; None for none


@dataclass(frozen=True)
class Trial:
    """Samples for the evaluation of a quantized model and its program."""

    recordings: tuple[Recording, ...]  # inputs of the float model
    numbers: tuple[int, ...] = ()  # numbers of these recordings in the calibration data; () for the example inputs
    of: int = 0  # number of recordings in the calibration data
    held_out: bool = False  # True if the recordings were held out from calibration
    exact: Sequence[Sequence[Row]] = ()  # results of the float model for each call of each recording; () if unknown
    has_states: bool = False  # True if a call depends on those before it
    runs: int = 1  # number of first calls that the program itself runs
    seen: Sequence[Row] = ()  # a few calibration samples, evenly spread; () for a model with states
    metric: Metric | None = None  # of the user's task, or None
    labels: Array | None = None  # for the metric, a row for each call; None to use the float model's outputs
    macs: int = 0  # of a call
    # Calibration samples beside held-out ones, for a figure from more samples; None for none.
    others: Trial | None = None
    # The calls of each recording, and of its near-duplicates, among all `calibrating` ones; () and 0 if unknown.
    calibrated: tuple[frozenset[int], ...] = ()
    calibrating: int = 0

    @property
    def with_others(self) -> tuple[Recording, ...]:
        """The recordings and the others, if the float model's results are known."""
        return (*self.recordings, *(self.others.recordings if self.others is not None and self.exact else ()))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Calls that the program itself runs."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.recordings), self.runs))

    @property
    def rows_of_all(self) -> tuple[Row, ...]:
        """Calls of all recordings."""
        return tuple(itertools.chain.from_iterable(self.recordings))

    @property
    def exact_rows(self) -> tuple[Row, ...]:
        """Results of the float model for `rows`."""
        return tuple(itertools.islice(itertools.chain.from_iterable(self.exact), self.runs))


def check_held_out(wanted: object) -> None:
    """Raise `OptionError` for an invalid number of samples; None is accepted."""
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0):
        what = f"`held_out` is {described(wanted)}; it is a number of calibration rows."
        raise OptionError(what, hint="held_out=8, or 0")


def held_out_rows(count: int, wanted: int | None, *, are_recordings: bool = False) -> tuple[int, ...]:
    """Return numbers of the held-out calibration samples, evenly spread; () if all are needed.

    Args:
        count: number of samples.
        wanted: number to hold out; None for one in eight, or those beyond `ENOUGH_SAMPLES`, at most as many, if
            there are `LEAST` or more.
        are_recordings: the samples are recordings of many calls, so that fewer suffice for calibration: one in four is
            held out, from `LEAST_RECORDINGS` on.
    """
    if wanted is None:
        least, part = LEAST, thresholds.SAMPLE_PART
        if are_recordings:
            least, part = LEAST_RECORDINGS, thresholds.RECORDING_PART
        enough = thresholds.ENOUGH_SAMPLES
        wanted = min(enough, max(count // part, count - enough)) if count >= least else 0
    check_held_out(wanted)
    if wanted and wanted >= count:
        raise OptionError(
            f"`held_out` is {wanted}, but calibration needs some of the {plural(count, 'row')} of data.",
            hint="a smaller number, or more rows",
        )
    return tuple((2 * i + 1) * count // (2 * wanted) for i in range(wanted))


def affordable(exported: Exported, recordings: Sequence[Recording]) -> int:
    """Return the number of recordings for the evaluation, by their MACs and by the size of results."""
    own = [n.meta.get("val") for n in results_of(exported.module)]
    size = sum(r.numel() * r.element_size() for r in own if isinstance(r, torch.Tensor))
    each = multiply_accumulates(exported.module) + thresholds.CALL_WORK
    ends = itertools.accumulate(map(len, recordings))
    fits = (each * calls <= thresholds.EVALUATION_WORK and size * calls <= thresholds.RESULT_BYTES for calls in ends)
    return max(thresholds.SEVERAL, sum(fits))


def float_results(exported: Exported, recordings: Sequence[Recording]) -> list[list[Row]]:
    """Return the float model's results for each call of each recording; empty if it cannot be run."""
    return attempted(lambda: run_recordings(exported.module, recordings)) or []


@dataclass(frozen=True)
class CalibrationData:
    """The checked calibration data of a user."""

    sequences: list[list[Row]]  # sequences of calls for calibration, of one call each for a model without states
    rows: tuple[Row, ...]  # the calls of the first sequence of a model with states, otherwise all calls
    # Samples for the evaluation: held-out ones, or the first ones if there are none; one sequence of a model with
    # states.
    trial: Trial
    digests: Mapping[str, str]  # digests of all samples, see `of_rows`
    distinct: int  # number of distinct sequences

    @classmethod
    def of(
        cls, exported: Exported, calibration: object, held_out: HeldOut | int | None, *, float_too: bool = True
    ) -> CalibrationData:
        """Convert the arguments of `micronpu.compile`.

        Args:
            float_too: run the float model on the recordings of the trial, before quantization consumes it.
        """
        states, examples = exported.states, exported.examples
        asked = held_out if isinstance(held_out, HeldOut) else HeldOut(held_out=held_out)
        everything = calibration_calls(calibration, examples, in_turn=bool(states))
        alike: dict[str, list[int]] = {}
        for number, sequence in enumerate(everything):
            alike.setdefault(of_recording(sequence), []).append(number)
        groups = list(alike.values())  # of equal sequences: a held-out sample must not calibrate under another number
        kept: tuple[int, ...] = ()
        most = thresholds.EXAMINED_AGAIN
        if asked.data is not None:
            judging = calibration_calls(asked.data, examples, in_turn=bool(states), kind="held-out")
            chosen = tuple(i for i, recording in enumerate(judging) if of_recording(recording) not in alike)
            if not chosen:
                raise ModelError(
                    "Every sample of `data` is also a calibration sample, so that none judges.",
                    hint="data= with samples that do not calibrate, or no data=, which holds out some that are given",
                )
        else:
            judging = everything
            kept = held_out_rows(len(groups), asked.held_out, are_recordings=bool(states))
            chosen = tuple(groups[i][0] for i in kept) or _spread(len(everything), most)
        is_held_out = bool(kept) or asked.data is not None
        labels = None if asked.labels is None else labels_of(asked.labels, judging)
        count = affordable(exported, [judging[n] for n in chosen])
        chosen = tuple(chosen[i] for i in _spread(len(chosen), count))
        recordings = tuple(judging[n] for n in chosen)
        more = [own[0] for i, own in enumerate(groups) if kept and asked.held_out is None and i not in kept]
        count = affordable(exported, [*recordings, *(judging[n] for n in more)]) - len(recordings)
        more = [more[i] for i in _spread(len(more), max(count, 0))]
        every = (*recordings, *(judging[i] for i in more))
        exact = float_results(exported, every) if float_too else []
        macs = multiply_accumulates(exported.module)
        most_runs = thresholds.PROGRAM_HELD_OUT if is_held_out else thresholds.PROGRAM_CALLS
        runs = max(1, min(most_runs, thresholds.PROGRAM_WORK // max(macs, 1)))
        gone = {i for number in kept for i in groups[number]}
        used = [i for i in range(len(everything)) if i not in gone]
        are_different = asked.data is None and len(used) == len(alike) - len(kept)
        calls, calibrating = _calls_of(everything, used) if are_different else ([], 0)
        own, results = tuple(calls[i] for i in more if calibrating), exact[len(chosen) :]
        others = Trial(every[len(chosen) :], exact=results, calibrated=own, calibrating=calibrating)
        trial = Trial(
            recordings,
            chosen,
            len(judging),
            is_held_out,
            exact[: len(chosen)],
            bool(states),
            min(runs, len(recordings[0]) if states else len(recordings)),
            () if states else [everything[i][0] for i in used[:: max(1, len(used) // most)][:most] if everything[i]],
            None if asked.metric is None else metric_of(asked.metric),
            None if labels is None else np.concatenate([labels[n] for n in chosen]),
            macs,
            others if results else None,
            tuple(calls[i] for i in chosen if calibrating),
            calibrating,
        )
        rows = [row for sequence in everything for row in sequence]
        sequences = [everything[i] for i in used]
        return cls(sequences, tuple(everything[0] if states else rows), trial, of_rows(everything), len(groups))


def _calls_of(sequences: Sequence[Recording], used: Sequence[int]) -> tuple[list[frozenset[int]], int]:
    """Return for each sequence the calls of used ones that are alike among all of theirs, and the number of these."""
    ends = list(itertools.accumulate(len(sequences[i]) for i in used))
    calls = {i: range(end - len(sequences[i]), end) for i, end in zip(used, ends, strict=True)}
    alike = near_duplicates(sequences)
    return [frozenset(call for i in own if i in calls for call in calls[i]) for own in alike], ends[-1]


def near_duplicates(sequences: Sequence[Recording]) -> list[list[int]]:
    """Return the numbers of the samples that are near each one, as pictures of a burst are, with its own.

    Their squared distance is far below that to most other samples.  Recordings of several calls have none.
    """
    alone = [[i] for i in range(len(sequences))]
    if len(sequences) > thresholds.MOST_COMPARED or any(len(calls) != 1 or not calls[0] for calls in sequences):
        return alone
    rows = [torch.cat([x.double().flatten() for x in row]) for (row,) in sequences]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) < thresholds.FEWEST_COMPARED:
        return alone
    values = torch.stack([row[:: -(-len(row) // thresholds.COMPARED_ELEMENTS)] for row in rows])
    distances = torch.cdist(values, values).square()
    far = distances.quantile(thresholds.MOST_SAMPLES, 1)
    near = (distances < thresholds.NEAR_DUPLICATE * torch.minimum(far, far[:, None])).fill_diagonal_(True)
    return [own.nonzero().flatten().tolist() for own in near]


def labels_of(given: object, recordings: Sequence[Recording]) -> list[Array]:
    """Return the labels of each recording, from an array or list for each, or from one label for each call."""
    lengths = [len(recording) for recording in recordings]
    if isinstance(given, list | tuple) and all(hasattr(own, "__len__") for own in given) and max(lengths) > 1:
        found = [np.asarray(own) for own in given]
        if [len(own) for own in found] == lengths:
            return found
        given = [label for own in given for label in own]
    array = np.asarray(given)
    if array.ndim == 0 or len(array) != sum(lengths):
        raise ModelError(
            f"There are {len(array) if array.ndim else 0} labels and {sum(lengths)} "
            f"{'calls of held-out recordings' if max(lengths) > 1 else 'held-out samples'}.",
            hint="a label for each, in the same order",
        )
    return np.split(array, np.cumsum(lengths)[:-1])


def _spread(count: int, most: int) -> tuple[int, ...]:
    """Return at most so many of the first numbers, evenly spread, including the first."""
    most = min(count, most)
    return tuple(i * count // most for i in range(most))
