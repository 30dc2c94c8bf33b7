"""Makes torch look up and copy less, in a process that compiles thousands of networks, as that of the tests is.

Nothing here changes what torch computes: the list of composite operators is kept, as long as none is registered,
instead of being made anew for each export, the kernels that stand in for them during an export are put in place in one
step instead of thirty, and where a node comes from is shared, not copied.  Torch's trace of itself writes no texts for
the handlers that pytest gives to every logger that keeps to itself.  The comparisons of programs with those of another
process, which does without this, would show it (`digests_of_another_process`, `same_bytes_in_two_processes`).
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._export import utils as _utils
from torch._ops import DispatchKey, OperatorBase
from torch.export import decomp_utils, exported_program
from torch.fx.traceback import NodeSource

Kernels = dict[Any, Any]


@functools.cache
def _stand_ins(op: OperatorBase) -> tuple[Kernels, Any, Callable[..., Any]]:
    """What torch registers for an operator that an export leaves whole: kernels, its decomposition, its fake kernel."""
    decompose = exported_program._get_decomp_for_cia(op)

    def fake(mode: Any, op: OperatorBase, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return decompose(*args, **kwargs)

    refuse = exported_program.autograd_not_implemented(op, deferred_error=True)
    kernels: Kernels = dict.fromkeys(exported_program._AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE, refuse)
    return kernels | dict.fromkeys(exported_program._BACKEND_KEYS_TO_OVERRIDE, decompose), decompose, fake


@contextmanager
def _override(left_whole: Mapping[OperatorBase, Any]) -> Iterator[None]:
    """As torch's `_override_composite_implicit_decomp`."""
    kept = {}
    for op, callable_ in left_whole.items():
        stand_ins, _, fake = _stand_ins(op)
        kept[op] = dict(op.py_kernels)
        own = {k: v for k, v in kept[op].items() if k != DispatchKey.CompositeImplicitAutograd}
        op.py_kernels.clear()
        op.py_kernels.update(stand_ins | own | {DispatchKey.CompositeImplicitAutograd: callable_})
        op._dispatch_cache.clear()
        if not exported_program._is_op_registered_to_fake_rule(op):
            exported_program.register_op_impl(op)(fake)
    try:
        yield
    finally:
        for op, kernels in kept.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
            exported_program._deregister_op_impl(op)


_found: dict[tuple[Any, ...], set[OperatorBase]] = {}


def _composite() -> set[OperatorBase]:
    """As torch's `_collect_all_valid_cia_ops`, which asks each name space, one after the other."""
    known = (tuple(torch.ops._dir), *torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
    if known not in _found:
        _found.clear()
        _found[known] = _utils._collect_all_valid_cia_ops()
    return _found[known]


def quicker() -> None:
    """For the rest of this process: an export to ExecuTorch's edge dialect takes half as long."""
    # What registers many operators comes first: the list is made again when there are new ones.
    import executorch.backends.cortex_m.passes
    import executorch.kernels.quantized  # noqa: F401

    import micronpu.ethosu
    import micronpu.neutron  # noqa: F401

    for module, name, own in (
        (exported_program, "_collect_all_valid_cia_ops", _composite),
        (decomp_utils, "_collect_all_valid_cia_ops", _composite),
        (exported_program, "_override_composite_implicit_decomp", _override),
        (NodeSource, "__deepcopy__", lambda self, memo: self),  # nobody writes into one
    ):
        setattr(module, name, own)
    trace = logging.getLogger("torch.__trace")  # writes the text of each graph, but for no handler of its own
    trace.propagate = True
    trace.handlers.clear()


def keep_what_is_there() -> None:
    """Lets the garbage collector pass over what the modules hold, half a million objects that stay, and look rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)
