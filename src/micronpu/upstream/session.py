"""Work with torch by one thread at a time, in the state in which torch is when a process begins.

torch.export, and the tracing below it, keep what they are at in variables of their modules: two threads that export at
once raise errors, or give each other's results.  Most other state of torch belongs to a thread, and is set for ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import OptionError
from micronpu.upstream.door import declared, through

_MODES = declared(
    "torch._C:_len_torch_dispatch_stack", "a call inside of FakeTensorMode fails somewhere in torch, and not at once"
)
_DEPTH = declared(
    "torch._C._functorch:get_dynamic_layer_stack_depth", "after an error inside of torch.vmap torch stays inside of it"
)
_LEAVE = declared(
    "torch._C._functorch:pop_dynamic_layer_stack_and_undo_to_depth",
    "after an error inside of torch.vmap torch stays inside of it",
)
_lock = threading.RLock()
_here = threading.local()


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Waits until no other thread is inside, and sets a neutral state of torch and NumPy for this thread.

    Gradients are on, inference mode and autocast off, tensors are made on the CPU, and NumPy's errors are warnings.  A
    call inside of another one changes nothing.

    Raises:
        OptionError: torch is in a state that can only be changed for all threads, or that takes every operator.
    """
    if getattr(_here, "is_inside", False):
        yield
        return
    _check()
    with _lock, contextlib.ExitStack() as stack:
        _here.is_inside = True
        stack.callback(setattr, _here, "is_inside", False)
        stack.enter_context(_functions_left())
        stack.enter_context(np.errstate(all="warn", under="ignore"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.enable_grad())
        yield


@through(_MODES)
def _check() -> None:
    """Raises `OptionError` where the caller's state of torch cannot be set aside for this thread."""
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        raise OptionError(
            f"The default dtype of torch is {dtype} in this process; models are compiled from float32.",
            hint="torch.set_default_dtype(torch.float32) before the call",
        )
    if torch._C._len_torch_dispatch_stack() or type(torch.empty(0, device="cpu")) is not torch.Tensor:
        raise OptionError(
            "The call is inside of a mode that takes every operator of torch, such as FakeTensorMode.",
            hint="the call outside of the `with` block",
        )
    depth, _ = _functions()
    if depth():
        raise OptionError(
            "The call is inside of a transform of torch.func, such as torch.vmap.", hint="the call outside of it"
        )


@contextlib.contextmanager
def _functions_left() -> Iterator[None]:
    """Leaves transforms such as torch.vmap that an error has left open, of which torch would stay inside.

    An exported program has their begin and their end as operators of the graph; an error between them skips the end.
    """
    try:
        yield
    finally:
        depth, leave = _functions()
        if depth():
            leave(0)


@through(_DEPTH, _LEAVE)
def _functions() -> tuple[Callable[[], int], Callable[[int], None]]:
    """How many transforms this thread is inside of, and what leaves all but the first so many."""
    home: Any = torch._C._functorch
    return home.get_dynamic_layer_stack_depth, home.pop_dynamic_layer_stack_and_undo_to_depth


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """OpenMP and MKL as torch has them, each as a function that sets the number of threads of the running thread."""
    folder = Path(torch.__file__).parent / "lib"
    found = [path for path in (folder / "libtorch_cpu.so", folder / "libtorch_cpu.dylib") if path.exists()]
    library = ctypes.CDLL(str(found[0])) if found else None
    return getattr(library, "omp_set_num_threads", None), getattr(library, "MKL_Set_Num_Threads_Local", None)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Computes with one thread, in the running thread alone.

    The operators of a network for a microcontroller are too small to be shared between threads: waiting for each other
    costs as much as it gains on an idle machine, and many times the work itself on a busy one.  The result does not
    depend on the number of cores either.

    `torch.set_num_threads` is also for the threads that begin meanwhile, and is called only where torch has no OpenMP.
    """
    threads = torch.get_num_threads()  # which sets them first, in a thread that has not computed yet
    openmp, mkl = _libraries()
    if openmp is None:
        torch.set_num_threads(1)
    else:
        openmp(1)
    before = mkl(1) if mkl is not None else 0
    try:
        yield
    finally:
        if openmp is None:
            torch.set_num_threads(threads)
        else:
            openmp(threads)
        if mkl is not None:
            mkl(before)
