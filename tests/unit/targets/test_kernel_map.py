"""Kernels of a profiled Neutron program, and the operators of the model that each computes."""

from __future__ import annotations

import pytest

from micronpu.targets.neutron.sdk import kernel_operators


def operator(number, inputs, outputs):
    return f"  Type: ANY\n{boundary(inputs, outputs)}  Location: {number}\n"


def boundary(inputs, outputs):
    def names(tensors):
        return "".join(f"    [{i}]: {name}\n" for i, name in enumerate(tensors.split()))

    return f"  Inputs:\n{names(inputs)}  Outputs:\n{names(outputs)}"


def log(model, made, calls=""):
    """A converter's log: model [(inputs, outputs)], made [(kernels, inputs, outputs)]."""
    read = "".join(operator(i, *step) for i, step in enumerate(model))
    kernels = "".join(
        f'NeutronOperator "subgraph_{n:03}":\n  Operators:\n    ANY\n  Kernels:\n'
        + "".join(f"    {kernel}\n" for kernel in names.split())
        for n, (names, *_) in enumerate(made)
    )
    graph = "".join(f"Name: subgraph_{n:03}\n{boundary(*step)}Tensors:\n" for n, (_, *step) in enumerate(made))
    sections = (read, "= Optimize Graph =\n= Extract Graphs =\n", kernels, "Generate code for NeutronGraph\n", calls)
    return f"Graphs:\n{''.join(sections)}\nGraphs:\n{graph}"


CHAIN = [("x w", "a"), ("a", "b"), ("b v", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ([("K", "x w", "a"), ("K", "a", "b"), ("K", "b v", "c"), ("K", "b", "d")], ((0,), (1,), (2,), (3,))),
        ([("Fused", "x w", "b"), ("K", "b v", "c"), ("K", "b", "d")], ((0, 1), (2,), (3,))),
        ([("Pad Conv", "x w", "a"), ("K", "a", "b"), ("K", "b v", "c d")], ((0,), (0,), (1,), (2, 3))),
        ([("K", "x w", "a/0"), ("K", "x w a/0", "a"), ("K", "a/nhwc", "b")], ((0,), (0,), (1,))),
        ([("K", "b", "d"), ("K", "b v", "c"), ("K", "x w", "b")], ((3,), (2,), (0, 1))),
        ([("K", "made_7", "made_8"), ("K", "x w", "a")], ((), (0,))),
    ],
    ids=["one each", "fused", "two kernels", "split", "reordered", "unknown names"],
)  # fmt: skip
def test_a_kernel_computes_what_stands_between_its_tensors(made, expected):
    assert kernel_operators(log(CHAIN, made)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Graphs:\nGraphs:\n",
        "Cycle estimation = 3 cycles",
        log(CHAIN, [("K", "x w", "d")], calls="numKernelCalls  0x9"),
        log(CHAIN, [("K", "x w", "d")]) + "Graphs:",
    ],
    ids=["nothing", "no kernels", "no dumps", "kernels called again", "a third graph"],
)
def test_a_log_that_does_not_say_it_gives_no_map(text):
    assert kernel_operators(text) is None


def test_the_number_of_calls_confirms_the_map():
    assert kernel_operators(log(CHAIN, [("A B", "x w", "d")], calls="numKernelCalls  0x2")) == ((0, 1, 3), (0, 1, 3))
