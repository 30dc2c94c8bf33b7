"""Each shim finds what the package takes it to lead, and says so in a sentence where it does not."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import sys
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from executorch.exir import to_edge
from torch import nn

from micronpu.base.errors import OptionError, UpstreamError
from micronpu.partition.kernels import is_composite
from micronpu.program.operators import describe
from micronpu.upstream import executorch as et
from micronpu.upstream import pte, session, torchao
from micronpu.upstream import torch as upstream
from micronpu.upstream.shim import GUARDED, SEEN, SHIMS, Shim, all_shims, declared, is_seen, through

aten = torch.ops.aten


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(2))

    def forward(self, x):
        return {"y": torch.relu(x)}, x + self.state


X = torch.tensor([-1.0, 2.0])


def program():
    return torch.export.export(Net(), (X,))


def edge():
    return to_edge(torch.export.export(nn.ReLU(), (X,)))


def saved():
    file = io.BytesIO()
    torch.export.save(program(), file)
    file.seek(0)
    return file


def schema_of():
    schema = upstream.schema_of(aten.add_.Tensor)
    assert schema.name == "aten::add_" and schema.is_mutable
    assert [a.name for a in schema.arguments] == ["self", "other", "alpha"]
    assert schema.arguments[0].alias_info.is_write and not schema.arguments[1].alias_info


def fakes():
    with upstream.FakeTensorMode():
        assert isinstance(torch.empty(1000, 1000), upstream.FakeTensor)
    assert not isinstance(X, upstream.FakeTensor)


def trees():
    Pair = namedtuple("Pair", "a b")
    value = {"x": [1, (2, Pair(3, None))]}
    assert [leaf for leaf in upstream.tree_leaves(value) if leaf is not None] == [1, 2, 3]
    assert upstream.tree_map(lambda leaf: 0, [1, (2,)]) == [0, (0,)]
    assert upstream.treespec_dumps(upstream.tree_structure([1, 2])) != upstream.treespec_dumps(
        upstream.tree_structure((1, 2))
    )


def version_of():
    x = torch.zeros(2)
    before = upstream.version_of(x)
    x.add_(1)
    assert upstream.version_of(x) != before == upstream.version_of(torch.zeros(2))


def buffers_of():
    model = Net()
    upstream.buffers_of(model)["state"] = X
    assert model.state is X


def codegen_of():
    module = program().module(check_guards=False)
    graph = copy.deepcopy(module.graph)
    graph.set_codegen(upstream.codegen_of(module.graph))
    assert torch.equal(torch.fx.GraphModule(module, graph)(X)[0]["y"], X.relu())


def archive():
    (name,) = upstream.read_archive(saved())
    assert name == "model"


def form_of_programs():
    schema = upstream.form_of_programs()
    assert {"graph_module", "opset_version"} <= set(schema.ExportedProgram.__dataclass_fields__)
    assert upstream.element_type(schema.ScalarType.FLOAT) is torch.float32


def pickle_reader():
    file = io.BytesIO()
    torch.save({"x": X}, file)
    file.seek(0)
    assert "data.pkl" in upstream.pickle_reader(file).get_all_records()
    with pytest.raises(RuntimeError):
        upstream.pickle_reader(io.BytesIO(b"no archive"))


def reshape_copy():
    assert torch.equal(upstream.reshape_copy()(X, [2, 1]), X.reshape(2, 1))


def cast():
    assert upstream.cast()(X, dtype=torch.int8).dtype is torch.int8


def quantized_operators():
    upstream.register_quantized_operators()
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    assert quantize(X, 0.5, 1, -128, 127, torch.int8).tolist() == [-1, 5]


def annotations():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    assert not torchao.is_annotated(node)
    node.meta["quantization_annotation"] = torchao.annotation({node: None}, None)
    assert torchao.is_annotated(node) and node in node.meta["quantization_annotation"].input_qspec_map


def note_mode():
    from torchao.quantization.pt2e import export_utils

    module = program().module(check_guards=False)
    torchao.note_mode(module, False)
    assert getattr(module, export_utils._EXPORTED_TRAINING_ATTR) is False


def named_data():
    store = et.named_data_store()
    store.add_named_data("key", b"value", alignment=16)
    assert store.get_named_data_store_output().buffers == [b"value"]


def decompositions():
    assert aten.hardswish.default in et.decompositions() and aten.relu.default not in et.decompositions()


def empty_tensor():
    assert et.is_edge_operator(et.empty_tensor())
    assert et.operator_behind(et.empty_tensor()) is torch.ops.dim_order_ops._empty_dim_order.default


def edge_config():
    assert et.edge_config()._check_ir_validity is False


def initialized():
    assert et.initialized("state").patterns == ["state"]


def kernels_of_a_core():
    assert et.core_operator("quantized_linear") is torch.ops.cortex_m.quantized_linear.default
    assert et.cmsis_nn().Backend.MVE


def runtime():
    data = bytes(edge().to_executorch().buffer)
    loaded = et.load_program(data, profile=False, debug_buffer_size=0)
    assert torch.equal(loaded.load_method("forward")([X])[0], X.relu())
    assert "XnnpackBackend" in et.registered_backends()
    assert "aten::relu.out" in et.registered_operators()


def reference_graph():
    from executorch.devtools import Inspector

    assert callable(Inspector._resolve_reference_graph)  # `micronpu profile` goes through it, tests/runtime


def debug_record():
    record = et.debug_record(program(), handles={1: [2]}, delegates={}, outputs={}, inputs=[X])
    assert record._debug_handle_map == {"forward": {1: [2]}} and record._representative_inputs == [[X]]


def schema():
    assert pte.differences(pte.schema_text()) == []


def is_guard():
    guards = [m for m in program().module().modules() if upstream.is_guard(m)]
    assert guards and not upstream.is_guard(Net())


def decomposition_table():
    table = upstream.decomposition_table([aten.linalg_vector_norm.default])
    assert aten.linalg_vector_norm.default in table and aten.relu.default not in table


def dispatcher():
    """As `torch.export` has it: without, it becomes an operator that ExecuTorch has no kernel for."""
    from micronpu.partition.kernels import decomposed

    two = torch.ones(2)
    graph, _ = decomposed(aten.batch_norm.default, (X[None], two, two, two, two, False, 0.1, 1e-5, False), {})
    assert aten._native_batch_norm_legit_no_training.default in {node.target for node in graph.nodes}


def session_of_torch():
    with upstream.FakeTensorMode(), pytest.raises(OptionError, match="FakeTensorMode"), session.exclusive():
        raise AssertionError
    refused = []

    def inside(x):
        with pytest.raises(OptionError) as error, session.exclusive():
            raise AssertionError
        refused.append(error.value.what)
        return x

    torch.vmap(inside)(X)
    assert "torch.vmap" in refused[0]
    with session.exclusive():
        torch._C._functorch._vmap_increment_nesting(2, "error")
    nn.Linear(2, 2)  # raises inside of torch.vmap


def transforms():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: row * row.mean())(x)

    assert upstream.has_transforms(torch.export.export(Mapped(), (torch.ones(2, 3),)).graph)
    assert not upstream.has_transforms(program().graph)


TREES = ("tree_leaves", "tree_map", "tree_structure", "treespec_dumps")
SESSION = (
    "torch._C:_len_torch_dispatch_stack",
    "torch._C._functorch:get_dynamic_layer_stack_depth",
    "torch._C._functorch:pop_dynamic_layer_stack_and_undo_to_depth",
)
USES = {
    "torch._subclasses:FakeTensor": fakes,
    "torch._subclasses:FakeTensorMode": fakes,
    **{f"torch.utils._pytree:{name}": trees for name in TREES},
    "torch._ops:OpOverload._schema": schema_of,
    "torch.ops:aten._reshape_copy": reshape_copy,
    "torch.ops:aten._to_copy": cast,
    "torch.ao.quantization.fx._decomposed": quantized_operators,
    "torch:Tensor._version": version_of,
    "torch.nn:Module._buffers": buffers_of,
    "torch.fx:Graph._codegen": codegen_of,
    "torch.export.pt2_archive._package:load_pt2": archive,
    "torch._export.serde.schema": form_of_programs,
    "torch._export.serde.serialize:deserialize_scalar_type": form_of_programs,
    "torch._C:PyTorchFileReader": pickle_reader,
    "torchao.quantization.pt2e.quantizer:QuantizationAnnotation._annotated": annotations,
    "torchao.quantization.pt2e.export_utils:_EXPORTED_TRAINING_ATTR": note_mode,
    "executorch.exir._serialize._named_data_store:NamedDataStore": named_data,
    "executorch.exir.tracer:_default_decomposition_table": decompositions,
    "executorch.exir.dialects._ops:ops.edge.dim_order_ops._empty_dim_order": empty_tensor,
    "executorch.exir:EdgeCompileConfig._check_ir_validity": edge_config,
    "executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass": initialized,
    **dict.fromkeys(SESSION, session_of_torch),
    "torch._functorch.predispatch": transforms,
    "torch._decomp:get_decompositions": decomposition_table,
    "torch._dispatch.python:enable_python_dispatcher": dispatcher,
    "torch.export._unlift:GuardsFn": is_guard,
    "executorch.backends.cortex_m.ops.operators": kernels_of_a_core,
    "executorch.backends.cortex_m.library.cmsis_nn": kernels_of_a_core,
    "executorch.extension.pybindings._C:_get_registered_backend_names": runtime,
    "executorch.extension.pybindings._C:_get_operator_names": runtime,
    "executorch.extension.pybindings._C:_load_program_from_buffer": runtime,
    "executorch.schema:program.fbs": schema,
    "executorch.devtools.etrecord:ETRecord": debug_record,
    "executorch.devtools:Inspector._resolve_reference_graph": reference_graph,
}
"""What each door is gone through for, by its name."""


def test_every_shim_has_a_use_here():
    repaired = {shim.name for shim in torchao.REPAIRS.values()}  # tests/compile/quantize/test_shims.py has one for each
    assert USES.keys() | repaired == {shim.name for shim in all_shims()}
    assert len(all_shims()) <= 45  # lower it with each that goes


@pytest.mark.parametrize("shim", all_shims(), ids=lambda shim: shim.name)
def test_a_shim_fits(shim):
    assert shim.misfit() is None and shim.use and shim.versions == SEEN[shim.package]


@pytest.mark.parametrize("use", dict.fromkeys(USES.values()), ids=lambda use: use.__name__)
def test_a_shim_finds_what_it_declares(use):
    use()


# ---------------------------------------------------------------- what public names give


def test_classes_of_operators():
    assert isinstance(aten.add.Tensor, upstream.OpOverload) and isinstance(aten.add, upstream.OpOverloadPacket)
    assert not isinstance(torch.add, upstream.OpOverload)
    assert all(isinstance(o, upstream.OperatorBase) for o in (aten.add.Tensor, torch.ops.higher_order.scan))


def test_operators_behind_edge_operators():
    module = nn.Sequential(nn.ReLU(), nn.Hardtanh())
    nodes = to_edge(torch.export.export(module, (X,))).exported_program().graph.nodes
    targets = [n.target for n in nodes if n.op == "call_function"]
    assert all(map(et.is_edge_operator, targets))
    assert list(map(et.operator_behind, targets)) == [aten.relu.default, aten.hardtanh.default]
    assert et.operator_behind(aten.relu.default) is aten.relu.default


def test_compositions():
    assert is_composite(aten.reshape.default) and not is_composite(aten.relu.default)


def test_schemas_by_name():
    assert describe("aten::abs.out") == "aten::abs.out(self: Tensor, out: Tensor!) repeats 1"
    for name in ("aten::nothing_like_it", "aten::abs.such", "load_library::x", "::", "\ud800::x", "__class__::y.z"):
        assert describe(name) is None


# ---------------------------------------------------------------- names that are gone


class Gone:
    """In the place of what a class or its objects have: as if it had another name."""

    def __get__(self, owner, kind=None):
        raise AttributeError("gone")

    def __set__(self, owner, value):
        pass


def without_parameter(kind, name):
    """In the place of a class that takes something by a name: one that does not."""
    signature = inspect.signature(kind)

    def make(*given, **named):
        if name in named:
            raise TypeError(f"an unexpected keyword argument {name!r}")
        return kind(*given, **named)

    make.__signature__ = signature.replace(parameters=[p for p in signature.parameters.values() if p.name != name])
    return make


def remove(shim, monkeypatch, *, whole=False):
    """Takes a name away as another version of its package would, or the whole module that has it."""
    module, _, path = shim.name.partition(":")
    if whole or not path:
        return monkeypatch.setitem(sys.modules, module, None)
    owner, last = shim.owner()
    if isinstance(owner, type) and owner.__flags__ & HEAP_TYPE:
        if hasattr(owner.__init__, "__code__") and last in owner.__init__.__code__.co_varnames:
            monkeypatch.setattr(sys.modules[module], path.rpartition(".")[0], without_parameter(owner, last))
        if hasattr(owner, "__getattr__"):  # asked next, and some of torch's ask for the same name
            monkeypatch.setattr(owner, "__getattr__", Gone.__get__)
        return monkeypatch.setattr(owner, last, Gone(), raising=False)
    if shim.probe is not None:  # a namespace that makes its members when they are asked for
        return monkeypatch.setattr(owner, last, None)
    return monkeypatch.delattr(owner, last)


HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: of classes whose attributes can be changed."""


def prepared():
    module = program().module(check_guards=False)
    return module, True


def annotated():
    node = torch.fx.Graph().placeholder("x")
    node.meta["quantization_annotation"] = torchao.annotation({}, None)
    return (node,)


def profile():
    from executorch.devtools import Inspector

    return (Inspector.__new__(Inspector),)


ARGUMENTS = {
    "schema_of": lambda: (aten.add_.Tensor,),
    "version_of": lambda: (torch.zeros(2),),
    "is_guard": lambda: (Net(),),
    "buffers_of": lambda: (Net(),),
    "codegen_of": lambda: (torch.fx.Graph(),),
    "element_type": lambda: (7,),
    "pickle_reader": lambda: (saved(),),
    "read_archive": lambda: (saved(),),
    "is_annotated": annotated,
    "annotation": lambda: ({}, None),
    "note_mode": prepared,
    "initialized": lambda: ("state",),
    "core_operator": lambda: ("quantized_linear",),
    "load_program": lambda: (bytes(edge().to_executorch().buffer),),
    "reference_graph": profile,
}
"""What a guarded function is called with."""
NAMED = {
    "load_program": {"profile": False, "debug_buffer_size": 0},
    "debug_record": {"handles": {}, "delegates": {}, "outputs": {}, "inputs": [], "reference": None},
}
WHOLE = {"bindings"}
"""Functions that need no more than the module."""
USED = [(guarded, shim) for _ in [all_shims()] for guarded in GUARDED for shim in guarded[1]]
EAGER = {
    "torch._subclasses": ("FakeTensor", "FakeTensorMode"),
    "torch.utils._pytree": TREES,
}
"""Names that are found when `micronpu.upstream.torch` is imported, since classes are asked for by `isinstance`."""


def test_every_shim_is_guarded_where_it_is_used():
    guarded = {shim.name for _, shim in USED}
    eager = {f"{home}:{name}" for home, names in EAGER.items() for name in names}
    elsewhere = {shim.name for shim in torchao.REPAIRS.values()} | {"executorch.schema:program.fbs"}  # own tests
    assert guarded.isdisjoint(eager | elsewhere) and guarded | eager | elsewhere == {d.name for d in all_shims()}


@pytest.mark.parametrize(("guarded", "shim"), USED, ids=lambda part: getattr(part, "name", None) or part[0].__name__)
def test_a_name_that_is_gone_is_a_sentence(guarded, shim, monkeypatch):
    function, shims = guarded
    arguments, named = ARGUMENTS.get(function.__name__, tuple)(), NAMED.get(function.__name__, {})
    remove(shim, monkeypatch, whole=function.__name__ in WHOLE)
    with pytest.raises(UpstreamError) as error:
        function(*arguments, **named)
    reported = {f"has no `{d.name}`, without which {d.use}; {d.package} {d.versions} has it." for d in shims}
    assert any(sentence in error.value.what for sentence in reported)  # a probe may need what its neighbour leads to
    assert error.value.hint == f'pip install "{shim.package}=={shim.versions}.*"'


@pytest.mark.parametrize("name", [f"{home}:{name}" for home, names in EAGER.items() for name in names])
def test_a_name_that_is_found_at_once_is_a_sentence(name, monkeypatch):
    owner, last = SHIMS[name].owner()
    monkeypatch.delattr(owner, last)
    with pytest.raises(UpstreamError, match="without which"):
        SHIMS[name].find()


def test_the_guard_of_a_context_manager_does_not_end_before_its_body():
    with pytest.raises(TypeError, match="is a generator function"):

        @through(SHIMS["torch:Tensor._version"])
        def never():
            yield


def test_other_parameters_are_a_sentence():
    shim = replace(SHIMS["torch.utils._pytree:tree_leaves"], parameters=("tree",))
    assert "has other parameters, (tree, is_leaf), of `torch.utils._pytree:tree_leaves`" in str(shim.misfit())


def test_a_fault_of_the_callers_own_stays_what_it_is():
    with pytest.raises(AttributeError, match="_schema"):
        upstream.schema_of(3)


def test_two_shims_for_one_name_are_refused():
    with pytest.raises(AssertionError, match="two shims"):
        declared("torch:Tensor._version", "")


def test_a_package_that_is_not_there():
    shim = Shim("torchao.nothing:at_all", "nothing works")
    assert "has no `torchao.nothing:at_all`" in str(shim.misfit())

    @through(shim)
    def fails():
        return importlib.import_module("torchao.nothing")

    with pytest.raises(UpstreamError, match="without which nothing works"):
        fails()


def test_versions_are_those_that_are_installed():
    assert all(is_seen(package) for package in SEEN)
