"""Vela's compiler core, called in memory."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from micronpu.errors import UnsupportedError
from micronpu.ethosu.devices import clock_hz
from micronpu.ethosu.options import EthosUCompileSpec

_NO_LIMIT = 2**32
_OUTPUT = threading.Lock()


class VelaError(UnsupportedError):
    """Vela refuses a program; the message is Vela's."""


@dataclass(frozen=True)
class Border:
    """An input or output of a Vela program.

    Attributes:
        shape: up to six sizes.
        element_size: bytes per element.
        address: offset in its region.
        region: 1 is the scratch memory.
    """

    shape: tuple[int, ...]
    element_size: int
    address: int
    region: int


@dataclass(frozen=True)
class LayerEstimate:
    """Vela's estimate for one operation.

    Attributes:
        source: index of the operator in the program that Vela was given, or -1.
        cycles: of the whole operation, the longest of the following.
        macs: multiply-accumulate operations.
        npu_cycles: of the arithmetic.
        memory_cycles: of reading and writing, per memory.
        staging_bytes: working memory in use meanwhile.
    """

    name: str
    operator: str
    source: int
    cycles: int
    macs: int
    npu_cycles: int = 0
    memory_cycles: Mapping[str, int] = field(default_factory=dict)
    staging_bytes: int = 0


@dataclass(frozen=True)
class VelaProgram:
    """What Vela makes of a program.

    Attributes:
        commands: register command stream with its driver actions.
        constants: encoded weights and tables.
        scratch_size: bytes of the memory for inputs, outputs and everything between.
        fast_scratch_size: bytes of the second scratch memory of Dedicated_Sram modes.
        cycles: Vela's estimate for the whole.
        memory: peak use in bytes per memory.
        layers: estimate per operation.
        clock_hz: clock that the cycles are of.
    """

    commands: bytes
    constants: bytes
    scratch_size: int
    fast_scratch_size: int
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    cycles: int
    memory: dict[str, int]
    layers: tuple[LayerEstimate, ...]
    clock_hz: float

    @property
    def sram_bytes(self) -> int:
        """Peak use of the SRAM, weights included where the memory mode keeps them there."""
        return self.memory.get("Sram", 0)

    @property
    def milliseconds(self) -> float:
        return self.cycles / self.clock_hz * 1000


def compile_flatbuffer(
    model: bytes, spec: EthosUCompileSpec, options: Mapping[tuple[str, str], str] | None = None
) -> VelaProgram:
    """Compiles a LiteRT or TOSA flatbuffer.

    Args:
        options: (section, key) and value of the compiler's options beside those of the spec.

    Raises:
        VelaError: Vela refuses the program, or leaves an operator to the CPU.
    """
    from ethosu import regor

    accelerator = spec.accelerator
    system = (
        f"[architecture]\nmacs={accelerator.macs}\ncores={accelerator.cores}\n"
        f"[vela]\nsystem_config_name={spec.system_config}\nmemory_mode_name={spec.memory_mode}\n{spec.ini}"
    )
    is_litert = model[4:8] == b"TFL3"
    text = ""
    try:
        with _captured_output() as output:
            try:
                compiled = regor.compile(
                    accelerator.architecture,
                    model,
                    "TFLITE" if is_litert else "TOSA",
                    system,
                    options=_options(spec, options or {}),
                    verbose=False,
                )
            finally:
                text = output()
    except Exception as error:  # regor raises RuntimeError and kinds of its own
        raise VelaError(_objection(text) or f"Vela refuses the program: {_one_line(error)}") from error
    report = compiled.perf_report
    if report.cpuOps:
        raise VelaError(f"Vela leaves {report.cpuOps} of {report.cpuOps + report.npuOps} operators to the CPU.")
    return VelaProgram(
        commands=bytes(compiled.command_stream),
        constants=bytes(compiled.read_only.data),
        scratch_size=int(compiled.scratch.size),
        fast_scratch_size=int(compiled.scratch_fast.size),
        inputs=_borders(compiled.inputs),
        outputs=_borders(compiled.outputs),
        cycles=int(report.totalCycles),
        memory={name: int(m.peakUsage) for name, m in report.memories.items()},
        layers=_layers(compiled.opt_database),
        clock_hz=clock_hz(spec.ini, spec.system_config or ""),
    )


@contextlib.contextmanager
def _captured_output() -> Iterator[Callable[[], str]]:
    """Catches what the compiler core writes to the process's standard output, where its reasons are."""
    sys.stdout.flush()
    with _OUTPUT, tempfile.TemporaryFile() as file:
        saved = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)

            def read() -> str:
                file.seek(0)
                return file.read().decode("utf-8", "replace")

            yield read
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def _objection(text: str) -> str:
    """Vela's reason and constraint as one sentence, from ``Reason: ...`` and the lines that follow it."""
    _, found, rest = text.partition("Reason:")
    lines = [line.strip(" -\t") for line in rest.splitlines() if line.strip()]
    return f"Vela: {'; '.join(line.rstrip('.:') for line in lines[:4])}." if found and lines else ""


def _options(spec: EthosUCompileSpec, more: Mapping[tuple[str, str], str]) -> str:
    values = {
        ("compiler", "enable_db"): "true",
        ("compiler", "output_format"): "Raw",
        ("compiler", "cop_format"): "COP1",
        ("scheduler", "optimize"): "Performance",
        ("scheduler", "arena_size_limit"): str(_NO_LIMIT),
        ("scheduler", "cpu_tensor_alignment"): "16",
        ("scheduler", "tensor_allocator"): "HillClimb",
    }
    values |= {**more, **spec.vela_options()}
    text = ""
    for section in ("compiler", "scheduler"):
        lines = [f"{key}={value}" for (where, key), value in values.items() if where == section]
        text += f"\n[{section}]\n" + "\n".join(lines) + "\n"
    return text


def _borders(tensors: Any) -> tuple[Border, ...]:
    return tuple(
        Border(tuple(int(n) for n in t.shape), int(t.element_size), int(t.address), int(t.region)) for t in tensors
    )


def _layers(database: Any) -> tuple[LayerEstimate, ...]:
    tables = database.tables
    if "perf" not in tables:
        return ()
    header = list(tables["perf"].header)
    order = {row[0]: index for index, row in enumerate(tables["source"].data)} if "source" in tables else {}
    wanted = ("name", "operator", "source_id", "op_cycles", "mac_count", "npu_cycles", "staging_usage")
    column = {name: header.index(name) for name in wanted}
    memories = {name.removesuffix("_ac"): i for i, name in enumerate(header) if name.endswith("_ac")}
    return tuple(
        LayerEstimate(
            row[column["name"]],
            row[column["operator"]],
            order.get(row[column["source_id"]], -1),
            int(row[column["op_cycles"]]),
            int(row[column["mac_count"]]),
            int(row[column["npu_cycles"]]),
            {name: int(row[i]) for name, i in memories.items()},
            int(row[column["staging_usage"]]),
        )
        for row in tables["perf"].data
    )


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
