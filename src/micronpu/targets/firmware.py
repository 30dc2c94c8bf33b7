"""Requirements of a backend's delegate on the firmware and its build, for `micronpu deploy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.chips import Chip
    from micronpu.program.plan import Plan


@dataclass(frozen=True)
class Started:
    """An accelerator that a firmware starts, its chip, and bytes of its private memory in addition to the pools."""

    accelerator: str
    chip: Chip | None
    fast_scratch: int = 0


@dataclass(frozen=True)
class StartUp:
    """Sources that start accelerators before the first run of a program.

    Attributes:
        templates: text by name; see `micronpu.deploy.csource`.
        words: values that they read, beside ``pools`` (name in C and bytes of each memory that core and accelerator
            write) and ``HEADER`` (the first line of each).
    """

    templates: Mapping[str, str]
    words: Mapping[str, Any]


TOOLCHAIN = "examples/arm/ethos-u-setup/arm-none-eabi-gcc.cmake"
"""ExecuTorch's own toolchain file for bare-metal cores, in its sources."""


@dataclass(frozen=True)
class KernelLibrary:
    """A library of kernels among ExecuTorch's sources.

    Attributes:
        name: of the library; if a backend provides it, also the namespace of its operators.
        target: of ExecuTorch's CMake.
        calls: further libraries, which its kernels call.
        folder: of the files with the kernels, one for each.
        category: of the components of ExecuTorch's CMSIS pack.
        build_option, build_note: for CMake, and a sentence about the build; "" if it is always built.
        helpers: further files that all kernels need.
        packs, components: lines of `model.clayer.yml` for the functions that the kernels call.
        files: by the operator's name, if a file is not named after its operator.
    """

    name: str
    target: str
    folder: str
    category: str
    build_option: str = ""
    build_note: str = ""
    calls: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    packs: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def file_of(self, operator: str) -> str:
        """Name of the file with the kernel of an operator, without folder, ``op_`` and suffix."""
        return self.files.get(operator, operator)

    def schemas(self) -> Mapping[str, str]:
        """Schemas by name of the operators in the library's own namespace."""
        return {}

    def objection(self, plan: Plan, core: str, target: str, instructions: str = "") -> str:
        """Reason why a core cannot run the kernels that a program for a target calls, as a sentence; "" if it can."""
        return ""


class Firmware:
    """Requirements of a delegate; the defaults require nothing.

    Attributes:
        handle_bytes: bytes of the method allocator for the delegate's handle, measured in firmware.
        build_options: for CMake, of ExecuTorch.
        runtime_sources: files of ExecuTorch that contain the delegate.
        whole_libraries: of ExecuTorch's build, linked as whole archives.
        cmake: lines that link the vendor's libraries; a template, as all notes are, see `micronpu.deploy.csource`.
        driver: options of that CMake for the reader to fill in, each with a space before it.
        zephyr: lines of `prj.conf`.
        zephyr_libraries: of Zephyr's build, in addition to the delegate.
        packs, components: lines of `model.clayer.yml`.
        sections: lines of the comment in the linker script.
        fast_scratch: the same, about the accelerator's private memory.
        start_note: about start-up, memories and the core's cache; reads ``accelerator`` and ``memory_mode``.
        build_note: about the build; the same.
        several_note: about programs for several accelerators in one folder.
        linux_options: for CMake, of ExecuTorch under Linux.
        linux_note: requirements of the delegate under Linux.
        section: of the folder's readme, with its heading; reads ``on_device``.
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
    section: str = ""

    def temporary(self, payload: bytes) -> tuple[int, str]:
        """Return the bytes of the temporary allocator for a payload's delegate, and a remark on what is unknown.

        Raises:
            PayloadError: it cannot be read.
        """
        return 0, ""

    def laptop_only(self, chip: Chip | None) -> str:
        """Say why a payload that is not for silicon runs on the host only, and what to do for a chip."""
        return ""

    def inside(self, payload: bytes) -> int:
        """Return the bytes that the tensors inside a payload need at least, beyond `temporary`; 0 if that has them all.

        Raises:
            PayloadError: it cannot be read.
        """
        return 0

    def accelerator(self, payload: bytes, options: Mapping[str, str]) -> str:
        """Return the accelerator of a payload's commands, "" if the backend has only one kind of commands.

        Args:
            options: of the program.

        Raises:
            PayloadError: it cannot be read.
        """
        return ""

    def is_for_linux(self, payload: bytes) -> bool | None:
        """True if a payload is for the delegate of Linux, False for that of a microcontroller, None for both.

        Raises:
            PayloadError: it cannot be read.
        """
        return None

    def has_platform(self, accelerator: str) -> bool:
        """True if Arm's virtual platforms, for which ExecuTorch has a runner, simulate an accelerator."""
        return False

    def is_for_silicon(self, payload: bytes) -> bool:
        """True if a board accepts a payload.

        Raises:
            PayloadError: it cannot be read.
        """
        return True

    def start_up(self, started: Sequence[Started]) -> StartUp:
        """Return the sources that start the accelerators of a folder's programs."""
        return StartUp({}, {})
