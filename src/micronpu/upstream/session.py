"""Exclusive use of torch by one thread, in torch's initial state.

torch.export and tracing keep their state in module variables: two threads that export at once raise errors, or mix
their results.  Most other state of torch belongs to a thread, and is set for the current thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import OptionError
from micronpu.upstream.shim import declared, through

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
    """Wait until no other thread is inside, and set a neutral state of torch and NumPy for this thread.

    Gradients are on, inference mode and autocast off, tensors are made on the CPU, and NumPy's errors are warnings.
    Nested calls change nothing.

    Raises:
        OptionError: torch has a state that can only be changed for all threads, or a mode that intercepts every
            operator.
    """
    if getattr(_here, "is_inside", False):
        yield
        return
    _check()
    with _lock, contextlib.ExitStack() as stack:
        _here.is_inside = True
        stack.callback(setattr, _here, "is_inside", False)
        stack.enter_context(functions_left())
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
    """Raise `OptionError` if the caller's state of torch cannot be overridden for this thread."""
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
def functions_left() -> Iterator[None]:
    """Leave transforms such as torch.vmap that an error has left open; torch would otherwise stay inside them.

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
    """Return the functions for the number of open transforms of this thread, and for leaving all but the first n."""
    home: Any = torch._C._functorch
    return home.get_dynamic_layer_stack_depth, home.pop_dynamic_layer_stack_and_undo_to_depth


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """Return OpenMP's and MKL's functions that set the number of threads of the current thread, as torch links them."""
    folder = Path(torch.__file__).parent / "lib"
    found = [path for path in (folder / "libtorch_cpu.so", folder / "libtorch_cpu.dylib") if path.exists()]
    library = ctypes.CDLL(str(found[0])) if found else None
    return getattr(library, "omp_set_num_threads", None), getattr(library, "MKL_Set_Num_Threads_Local", None)


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """Restore the states of torch's, Python's and NumPy's random numbers, which calls of a user's module may draw."""
    ours, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(arrays)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, in the current thread only.

    The operators of a network for a microcontroller are too small for several threads: synchronization costs as much as
    it gains on an idle machine, and many times the work itself on a busy one.  One thread also makes results
    independent of the number of cores.

    `torch.set_num_threads` also affects new threads, and is called only if torch has no OpenMP.
    """
    threads = torch.get_num_threads()  # the call initializes the number in a thread that has not computed yet
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
