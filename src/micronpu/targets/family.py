"""The contract of a family: a kind of NPU, or the core alone, and all that is special about it.

`micronpu.targets.registry` holds the list of them.  Nothing here imports torch or NumPy, and a family imports them only
in the methods that need them: the command's help and lists do not wait for either.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import PayloadError
from micronpu.chips import Chip, TargetEntry
from micronpu.chips.core import Core, find_core
from micronpu.targets.firmware import Firmware, KernelLibrary

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.export import RecipeType

    from micronpu.host.litert_executor import Mode
    from micronpu.host.proof import Executor, Proof, Reference
    from micronpu.partition.device import Device
    from micronpu.report.inside import Disassembly, Inside
    from micronpu.report.inspection import Delegate
    from micronpu.targets.options import Options


@dataclass(frozen=True)
class Target:
    """A name that `micronpu.compile` accepts: a chip or an NPU, and how what is left over runs.

    Attributes:
        entry: name, title and other names.
        family: name of the `Family`.
        silicon: by which the family knows what it compiles for: name or file of a chip, or name of an NPU or a core.
        chip: None for an NPU or a core by itself.
    """

    entry: TargetEntry
    family: str
    silicon: str
    chip: Chip | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def core(self) -> Core | None:
        """The core that computes in int8 what the NPU does not take, with the clock of its chip.

        None where portable kernels compute in float, and without a chip.
        """
        if self.chip is None or not (self.entry.leftovers or self.chip.npu is None):
            return None
        return replace(find_core(self.chip.core, self.chip.core_instructions), clock_mhz=self.chip.core_clock_mhz)


class Family(ABC):
    """A kind of NPU, or the core alone.

    Attributes:
        name: in chip files and the registry, such as "ethos-u".
        title: for people, with its article where a sentence needs one: "Ethos-U".
        usual: the silicon where nobody chooses one, as in recipes.
        backend: name by which the runtime looks up the delegate; "" for a family that delegates nothing.
        packages: that have a say in a program's bytes where they are installed, beside those that micronpu needs.
        tools: distributions that make its payloads, whose versions a deployed folder notes.
        sparse: those of its NPUs that compute sparse layers in half the cycles, for people; "" for none.
    """

    name: str
    title: str
    usual: str
    backend: str = ""
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    sparse: str = ""

    @property
    @abstractmethod
    def options(self) -> type[Options]:
        """What a user may choose, a frozen dataclass."""

    def has(self, chip: Chip) -> bool:
        """Whether a chip is of this family."""
        return chip.npu is not None and chip.npu.family == self.name

    @abstractmethod
    def silicon(self, chip: Chip) -> str:
        """Reads the family's part of a chip file and says by which name the options know the silicon.

        Raises:
            OptionError: something in that part is missing or wrong.
        """

    def bare(self) -> Mapping[str, str]:
        """Targets that need no chip: a sentence about each by the name of the silicon, which is the target's, too."""
        return {}

    def core_beside(self, silicon: str) -> str:
        """Name of the core of a target without a chip: the silicon itself, or what its maker's reference design has.

        Returns:
            "" where nobody can tell.
        """
        return ""

    def memory_names(self, chip: Chip) -> Mapping[str, str]:
        """Names of the chip file's memories by those of estimates; empty where its file has no speeds to calibrate."""
        return {}

    def missing(self) -> tuple[str, str]:
        """What the family's compiler needs and this machine does not have, and how to get it; "" and "" for nothing."""
        return "", ""

    def defaults(self, target: Target) -> dict[str, Any]:
        """Options that the chip decides, by name, besides the silicon."""
        return {}

    @abstractmethod
    def device(self, options: Any, name: str = "", core: Core | None = None) -> Device:
        """The family with options of its class, ready to partition and compile.

        Args:
            name: in reports; the device's own unless given.
            core: computes in int8 what the NPU does not take.
        """

    def inspect(self, payload: bytes) -> Delegate:
        """What a payload for `backend` holds.

        Raises:
            PayloadError: it cannot be read.
        """
        raise NotImplementedError(f"{self.title} has no delegate.")

    def build_host(self) -> None:
        """Compiles what `executor` needs, unless that is there.

        Raises:
            RuntimeUnavailableError: it cannot be built.
        """
        return None

    def executor(
        self,
        payload: bytes | memoryview,
        mode: Mode,
        num_inputs: int,
        num_outputs: int,
        graph: Callable[[], Executor] | None = None,
        proof: Proof | None = None,
    ) -> Executor:
        """Runs a payload on the host, where the native part of the family says that it has a simulator of its own.

        Others carry an open container, whose LiteRT or TOSA program runs without the family.

        Args:
            payload: for `backend`.
            num_inputs, num_outputs: of the delegate call; checked.
            graph: makes the executor of the integer graph that the program carries; None where it carries none.
            proof: compares every run with the graph.

        Raises:
            PayloadError: the payload cannot be read or run.
        """
        raise NotImplementedError(f"{self.title} has no simulator of its own.")

    def whole(self, payload: bytes, named_data: Mapping[str, bytes]) -> bytes:
        """A payload as its executor is given it, with what stands elsewhere in the program."""
        return payload

    def proof(self, payload: bytes, named_data: Mapping[str, bytes], reference: Reference | None) -> Proof | None:
        """What compares the runs of a payload with the integer graph that it was made of.

        Args:
            named_data: what travels beside the payload.
            reference: to compare with; the graph that travels along unless given.

        Returns:
            None where there is nothing to compare with.
        """
        return None

    @property
    def has_proof(self) -> bool:
        """Whether payloads can be compared with the graph that they were made of."""
        return type(self).proof is not Family.proof

    def recorded_bytes(self, payload: bytes | memoryview) -> int:
        """Upper bound of what the family's own executor records of a traced run."""
        return 0

    def view(self, payload: bytes, named_data: Mapping[str, bytes]) -> Inside:
        """The operations of a payload and what they read of each other.

        Raises:
            PayloadError: it cannot be read.
        """
        raise PayloadError(f"what a payload of {self.title} holds is not public")

    def disassembly(self, payload: bytes, named_data: Mapping[str, bytes]) -> Disassembly | None:
        """The commands of a payload, operation by operation; None where these are not public.

        Raises:
            PayloadError: it cannot be read.
        """
        return None

    def firmware(self) -> Firmware:
        """What the delegate asks of the firmware."""
        return Firmware()

    def kernels(self) -> KernelLibrary | None:
        """The library of the operators that the core computes, where the family brings such."""
        return None

    def core_device(self, core: Core) -> Device | None:
        """A device that computes on a core what is left over, alone or behind an NPU; None for a family of NPUs."""
        return None

    def plan_scratch(self, edge: EdgeProgramManager) -> None:
        """Makes planned memory of the scratch tensors of the family's `kernels`, in a lowered program."""
        return None

    def vendor(self) -> Mapping[str, str]:
        """Packages of the NPU's vendor that are used where they are: what for, and where they are from, by name."""
        return {}

    def try_vendor(self, package: str) -> str:
        """Has an installed package of `vendor` do what it is for, on something small, and says what came of it.

        Raises:
            MicroNpuError: it cannot.
        """
        raise NotImplementedError(package)

    def rewrites(self) -> dict[str, dict[str, str]]:
        """What the family does to operators that it cannot take as they are: a sentence by name, under headings."""
        return {}

    @abstractmethod
    def recipes(self) -> type[RecipeType]:
        """ExecuTorch's names of the family's recipes: INT8, INT8_QAT, INT16 and INT16_QAT, as far as there are such."""

    def choose(self, target: Target, given: Mapping[str, Any] | None = None) -> Any:
        """Options for a target, where those that are not given keep the chip's or their own defaults."""
        values = self.defaults(target) | dict(given or {}) | {"silicon": target.silicon}
        return self.options(**values)


def sentences(things: Iterable[Any]) -> dict[str, str]:
    """For each, in order, the first paragraph of its class's doc-string by its name."""
    return {t.name: " ".join((inspect.getdoc(type(t)) or "").split("\n\n")[0].split()) for t in things}
