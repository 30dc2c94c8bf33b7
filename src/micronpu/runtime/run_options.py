"""How a program runs on the host."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from micronpu.base.arguments import described
from micronpu.base.errors import OptionError

TIME_LIMIT = 600.0
"""Seconds that a request to an isolated program may take: the first on a machine builds the plug-in."""


@dataclass(frozen=True)
class RunOptions:
    """How a program runs on the host.

    Attributes:
        fast: compute with LiteRT's fast kernels. They round a few results of int8 convolutions differently; the default
            is bit-exact to micronpu's arithmetic.
        graph: run the integer graph that an Ethos-U program carries (`carry_graph=True`) in the place of its command
            stream. Both compute the same; the graph is what Vela was given.
        check: compare every run of an Ethos-U's command stream with the integer graph that it was made of, after each
            operation that both name; a difference is an error that says where it begins. A program from a file needs
            its graph for that (`carry_graph=True`); `CompiledProgram.run(check=True)` has it.
        profile: record an ETDump with one event and the output of each NPU operation, for
            `executorch.devtools.Inspector`. NPU programs then run operator by operator, which is slower.
        debug_buffer_size: bytes reserved for recorded values, with `profile`; 0 records times only. A run that may not
            fit is refused: the ExecuTorch runtime would end the process.
        isolated: run in a process of its own, where a crash does no harm. None leaves it to the program: one from a
            file is isolated unless it carries the digest that `micronpu.compile` writes. True runs also a program
            whose digest says that it is damaged.
        time_limit: seconds on the clock after which a run of an isolated program, or loading it, is stopped; None for
            no limit. Other programs run in this process, where nothing can stop them.

    Raises:
        OptionError: a value of the wrong type.
    """

    fast: bool = False
    graph: bool = False
    check: bool = False
    profile: bool = False
    debug_buffer_size: int = 1 << 26
    isolated: bool | None = None
    time_limit: float | None = TIME_LIMIT

    def __post_init__(self) -> None:
        for name in ("fast", "graph", "check", "profile"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(
                    f"The run option {name} is {described(getattr(self, name))}, but it must be True or False.",
                    hint=f"RunOptions({name}=True)",
                )
        if not isinstance(self.isolated, bool | None):
            raise OptionError(
                f"The run option isolated is {described(self.isolated)}, but it must be True, False or None.",
                hint="RunOptions(isolated=True)",
            )
        if self.check and self.graph:
            raise OptionError(
                "The run options check and graph are both on, but the graph runs in the place of the stream then.",
                hint="RunOptions(check=True)",
            )
        size = self.debug_buffer_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise OptionError(
                f"The run option debug_buffer_size is {described(size)}, but it must be a number of bytes.",
                hint="RunOptions(profile=True, debug_buffer_size=1 << 26)",
            )
        limit = self.time_limit
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (number and 0 < limit < threading.TIMEOUT_MAX):
            raise OptionError(
                f"The run option time_limit is {described(limit)}, but it must be a number of seconds above 0, or "
                "None.",
                hint="RunOptions(isolated=True, time_limit=60)",
            )
