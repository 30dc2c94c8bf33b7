"""Several backends of one delegate name in one process.

ExecuTorch finds a backend by the name of its class, which is also the delegate's name on the board, and takes the class
that was defined last.  Other packages define classes of the same names; ExecuTorch's own Cortex-M backend imports one.
So each class here examines the compile specs and delegates foreign ones to the other class of its name, and a
partitioner makes sure that ExecuTorch finds the class of this package.
"""

from __future__ import annotations

import types
from abc import abstractmethod
from typing import Any

from executorch.exir.backend.backend_details import BackendDetails, ExportedProgram, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec

Specs = list[CompileSpec]


class ByCompileSpec:
    """Second base class, beside `BackendDetails`, of a backend that shares its name with others."""

    __name__: str

    @staticmethod
    @abstractmethod
    def owns(compile_specs: Specs) -> bool:
        """Return True if compile specs are for this backend."""

    @staticmethod
    @abstractmethod
    def compiled(edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """Return the payload of a partition, with a debug handle per NPU operation."""

    @classmethod
    def preprocess(cls, edge_program: ExportedProgram, compile_specs: Specs) -> PreprocessResult:
        """Return the payload of a partition, from the backend that its compile specs are for."""
        owner = cls._owner(compile_specs)
        if owner is not None:
            return owner.preprocess(edge_program, compile_specs)
        return cls.compiled(edge_program, compile_specs)

    @classmethod
    def copy_exported_program_for_preprocess(
        cls, edge_program: ExportedProgram, compile_specs: Specs
    ) -> ExportedProgram:
        """Return a copy of the program that may be changed."""
        owner = cls._owner(compile_specs) or BackendDetails
        return owner.copy_exported_program_for_preprocess(edge_program, compile_specs)

    @classmethod
    def preprocess_multimethod(
        cls, edge_programs: dict[str, list[ExportedProgram]], compile_specs: dict[str, list[Specs]]
    ) -> dict[str, list[PreprocessResult]]:
        """Return the payloads of all partitions of all methods; each backend is called once."""
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
        """Return the other class of the same name that compile specs are for, or None if they are for this class."""
        if cls.owns(specs):
            return None
        others = [c for c in backends_named(cls.__name__) if not issubclass(c, ByCompileSpec)]
        return others[-1] if others else None  # without another class, this one reports the error


def backends_named(name: str) -> list[type[BackendDetails]]:
    """Return the backends of a name in ExecuTorch's order; it uses the last one."""
    return [c for c in BackendDetails.__subclasses__() if c.__name__ == name]


def be_found(backend: type[BackendDetails]) -> type[BackendDetails]:
    """Define a backend again if another class of its name was defined later, so that ExecuTorch finds this one.

    Returns:
        The class that ExecuTorch finds while a reference to it exists.
    """
    last = backends_named(backend.__name__)[-1]
    if issubclass(last, ByCompileSpec):
        return last
    members = {k: v for k, v in vars(backend).items() if k not in ("__dict__", "__weakref__", "_abc_impl")}
    return types.new_class(backend.__name__, backend.__bases__, exec_body=lambda space: space.update(members))
