"""What a family's delegate asks of the firmware and of its build, as `micronpu deploy` writes it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from micronpu.chips import Chip
    from micronpu.program.plan import Plan


@dataclass(frozen=True)
class Started:
    """What a firmware starts: an accelerator, and the chip that it is in.

    Attributes:
        fast_scratch: bytes of the memory that it has for itself beside the pools; 0 for none.
    """

    accelerator: str
    chip: Chip | None
    fast_scratch: int = 0


TOOLCHAIN = "examples/arm/ethos-u-setup/arm-none-eabi-gcc.cmake"
"""ExecuTorch's own toolchain file for any core without an operating system, in its sources."""


@dataclass(frozen=True)
class KernelLibrary:
    """A library of kernels among ExecuTorch's sources.

    Attributes:
        name: of it; where a family brings it, the namespace of its operators too.
        target: of ExecuTorch's CMake.
        folder: of the files with the kernels, one for each.
        category: of the components of ExecuTorch's CMSIS pack.
        build_option: for CMake; "" where it is built in any case.
        helpers: further files that all kernels need.
        packs, components: lines of `model.clayer.yml` for what the kernels call.
        files: by the operator's name, where a file is not called by its operator.
    """

    name: str
    target: str
    folder: str
    category: str
    build_option: str = ""
    helpers: tuple[str, ...] = ()
    packs: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def file_of(self, operator: str) -> str:
        """The file that holds the kernel of an operator, without folder, ``op_`` and ending."""
        return self.files.get(operator, operator)

    def schemas(self) -> Mapping[str, str]:
        """Schema by name of the operators of the library's own namespace."""
        return {}

    def objection(self, plan: Plan, core: str, target: str, instructions: str = "") -> str:
        """Why a core cannot run the kernels that a program calls, as a sentence; "" where it can.

        Args:
            core: its name.
            target: that it is in.
            instructions: of the core, where its chip file names them.
        """
        return ""


class Firmware:
    """A delegate that asks for nothing; families say what theirs needs.

    Attributes:
        handle_bytes: what the delegate takes of the method allocator for its own handle, measured in firmware.
        build_options: for CMake, of ExecuTorch.
        runtime_sources: files of ExecuTorch that hold the delegate.
        whole_libraries: of ExecuTorch's build, linked whole.
        cmake: lines that link what the vendor adds; ``{name}`` and ``{upper}`` are the program's name.
        driver: options of that CMake for the reader to fill in, each with a space before it.
        zephyr: lines of `prj.conf`.
        zephyr_libraries: of Zephyr's build, beside the delegate.
        packs, components: lines of `model.clayer.yml`.
        sections: lines of the comment in the linker script.
        fast_scratch: the same, about the memory that the accelerator has for itself.
        start_note: about start-up, memories and the core's cache; ``{accelerator}`` and ``{memory_mode}`` are those
            of the board.
        build_note: about the build; the same.
        several_note: about programs for several accelerators in one folder.
        linux_options: for CMake, of ExecuTorch under Linux.
        linux_note: what the delegate needs there.
        laptop_only: why a payload that is not for silicon runs on a laptop only, and what to do.
    """

    handle_bytes: int = 0
    build_options: tuple[str, ...] = ()
    runtime_sources: tuple[str, ...] = ()
    whole_libraries: tuple[str, ...] = ()
    cmake: str = ""
    driver: str = ""
    zephyr: tuple[str, ...] = ()
    zephyr_libraries: tuple[str, ...] = ()
    packs: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    fast_scratch: tuple[str, ...] = ()
    build_note: str = ""
    linux_options: tuple[str, ...] = ()
    linux_note: str = ""
    start_note: str = ""
    several_note: str = ""
    laptop_only: str = ""

    def temporary(self, payload: bytes) -> tuple[int, str]:
        """Bytes of the temporary allocator that the delegate of a payload takes; what is not known, as a sentence.

        Raises:
            PayloadError: it cannot be read.
        """
        return 0, ""

    def accelerator(self, payload: bytes, options: Mapping[str, str]) -> str:
        """The accelerator that a payload's commands are for, "" where the family has but one kind of command.

        Args:
            options: of the program.

        Raises:
            PayloadError: it cannot be read.
        """
        return ""

    def is_for_linux(self, payload: bytes) -> bool | None:
        """Whether a payload is for the delegate of Linux, and not for that of a microcontroller; None for both.

        Raises:
            PayloadError: it cannot be read.
        """
        return None

    def has_platform(self, accelerator: str) -> bool:
        """Whether Arm's virtual platforms, for which ExecuTorch has a runner, simulate an accelerator."""
        return False

    def is_for_silicon(self, payload: bytes) -> bool:
        """Whether a board takes a payload.

        Raises:
            PayloadError: it cannot be read.
        """
        return True

    def startup(self, header: str, started: Sequence[Started], pools: Sequence[tuple[str, int]]) -> dict[str, str]:
        """Sources that start the accelerators of a folder's programs before their first run, by name.

        Args:
            header: first line of each.
            pools: name in C and bytes of each memory that core and accelerator both write.
        """
        return {}

    def section(self, on_device: bool) -> str:
        """A section of the folder's readme, with its heading; "" for none."""
        return ""
