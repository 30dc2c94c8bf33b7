"""Converts by wrapping; STAND_IN_MOOD chooses a way to go wrong, or names a defect of `_wrapping.wrap`."""

import ctypes
import os
import subprocess
import sys

from eiq_neutron_sdk._wrapping import dumps, wrap

MOOD = os.environ.get("STAND_IN_MOOD", "")
NAMES = os.environ.get("STAND_IN_NAMES", "older")
"""Whether the functions have the names of the SDK up to 3.2.2, or those that came after it."""


class _Options:
    def __init__(self):
        self.minNumOpsPerGraph = 3
        self.excludeGraphPasses = ""
        self.verbose = False
        self.dumpAfterImport = ""
        self.dumpAfterGenerate = ""
        self.fetchConstantsToSRAM = False
        self.dumpKernelSelectionCode = False
        if MOOD != "no_profiling":
            self.useProfiling = False
        if NAMES == "newer":
            self.dumpMicrocode = False


class CompilationContext:
    def __init__(self):
        self.targetOpts = None
        self.compilationOpts = _Options()


def getNeutronTarget(name):  # noqa: N802 (the name of the SDK)
    if name not in ("imxrt700", "imx95"):
        raise KeyError(name)
    return name


def convert(model, context):
    data, options = bytes(model), context.compilationOpts
    assert isinstance(model, list) and context.targetOpts is not None
    print(f"Converting for {context.targetOpts}, options {sorted(vars(options).items())}", flush=True)
    if MOOD == "crash":
        print("about to touch address 0", flush=True)
        ctypes.string_at(0)
    elif MOOD == "hang":
        # A process of its own that outlives its parent unless the whole group is ended.
        held = os.open(os.environ["STAND_IN_ALIVE"], os.O_WRONLY)
        os.set_inheritable(held, True)
        wait = f"import os, time; time.sleep(120); os.write({held}, b'left alone')"
        subprocess.Popen([sys.executable, "-c", wait], close_fds=False)
        os.write(held, b"started\n")
        exec(wait)
    elif MOOD == "silent_exit":
        os._exit(0)
    elif MOOD == "exit_code":
        os._exit(41)
    elif MOOD == "raises":
        raise RuntimeError("Unsupported operator at location 7\nmore text")
    elif MOOD == "none":
        return None
    elif MOOD == "number":
        return 1 << 40
    elif MOOD == "noise":
        return [17, 4, 200] * 50
    elif MOOD == "floats":
        return [300, -1]
    if options.dumpAfterImport == options.dumpAfterGenerate == "console" and options.verbose:
        print(dumps(data))
    print("WARNING: layer 3 falls back to a slower kernel")
    print("WARNING: layer 3 falls back to a slower kernel")
    print("Cycle estimation = 353,039 cycles (NPU only)")
    if options.dumpKernelSelectionCode and MOOD != "no_selection_file":
        with open("_kernel_selection.c", "w", encoding="utf-8") as file:
            file.write("/* the stand-in's */\nKERNEL(Conv2DStandardV1)\n")
    profiling = int(getattr(options, "useProfiling", False))
    return list(wrap(data, profiling, MOOD))
