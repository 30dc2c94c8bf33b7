"""Map each kernel of a profiled program to operators of the LiteRT model, from the converter's log.

A board that measures a program reports its kernels by number, and the converter fuses and splits operators before it
numbers them. With profiling it prints the model as read, the kernels of each converted operator, and the resulting
graph:

    Graphs: ...  Type: CONV_2D  Inputs: [0]: x [1]: w  Outputs: [0]: y  Location: 0      the model, up to Optimize Graph
    = Extract Graphs = ... NeutronOperator "subgraph_001": Operators: PAD CONV_2D  Kernels: Pad Conv2DStandardV2
    Graphs: ...  Name: subgraph_001  Inputs: [0]: x  Outputs: [0]: y  Tensors: ...       the resulting graph

Tensors keep their names, or get a suffix after a slash. So an operator of the converter computes the model's operators
between the tensors that it reads and writes. Unknown relations are omitted, never guessed. Standard library only.
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
    """An operator of either graph, by the names of its inputs and outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def kernel_operators(log: str) -> tuple[tuple[int, ...], ...] | None:
    """Return, for each kernel in the board's numbering, the operators of the LiteRT model that it computes.

    Args:
        log: output of a conversion with profiling.

    Returns:
        Sorted operator numbers; () for a kernel that the log does not assign. None if the log lists no kernels, or
        other kernels than the program calls.
    """
    parts = log.split("Graphs:")
    if len(parts) != 3:
        return None
    read, made = parts[1:]
    steps = [_step(match) for match in _OPERATOR.finditer(read.partition("= Optimize Graph =")[0])]
    extracted = read.partition("= Extract Graphs =")[2].partition("Generate code for NeutronGraph")[0]
    boundaries = {int(match["number"]): _step(match) for match in _MADE.finditer(made)}
    kernels: list[tuple[int, ...]] = []
    for match in _KERNELS.finditer(extracted):
        number = int(match["number"])
        computed = _between(boundaries[number], steps) if number in boundaries else ()
        kernels += [computed] * len([line for line in match["kernels"].splitlines() if line.strip()])
    calls = _CALLS.search(log)
    if not kernels or (calls and int(calls[1], 16) != len(kernels)):
        return None
    return tuple(kernels)


def _step(match: re.Match[str]) -> _Step:
    return _Step(tuple(_TENSOR.findall(match["inputs"])), tuple(_TENSOR.findall(match["outputs"])))


def _between(boundary: _Step, steps: Sequence[_Step]) -> tuple[int, ...]:
    """The operators that compute a subgraph's outputs from its inputs."""
    producer = {name: i for i, step in enumerate(steps) for name in step.outputs}
    known = producer.keys() | {name for step in steps for name in step.inputs}
    read = set(_known(boundary.inputs, known))
    found: set[int] = set()
    # The operators that write its results belong to the subgraph even if it also reads them: a part of a split.
    waiting = [producer[name] for name in _known(boundary.outputs, known) if name in producer]
    while waiting:
        step = waiting.pop()
        if step in found:
            continue
        found.add(step)
        waiting += [producer[name] for name in steps[step].inputs if name in producer and name not in read]
    return tuple(sorted(found))


def _known(names: Iterable[str], known: Iterable[str]) -> Iterable[str]:
    """Map each name to a tensor of the model: the name itself, or a prefix before one of its slashes."""
    known = set(known)
    for name in names:
        while name and name not in known:
            name = name.rpartition("/")[0]
        if name:
            yield name
