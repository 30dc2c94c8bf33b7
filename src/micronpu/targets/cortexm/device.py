"""A core without NPU as a compilation target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from micronpu.base.errors import InternalError
from micronpu.chips.core import Core, find_core
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.partition import Partition
from micronpu.partition.policy import Policy
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.cortexm.part import CortexMPart
from micronpu.targets.cortexm.rules import CAPABILITIES


class CortexMDevice(Device):
    """A core without an NPU: nothing is delegated; operators with a CMSIS-NN kernel run in int8.

    Args:
        options: the core.
        target: name in reports; default: the core's.
        core: with the clock of its chip; default: the options' core without a clock.
    """

    def __init__(self, options: CortexMOptions, target: str = "", core: Core | None = None) -> None:
        self.options = options
        self.capabilities, self.disabled_rewrites = CAPABILITIES, options.disabled_rewrites
        self.target = target or options.silicon
        own = find_core(options.silicon, options.instructions)
        if core is not None:  # the chip's data take precedence, unless the user has set the option
            own = replace(core, instructions=own.instructions) if options.instructions else core
        self.beside = CortexMPart(own, options.disabled_passes)

    def policy(self) -> Policy | None:
        return None

    def plan(self, partition: Partition) -> None:
        self.compile(partition)

    def compile(self, partition: Partition) -> CompiledPartition:
        raise InternalError(f"{self.target} delegates nothing, but a partition was to be compiled for it.")

    def compile_program(self, graph: Graph) -> CompiledPartition:
        raise InternalError(f"{self.target} delegates nothing, but a program was to be compiled for it.")

    def specs(self) -> list[tuple[str, bytes]]:
        return []

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        return ()
