"""Which operators of a LiteRT model each kernel of a profiled program computes, read from the converter's log.

A program that is timed on the board reports its kernels by number, and the converter fuses and splits operators before
it numbers them. Where it is asked for a profile it prints the model as it was read, the kernels of each of its own
operators, and the graph that it made:

    Graphs: ...  Type: CONV_2D  Inputs: [0]: x [1]: w  Outputs: [0]: y  Location: 0      the model, up to Optimize Graph
    = Extract Graphs = ... NeutronOperator "subgraph_001": Operators: PAD CONV_2D  Kernels: Pad Conv2DStandardV2
    Graphs: ...  Name: subgraph_001  Inputs: [0]: x  Outputs: [0]: y  Tensors: ...       the graph that was made

Tensors keep their names, or gain a part behind a slash. So an operator of the converter's computes what stands between
the tensors that it reads and those that it writes. What the log does not tell is left out, never guessed.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_OPERATOR = re.compile(r"Type:\s+\w+\s+Inputs:(?P<inputs>.*?)Outputs:(?P<outputs>.*?)Location:\s+\d+", re.S)
_TENSOR = re.compile(r"\[\d+\]:\s+(\S+)")
_KERNELS = re.compile(
    r'NeutronOperator\s+"subgraph_(?P<number>\d+)":\s*Operators:.*?Kernels:(?P<kernels>.*?)'
    r'(?=NeutronOperator\s+"|NeutronGraph\s+"|\n\s*\n|=|\Z)',
    re.S,
)
_MADE = re.compile(r"Name:\s+subgraph_(?P<number>\d+)\s+Inputs:(?P<inputs>.*?)Outputs:(?P<outputs>.*?)Tensors:", re.S)
_CALLS = re.compile(r"numKernelCalls\s+0x([0-9a-fA-F]+)")


@dataclass(frozen=True)
class _Step:
    """An operator of either graph by the names of what it reads and writes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def kernel_operators(log: str) -> tuple[tuple[int, ...], ...] | None:
    """For each kernel in the order in which the board numbers them, the operators of the LiteRT model that it computes.

    Args:
        log: what the converter printed of a conversion that was asked for a profile.

    Returns:
        Numbers of operators, ascending; () for a kernel of which the log does not say it. None where the log lists no
        kernels, or other kernels than the program calls.
    """
    parts = log.split("Graphs:")
    if len(parts) != 3:
        return None
    read, made = parts[1:]
    steps = [_step(match) for match in _OPERATOR.finditer(read.partition("= Optimize Graph =")[0])]
    extracted = read.partition("= Extract Graphs =")[2].partition("Generate code for NeutronGraph")[0]
    borders = {int(match["number"]): _step(match) for match in _MADE.finditer(made)}
    kernels: list[tuple[int, ...]] = []
    for match in _KERNELS.finditer(extracted):
        number = int(match["number"])
        computed = _between(borders[number], steps) if number in borders else ()
        kernels += [computed] * len([line for line in match["kernels"].splitlines() if line.strip()])
    calls = _CALLS.search(log)
    if not kernels or (calls and int(calls[1], 16) != len(kernels)):
        return None
    return tuple(kernels)


def _step(match: re.Match[str]) -> _Step:
    return _Step(tuple(_TENSOR.findall(match["inputs"])), tuple(_TENSOR.findall(match["outputs"])))


def _between(border: _Step, steps: Sequence[_Step]) -> tuple[int, ...]:
    """The operators that compute what a border writes from what it reads."""
    producer = {name: i for i, step in enumerate(steps) for name in step.outputs}
    known = producer.keys() | {name for step in steps for name in step.inputs}
    read = set(_known(border.inputs, known))
    found: set[int] = set()
    # The operators that write the border's results belong to it even where it also reads them: a part of a split.
    waiting = [producer[name] for name in _known(border.outputs, known) if name in producer]
    while waiting:
        step = waiting.pop()
        if step in found:
            continue
        found.add(step)
        waiting += [producer[name] for name in steps[step].inputs if name in producer and name not in read]
    return tuple(sorted(found))


def _known(names: Iterable[str], known: Iterable[str]) -> Iterable[str]:
    """The tensor of the model that each name goes back to: itself, or what stands in front of one of its slashes."""
    known = set(known)
    for name in names:
        while name and name not in known:
            name = name.rpartition("/")[0]
        if name:
            yield name
