"""Running compiled programs on the host: the stock ExecuTorch runtime, our plug-in, and functional simulators.

    from micronpu.runtime import HostProgram, RunOptions

    outputs = HostProgram("kws.pte").run(x)

`import micronpu.runtime.register` makes ExecuTorch's own `Runtime` and `session.run_method` run them as well.

Importing this package loads neither torch nor ExecuTorch; loading a program does, except for `ArrayProgram`, which
takes NumPy arrays and rarely needs torch.
"""

from micronpu.host.build import build_plugin, cache_directory
from micronpu.program.digest import Digest, stamp, state_of
from micronpu.program.pte import PteSummary, read_pte
from micronpu.runtime.arguments import TensorSignature
from micronpu.runtime.array_program import ArrayProgram
from micronpu.runtime.plugin import Plugin, load_plugin
from micronpu.runtime.program import HostProgram
from micronpu.runtime.run_options import RunOptions

__all__ = [
    "ArrayProgram",
    "Digest",
    "HostProgram",
    "Plugin",
    "PteSummary",
    "RunOptions",
    "TensorSignature",
    "build_plugin",
    "cache_directory",
    "load_plugin",
    "read_pte",
    "stamp",
    "state_of",
]
