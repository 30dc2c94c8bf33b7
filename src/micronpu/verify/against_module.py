"""Comparison of an exported program with its module: torch.export records what forward computes once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from micronpu.base.errors import attempted
from micronpu.base.quiet import quiet, unprinted
from micronpu.frontend.export import as_inputs, results_by_name
from micronpu.frontend.exported import Exported
from micronpu.frontend.graphs import GraphModule, nodes_where
from micronpu.frontend.program import is_random, origin_of, overload_name
from micronpu.frontend.run import Run
from micronpu.frontend.tensors import copied, states_of
from micronpu.quantize.data import Trial
from micronpu.quantize.running import Row, run_recordings, tensors_of
from micronpu.report.warnings import UNLIKE_MODULE, WARNING, ReportWarning
from micronpu.upstream.session import one_thread, random_kept
from micronpu.verify.thresholds import EXPLAINED_BY_ROUNDING, NUDGE, SAME_AS_MODULE

_HINT = "random numbers, the time and attributes that forward changes as inputs or buffers: in a program, they stay"


def of_module(model: object, example_inputs: object, given: Exported, trial: Trial) -> tuple[ReportWarning, ...]:
    """Return a warning if the program computes something else than the user's module for the trial's first sample."""
    if not isinstance(model, nn.Module) or hasattr(model, "graph"):
        return ()
    examples = as_inputs(example_inputs)
    graphs = (part for part in given.module.modules() if isinstance(part, GraphModule))
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in (*examples, *model.parameters(), *model.buffers()))
    if half or any(nodes_where(graph, is_random) for graph in graphs):
        return ()  # computed with other roundings, or other random numbers
    with torch.no_grad(), quiet(), one_thread(), unprinted(), random_kept():
        # A module may not be copied, or called again.
        return attempted(lambda: _difference(model, examples, given.module, trial)) or ()


def _difference(model: nn.Module, examples: Row, program: Any, trial: Trial) -> tuple[ReportWarning, ...]:
    def called(nudge: float = 0.0, seen: Any = None) -> Row:
        """Return the results of the module in its state before the first call, for an input with other roundings."""
        draw = torch.Generator().manual_seed(0)  # the process's own random numbers are also those of other threads
        nudged = (
            x * (1 + nudge * (torch.rand(x.shape, dtype=x.dtype, generator=draw) - 0.5)) if x.is_floating_point() else x
            for x in trial.rows[0]
        )
        row, own = [x.to(e.dtype, copy=True) for x, e in zip(nudged, examples, strict=True)], copied(model)
        with _Functions(seen if seen is not None else []):
            return tensors_of(results_by_name(own(*row)))

    wanted = called()
    if trial.exact and _distance(trial.exact_rows[0], wanted) <= SAME_AS_MODULE:
        return ()
    found = _distance(run_recordings(program, [[trial.rows[0]]])[0][0], wanted)
    changes = found > SAME_AS_MODULE and _distance(called(), wanted) > SAME_AS_MODULE
    if found <= SAME_AS_MODULE or (not changes and EXPLAINED_BY_ROUNDING * _distance(called(NUDGE), wanted) >= found):
        return ()  # such as of decisions at a threshold
    eager, differing = list[torch.Tensor](), list[Any]()
    called(seen=eager)

    def compare(node: Any, value: object, _: object) -> object:
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point():
            alike = (x for x in eager if x.shape == value.shape)
            if all(_distance((value,), (x,)) > NUDGE * EXPLAINED_BY_ROUNDING for x in alike):
                differing.append(node)
        return value

    Run(program).run(*trial.rows[0], *states_of(program).initial, behind=compare)
    each = ", and the module differs from call to call" if changes else ""
    what = f"The exported program and the module differ by {found:.2g} of the largest output on one sample{each}."
    made = ReportWarning(WARNING, UNLIKE_MODULE, what, _HINT)
    for node in differing[:1]:
        origin, name = origin_of(node), overload_name(node)
        what += f" It begins with `{name}`{origin.at}."
        place: dict[str, Any] = {"module": origin.module, "source": str(origin.source or "")}
        made = replace(made, what=what, node=node.name, operator=name.split(".")[0], **place)
    return (made,)


def _distance(found: Row, wanted: Row) -> float:
    """Return the largest ratio of the size of a difference to the size of an output; 0 if they cannot be compared."""
    ratios = [0.0]
    for y, x in zip(found, wanted, strict=False):
        if len(found) == len(wanted) and y.shape == x.shape and x.is_floating_point():
            known = y.isfinite() & x.isfinite()
            error, size = (y[known].double() - x[known]).norm().item(), x[known].double().norm().item()
            ratios.append(error / max(size, y[known].double().norm().item()) if error else 0.0)
    return max(ratios)


class _Functions(TorchFunctionMode):
    """Keeps copies of the floats that functions of torch return, in a list."""

    def __init__(self, seen: list[torch.Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.seen.append(result.clone())
        return result
