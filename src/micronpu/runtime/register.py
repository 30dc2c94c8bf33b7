"""Import this module to register the delegates and kernels of micronpu with the ExecuTorch runtime of this process.

    import micronpu.runtime.register
    from executorch.runtime import Runtime

    method = Runtime.get().load_program("kws.pte").load_method("forward")

Without it, ExecuTorch's own runtime refuses a program of micronpu with error 0x20 (no such delegate) or 0x14 (no such
kernel). The import loads torch and the runtime plug-in, and compiles the plug-in if necessary.

Raises:
    RuntimeUnavailableError: the plug-in cannot be compiled or loaded on this machine.
"""

from micronpu.runtime.plugin import load_plugin

load_plugin()
