"""A network that is built operator by operator, as an `nn.Module` that `torch.export` can trace.

Readers of model files add one `NetworkStep` for each operator, and compute constant expressions at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import numpy as np
import torch
from torch import nn

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.frontend.functional import taken_names
from micronpu.frontend.model_files.budget import Budget, Cost, reading
from micronpu.frontend.tensors import copied
from micronpu.program.file_facts import FileFacts, clean
from micronpu.upstream.torch import register_quantized_operators

Function = Callable[..., Any]
Operand = int | torch.Tensor
Shapes = Mapping[str, Sequence[int]] | Sequence[Sequence[int]]
"""Shapes of inputs, by name or in order."""
_QUANTIZED = (torch.int8, torch.uint8, torch.int16)
MAX_ELEMENTS = 1 << 26
"""Limit of the elements of one tensor; the memories of microcontrollers are far smaller."""
MAX_RANK = 32
"""Limit of the axes of one tensor, which is NumPy 1's."""


@dataclass(frozen=True)
class Rounding:
    """Quantize and dequantize with per-tensor parameters: ``real = scale * (integer - zero_point)``.

    Attributes:
        scale: size of one LSB.
        zero_point: the integer that means 0.
        dtype: torch.int8 or torch.int16.
    """

    scale: float
    zero_point: int
    dtype: torch.dtype

    @property
    def limits(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        limits = torch.iinfo(self.dtype)
        return (limits.min - self.zero_point) * self.scale, (limits.max - self.zero_point) * self.scale

    @property
    def _given(self) -> tuple[Any, ...]:
        limits = torch.iinfo(self.dtype)
        return self.scale, self.zero_point, limits.min, limits.max, self.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Round x to the nearest float values that the integers can represent; same shape."""
        return self.dequantize(torch.ops.quantized_decomposed.quantize_per_tensor.default(x, *self._given))

    def dequantize(self, integers: torch.Tensor) -> torch.Tensor:
        """Return the float values of integers; same shape."""
        real: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(integers, *self._given)
        return real


@dataclass(frozen=True)
class FileValue:
    """A tensor of the file, whose value the file's runtime computes too.

    Attributes:
        key: identifies it for the runtime.
        axes: the file's axes in the order of the network's value; () if they are the same.
        operator: kind of the operator that computes it, and its position.
        slack: LSB by which the runtime's integer kernel may be further from the real result than by its rounding.
        sums: True for sums of products, whose rounding depends on the size of the operands.
        rounds: how an integer tensor is rounded from the operand of its step; None for others.
        hybrid: True for a float operator with integer weights, whose kernel rounds its operand to int8 in each call.
    """

    name: str
    key: Hashable
    axes: tuple[int, ...] = ()
    operator: str = ""
    slack: float = 0.0
    sums: bool = False
    hybrid: bool = False
    rounds: Rounding | None = None


class NetworkStep(nn.Module):
    """One operator.

    Args:
        function: called with the operands in order; returns a tensor, or a tuple of them.
        operands: a number of a tensor, or a constant.
        results: numbers of the tensors that it computes.
        rounding: of each result, or None for a result that is not quantized; empty if none is.
    """

    def __init__(
        self,
        function: Function,
        operands: Sequence[Operand],
        results: Sequence[int],
        rounding: Sequence[Rounding | None],
    ) -> None:
        super().__init__()
        self.function, self.results, self.rounding = function, tuple(results), tuple(rounding)
        self.operands: list[int | str] = []
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                name = f"constant_{len(self.operands)}"
                self.register_buffer(name, operand)
                self.operands.append(name)
            else:
                self.operands.append(operand)

    @property
    def reads(self) -> tuple[int, ...]:
        """Return numbers of the tensors that it reads."""
        return tuple(o for o in self.operands if isinstance(o, int))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results, from the tensors that `reads` names."""
        return self.computed(self.operands_from(dict(zip(self.reads, tensors, strict=True))))

    def operands_from(self, values: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        return [getattr(self, o) if isinstance(o, str) else values[o] for o in self.operands]

    def computed(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        results = self.unquantized(operands)
        if not self.rounding:
            return results
        return tuple(r if q is None else q(r) for r, q in zip(results, self.rounding, strict=True))

    def unquantized(self, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results before they are quantized, from all operands."""
        made = self.function(*operands)
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)


@dataclass
class State:
    """A tensor that persists from one call to the next.

    Attributes:
        initial: before the first call.
        number: of its value when a call begins.
        written: number of its value when the call ends.
    """

    name: str
    initial: torch.Tensor
    number: int
    written: int


class Network(nn.Module):
    """The steps in order.

    Args:
        steps: by the name of their result.
        inputs: numbers of the inputs, each with a value on the meta device.
        outputs: numbers of tensors.
        states: tensors that persist from one call to the next.
        input_names: of the inputs, in the file.

    Attributes:
        file_facts: names, labels and normalization of the file.
        names: the file's name for the result of each child module, by the name of the child.
        known: values that inputs must have, by position: with others a branch would run that does not fit.
        left_out: branches that do not fit the inputs, with the reason.
        outputs: numbers of the outputs.
        sources: tensors of the file that a number represents.
    """

    def __init__(
        self,
        steps: Sequence[tuple[str, NetworkStep]],
        inputs: Mapping[int, torch.Tensor],
        outputs: Sequence[int],
        states: Sequence[State],
        input_names: Sequence[str],
    ) -> None:
        super().__init__()
        self.input_names = tuple(input_names)
        self.file_facts = FileFacts(tuple(map(clean, input_names)))
        self.names: dict[str, str] = {}
        self.known: dict[int, torch.Tensor] = {}
        self.left_out: tuple[str, ...] = ()
        self._inputs, self.outputs = dict(inputs), tuple(outputs)
        self.sources: dict[int, list[FileValue]] = {}
        self._states: dict[str, State] = {}
        self._unneeded: dict[str, list[int]] = {}
        results = {*outputs, *(state.written for state in states)}
        needed, kept = set(results), []
        for name, step in reversed(steps):
            if not needed.isdisjoint(step.results):
                kept.append((name, step))
                needed.update(step.reads)
        taken = dict.fromkeys((*dir(self), *taken_names()), 0)
        last: dict[int, str] = {}
        for name, step in reversed(kept):
            own = _unused(as_identifier(name), taken)
            self.names[own] = name
            self.add_module(own, step)
            last.update(dict.fromkeys(set(step.reads) - results, own))
        for number, own in last.items():
            self._unneeded.setdefault(own, []).append(number)
        for state in states:
            own = _unused(as_identifier(state.name), taken)
            self._states[own] = state
            self.register_buffer(own, state.initial)
        self.eval()

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self._inputs.values())

    def examples(self) -> tuple[torch.Tensor, ...]:
        """Return inputs of the right shapes, the same in every run: values of both signs, 0 for int32 and int64."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            self.known[i]
            if i in self.known
            else torch.randn(v.shape, generator=generator)
            if v.is_floating_point()
            else torch.randint(torch.iinfo(v.dtype).min, 127, v.shape, dtype=v.dtype, generator=generator)
            if v.dtype in _QUANTIZED
            else torch.zeros(v.shape, dtype=v.dtype)
            for i, v in enumerate(self.inputs)
        )

    @property
    def keys(self) -> tuple[Hashable, ...]:
        return tuple(value.key for values in self.sources.values() for value in values)

    def named_steps(self) -> Iterator[tuple[str, NetworkStep]]:
        """Yield the steps that outputs and states need, in order, with the names of their child modules."""
        for own in self.names:
            yield own, self._step(own)

    def states(self) -> Iterable[tuple[str, State]]:
        """Return the states with the names of their buffers."""
        return self._states.items()

    def _step(self, name: str) -> NetworkStep:
        step = self.get_submodule(name)
        assert isinstance(step, NetworkStep)
        return step

    def initial_states(self) -> dict[int, torch.Tensor]:
        """Return the value of each state before the first call, by its number."""
        return {state.number: state.initial for state in self._states.values()}

    def written_states(self, values: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the value of each state after a call, by its number, from all values of the call."""
        return {state.number: values[state.written] for state in self._states.values()}

    def given(self, inputs: Sequence[torch.Tensor], states: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        return {**dict(zip(self._inputs, inputs, strict=True)), **states}

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return the outputs: a tensor if there is one, otherwise a tuple."""
        values = self.given(inputs, {state.number: getattr(self, own) for own, state in self._states.items()})
        for own in self.names:
            step = self._step(own)
            values.update(zip(step.results, step(*(values[n] for n in step.reads)), strict=True))
            for n in self._unneeded.get(own, ()):
                values.pop(n, None)
        for own, state in self._states.items():
            if state.written != state.number:
                getattr(self, own).copy_(values[state.written])
        outputs = tuple(values[n] for n in self.outputs)
        return outputs if len(outputs) > 1 else outputs[0]


class NetworkBuilder:
    """Collects steps, and runs each on the meta device, so that an error names the step.

    Attributes:
        meta: every tensor as a value without data, with its shape and dtype.
        budget: what reading the file has cost so far.
        sources: tensors of the file that a number represents.
        known, left_out: of `Network`; the first by the number of an input.
    """

    def __init__(self) -> None:
        register_quantized_operators()
        self.budget = Budget()
        self.steps: list[tuple[str, NetworkStep]] = []
        self.states: list[State] = []
        self.inputs: dict[int, str] = {}
        self.meta: dict[int, torch.Tensor] = {}
        self.sources: dict[int, list[FileValue]] = {}
        self.known: dict[int, torch.Tensor] = {}
        self.left_out: list[str] = []

    def input(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Return the number of a new input of the network."""
        self.check_shape(name, shape)
        number = self._new(torch.empty(tuple(shape), dtype=dtype, device="meta"))
        self.inputs[number] = name
        return number

    def state(self, name: str, initial: torch.Tensor) -> State:
        """Return a new state, which no step has written yet."""
        number = self._new(initial.to("meta"))
        self.states.append(State(name, initial, number, number))
        return self.states[-1]

    def _new(self, value: torch.Tensor) -> int:
        number = len(self.meta)
        self.meta[number] = value
        return number

    def dequantized(self, name: str, integers: torch.Tensor, scales: torch.Tensor, axis: int = 0) -> int:
        """Return the number of constant integers times a scale, or times one for each index of an axis."""
        limits, quantized = torch.iinfo(integers.dtype), torch.ops.quantized_decomposed
        given = (limits.min, limits.max, integers.dtype)
        if scales.numel() == 1:
            scale = float(scales)
            return self.add(name, lambda w: quantized.dequantize_per_tensor.default(w, scale, 0, *given), [integers])[0]
        zeros = torch.zeros(scales.numel(), dtype=torch.int64)

        def dequantize(w: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> object:
            return quantized.dequantize_per_channel.default(w, s, z, axis, *given)

        return self.add(name, dequantize, [integers, scales, zeros])[0]

    def check_shape(self, name: str, shape: Sequence[int], constant: bool = False) -> None:
        """Check the shape of a tensor, and count a constant."""
        elements, rank = math.prod(shape), len(shape)
        if constant:
            self.budget.spend(Cost.CONSTANTS, elements, f"`{name}`")
        if elements > MAX_ELEMENTS or rank > MAX_RANK:
            made, most = (elements, MAX_ELEMENTS) if rank <= MAX_RANK else (rank, MAX_RANK)
            unit = "elements" if rank <= MAX_RANK else "axes"
            raise ModelError(
                f"`{name}` makes {made:,} {unit}; a tensor has at most {most:,}.",
                hint="a model that fits a microcontroller",
            )

    def network(self, outputs: Sequence[int]) -> Network:
        """Return the steps that the outputs and states need, as a module."""
        inputs = {n: self.meta[n] for n in self.inputs}
        network = Network(self.steps, inputs, outputs, self.states, tuple(self.inputs.values()))
        network.sources.update(self.sources)
        network.known = {i: self.known[n] for i, n in enumerate(inputs) if n in self.known}
        network.left_out = tuple(self.left_out)
        return network

    def add(
        self, name: str, function: Function, operands: Sequence[Operand], rounding: Sequence[Rounding | None] = (None,)
    ) -> list[int]:
        """Append an operator.

        Returns:
            The numbers of its results.
        """
        step = NetworkStep(function, operands, (), rounding)
        made = self._tried(name, step, operands)
        step.results = tuple(map(self._new, made))
        self.steps.append((name, step))
        return list(step.results)

    def folded(self, name: str, function: Function, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results of an operator whose operands are constants; see `add`, and `Budget`."""
        step = NetworkStep(function, operands, (), ())
        made = self.budget.spend_on(f"`{name}`", lambda: self._tried(name, step, operands))
        self.budget.spend(Cost.CONSTANTS, sum(value.numel() for value in made), f"`{name}`")
        with torch.no_grad():
            return step.computed(operands)

    def _tried(self, name: str, step: NetworkStep, operands: Sequence[Operand]) -> tuple[torch.Tensor, ...]:
        """Return the results of a step as values without data."""
        self.budget.spend(Cost.OPERATORS, 1, f"`{name}`")
        values = [o.to("meta") if isinstance(o, torch.Tensor) else self.meta[o] for o in operands]
        tried = copied(step).to("meta") if isinstance(step.function, nn.Module) else step
        shapes = ", ".join(str(list(v.shape)) for v in values)
        # Torch raises many kinds of exceptions for invalid operands.
        with reading(f"`{name}`", f"does not fit its operands of shapes {shapes}"), torch.no_grad():
            made = tried.computed(values)
        for value in made:
            self.check_shape(name, value.shape)
        return made


def as_identifier(name: str) -> str:
    """Return a name of a file as a Python identifier."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
    if iskeyword(text) or text == "self":
        return f"{text}_"
    return f"n{text}" if text[0].isdigit() else text


def _unused(name: str, taken: dict[str, int]) -> str:
    """Return the name, with a number appended if it is used; ``taken`` counts the numbers of each name."""
    own = name
    while own in taken:
        taken[name] += 1
        own = f"{name}_{taken[name]}"
    taken[own] = 0
    return own


def tensor(data: Array) -> torch.Tensor:
    """Return a copy of a constant of a file as a tensor."""
    return torch.from_numpy(np.array(data))


DAMAGED = "copy the file again; onnx.checker.check_model(path) lists what is wrong with it"
