"""ExecuTorch looks a back end up by its class's name: ours and another one of the same name, both alive."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_api import lower_all_submodules_to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from torch import nn

import micronpu
from micronpu.base.errors import OptionError
from micronpu.ethosu import EthosUOptions, EthosUPartitioner
from micronpu.neutron import NeutronOptions, NeutronPartitioner
from micronpu.partition.entry import ByCompileSpec, be_found
from micronpu.program.pte import read_pte

X = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)
MODEL = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
SPECS = [CompileSpec("output_format", b"theirs")]


def theirs(name: str, asked: list) -> type[BackendDetails]:
    """A back end of another package, of this name."""

    class Backend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            asked.append(compile_specs)
            return PreprocessResult(b"theirs")

    return type(name, (BackendDetails,), {"preprocess": staticmethod(Backend.preprocess)})


class Theirs(Partitioner):
    """Delegates the first float operator to the back end of another package."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def partition(self, exported_program):
        node = next(n for n in exported_program.graph.nodes if "relu" in str(n.target))
        node.meta["delegation_tag"] = "theirs"
        return PartitionResult(exported_program, {"theirs": DelegationSpec(self.name, SPECS)})


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "name", "ours"),
    [
        ("imxrt700-neutron", "NeutronBackend", lambda: NeutronPartitioner(NeutronOptions().to_specs())),
        ("ethos-u55-128", "EthosUBackend", lambda: EthosUPartitioner(EthosUOptions("ethos-u55-128"))),
    ],
)
def test_both_compile_while_both_are_alive(target, name, ours):
    asked: list = []
    first = theirs(name, asked)
    program = micronpu.compile(MODEL, X, target, calibration=[X])
    partitioner = ours()
    second = theirs(name, asked)  # defined after ours
    edge = to_edge_transform_and_lower(torch.export.export(program.quantized, X), partitioner=[partitioner])
    assert read_pte(bytes(edge.to_executorch().buffer)).payloads == read_pte(program.buffer).payloads
    assert not asked
    lowered = to_edge_transform_and_lower(torch.export.export(MODEL, X), partitioner=[Theirs(name)])
    (payload,) = read_pte(bytes(lowered.to_executorch().buffer)).payloads
    assert payload == (name, b"theirs") and [s.key for specs in asked for s in specs] == ["output_format"]
    assert first is not second and partitioner.report is not None


def test_the_one_that_executorch_takes_is_the_last_one():
    """If it looked at the compile specs itself, `be_found` could go."""
    taken = []

    def backend(number: int) -> type[BackendDetails]:
        members = {
            "preprocess": staticmethod(lambda program, specs: PreprocessResult(b"")),
            "preprocess_multimethod": classmethod(lambda cls, programs, specs: taken.append(number) or {}),
        }
        return type("SomeBackend", (BackendDetails,), members)

    kept = [backend(0), backend(1)]
    lower_all_submodules_to_backend("SomeBackend", {}, {})
    assert taken == [1] and len(kept) == 2


class MineBackend(ByCompileSpec, BackendDetails):
    @staticmethod
    def owns(compile_specs):
        return all(s.key == "mine" for s in compile_specs)

    @staticmethod
    def compiled(edge_program, compile_specs):
        return PreprocessResult(f"mine {edge_program}".encode())


def test_one_lowering_with_partitions_of_both():
    asked: list = []
    other = theirs("MineBackend", asked)
    backend = be_found(MineBackend)
    mine = [CompileSpec("mine", b"")]
    results = backend.preprocess_multimethod({"a": [0, 1, 2], "b": [3]}, {"a": [mine, SPECS, mine], "b": [SPECS]})
    assert {m: [r.processed_bytes for r in given] for m, given in results.items()} == {
        "a": [b"mine 0", b"theirs", b"mine 2"],
        "b": [b"theirs"],
    }
    assert backend is not MineBackend and be_found(MineBackend) is backend  # nothing new where ours is the last
    assert other.__name__ == "MineBackend"


def test_specs_of_nobody_are_ours_to_refuse():
    from micronpu.ethosu import EthosUBackend

    class Alone(ByCompileSpec, BackendDetails):
        owns = staticmethod(EthosUBackend.owns)
        compiled = staticmethod(EthosUBackend.compiled)

    with pytest.raises(OptionError, match="There is no compile spec 'output_format'"):
        Alone.preprocess(None, SPECS)
