"""Comparison of an imported model with the file's own runtime, tensor by tensor, on random inputs.

Each operator gets the operands that the runtime computed, so that its result differs from the runtime's by its own
rounding alone: the first tensor of the file that differs by more is computed by an operator that was read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from micronpu.base.errors import ImportMismatchError, MicroNpuError
from micronpu.frontend.model_files.network import FileValue, Network, NetworkStep, Rounding

Row = tuple[torch.Tensor, ...]
ROWS, CALLS = 2, 8
"""Random inputs; calls of a file with states, which keep theirs."""
_FLOAT = 1e-4
"""Difference of floats relative to the largest of a tensor: sums in another order. Sigmoids differ by 2^-22, too."""
_HYBRID = 200.0
"""Times as much for kernels that round their operand in each call: some elements are between two integers."""
_HALF, _HALF_LIMIT = 200.0, 60000.0
"""Times as much for tensors of float16, and the size above which they end."""
_NOISE, _TRIALS = 1e-6, 16
"""Relative change of operands that rounding makes, and how often it is tried for elements that differ."""
_ROUNDING = 0.76
"""Allowed distance of a quantized result from the real one in LSB: rounding to the nearest, and once more at half the
scale, as LiteRT's multiplication of 31 bits does."""
_HINT = (
    "report the file; `micronpu compile --no-verify-import`, or Verification(verify_import=False), compiles it as it "
    "was read"
)


class OwnRuntime(Protocol):
    """The runtime that defines the meaning of a file.

    All values are those of the module: floats of quantized tensors are scale * (integer - zero point).

    Attributes:
        title: such as "LiteRT".
    """

    title: str

    def limits(self, i: int) -> tuple[float, float] | None:
        """Return the values that input i may have, such as those of its integers or indices; None for any."""

    def represented(self, inputs: Row) -> Row:
        """Return the nearest inputs that the file represents, in the module's dtypes."""

    def begin(self) -> None:
        """Reset all states."""

    def run(self, inputs: Row) -> None:
        """Run one call.

        Raises:
            RuntimeRefusalError: the runtime cannot run the file, or these inputs.
        """

    def tensor(self, key: Hashable) -> torch.Tensor | None:
        """Return a tensor of the file as the last call computed it, with the file's axes; None if unknown."""


class RuntimeRefusalError(MicroNpuError):
    """The runtime cannot run a file or these inputs."""


def verify_import(network: Network, runtime: OwnRuntime, calibration: Sequence[Row] = ()) -> None:
    """Compare a network with the file's runtime on random inputs, and on some of the given ones.

    Raises:
        ImportMismatchError: a tensor differs by more than rounding; the message names the first one.
        RuntimeRefusalError: the runtime cannot run the file.
    """
    comparison = _Comparison(network, runtime)
    if network.initial_states():
        comparison.sequence([_random_row(network, runtime, i) for i in range(CALLS)])
        comparison.sequence([runtime.represented(row) for row in calibration[:CALLS]])
        return
    for i in range(ROWS):
        row = _random_row(network, runtime, i)
        try:
            comparison.sequence([row])
        except RuntimeRefusalError:  # such as a root of negative numbers
            comparison.sequence([runtime.represented(tuple(v.abs() if v.dtype is not torch.bool else v for v in row))])
    for row in calibration[:ROWS]:
        comparison.sequence([runtime.represented(row)])


def _random_row(network: Network, runtime: OwnRuntime, seed: int) -> Row:
    """Return random inputs, the same in every run: whole ranges of integers, and floats of some sizes."""
    generator, row = torch.Generator().manual_seed(seed), []
    for i, value in enumerate(network.inputs):
        if i in network.known:
            row.append(network.known[i])
            continue
        low, high = runtime.limits(i) or ((0.0, 1.0) if value.dtype is torch.bool else (-4.0, 4.0))
        if value.is_floating_point() and runtime.limits(i) is None:
            row.append(torch.randn(value.shape, generator=generator) * (1.0, 2.5)[seed % 2])
        elif value.is_floating_point():
            row.append(torch.rand(value.shape, generator=generator) * (high - low) + low)
        else:
            row.append(torch.randint(int(low), int(high) + 1, value.shape, generator=generator).to(value.dtype))
    return runtime.represented(tuple(row))


@dataclass
class _Comparison:
    network: Network
    runtime: OwnRuntime

    def sequence(self, rows: Sequence[Row]) -> None:
        """Compare a sequence of calls that begins with the initial states."""
        if not rows:
            return
        self.runtime.begin()
        states = self.network.initial_states()
        for row in rows:
            self.runtime.run(row)
            states = self.network.written_states(self._tensors(row, states))

    def _tensors(self, row: Row, states: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Compare every tensor of the file in order, and return those of the runtime."""
        values = self.network.given(row, states)
        for number, value in list(values.items()):
            values[number] = self._checked(number, value, None)
        for _, step in self.network.named_steps():
            operands = step.operands_from(values)
            results = self._in_integers(step, operands) or step.unquantized(operands)
            for i, (number, value) in enumerate(zip(step.results, results, strict=True)):
                rounding = step.rounding[i] if step.rounding else None
                values[number] = self._checked(number, value, rounding, operands, partial(_unstable, step, i, operands))
        return values

    def _in_integers(self, step: NetworkStep, operands: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
        """Return the results of a float operator whose kernel rounds its operand to int8 in each call.

        Kernels differ in how they round; of the results, those nearest to the runtime's are returned.
        """
        (number, *others), made = step.results, self.network.sources
        hybrid = [t for t in made.get(number, ()) if t.hybrid and not others]
        if not hybrid or (theirs := self._theirs(hybrid[0])) is None:
            return None
        x, *rest = operands
        results = [step.unquantized([given, *rest]) for given in (x, *_rounded_to_int8(x))]
        return min(results, key=lambda result: float((result[0] - theirs).abs().nan_to_num().sum()))

    def _theirs(self, tensor: FileValue) -> torch.Tensor | None:
        """Return the runtime's tensor with the network's axes."""
        theirs = self.runtime.tensor(tensor.key)
        return theirs if theirs is None or not tensor.axes else theirs.permute(tensor.axes)

    def _checked(
        self,
        number: int,
        value: torch.Tensor,
        rounding: Rounding | None,
        operands: Sequence[torch.Tensor] = (),
        unstable: Callable[[], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compare a value with each tensor of the file that it represents; return the runtime's, or else the value."""
        found: torch.Tensor | None = None
        for tensor in self.network.sources.get(number, ()):
            if (theirs := self._theirs(tensor)) is None:
                continue
            self._compare(tensor, value, theirs, rounding, operands, unstable)
            theirs = theirs.float() if theirs.dtype is torch.float16 else theirs
            found = theirs if found is None else found
        if found is None:
            return value if rounding is None else rounding(value)
        return found.contiguous()

    def _compare(
        self,
        tensor: FileValue,
        ours: torch.Tensor,
        theirs: torch.Tensor,
        rounding: Rounding | None,
        operands: Sequence[torch.Tensor],
        unstable: Callable[[], torch.Tensor] | None,
    ) -> None:
        times = _HYBRID if tensor.hybrid else _HALF if theirs.dtype is torch.float16 else 1.0
        theirs = theirs.float() if theirs.dtype is torch.float16 else theirs
        if (kind := (tuple(ours.shape), ours.dtype)) != (tuple(theirs.shape), theirs.dtype):
            raise self._error(tensor, f"{kind[1]} of shape {list(kind[0])}, not {theirs.dtype} of {list(theirs.shape)}")
        if not theirs.numel() or (times == _HALF and _largest(ours, *operands) > _HALF_LIMIT):
            return
        if tensor.rounds is not None and operands:
            ours, theirs, rounding = operands[0], tensor.rounds.dequantize(theirs), tensor.rounds
        largest = _largest(theirs, *(operands if tensor.sums else ()))
        differ = _differing(ours, theirs, rounding, tensor.slack, largest * times)
        if bool(differ.any()) and unstable is not None and rounding is None:
            differ &= ~unstable()
        if count := int(differ.sum()):
            ours, theirs = ours[differ], theirs[differ]
            raise self._error(tensor, f"{count:,} of {differ.numel():,} elements differ, {_farthest(ours, theirs)}")

    def _error(self, tensor: FileValue, what: str) -> ImportMismatchError:
        return ImportMismatchError(
            f"The file was read wrongly: `{tensor.name}`{f' ({tensor.operator})' if tensor.operator else ''} is not "
            f"what {self.runtime.title} computes from the same operands: {what}.",
            hint=_HINT,
        )


def _rounded_to_int8(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield x in int8 integers, for each batch or row, with zero point 0 and with any."""
    for axes in ([*range(1, x.ndim)], [-1]):
        if not axes:
            continue
        low, high = x.amin(axes, keepdim=True).clamp(max=0), x.amax(axes, keepdim=True).clamp(min=0)
        scale = (torch.maximum(-low, high) / 127).clamp(min=1e-30)
        yield torch.round(x / scale) * scale
        scale = ((high - low) / 255).clamp(min=1e-30)
        zero = torch.round(-128 - low / scale)
        yield (torch.round(x / scale + zero).clamp(-128, 127) - zero) * scale


def _largest(*values: torch.Tensor) -> float:
    """Return the largest finite size of a float."""
    sizes = [float(torch.nan_to_num(v, 0, 0, 0).abs().max()) for v in values if v.is_floating_point() and v.numel()]
    return max(sizes, default=0.0)


def _differing(
    ours: torch.Tensor, theirs: torch.Tensor, rounding: Rounding | None, slack: float, largest: float
) -> torch.Tensor:
    """Return which elements differ by more than rounding."""
    if not theirs.is_floating_point():
        return ours != theirs
    if rounding is None:
        far = (ours - theirs).abs() > _FLOAT * largest + 2**-22
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        return ~same & (far | ours.isnan() | theirs.isnan() | ours.isinf() | theirs.isinf())
    low, high = rounding.limits
    wide = ours.double().nan_to_num(0.0, high, low).clamp(low, high)
    units = _ROUNDING + slack + _FLOAT * largest / rounding.scale * (rounding.dtype is not torch.int8)
    return (wide - theirs.double()).abs() > units * rounding.scale


def _unstable(step: NetworkStep, result: int, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return which elements of a result have no certain value.

    They change when the operands change by their rounding: indices of equal elements, integers of floats between two,
    remainders of multiples. An operand that is no number makes all of them uncertain, and one that no integer of the
    result can represent makes its own so.
    """
    made = step.unquantized(operands)[result]
    floats = [x for x in operands if x.is_floating_point()]
    found = torch.full_like(made, not all(bool(x.isfinite().all()) for x in floats), dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_TRIALS):
        others = [_moved(x, generator) if x.is_floating_point() else x for x in operands]
        other = step.unquantized(others)[result]
        if other.shape == made.shape:
            found |= _differing(other, made, None, 0.0, _largest(made, *operands) / 2)
    if not made.is_floating_point() and made.dtype is not torch.bool:
        limits = torch.iinfo(made.dtype)
        for x in floats:
            if x.shape == made.shape:
                found |= (x < limits.min) | (x >= limits.max)
    return found


def _moved(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats that differ from others by about their rounding."""
    sizes = x.abs().nan_to_num(0, 0, 0)
    usual = float(sizes.median()) if x.numel() else 0.0
    noise = torch.rand(x.shape, generator=generator) * 2 - 1
    return x + noise * _NOISE * (sizes + usual + 1e-20)


def _farthest(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """Describe the element with the largest difference."""
    apart = (ours.double() - theirs.double()).abs().nan_to_num(float("inf"), float("inf")).reshape(-1)
    at = int(apart.argmax())
    return f"such as {ours.reshape(-1)[at].item():.6g} where it has {theirs.reshape(-1)[at].item():.6g}"


def calls_of(calibration: object, network: Network) -> list[Row]:
    """Return the first calls of calibration data that can be read twice: a list, or a tensor of rows.

    Data that do not fit the inputs are left to calibration, which explains what is wrong.
    """
    calls = calibration[:CALLS] if isinstance(calibration, (list, torch.Tensor)) else []
    if len(calls) and isinstance(calls[0], list):  # sequences of calls of a model with states
        calls = calls[0][:CALLS]
    found = []
    for call in calls:
        named = isinstance(call, Mapping) and set(call) == set(network.input_names)
        row = [call[name] for name in network.input_names] if named else call if isinstance(call, tuple) else [call]
        if not all(isinstance(value, (torch.Tensor, np.ndarray)) for value in row):
            return []
        tensors = tuple(map(torch.as_tensor, row))
        if [t.shape for t in tensors] != [t.shape for t in network.inputs]:
            return []
        found.append(tensors)
    return found
