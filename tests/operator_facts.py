"""Facts that operators state, compared with what ATen computes on random inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from micronpu.ir.facts import ANY, QUESTIONS, Facts, Form, Interval
from micronpu.ir.lowering import facts_of
from micronpu.upstream.torch import schema_of

_FORMS: Mapping[Form, Callable[..., torch.Tensor]] = {
    Form.SUM: lambda a, b: a + b,
    Form.DIFFERENCE: lambda a, b: a - b,
    Form.REVERSED_DIFFERENCE: lambda a, b: b - a,
    Form.PRODUCT: lambda a, b: a * b,
    Form.QUOTIENT: lambda a, b: a / b,
    Form.NEGATIVE: lambda a: -a,
    Form.EXPONENTIAL: torch.exp,
    Form.LOGARITHM: torch.log,
    Form.LOGARITHM_OF_MORE: torch.log1p,
    Form.RECIPROCAL: lambda a: 1 / a,
    Form.ROOT: torch.sqrt,
    Form.MAGNITUDE: torch.hypot,
    Form.SIGMOID: torch.sigmoid,
    Form.ROW_SUM: lambda a, axes: a.sum(axes),
    Form.ROW_MEAN: lambda a, axes: a.mean(axes),
    Form.ROW_MAXIMUM: lambda a, axes: a.amax(axes),
    Form.MAXIMUM_AND_POSITION: lambda a, axis: a.max(axis).values,
}
"""Reference of each form; the second operand of those of rows is `dim`."""
_SCALES = (1.0, 30.0, 1e-2)
"""Sizes of the random inputs."""
_ENDS = (10.0, 1.0 - 1e-16, 1.0, 1e300, -1e300)
"""Operands at which a result is large if it has no limits; first the largest that counts as a limit."""
_NEAR = 1e-9
"""Largest difference, relative to the largest number, of results that are the same in double precision."""
_LIMIT = 1e6
"""Operand at which a function with limits has reached them."""


class _Call:
    """An operator with its arguments, which computes in double precision."""

    def __init__(self, operator: Any, arguments: Sequence[Any]) -> None:
        self.operator = operator
        self.names = [a.name for a in schema_of(operator).arguments]
        defaults = [a.default_value if a.has_default_value() else None for a in schema_of(operator).arguments]
        self.arguments = [*(_double(a) for a in arguments), *defaults[len(arguments) :]]
        self.floats = [i for i, a in enumerate(self.arguments) if isinstance(a, torch.Tensor) and a.is_floating_point()]
        self.is_single = len(self.floats) == 1 and not any(_has_tensor(a) for a in self._but(self.floats))

    def _but(self, places: Sequence[int]) -> list[Any]:
        return [a for i, a in enumerate(self.arguments) if i not in places]

    @property
    def x(self) -> torch.Tensor:
        """The first float operand."""
        return self.arguments[self.floats[0]]  # type: ignore[no-any-return]

    def with_floats(self, change: Callable[[torch.Tensor], torch.Tensor], places: Sequence[int] = ()) -> list[Any]:
        """Return the arguments with other numbers in the float operands, by default in all."""
        chosen = places or range(len(self.arguments))
        return [_mapped(a, change) if i in chosen else a for i, a in enumerate(self.arguments)]

    def given(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return arguments by their names."""
        return dict(zip(self.names, arguments, strict=False))

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Return the first result."""
        positional = [a for a in schema_of(self.operator).arguments if not a.kwarg_only]
        named = dict(list(zip(self.names, arguments, strict=False))[len(positional) :])
        result = self.operator(*arguments[: len(positional)], **named)
        while isinstance(result, (list, tuple)):
            result = result[0] if result else torch.zeros(0)
        return result.double() if result.is_floating_point() else result

    def at(self, x: torch.Tensor | float | list[float]) -> torch.Tensor:
        """Return the results for other numbers in the only float operand."""
        return self(self.with_floats(lambda _: torch.as_tensor(x, dtype=torch.float64), self.floats))


def _double(value: Any) -> Any:
    return _mapped(value, lambda x: x.double())


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_mapped(v, change) for v in value]
    return change(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _has_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and any(map(_has_tensor, value)))


@dataclass(frozen=True)
class Finding:
    """A fact that ATen contradicts, or that it suggests and nobody states.

    Attributes:
        overload: of the operator.
        question: the name of the fact, see `micronpu.ir.facts.Facts`.
        stated: the answer.
        found: what ATen computes.
    """

    overload: str
    question: str
    stated: Any
    found: str

    def __str__(self) -> str:
        answer = f"`{self.question}` is {self.stated!r}" if self.stated else f"nothing is said about `{self.question}`"
        return f"{self.overload}: {answer}, but {self.found}."


def check_facts(operator: Any, *arguments: Any, facts: Facts | None = None) -> list[Finding]:
    """Compare the facts of an operator with what ATen, or the package that defines it, computes.

    Facts that are stated have to hold on random inputs; one that holds and is not stated needs a reason in `unknown`.

    Args:
        operator: an overload, such as ``torch.ops.aten.sin.default``.
        arguments: of an example call; its float tensors are replaced by random ones.
        facts: by default those that the registry has.
    """
    call, name = _Call(operator, arguments), str(operator).partition(".")[2]
    known = facts_of(name) if facts is None else facts
    result = call(call.arguments)
    is_truth = result.dtype is torch.bool
    others = call.with_floats(lambda x: x + 1.0)
    if not call.floats or not (result.is_floating_point() or is_truth) or torch.equal(result, call(others)):
        return []  # of integers, and of constants
    asked = ("elementwise", "jumps", "range") if is_truth else QUESTIONS
    found = [item for question in asked for item in _QUESTIONS[question](call, known)]
    return [
        Finding(name, question, getattr(known, question), what)
        for question, what, is_stated in found
        if is_stated or question not in known.unknown
    ]


Found = Iterator[tuple[str, str, bool]]
"""The question, what ATen computes, and whether this contradicts a stated fact."""


def _inputs(call: _Call) -> Iterator[list[Any]]:
    """Yield the arguments of calls with random operands of several sizes and signs."""
    random = torch.Generator().manual_seed(0)
    for scale in _SCALES:
        for change in (lambda x: x, torch.abs, lambda x: -x.abs(), lambda x: x.abs().clamp(max=0.9)):
            yield call.with_floats(lambda x: change(scale * torch.randn(x.shape, generator=random).double()))  # noqa: B023


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    both = a.isfinite() & b.isfinite()
    size = float(torch.cat([a[both].abs(), b[both].abs()]).max()) if both.any() else 0.0
    return bool(((a - b)[both].abs() <= _NEAR * size).all())


def _elementwise(call: _Call, facts: Facts) -> Found:
    if not call.is_single:
        if facts.elementwise:
            yield "elementwise", "it has several tensors", True
        return
    result = call(call.arguments)
    order = torch.randperm(call.x.numel(), generator=torch.Generator().manual_seed(0))
    moved = call.at(call.x.flatten()[order].reshape(call.x.shape)) if result.numel() == call.x.numel() else None
    holds = moved is not None and torch.equal(result.flatten()[order].nan_to_num(), moved.flatten().nan_to_num())
    if holds != facts.elementwise and not facts.moves and not (holds and facts.affine_in):
        yield "elementwise", f"each result {'depends' if holds else 'does not depend'} on one element alone", not holds


def _moves(call: _Call, facts: Facts) -> Found:
    given = torch.cat([x.flatten() for x in _tensors(call.arguments)])
    result = call(call.arguments).flatten().double()
    others = result[~torch.isin(result, given)]
    holds = len(others.unique()) <= 1 and len(others) < max(len(result), 1)
    if not holds and facts.moves:
        yield "moves", "a result is none of the elements of an operand", True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.double()
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _interval_of(value: Any) -> Interval:
    if isinstance(value, (int, float)):
        return float(value), float(value)
    tensors = [x for x in _tensors(value) if x.numel()]
    return (min(float(x.min()) for x in tensors), max(float(x.max()) for x in tensors)) if tensors else ANY


def _range(call: _Call, facts: Facts) -> Found:
    lowest, highest = math.inf, -math.inf
    for arguments in [*_inputs(call), *(call.with_floats(lambda x, n=n: torch.full_like(x, n)) for n in _ENDS)]:  # type: ignore[misc]
        result = call(arguments).double()
        result = result[~result.isnan()]
        if not result.numel():
            continue
        low, high = facts.range_of(call.given(arguments), _interval_of)
        least, most = float(result.min()), float(result.max())
        lowest, highest = min(lowest, least), max(highest, most)
        slack = 1e-6 * max(abs(least), abs(most), 1e-30)
        if least < low - slack or most > high + slack:
            yield "range", f"results are from {least:g} to {most:g}, not all between {low:g} and {high:g}", True
            return
    is_bounded = max(abs(lowest), abs(highest)) < _ENDS[0] and call.is_single
    if facts.range is None and (lowest >= 0 or highest <= 0 or is_bounded):
        yield "range", f"all results are between {lowest:.4g} and {highest:.4g}", False


def _degree(call: _Call, facts: Facts) -> Found:
    if not call.is_single:
        return
    stated = facts.degree_of(call.given(call.arguments))
    degrees = set()
    for arguments in _inputs(call):
        one, two = call(arguments).double(), call([_mapped(a, lambda x: 2 * x) for a in arguments]).double()
        ratio = (two / one)[one.isfinite() & ((one != 0) | (two != 0)) & two.isfinite()]
        degrees |= {round(float(d), 6) for d in ratio.abs().log2()} if (ratio > 0).all() else {math.nan}
        if stated is not None and not _near(two, one * 2**stated):
            yield "degree", f"it is not multiplied by {2**stated:g} with its operand", True
            return
    if stated is None and len(degrees) == 1 and not math.isnan(*degrees):
        yield "degree", f"f(2 x) is {2 ** degrees.pop():g} f(x)", False


def _power(call: _Call, facts: Facts) -> Found:
    if not facts.elementwise:
        return
    power = facts.power_of(call.given(call.arguments))
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    holds = [c for c in (power if power is not None else 1.0, -2, -1, -0.5, 0.5, 2, 3) if _same(call.at(x), x**c)]
    if power is not None and power not in holds:
        yield "power", "the result is another", True
    elif power is None and holds and holds != [1.0]:
        yield "power", f"it is the power {holds[0]}", False


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.allclose(a, b, rtol=_NEAR, equal_nan=True)


def _form(call: _Call, facts: Facts) -> Found:
    given = call.given(call.arguments)
    for form, reference in _FORMS.items():
        is_of_rows = "along" in form.value
        count = 2 if "b" in form.value.split() or "(b" in form.value else 1
        axes = given.get("dim")
        if facts.moves or len(call.floats) != count or (is_of_rows and axes is None):
            continue
        operands = [call.arguments[i] for i in call.floats] + ([axes] if is_of_rows else [])
        try:
            wanted, result = reference(*operands), call(call.arguments)
        except (RuntimeError, TypeError):
            continue
        holds = result.numel() == wanted.numel() and _same(result.reshape(wanted.shape), wanted)
        if holds != (facts.form is form) and (facts.form is form or facts.form is None):
            yield "form", f"it {'computes' if holds else 'does not compute'} {form.value}", not holds


def _affine(call: _Call, facts: Facts) -> Found:
    result = call(call.arguments)
    for place in call.floats:
        steps = [call(call.with_floats(lambda x, n=n: x + n, [place])) for n in range(3)]  # type: ignore[misc]
        holds = _near(steps[1] - steps[0], steps[2] - steps[1])
        if not holds and call.names[place] in facts.affine_in:
            yield "affine_in", f"equal steps of `{call.names[place]}` do not change the result equally", True
        is_alone = len(call.floats) == 2 and result.shape == call.x.shape == call.arguments[place].shape
        if (
            holds
            and is_alone
            and not facts.moves
            and call.names[place] not in facts.affine_in
            and _by_element(call, place)
        ):
            yield "affine_in", f"it is affine in `{call.names[place]}`", False


def _by_element(call: _Call, place: int) -> bool:
    """Return whether an element of an operand changes the result in its place alone."""

    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.flatten()  # a copy, if it is not one row already
        return torch.cat([y[:1] + 1, y[1:]]).reshape(x.shape)

    return int((call(call.with_floats(changed, [place])) != call(call.arguments)).sum()) == 1


def _jumps(call: _Call, facts: Facts) -> Found:
    if not facts.elementwise:
        return
    grid = torch.arange(-4.0, 4.0, 1e-3, dtype=torch.float64) + 1e-4
    result = call.at(grid).double()
    seen = (result.diff().abs() > 0.05) & ~result.diff().isnan()
    found = [x for x in grid[:-1][seen].tolist() if _is_jump(call, x, x + 1e-3)]
    stated = facts.jumps_of(call.given(call.arguments))
    wanted = {first + n * distance for first, distance in stated for n in (range(-9, 10) if distance else (0,))}
    seen_at = [w for w in wanted if abs(w) < 4 and (w or len(wanted) == 1)]  # a row may be without the one at 0
    missing = [w for w in seen_at if not any(abs(w - f) < 2e-3 for f in found)]
    others = [f for f in found if not any(abs(w - f) < 2e-3 for w in wanted)]
    if missing:
        yield "jumps", f"the result does not jump at {missing[0]:g}", True
    if others:
        yield "jumps", f"the result jumps at {others[0]:.3g}", bool(stated)


def _is_jump(call: _Call, low: float, high: float) -> bool:
    """Return whether a function jumps between two operands, where it could also be steep."""
    jump = float((call.at(high).double() - call.at(low).double()).abs())
    while high - low > 1e-12:
        middle = (low + high) / 2
        halves = [float((call.at(b).double() - call.at(a).double()).abs()) for a, b in ((low, middle), (middle, high))]
        if max(halves) < 0.7 * jump or math.isnan(sum(halves)):
            return False
        low, high = (low, middle) if halves[0] >= halves[1] else (middle, high)
    return True


def _whole(call: _Call, facts: Facts) -> Found:
    results = [call(arguments).double() for arguments in _inputs(call)]
    holds = all(bool(((r - r.round()).abs() < _NEAR)[r.isfinite()].all()) for r in results)
    if holds != facts.whole:
        yield "whole", f"{'all results are' if holds else 'not all results are'} whole numbers", not holds


def _singular(call: _Call, facts: Facts) -> Found:
    if not facts.elementwise:
        return
    slopes = [float((call.at(2 * x) - call.at(x)).abs()) / x for x in (1e-4, 1e-8, 1e-12)]
    holds = slopes[2] > 50 * slopes[1] > 2500 * slopes[0]
    is_jump = any(first == 0 for first, _ in facts.jumps_of(call.given(call.arguments)))
    if holds != facts.is_singular(call.given(call.arguments)) and not is_jump:
        yield "singular", f"the slope at 0 is {'infinite' if holds else 'finite'}", not holds


def _bounded(call: _Call, facts: Facts) -> Found:
    if facts.elementwise and (holds := bool(call.at([-1e3, 1e3]).isnan().all())) != facts.is_bounded:
        yield "is_bounded", f"it is {'not ' if holds else ''}defined everywhere", not holds


def _tail(call: _Call, facts: Facts) -> Found:
    if not facts.elementwise:
        return
    near, far = call.at([-_LIMIT, _LIMIT]), call.at([-2 * _LIMIT, 2 * _LIMIT])
    holds = bool(far.isfinite().all()) and float((near - far).abs().max()) < 1e-5 and facts.range is not None
    if facts.tail is None:
        if holds and float((near - call.at([0.0, 0.0])).abs().max()) > 1e-3 and not facts.whole:
            yield "tail", f"its limits are {far[0]:.4g} and {far[1]:.4g}", False
        return
    for margin in (0.5 / 256, 0.5 / 32768):
        end = facts.tail_of(margin)
        ends = call.at([-(end or 0.0), end or 0.0])
        off = float((ends - far).abs().max())
        if not 0.9 * margin < off < margin + 1e-5:
            yield "tail", f"the result at {end:g} is {off:g} from its limits instead of {margin:g}", True


def _by_channel(call: _Call, facts: Facts) -> Found:
    if not call.is_single or call.x.dim() < 3 or not facts.by_channel:
        return
    gains = torch.linspace(0.5, 2, call.x.shape[1], dtype=torch.float64).reshape(1, -1, *[1] * (call.x.dim() - 2))
    if not _near(call.at(call.x * gains), call(call.arguments) * gains):
        yield "by_channel", "a channel is not multiplied with its operand", True


def _adds(call: _Call, facts: Facts) -> Found:
    if not facts.adds:
        return
    squares = call.with_floats(torch.square)
    doubled = [_mapped(a, lambda x: 2 * x) for a in squares[: call.floats[0] + 1]] + squares[call.floats[0] + 1 :]
    if bool((call(doubled) < call(squares) - _NEAR).any()) or bool((call(squares) < 0).any()):
        yield "adds", "it falls where its operand, which is not negative, grows", True


def _amplifier(call: _Call, facts: Facts) -> Found:
    found = facts.amplifier
    if found is None or (len(call.floats) == 1 and not facts.elementwise):
        return
    place = call.floats[-1] if found.divides else call.floats[0]
    arguments = call.with_floats(lambda x: torch.full_like(x, 1.0))
    arguments[place] = torch.full_like(arguments[place], 0.25)
    result = float(call(arguments).flatten()[0])
    smallest = found.inverse(result)
    if not math.isclose(found.of(0.25), result) or not math.isclose(smallest, 0.25):
        yield "amplifier", f"the result of 0.25 is {result:g}", True


_QUESTIONS: Mapping[str, Callable[[_Call, Facts], Found]] = {
    "elementwise": _elementwise,
    "moves": _moves,
    "range": _range,
    "power": _power,
    "degree": _degree,
    "form": _form,
    "affine_in": _affine,
    "jumps": _jumps,
    "whole": _whole,
    "singular": _singular,
    "is_bounded": _bounded,
    "tail": _tail,
    "by_channel": _by_channel,
    "adds": _adds,
    "amplifier": _amplifier,
}
"""The check of each question."""
