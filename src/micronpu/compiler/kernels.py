"""Check that ExecuTorch has a kernel for every operator of the core part."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.hints import hint_for
from micronpu.frontend.program import overload_name
from micronpu.partition.host_block import place_of
from micronpu.partition.write import without_kernel


def check_kernels(callers: Mapping[str, Node], allow: bool) -> tuple[str, ...]:
    """Return notes about operators without a kernel, if the user allows them.

    Args:
        callers: the first node that calls each operator of a method, by the operator's name.

    Raises:
        UnsupportedError: there are some, and the user does not allow them.
    """
    missing = without_kernel(callers)
    if missing and not allow:
        name = missing[0]
        rest = f" Nor has it {', '.join(missing[1:])}." if missing[1:] else ""
        raise UnsupportedError(
            f"ExecuTorch has no portable kernel for {name}, which {place_of(callers[name])} calls on the host, so that "
            f"the program cannot run.{rest}",
            hint=f"{hint_for(overload_name(callers[name]), 'other operators for it')}; or allow_missing_kernels=True "
            "where you register a kernel, here and on the board",
        )
    return tuple(
        f"ExecuTorch has no portable kernel for {name}, which the host part calls. Register one, here and on the "
        "device, or express the operator by others."
        for name in missing
    )
