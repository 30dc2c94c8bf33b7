"""Options for running a program on the host."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from micronpu.base.arguments import check_switch, check_type, described
from micronpu.base.errors import OptionError

TIME_LIMIT = 600.0
"""Default limit in seconds of a request to an isolated program; the first one on a machine builds the plug-in."""


@dataclass(frozen=True)
class RunOptions:
    """Options for running a program on the host.

    Attributes:
        fast: use LiteRT's fast kernels. They round a few results of int8 convolutions differently; the default is
            bit-exact to micronpu's arithmetic.
        graph: run the integer graph that an Ethos-U program carries (`carry_graph=True`) instead of its command
            stream. Both compute the same; the graph is Vela's input.
        check: compare every run of an Ethos-U command stream with the integer graph it was compiled from, after
            each operation that both name; a difference is an error that names the first one. A program from a file
            needs its graph for that (`carry_graph=True`); `CompiledProgram.run(check=True)` has it.
        profile: record an ETDump with one event and the output of each NPU operation, for
            `executorch.devtools.Inspector`. NPU programs then run operator by operator, which is slower.
        debug_buffer_size: bytes reserved for recorded values, with `profile`; 0 records times only. A run that may
            not fit is refused: the ExecuTorch runtime would end the process.
        isolated: run in a separate process, so that a crash is harmless. None: a program from a file is isolated
            unless it has the digest that `micronpu.compile` writes. True: also run a program that does not match
            its digest.
        time_limit: wall-clock seconds after which loading or running an isolated program is stopped; None for no
            limit. Programs in this process cannot be stopped.

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
            check_switch(name, getattr(self, name))
        check_type("isolated", self.isolated, bool, type(None), hint="RunOptions(isolated=True)")
        if self.check and self.graph:
            raise OptionError(
                "The run options check and graph are both on, but then the graph runs instead of the stream.",
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
