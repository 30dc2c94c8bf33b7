"""`micronpu.evaluate`: compare the float model and the compiled program on the same labelled samples."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

from micronpu.accuracy.subject import ProgressCallback, Row, Sequences, begun_anew
from micronpu.base.arguments import check_text, check_type, described
from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, OptionError, attempted, one_of, reason
from micronpu.base.files import check_name, read_file
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.compiler.program import ONLY, CompiledProgram
from micronpu.compiler.quantized import of_bound_method
from micronpu.frontend.checks import check_callback, check_evaluation_mode, check_parameters
from micronpu.frontend.exported import is_quantized
from micronpu.frontend.functional import without_taken_names
from micronpu.frontend.integers import InFloat, integer_io_of
from micronpu.frontend.model_files import is_model_file, opened
from micronpu.program.io import ProgramIO, file_facts_of, io_of
from micronpu.program.plan import read_plan
from micronpu.quantize.data import calibration_batches
from micronpu.report.accuracy import Comparison, Evaluation, Judged, MetricDifference, Score, Z, wilson
from micronpu.report.metrics import Function, Metric, check_finite, metric_of
from micronpu.runtime import ArrayProgram, RunOptions
from micronpu.upstream.session import exclusive, one_thread
from micronpu.upstream.torch import tree_leaves
from micronpu.verify.judge import percentile_interval

RESAMPLES = 1000
_LEAST_RESAMPLES = 100
_SECONDS = 5.0  # time limit of all resamples; a slow user-defined metric gets fewer


def mcnemar(worse: int, better: int) -> float:
    """Exact two-sided p-value (McNemar, 1947) of an uneven split under equal probabilities.

    Args:
        worse, better: number of samples that only the one, or only the other program classifies correctly.
    """
    changed = worse + better
    if not changed:
        return 1.0
    tail = sum(math.comb(changed, k) for k in range(min(worse, better) + 1))
    return min(1.0, float(2 * tail / 2**changed))


def paired_share(worse: int, better: int, rows: int) -> tuple[float, float]:
    """95 % interval of the difference of two proportions on the same samples (Agresti and Min, 2005)."""
    difference = (better - worse) / (rows + 2)
    spread = math.sqrt(max(worse + better + 1 - (better - worse) ** 2 / (rows + 2), 0.0)) / (rows + 2)
    return difference - Z * spread, difference + Z * spread


def bootstrap(score: Callable[[Array], tuple[float, ...]], rows: int) -> Array:
    """Scores of resamples: [resamples, number of scores]."""
    random = np.random.default_rng(0)
    found: list[tuple[float, ...]] = []
    start = time.perf_counter()
    while len(found) < RESAMPLES:
        found.append(score(random.integers(0, rows, rows)))
        if len(found) == _LEAST_RESAMPLES:  # decided once, so that a machine always gives the same numbers
            each = (time.perf_counter() - start) / len(found)
            if each * RESAMPLES > _SECONDS:
                break
    return np.asarray(found)


def p_of(differences: Array) -> float:
    """Two-sided p-value of a bootstrapped difference: frequency of the other sign, or of zero."""
    known = differences[np.isfinite(differences)]
    below, above = int((known <= 0).sum()), int((known >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(known) + 1))


BATCH = 64
"""Batch size of a float model, if it accepts batches."""
_CLOSE = 1e-3  # relative to the largest value: effect of another summation order in a batch
_SATURATED = 0.05  # share of an input's values outside of the program's range, above which their scale is doubted
_FAR_OUTSIDE = 0.1  # distance beyond the range, in ranges, from which a row is not like those that calibrated
_USED = 0.125  # share of the program's range that an input's values span, below which their scale is doubted
_UNRELATED = 0.2  # Cohen's kappa of labels and classes below which they may be unrelated


@exclusive()
def evaluate(
    model: nn.Module | ExportedProgram | Callable[..., object] | str | os.PathLike[str],
    data: object,
    program: CompiledProgram | str | os.PathLike[str] | bytes,
    labels: object = None,
    *,
    metric: str | Function | None = None,
    quantized: nn.Module | None = None,
    output: int = 0,
    method: str | None = None,
    fast: bool = False,
    callback: ProgressCallback | None = None,
) -> Evaluation:
    """Compare a program with the float model it was compiled from, on any number of samples.

    Args:
        model: the float model, in evaluation mode; for a method that is a bound method of a module, that method;
            or the path of a .tflite or .onnx file.
        data: inputs of the float model as for calibration: an array with a row per input, or a list of inputs, or of
            tuples for several inputs. For a model with states, sequences of calls, ``[[x0, x1, ...], ...]``, as for
            calibration; each sequence starts with the initial states. A quantized file also takes its own integers.
        program: what `micronpu.compile` returned, or the path or bytes of a ``.pte``; it runs in the host's simulators.
        labels: an array with an entry per sample, numbers or labels of the model's file; or fewer, if each is for as
            many successive samples and ``metric`` is a function. For a model with states one per call, or one per
            sequence, for its last call.
        metric: "top1", "auc", "f1", "iou", "mae", or a function ``(outputs, labels)`` or ``(outputs, labels, inputs)``
            that returns a number, larger is better; default with labels: "top1".
        quantized: the quantized model, ``program.quantized``, to evaluate as well.
        output: index of the output to evaluate.
        method: which of several methods the model is; default: "forward", or that of ``program.methods[name]``.
        fast: optimised kernels, which may differ by one LSB from the bit-exact ones.
        callback: progress callback; called with "float", "quantized" or "program", and the completed fraction.

    Returns:
        The figures. Notes name an input whose scale is not that of the program, and labels that the float model misses
        as often as unrelated ones.

    Raises:
        ModelError: data or labels do not fit the model or the metric, or there is no sample.
        OptionError: there is no such metric, output or method.
        PayloadError: the host cannot run the program.
    """
    if isinstance(data, CompiledProgram | str | bytes | os.PathLike):
        raise OptionError(
            f"The data of `evaluate` is {described(data)}.",
            hint="evaluate(model, data, program, labels), in this order",
        )
    check_callback(callback)
    if is_model_file(model):
        model, _, data = opened(model, None, data)
    if method is not None:
        check_text("method", method, "the name of a method")
    check_type("quantized", quantized, nn.Module, type(None), hint="program.quantized")
    notify = callback or (lambda name, part: None)
    called = "quantized model" if is_quantized(model) else "float model"
    if metric is not None and labels is None:
        raise OptionError("A metric is given, and no labels to compute it with.", hint="labels=..., or no metric")
    chosen = metric_of(metric or "top1") if labels is not None else None
    finished = _Finished(program, method, fast)
    with closing(finished.program):
        finished.check_output(output)
        io = integer_io_of(model)
        sequences = Sequences.of(data, finished.examples, io) if finished.has_states else None
        rows = (
            sequences.rows
            if sequences is not None
            else calibration_batches(_cut(data, finished.examples), finished.examples, kind="evaluation", io=io)
        )
        begins = sequences.begins if sequences is not None else frozenset()
        inputs = tuple(_joined([r[i].numpy() for r in rows], _batch(rows[0])) for i in range(len(rows[0])))
        float_progress, quantized_progress, progress = (partial(notify, n) for n in ("float", "quantized", "program"))
        runs: dict[str, Callable[[], Array]] = {
            "float": lambda: run_float(checked_module(model), rows, output, float_progress, begins)
        }
        if quantized is not None:
            runs["quantized"] = lambda: _run_quantized(quantized, rows, output, finished, quantized_progress, begins)
        run_program = partial(finished.run, output=output)
        runs["program"] = lambda: _run_rows(run_program, rows, output, progress, begins, finished.program.reset)
        results: dict[str, tuple[Array, float]] = {}
        for name, run in runs.items():
            start = time.perf_counter()
            outputs = run()
            results[name] = outputs, len(outputs) / max(time.perf_counter() - start, 1e-9)
    wanted = results["float"][0]
    for name, (outputs, _) in results.items():
        if outputs.shape != wanted.shape:
            raise ModelError(
                f"The {name} gives outputs of shape {list(outputs.shape)}, the {called} {list(wanted.shape)}.",
                hint="the program that was compiled from this model",
            )
        check_finite(outputs, f"The {dict(float=called, quantized='quantized model').get(name, name)}")
    judged: Array | None = None
    notes = finished.range_notes(inputs)
    if sequences is not None:
        labels, judged, note = sequences.judged(labels)
        notes.insert(0, note)
    scored = wanted if judged is None else wanted[judged]
    array = None if chosen is None else _labels(labels, len(scored), chosen, scored, finished.labels)
    return _judged(results, array, chosen, inputs, judged, notes, called)


def _cut(data: object, examples: tuple[torch.Tensor, ...]) -> object:
    """Split an array into batches for a program with a fixed batch size."""
    size = examples[0].shape[0] if len(examples) == 1 and examples[0].dim() else 1
    if size < 2 or not isinstance(data, np.ndarray | torch.Tensor) or data.ndim != examples[0].dim():
        return data
    if len(data) % size:
        raise ModelError(
            f"The {plural(len(data), 'row')} of the data cannot be cut into the program's batches of {size}.",
            hint=f"{len(data) - len(data) % size} rows",
        )
    return [data[i : i + size] for i in range(0, len(data), size)]


def _judged(
    results: dict[str, tuple[Array, float]],
    labels: Array | None,
    metric: Metric | None,
    inputs: tuple[Array, ...],
    scored: Array | None,
    notes: list[str],
    model: str,
) -> Evaluation:
    """Build the result.

    Args:
        scored: indices of the samples that have labels; None for all.
        model: what the model is called.
    """
    wanted = results["float"][0]
    scores: dict[str, Score] = {}
    differences: dict[str, MetricDifference] = {}
    if labels is not None and metric is not None:
        every = slice(None) if scored is None else scored
        outputs = {name: found[every] for name, (found, _) in results.items()}
        scores, differences = _scored(outputs, labels, metric, tuple(x[every] for x in inputs))
        notes += _label_notes(outputs["float"], labels, metric, model)
    judged = tuple(
        Judged(
            name, speed, None if name == "float" else _compared(found, wanted), scores.get(name), differences.get(name)
        )
        for name, (found, speed) in results.items()
    )
    beside = _compared(results["program"][0], results["quantized"][0]) if "quantized" in results else None
    return Evaluation(
        rows=len(wanted),
        metric=metric.name if metric is not None else "",
        labels=0 if labels is None else len(labels),
        larger_is_better=metric.larger_is_better if metric is not None else True,
        judged=judged,
        against_quantized=beside,
        notes=tuple(notes),
        model=model,
    )


def _compared(found: Array, wanted: Array) -> Comparison:
    return Comparison.of([found[i : i + 1] for i in range(len(found))], [wanted[i : i + 1] for i in range(len(wanted))])


def _scored(
    outputs: dict[str, Array], labels: Array, metric: Metric, inputs: tuple[Array, ...]
) -> tuple[dict[str, Score], dict[str, MetricDifference]]:
    """Score and difference to float of each program, with confidence intervals."""
    values = {name: metric.score(found, labels, inputs) for name, found in outputs.items()}
    if metric.right is not None:
        return _counted(outputs, labels, metric.right, values)
    names = list(outputs)
    group = len(outputs["float"]) // len(labels)

    def score(chosen: Array) -> tuple[float, ...]:
        rows = chosen if group == 1 else (chosen[:, None] * group + np.arange(group)).reshape(-1)
        taken = tuple(x[rows] for x in inputs)
        return tuple(metric.score(outputs[name][rows], labels[chosen], taken) for name in names)

    resampled = bootstrap(score, len(labels))
    scores, differences = {}, {}
    for column, name in enumerate(names):
        scores[name] = Score(values[name], *percentile_interval(resampled[:, column]))
        if name != "float":
            apart = resampled[:, column] - resampled[:, names.index("float")]
            test = f"{len(resampled)} resamples of {len(labels)} rows"
            away = values[name] - values["float"]
            p = 1.0 if away == 0 else p_of(apart)
            differences[name] = MetricDifference(away, *percentile_interval(apart), p, test)
    return scores, differences


def _counted(
    outputs: dict[str, Array], labels: Array, right: Callable[[Array, Array], Array], values: dict[str, float]
) -> tuple[dict[str, Score], dict[str, MetricDifference]]:
    """Same, for metrics that count correct samples; needs no bootstrap."""
    truth = {name: right(found, labels) for name, found in outputs.items()}
    rows, exact = len(labels), truth["float"]
    scores = {name: Score(values[name], *wilson(int(found.sum()), rows)) for name, found in truth.items()}
    differences = {}
    for name, found in truth.items():
        if name != "float":
            worse, better = int((exact & ~found).sum()), int((found & ~exact).sum())
            interval = paired_share(worse, better, rows)
            p = mcnemar(worse, better)
            differences[name] = MetricDifference(
                values[name] - values["float"], *interval, p, "exact McNemar test", worse, better
            )
    return scores, differences


def _label_notes(outputs: Array, labels: Array, metric: Metric, model: str) -> list[str]:
    """Note that labels and the classes of the model look unrelated, and what would relate them."""
    if metric.name not in ("top1", "f1") or len(np.unique(labels)) < 2:
        return []
    classes, rows = outputs.shape[1], len(labels)
    table = np.zeros((classes, classes))
    np.add.at(table, (outputs.argmax(1), labels.astype(int)), 1 / rows)
    share, chance = float(table.trace()), float(table.sum(0) @ table.sum(1))
    if wilson(round(share * rows), rows)[0] > chance or share - chance > _UNRELATED * (1 - chance):
        return []
    others = {
        "with the label of the next row": (outputs.argmax(1)[:-1] == labels[1:]).mean(),
        "with the label of the previous row": (outputs.argmax(1)[1:] == labels[:-1]).mean(),
        "with the classes numbered in another order": table.max(1).sum(),
    }
    name, best = max(others.items(), key=lambda item: float(item[1]))
    cause = f"; {best:.1%} {name}" if best > (1 + chance) / 2 else ""
    return [
        f"The {model} itself is right on {share:.1%} of the rows, where {chance:.1%} are chance{cause}. Try: the "
        "labels of these rows in the model's numbering, and data that are preprocessed as for its training."
    ]


def _labels(labels: object, rows: int, metric: Metric, outputs: Array, names: tuple[str, ...] = ()) -> Array:
    """Return checked labels as an array with an entry per sample; texts become their index among the names."""
    try:
        array = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    except (ValueError, TypeError) as error:
        raise ModelError(f"The labels are no array: {error}.", hint="one number for each row") from error
    if array.dtype.kind == "U" and names:
        index = {name: i for i, name in reversed([*enumerate(names)])}
        if unknown := [name for name in array.ravel().tolist() if name not in index]:
            raise ModelError(
                f"There is no label {unknown[0]!r} in the model's file.",
                hint=one_of(names, unknown[0], "`micronpu inspect`"),
            )
        array = np.vectorize(index.__getitem__)(array)
    if array.dtype.kind not in "iufb" or not array.ndim:
        raise ModelError(
            f"The labels are {array.dtype}{list(array.shape)}, not an array of numbers.", hint="one number for each row"
        )
    if metric.is_builtin and metric.name != "mae" and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if len(array) != rows and (metric.is_builtin or not len(array) or rows % len(array)):
        raise ModelError(
            f"There are {len(array):,} labels for {rows:,} rows of data.",
            hint="a label for each row; a metric of your own may have one for several successive rows",
        )
    metric.check(outputs, array)
    return array


# ---------------------------------------------------------------- the programs


def checked_module(model: object) -> Callable[..., object]:
    """Return the float model as a function."""
    if isinstance(model, ExportedProgram):
        module: Callable[..., object] = without_taken_names(model).module(check_guards=False)
        return module
    if not isinstance(model := of_bound_method(model), nn.Module):
        what = f"The model is a {type(model).__name__}."
        raise ModelError(what, hint="a float torch.nn.Module, or an exported program of one")
    check_evaluation_mode(model)
    check_parameters(model)
    return model if (io := integer_io_of(model)) is None else InFloat(model, io)


def _tensor(results: object, output: int) -> torch.Tensor:
    tensors = [r for r in tree_leaves(results) if isinstance(r, torch.Tensor)]
    if not 0 <= output < len(tensors):
        raise OptionError(f"There is no output {output}: the model has {len(tensors)}.", hint="0 for the first")
    return tensors[output]


def _batch(row: Row) -> int:
    """Batch size of a call's inputs: the first size, if all have it in common, or 1."""
    sizes = {t.shape[0] if t.dim() else 0 for t in row}
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else 1


def _joined(parts: Sequence[Array], batch: int) -> Array:
    """Concatenate the values of all calls along the first axis; a value without batch axis is one sample."""
    rows = [part if part.ndim and part.shape[0] == batch else part[None] for part in map(np.asarray, parts)]
    return np.concatenate(rows)


def _run_rows(
    run: Callable[[Row], object],
    rows: Sequence[Row],
    output: int,
    notify: Callable[[float], None],
    begins: Collection[int] = (),
    reset: Callable[[], None] = lambda: None,
) -> Array:
    """Return one output for all samples."""
    found = []
    for number, row in enumerate(rows):
        if number in begins:
            reset()
        if number % 16 == 0:
            notify(number / len(rows))
        result = run(row)
        found.append(result if isinstance(result, np.ndarray) else _tensor(result, output).detach().numpy())
    notify(1.0)
    return _joined(found, _batch(rows[0]))


def run_float(
    module: Callable[..., object],
    rows: Sequence[Row],
    output: int = 0,
    notify: Callable[[float], None] = lambda part: None,
    begins: Collection[int] = (),
) -> Array:
    """Return a float model's outputs for all samples, [N, ...], in batches if that gives the same results.

    Args:
        begins: indices of the samples that start a sequence; empty for a model without states.
    """
    with torch.no_grad(), quiet(), begun_anew(module) as reset:
        try:
            if not begins and _takes_batches(module, rows, output):
                found = []
                for start in range(0, len(rows), BATCH):
                    notify(start / len(rows))
                    batch = [torch.cat(parts) for parts in zip(*rows[start : start + BATCH], strict=True)]
                    found.append(_tensor(module(*batch), output).numpy())
                notify(1.0)
                return np.concatenate(found)
            return _run_rows(lambda row: module(*row), rows, output, notify, begins, reset)
        except (ModelError, OptionError):
            raise
        except (Exception, SystemExit) as error:  # a forward that calls sys.exit must not end the user's process
            raise ModelError(
                f"The model cannot compute the data: {reason(error)}.",
                hint="model(*inputs) in eager mode, which fails alike",
            ) from error


def _takes_batches(module: Callable[..., object], rows: Sequence[Row], output: int) -> bool:
    """True if two samples in a batch give the same results as separately."""
    if len(rows) < 3 or any(t.dim() == 0 or t.shape[0] != 1 for t in rows[0]):
        return False
    single = [_tensor(module(*row), output) for row in rows[:2]]
    both = attempted(lambda: _tensor(module(*(torch.cat(parts) for parts in zip(*rows[:2], strict=True))), output))
    # It may be exported for one sample, or a shape contains the batch size.
    if both is None or single[0].dim() < 2 or both.shape != (2, *single[0].shape[1:]):
        return False
    wanted = torch.cat(single)
    return bool((both - wanted).abs().max() <= _CLOSE * wanted.abs().max()) if wanted.is_floating_point() else False


def _run_quantized(
    module: nn.Module,
    rows: Sequence[Row],
    output: int,
    finished: _Finished,
    notify: Callable[[float], None],
    begins: Collection[int],
) -> Array:
    """Run the quantized model, whose inputs and outputs are integers if the program's are."""

    def run(row: Row) -> Array:
        given = [torch.from_numpy(a) for a in finished.as_given(row)]
        return finished.as_float(_tensor(module(*given), output).numpy(), output)

    with torch.no_grad(), quiet(), one_thread(), begun_anew(module) as reset:
        return _run_rows(run, rows, output, notify, begins, reset)


class _Finished:
    """A program on the host with float inputs and outputs, even if the program's are integers.

    Attributes:
        examples: tensors with the shapes and types of the float model's inputs.
        has_states: True if the program keeps states across calls.
        labels: of the classes, from the model's file.
    """

    def __init__(self, program: object, method: str | None, fast: bool) -> None:
        if isinstance(program, CompiledProgram):
            data, name = program.buffer, "The program"
            method = program.method or None if method is None else method
        elif isinstance(program, bytes | bytearray | memoryview):
            data, name = bytes(program), "The program"
        elif isinstance(program, str | os.PathLike):
            path = check_name(program)
            data, name = read_file(path), str(path)
        else:
            raise ModelError(
                f"The program is a {type(program).__name__}.", hint="a CompiledProgram, or the path of a .pte"
            )
        plan, summary = read_plan(data, name=name, method=method or "")
        if method == "" or (method is None and len(summary.methods) > 1 and plan.name != ONLY):
            hint = f"method= one of {', '.join(map(repr, summary.methods))}"
            raise OptionError(f"{name} has no method {ONLY if method is None else method!r}.", hint=hint)
        known = None
        if isinstance(program, CompiledProgram) and (io := program.methods[plan.name].integer_io) is not None:
            known = (io.inputs, io.outputs)
        self.labels = file_facts_of(summary.named_data, plan.name).labels
        self._inputs, self._outputs = io_of(plan, summary.named_data, known)
        self.program = ArrayProgram(data, RunOptions(fast=fast), method=plan.name, name=name)
        self.has_states = bool(self.program.states)
        self.examples = tuple(self._example(b, name) for b in self._inputs)

    @staticmethod
    def _example(io: ProgramIO, name: str) -> torch.Tensor:
        if not io.is_integer:
            return torch.zeros(io.tensor.shape, dtype=getattr(torch, io.tensor.dtype))
        if io.scale is None:
            raise ModelError(
                f"{name} takes {io.tensor.dtype} integers and does not say what they mean.",
                hint="a program that micronpu.compile made with io=",
            )
        return torch.zeros(io.tensor.shape)

    def check_output(self, output: int) -> None:
        """Refuse an output index out of range."""
        if isinstance(output, bool) or not isinstance(output, int) or not 0 <= output < len(self._outputs):
            raise OptionError(
                f"There is no output {output!r}: the program has {len(self._outputs)}.", hint="0 for the first"
            )

    def range_notes(self, inputs: Sequence[Array]) -> list[str]:
        """Return a note on each input of which much saturates, or that uses little of the program's range."""
        found = []
        for x, io in zip(inputs, self._inputs, strict=True):
            if io.qparams is not None:
                scale, zero, *limits = io.qparams
            elif io.is_integer and io.scale is not None and io.zero_point is not None:
                ends = np.iinfo(io.tensor.dtype)
                scale, zero, limits = io.scale, io.zero_point, [ends.min, ends.max]
            else:
                continue
            (low, high), (least, most) = ((limit - zero) * scale for limit in limits), (float(x.min()), float(x.max()))
            outside, used = float(((x < low) | (x > high)).mean()), (min(most, high) - max(least, low)) / (high - low)
            beyond = np.maximum(low - x, x - high).reshape(len(x), -1).max(1, initial=0.0)
            rows = int((beyond > _FAR_OUTSIDE * (high - low)).sum())
            if least < most and (outside > _SATURATED or rows > _SATURATED * len(x) or used < _USED):
                where = f"far beyond that in {rows:,} of {len(x):,} rows, " if rows else ""
                saturates = outside > _SATURATED or rows > _SATURATED * len(x)
                what = f"{where}{outside:.1%} of them saturate" if saturates else f"they use {used:.1%} of its range"
                found.append(
                    f"The values of {io.name} are from {least:.4g} to {most:.4g}, and the program takes {low:.4g} to "
                    f"{high:.4g}: {what}. Try: the same scale for calibration data and these, as in training."
                )
        return found

    def as_given(self, row: Row) -> list[Array]:
        """Convert inputs of the float model to the program's inputs."""
        arrays = [t.numpy() for t in row]
        return [b.quantize(a) if b.is_integer else a for a, b in zip(arrays, self._inputs, strict=True)]

    def as_float(self, result: Array, output: int) -> Array:
        """Convert an output of the program to the float model's output."""
        io = self._outputs[output]
        if io.is_integer and io.scale is not None and io.zero_point is not None:
            return np.asarray((result.astype(np.float32) - io.zero_point) * np.float32(io.scale))
        return result

    def run(self, row: Row, output: int) -> Array:
        """Return one output for a sample of the float model."""
        return self.as_float(self.program.run_arrays(*self.as_given(row))[output], output)
