"""Cycles of an operator on the core: in float between a dequantize and a quantize, or in int8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from micronpu.chips.core import Core, InstructionSet
from micronpu.ir.graph import Graph, Node
from micronpu.ops.indices import ArgMax
from micronpu.ops.movement import Reshape
from micronpu.ops.slicing import Slice
from micronpu.ops.softmax import Softmax
from micronpu.report.operations import Cost, Latency

# Assumptions, not measurements: NXP's published CPU latencies of the MLPerf Tiny networks give a Cortex-M33 0.26 to
# 0.31 MAC per cycle in int8; portable float kernels are assumed to reach two thirds of that. The cycles of an element
# between its dequantize and its quantize, and of a kernel call, are round numbers of the same order.
CYCLES_PER_MAC = 5
CYCLES_PER_ELEMENT = 40
CYCLES_PER_CALL = 20_000
CALLS = 4  # dequantize, the operator, quantize, and a second delegate call after it


def _comes_back(node: Node) -> bool:
    """True if the NPU continues after an operator on the core.

    False after an index: it is an output of the program, which dequantizes its outputs anyway.
    """
    return not isinstance(node.op, ArgMax)


def _elements(node: Node) -> int:
    """Elements that a kernel writes and reads: a slice reads no more than it writes."""
    read = node.outputs if isinstance(node.op, Slice) else node.inputs
    return node.output.type.size + sum(t.type.size for t in read if not t.is_constant)


def host_cycles(node: Node) -> int:
    """Estimated cycles of the core, including the transitions between NPU and core."""
    y = node.output.type
    calls = CALLS if _comes_back(node) else 1
    macs = node.op.macs(y, *node.input_types)
    return calls * CYCLES_PER_CALL + _elements(node) * CYCLES_PER_ELEMENT + macs * CYCLES_PER_MAC


@dataclass(frozen=True)
class Rates:
    """Cycles of CMSIS-NN's kernels on a core.

    Attributes:
        product: of a multiply-accumulate in a window over pixels, which share loaded values.
        single: of a multiply-accumulate in a matrix product with a single row, where nothing is shared.
        result: of an output element of products: its requantization, and work done once per window.
        moved: of an input or output element of any other kernel.
    """

    product: float
    single: float
    result: float
    moved: float


# Fitted to instruction counts of four networks on two cores, in firmware on emulated cores, one cycle per instruction,
# by `benchmarks/cortexm_latency.py`: a product on either core, and the common constants. Elements of other kernels are
# assumed, and so are the values of cores without vector instructions: twice those with DSP.
SINGLE = 2.16
"""Ratio to a shared product: a loaded weight is used for one row, not several."""
RESULT = 29.5
"""Requantization and its overhead, the same with either kind of vector instructions."""
_DSP = Rates(product=2.97, single=2.97 * SINGLE, result=RESULT, moved=10)
RATES = {
    InstructionSet.SCALAR: Rates(2 * _DSP.product, 2 * _DSP.single, 2 * _DSP.result, 2 * _DSP.moved),
    InstructionSet.DSP: _DSP,
    InstructionSet.MVE: Rates(product=0.198, single=0.198 * SINGLE, result=RESULT, moved=3),
}
BANDS = {InstructionSet.SCALAR: (0.3, 2.0), InstructionSet.DSP: (0.47, 1.03), InstructionSet.MVE: (0.61, 1.41)}
"""Range of measured over estimated cycles in published results for the same networks, from the same benchmark. The
range for cores without vector instructions is assumed: nothing is published."""
SOFTMAX_CYCLES_PER_ELEMENT = 150
INT8_CYCLES_PER_CALL = 2_000  # of a kernel without delegate and float


def work(node: Node) -> tuple[int, int, int, int]:
    """Counts for the rates: products, products of a single row, results of products, moved elements."""
    y = node.output.type
    macs = node.op.macs(y, *node.input_types)
    if isinstance(node.op, Reshape):
        return 0, 0, 0, 0
    if not macs:
        return 0, 0, 0, _elements(node)
    rows = y.size // (y.shape[-1] if y.shape else 1)  # a product of two numbers has no axes
    return (0, macs, y.size, 0) if rows == 1 else (macs, 0, y.size, 0)


def core_cycles(node: Node, core: Core) -> int:
    """Estimated cycles of an operator in int8 on a core; a reshape is free."""
    rates = RATES[core.instructions]
    products, single, results, _ = work(node)
    fitted = products * rates.product + single * rates.single + results * rates.result
    return round(fixed_cycles(node, core) + fitted)


def fixed_cycles(node: Node, core: Core) -> float:
    """The part of the cycles that is not fitted: the kernel's start, and elements of kernels without products."""
    counts = work(node)
    if not any(counts):
        return 0.0
    each = SOFTMAX_CYCLES_PER_ELEMENT if isinstance(node.op, Softmax) else RATES[core.instructions].moved
    return INT8_CYCLES_PER_CALL + counts[-1] * each


def leftover_cycles(node: Node, core: Core) -> int:
    """Estimated cycles of an operator in int8 on a core, and of the NPU invocation after it, if any."""
    return core_cycles(node, core) + (CYCLES_PER_CALL if _comes_back(node) else 0)


def core_costs(graph: Graph, core: Core) -> dict[int, Cost]:
    """Cost of each kernel by index of the graph's node."""
    found = {}
    for index, node in enumerate(graph.nodes):
        cycles = core_cycles(node, core)
        if cycles:
            found[index] = Cost(
                cycles=cycles,
                arithmetic_cycles=cycles - INT8_CYCLES_PER_CALL,
                memory_cycles={},
                memory_bytes=sum(t.type.bytes for t in (*node.inputs, *node.outputs) if not t.is_constant),
                utilisation=0.0,
                start_cycles=INT8_CYCLES_PER_CALL,
                clock_mhz=core.clock_mhz,
            )
    return found


def core_latency(graphs: Iterable[Graph], core: Core) -> tuple[Latency, ...]:
    """Estimated time of the core in int8; empty if it computes nothing, or its clock is unknown."""
    cycles = sum(core_cycles(node, core) for graph in graphs for node in graph.nodes)
    if not cycles or core.clock_mhz is None:
        return ()
    source = "instructions counted on emulated cores; published measurements of four networks make the band"
    return (Latency(core.title, cycles, core.clock_mhz, *BANDS[core.instructions], source),)
