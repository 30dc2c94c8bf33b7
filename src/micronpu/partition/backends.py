"""Several back ends of one delegate name in one process.

ExecuTorch looks a back end up by the name of its class, which is the name by which the board's runtime looks up the
delegate, and takes the class that was defined last.  Other packages define classes of the same names; its own Cortex-M
back end imports one of them.  So each of ours looks at the compile specs: what is not ours it hands on to the other
class of its name, and a partitioner makes sure that ours is the one that is asked.
"""

from __future__ import annotations

import types
from abc import abstractmethod
from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec

from micronpu.upstream.executorch import backends_named

Specs = list[CompileSpec]


class ByCompileSpec:
    """Beside `BackendDetails` a base of a back end that shares its name with others."""

    __name__: str

    @staticmethod
    @abstractmethod
    def owns(compile_specs: Specs) -> bool:
        """Whether compile specs are for this back end."""

    @staticmethod
    @abstractmethod
    def compiled(edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """The payload of a partition, with a debug handle per NPU operation."""

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """The payload of a partition, by the back end that its compile specs are for."""
        owner = cls._owner(compile_specs)
        if owner is not None:
            return owner.preprocess(edge_program, compile_specs)
        return cls.compiled(edge_program, compile_specs)

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: Specs
    ) -> ExportedProgram:
        """A program that may be changed."""
        owner = cls._owner(compile_specs) or BackendDetails
        return owner.copy_exported_program_for_preprocess(edge_program, compile_specs)

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[Specs]]
    ) -> dict[str, list[PreprocessResult]]:
        """The payloads of all partitions of all methods; each back end is asked once for all of its own."""
        owners = {m: [cls._owner(specs) for specs in given] for m, given in compile_specs.items()}
        results: dict[str, list[Any]] = {m: [None] * len(given) for m, given in compile_specs.items()}
        for owner in dict.fromkeys(o for given in owners.values() for o in given):
            places = {m: [i for i, o in enumerate(given) if o is owner] for m, given in owners.items()}
            programs = {m: [edge_programs[m][i] for i in at] for m, at in places.items()}
            specs = {m: [compile_specs[m][i] for i in at] for m, at in places.items()}
            if owner is not None:
                made = owner.preprocess_multimethod(programs, specs)
            else:
                made = {m: [cls.compiled(p, s) for p, s in zip(programs[m], specs[m], strict=True)] for m in programs}
            for method, at in places.items():
                for i, result in zip(at, made[method], strict=True):
                    results[method][i] = result
        return results

    @classmethod
    def _owner(cls, specs: Specs) -> type[BackendDetails] | None:
        """The other class of the same name that compile specs are for, or None where they are ours."""
        if cls.owns(specs):
            return None
        others = [c for c in backends_named(cls.__name__) if not issubclass(c, ByCompileSpec)]
        return others[-1] if others else None  # where there is no other, ours says what is wrong with them


def be_found(backend: type[BackendDetails]) -> type[BackendDetails]:
    """Defines a back end anew where another class of its name has been defined since, so that ours is asked first.

    Returns:
        The class that ExecuTorch finds, as long as somebody holds it.
    """
    last = backends_named(backend.__name__)[-1]
    if issubclass(last, ByCompileSpec):
        return last
    members = {k: v for k, v in vars(backend).items() if k not in ("__dict__", "__weakref__", "_abc_impl")}
    return types.new_class(backend.__name__, backend.__bases__, exec_body=lambda space: space.update(members))
