"""The operations of a command stream, and the data flow between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from micronpu.container.trace import trace_of
from micronpu.report.inside import Inside, InsideStep, Made
from micronpu.targets.ethosu.host.disassembly import disassemble
from micronpu.targets.ethosu.payload import inlined


def view(payload: bytes, named_data: Mapping[str, bytes]) -> Inside:
    """Return the operations of a payload, as the simulator runs them.

    Raises:
        PayloadError: it cannot be read.
    """
    trace = trace_of(payload, named_data)
    stream = disassemble(inlined(payload, named_data), trace)

    def made(after: Iterable[int]) -> tuple[Made, ...]:
        return tuple((i, 0) for i in after)

    steps = []
    for step in stream.steps:
        attributes: list[tuple[str, str]] = [("operator of the model", step.operator)] if step.operator else []
        attributes += [("reads", text) for text in step.reads]
        attributes += [(f"bytes moved, {region}", f"{count:,}") for region, count in sorted(step.moved.items())]
        attributes.append(("multiplications and bytes read", f"{step.work:,}"))
        # A transfer has no separate operator: its data belong to the operation after it.
        known = trace is not None and step.index < len(trace.sources) and step.name != "transfer"
        operator = trace.sources[step.index] if trace is not None and known else -1
        steps.append(
            InsideStep(step.name, made(step.after), tuple(attributes), ((("writes", step.writes),),), operator)
        )
    if not steps:
        return Inside((), stopped=stream.stopped or "the command stream has no operation")
    if stream.stopped:
        last = steps[-1]
        steps[-1] = InsideStep(last.label, last.reads, (("simulator", stream.stopped),), last.outputs)
        return Inside(tuple(steps), stopped=stream.stopped)
    return Inside(tuple(steps), tuple(map(made, stream.results)))
