"""The interface of a backend: a kind of NPU, or a core without NPU.

`micronpu.targets.registry` lists the backends. Nothing here imports torch or NumPy, and a backend imports them only in
the methods that need them: `--help` and lists must not wait for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from micronpu.base.docstrings import docstring
from micronpu.chips import Chip, TargetEntry
from micronpu.chips.core import Core, find_core
from micronpu.targets.firmware import Firmware, KernelLibrary

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.export import RecipeType

    from micronpu.host.litert_executor import Executor
    from micronpu.host.proof import Proof, Reference
    from micronpu.partition.device import Device
    from micronpu.report.inside import Disassembly, InspectedDelegate
    from micronpu.targets.options import Options


@dataclass(frozen=True)
class Target:
    """A name that `micronpu.compile` accepts: a chip or an NPU, and the execution of non-delegated operators.

    Attributes:
        entry: name, title and other names.
        backend: name of the `Backend`.
        silicon: the backend's name of what it compiles for: name or file of a chip, or name of an NPU or a core.
        chip: None for an NPU or a core without chip.
    """

    entry: TargetEntry
    backend: str
    silicon: str
    chip: Chip | None = None

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def core(self) -> Core | None:
        """The core that computes non-delegated operators in int8, with the clock of its chip.

        None if portable kernels compute in float, and without a chip.
        """
        if self.chip is None or not (self.entry.leftovers or self.chip.npu is None):
            return None
        return replace(find_core(self.chip.core, self.chip.core_instructions), clock_mhz=self.chip.core_clock_mhz)


class Backend(ABC):
    """A kind of NPU, or a core without NPU.

    Attributes:
        name: in chip files and the registry, such as "ethos-u".
        title: for people, with its article where a sentence needs one: "Ethos-U".
        usual: default silicon, as in recipes.
        backend_id: name of the delegate in the runtime's registry; "" for a backend that delegates nothing.
        packages: optional packages that affect a program's bytes if they are installed.
        tools: distributions that make its payloads; their versions are recorded in a deployed folder.
        sparse: its NPUs that compute sparse layers in half the cycles, for people; "" for none.
        is_calibrated: True if its section of a chip file has constants that measurements calibrate.
    """

    name: str
    title: str
    usual: str
    backend_id: str = ""
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    sparse: str = ""
    is_calibrated: bool = False

    @property
    @abstractmethod
    def options(self) -> type[Options]:
        """Options for users, a frozen dataclass."""

    def has(self, chip: Chip) -> bool:
        """True if a chip has this backend."""
        return chip.npu is not None and chip.npu.family == self.name

    @abstractmethod
    def silicon(self, chip: Chip) -> str:
        """Check the backend's section of a chip file and return the options' name of the silicon.

        Raises:
            OptionError: something in that section is missing or wrong.
        """

    def bare(self) -> Mapping[str, str]:
        """Targets that need no chip: a description of each by the name of the silicon, which is that of the target."""
        return {}

    def core_beside(self, silicon: str) -> str:
        """Name of the core of a target without a chip: the silicon itself, or the core of its reference design.

        Returns:
            "" if unknown.
        """
        return ""

    def missing(self) -> tuple[str, str]:
        """Requirements of the backend's compiler that this machine lacks, and how to get them; "" and "" for none."""
        return "", ""

    def defaults(self, target: Target) -> dict[str, Any]:
        """Options that the chip decides, by name, besides the silicon."""
        return {}

    @abstractmethod
    def device(self, options: Any, name: str = "", core: Core | None = None) -> Device:
        """Return a device with the given options, ready to partition and compile.

        Args:
            name: in reports; default: the device's own.
            core: computes unsupported operators in int8.
        """

    def inspect(self, payload: bytes) -> InspectedDelegate:
        """Return the contents of a payload for `backend_id`.

        Raises:
            PayloadError: it cannot be read.
        """
        raise NotImplementedError(f"{self.title} has no delegate.")

    def build_host(self) -> None:
        """Compile the native code that `executor` needs, unless that has been done.

        Raises:
            RuntimeUnavailableError: it cannot be built.
        """
        return None

    def executor(
        self, payload: bytes | memoryview, graph: Callable[[], Executor] | None = None, proof: Proof | None = None
    ) -> Executor:
        """Return the executor of a payload on the host, if the native part of the backend registers a simulator.

        Other backends use an open container, whose LiteRT or TOSA program runs without the backend.

        Args:
            payload: for `backend_id`.
            graph: makes the executor of the carried integer graph; None if there is none.
            proof: compares every run with the graph.

        Raises:
            PayloadError: the payload cannot be read or run.
        """
        raise NotImplementedError(f"{self.title} has no simulator.")

    def whole(self, payload: bytes, named_data: Mapping[str, bytes]) -> bytes:
        """Return a payload for its executor, including blocks stored elsewhere in the program."""
        return payload

    def proof(self, payload: bytes, named_data: Mapping[str, bytes], reference: Reference | None) -> Proof | None:
        """Return a comparison of a payload's runs with the integer graph it was compiled from.

        Args:
            named_data: data stored beside the payload.
            reference: to compare with; default: the graph in the named data.

        Returns:
            None if there is nothing to compare with.
        """
        return None

    @property
    def has_proof(self) -> bool:
        """True if payloads can be compared with the graph they were compiled from."""
        return type(self).proof is not Backend.proof

    def recorded_bytes(self, payload: bytes | memoryview) -> int:
        """Upper bound of the bytes that the backend's own executor records in a traced run."""
        return 0

    def disassembly(self, payload: bytes, named_data: Mapping[str, bytes]) -> Disassembly | None:
        """Return the commands of a payload, operation by operation; None if these are not public.

        Raises:
            PayloadError: it cannot be read.
        """
        return None

    def firmware(self) -> Firmware:
        return Firmware()

    def kernels(self) -> KernelLibrary | None:
        """The library of operators for the core, if the backend provides one."""
        return None

    def core_device(self, core: Core) -> Device | None:
        """A device that runs operators on a core, alone or beside an NPU; None for backends of NPUs."""
        return None

    def plan_scratch(self, edge: EdgeProgramManager) -> None:
        """Turn the scratch tensors of the backend's `kernels` into planned memory, in a lowered program."""
        return None

    def vendor(self) -> Mapping[str, str]:
        """Optional packages of the NPU's vendor, by name: purpose and origin."""
        return {}

    def try_vendor(self, package: str) -> str:
        """Run a small test of an installed package of `vendor`, and describe the result.

        Raises:
            MicroNpuError: it fails.
        """
        raise NotImplementedError(package)

    def rewrites(self) -> dict[str, dict[str, str]]:
        """Rewrites of operators that the backend does not support directly: a description by name, under headings."""
        return {}

    @abstractmethod
    def recipes(self) -> type[RecipeType]:
        """ExecuTorch's names of the backend's recipes: INT8, INT8_QAT, INT16 and INT16_QAT, as far as they exist."""

    def checked(self, target: Target, options: Any) -> object:
        """Return options that fit the target.

        Raises:
            OptionError: they do not.
        """
        return options

    def choose(self, target: Target, given: Mapping[str, object] | None = None) -> Any:
        """Return options for a target; missing ones get the chip's or their own defaults."""
        values = self.defaults(target) | dict(given or {}) | {"silicon": target.silicon}
        return self.options(**values)


def sentences(things: Iterable[Any]) -> dict[str, str]:
    """Return the first paragraph of each object's class docstring by its name, in order."""
    return {t.name: " ".join(docstring(type(t)).split("\n\n")[0].split()) for t in things}
