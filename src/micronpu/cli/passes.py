"""What `micronpu passes` lists: everything that changes a program, read off the doc-strings."""

from __future__ import annotations

import inspect

from micronpu.passes.pipeline import FINISH, SETTLE, SIMPLIFY
from micronpu.passes.rewrites import REWRITES
from micronpu.quantize.switches import float_rewrites
from micronpu.targets.ethosu.cures import CURES
from micronpu.targets.ethosu.forms import FORMS


def catalogue() -> dict[str, dict[str, str]]:
    """For each kind of pass, in the order in which they run, the sentence of each by name."""
    return {
        "Rewrites of the float program, before it is quantized": float_rewrites(),
        "Passes over the graph of a partition": {p.name: _sentence(p) for p in (*SIMPLIFY, *SETTLE, *FINISH)},
        "Rewrites of an operator that a rule of Neutron refuses": {r.name: _sentence(r) for r in REWRITES},
        "Rewrites of an operator that Vela refuses for an Ethos-U": {r.name: _sentence(r) for r in CURES},
        "Forms of an operator for an Ethos-U, the cheapest of which is taken": {f.name: _sentence(f) for f in FORMS},
    }


def _sentence(thing: object) -> str:
    return " ".join((inspect.getdoc(type(thing)) or "").split("\n\n")[0].split())
