"""A package of somebody else: a backend, two commands and a pass for micronpu, declared as entry points.

The backend is a core of another name with an instruction set of its own, computed by CMSIS-NN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import micronpu
from micronpu.ir.graph import Graph
from micronpu.ops.elementwise import Maximum
from micronpu.passes.base import Walk
from micronpu.targets.cortexm.backend import CortexM
from micronpu.targets.cortexm.options import CortexMOptions

ENTRY_POINTS = """[micronpu.backends]
acme = acme:Acme

[micronpu.commands]
acme-hello = acme:hello
acme-tools = acme:tools

[micronpu.passes]
acme_merge = acme:MergeEqualOperands
"""


@dataclass(frozen=True)
class AcmeOptions(CortexMOptions):
    """Options for the Acme X1."""

    silicon: str = "acme-x1"

    def __post_init__(self) -> None:
        self.core()  # checks the values

    def core(self) -> CortexMOptions:
        values = {name: getattr(self, name) for name in ("disabled_passes", "instructions")}
        return CortexMOptions("cortex-m55", **values)


class Acme(CortexM):
    """The Acme X1."""

    name = "acme"
    title = "Acme"
    usual = "acme-x1"

    @property
    def options(self) -> type[AcmeOptions]:
        return AcmeOptions

    def has(self, chip: Any) -> bool:
        return False

    def bare(self) -> Mapping[str, str]:
        return {"acme-x1": "the Acme X1"}

    def core_beside(self, silicon: str) -> str:
        return "cortex-m55"

    def core_device(self, core: Any) -> Any:
        return None

    def device(self, options: AcmeOptions, name: str = "", core: Any = None) -> Any:
        return super().device(options.core(), name, core)

    def recipes(self) -> Any:
        from executorch.export import RecipeType

        class AcmeRecipeType(RecipeType):
            INT8 = "acme_int8"

            @classmethod
            def get_backend_name(cls) -> str:
                return "acme"

        return AcmeRecipeType

    def kernels(self) -> None:
        return None

    def rewrites(self) -> dict[str, dict[str, str]]:
        return {}


class MergeEqualOperands(micronpu.Pass):
    """The larger of a value and itself is the value."""

    name = "acme_merge"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            if isinstance(node.op, Maximum) and node.inputs[0] is node.inputs[1]:
                walk.replace(node.output, node.inputs[0])
        return walk.changed


def hello(name: Annotated[str, typer.Argument()], debug: bool = False) -> None:
    """Greet somebody, who must not be nobody."""
    if name == "nobody":
        raise micronpu.OptionError("There is nobody.", hint="a name")
    print(f"hello {name}")


tools = typer.Typer(help="Tools of Acme.")


@tools.command()
def first() -> None:
    """Print one."""
    print(1)


@tools.command()
def second() -> None:
    """Print two."""
    print(2)
