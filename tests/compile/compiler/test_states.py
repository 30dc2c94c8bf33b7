"""Programs that keep a state: integers from call to call, first values, sequences, and what cannot be."""

from __future__ import annotations

import copy
import itertools
import re
import types
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from tests.compile.small import Small, linear
from tests.compile.state_rows import ROWS, Keeps, sequences, zeros
from torch import nn
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e import FixedQParamsObserver
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

import micronpu
from micronpu.base.errors import ModelError
from micronpu.frontend.exported import exported_for_any_batch
from micronpu.frontend.tensors import held, hold, lift, states_of
from micronpu.ir.interpreter import interpret
from micronpu.neutron import (
    NeutronPartitioner,
    NeutronQuantizer,
    NeutronTargetSpec,
    calibrate_and_quantize,
    generate_neutron_compile_spec,
)
from micronpu.program.pte import read_pte
from micronpu.quantize.data import calibration_sequences
from micronpu.quantize.solver import values as solver
from micronpu.quantize.solver.neighbours import common_observer
from micronpu.runtime import ArrayProgram, HostProgram, RunOptions

X = (torch.zeros(1, 8),)
_JOINS = {"quantized_decomposed::quantize_per_tensor.out", "quantized_decomposed::dequantize_per_tensor.out"}


def made(name: str, target: str = "imxrt700-neutron", **options: Any) -> tuple[Any, nn.Module]:
    """A program of a row, and the float module as it was."""
    torch.manual_seed(0)
    model = ROWS[name]()
    before = copy.deepcopy(model)
    program = micronpu.compile(
        model, X, target, calibration=sequences(), verify=micronpu.Verification(held_out=0), **options
    )
    for (key, old), new in zip(before.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(old, new), f"compiling changes the user's {key}"
    return program, before


def run(program: Any, rows: list[torch.Tensor], call: Any = None) -> list[torch.Tensor]:
    found = []
    for row in rows:
        result = (call or program.run)(*(program.integer_io.quantize((row,)) if program.integer_io else (row,)))
        results = result if isinstance(result, tuple) else (result,)
        found.append((program.integer_io.dequantize(results) if program.integer_io else results)[0])
    return found


CASES = [(name, "imxrt700-neutron", {}) for name in ROWS] + [
    ("slices", "ethos-u55-128", {"io": "int8"}),
    ("lstm", "ethos-u85-256", {}),
    ("cache", "ethos-u65-256", {"activations": "int16"}),
    ("average", "corstone300", {"activations": "int16", "io": "int16"}),
    ("gru", "cortex-m33", {}),
    ("swap", "imxrt700", {"io": "int8"}),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "target", "options"), CASES, ids=[f"{n}-{t}" for n, t, _ in CASES])
def test_every_way_to_write_a_state(name: str, target: str, options: dict[str, Any]) -> None:
    program, model = made(name, target, quantization=micronpu.Quantization(**options))
    rows = sequences()[1]
    first = run(program, rows)
    program.reset()
    quantized = run(program, rows, program.quantized)
    with torch.no_grad():
        real = [r[0] if isinstance(r, tuple) else r for r in map(model, rows)]
    program.reset()
    again = run(program, rows)
    assert all(map(torch.equal, first, again)), "a reset begins the sequence anew"
    # The state is what tells the calls apart: without it the last ones would differ by much more than by rounding.
    error = max(float((a - r).abs().max()) for a, r in zip(first, real, strict=True))
    assert error < 0.05 * max(float(r.abs().max()) for r in real)
    rounding = max(float((a - q).abs().max()) for a, q in zip(first, quantized, strict=True))
    assert rounding < 0.05 * max(float(r.abs().max()) for r in real)
    # A float state is an integer in the program, and nothing but the border and operators of the host is in float.
    names = {n for n, b in model.named_buffers()}
    assert {s.name for s in program.states} == {row.name for row in program.report.states} == names
    kinds = {s.name: s.dtype for s in program.states}
    for key, buffer in model.named_buffers():
        wanted = options.get("activations", "int8") if buffer.is_floating_point() else str(buffer.dtype)[6:]
        assert kinds[key] == wanted
    method = read_pte(program.buffer).methods["forward"]
    assert [s.shape for s in method.states] == [tuple(s.initial.shape) for s in program.states]
    if name not in ("host", "count", "cache"):
        assert program.report.share == 1.0
        assert program.report.partitions == int(program.report.has_npu)
        if program.report.has_npu:
            joins = set() if "io" in options else _JOINS
            assert set(method.operators) <= joins | {"aten::copy_", "dim_order_ops::_clone_dim_order.out"}


def test_a_cache_moves_integers_on_the_host() -> None:
    program, _ = made("cache", quantization=micronpu.Quantization(io="int8"))
    operators = read_pte(program.buffer).methods["forward"].operators
    assert "aten::index_put.out" in operators
    assert not _JOINS & set(operators)


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700-neutron", "ethos-u55-128"])
def test_element_for_element(target: str) -> None:
    """The program against the reference interpreter, whose states go round by hand, over a sequence."""
    program, _ = made("lstm", target, quantization=micronpu.Quantization(io="int8"))
    (part,) = program.partitions
    all_qparams = {s.name: (s.scale, s.zero_point) for s in program.states}
    held_in = {
        k: next(t for t in part.graph.inputs if (t.type.scale, t.type.zero_point) == g) for k, g in all_qparams.items()
    }
    held_out = {
        k: next(t for t in part.graph.outputs if t.type.qparams == held_in[k].type.qparams) for k in all_qparams
    }
    values = {s.name: s.initial.numpy() for s in program.states}
    for row in sequences()[2]:
        x = program.integer_io.quantize((row,))[0]
        given = [
            next((values[k].reshape(t.shape) for k, own in held_in.items() if own is t), x.numpy().reshape(t.shape))
            for t in part.graph.inputs
        ]
        results = dict(zip(part.graph.outputs, interpret(part.graph, given), strict=True))
        values = {k: results[t] for k, t in held_out.items()}
        (wanted,) = (r for t, r in results.items() if t not in held_out.values())
        assert np.array_equal(program.run(x).numpy().reshape(-1), wanted.reshape(-1))


def test_sequences() -> None:
    """Lists are sequences; what stands by itself is one; rows of a tensor are one."""
    (a, b, c), row = sequences(), sequences()[0][0]
    assert [len(s) for s in calibration_sequences([a, b[:3], c], X)] == [8, 3, 8]
    assert [len(s) for s in calibration_sequences(a, X)] == [8]
    assert [len(s) for s in calibration_sequences([(row,), row.numpy(), torch.cat(a), b, row], X)] == [2, 8, 8, 1]
    with pytest.raises(ModelError, match=r"calibration sequence 1 is shorter than one call: it is empty\. Try"):
        calibration_sequences([a, []], X)


def test_states_begin_anew_with_each_sequence() -> None:
    """A sum that grows with every call: its range is that of the longest sequence, not of all calls together."""
    model = Keeps(lambda self, x: self.total.add_(x).clone(), {"total": zeros(1, 800)})
    ones = [torch.ones(1, 800)] * 4
    together, apart = (
        micronpu.compile(model, (torch.ones(1, 800),), "imxrt700-neutron", calibration=data, verify=False)
        .states[0]
        .scale
        for data in ([ones * 3], [ones, ones, ones])
    )
    assert together == pytest.approx(3 * apart, rel=1e-3)


def test_runs_reset_each_by_itself() -> None:
    program, _ = made("inner")
    rows = sequences()[0]
    wanted = run(program, rows)
    for kind, options in ((HostProgram, RunOptions()), (HostProgram, RunOptions(isolated=True)), (ArrayProgram, None)):
        host = kind(program.buffer, options)
        assert [str(s) for s in host.states] == ["int8[1, 8]"]
        for _ in range(2):
            if isinstance(host, ArrayProgram):
                assert host.is_native
                found = [torch.from_numpy(host.run_arrays(row.numpy())[0]) for row in rows]
            else:
                found = [host.run(row)[0] for row in rows]
            assert all(map(torch.equal, found, wanted))
            host.reset()
        host.close()
        with pytest.raises(ModelError, match="is closed"):
            host.run_arrays(rows[0].numpy()) if isinstance(host, ArrayProgram) else host.run(rows[0])


def test_nothing_to_reset() -> None:
    program = micronpu.compile(
        Small(lambda self, x: self.layer(x), layer=linear()), X, "imxrt700", calibration=[X] * 2, verify=False
    )
    for thing in (program, HostProgram(program.buffer), ArrayProgram(program.buffer)):
        with pytest.raises(ModelError, match="keeps nothing from one call to the next, so there is nothing to reset"):
            thing.reset()


def test_lift_and_hold_are_opposites() -> None:
    torch.manual_seed(0)
    model = ROWS["shift"]()
    module = torch.export.export(model, X).run_decompositions({}).module(check_guards=False)
    lifted = lift(module)
    assert [n.name for n in lifted.graph.nodes if n.op == "placeholder"][1:] == ["state_a", "state_b"]
    assert [s.name for s in states_of(lifted).values] == ["a", "b"]
    again = hold(lift(held(lifted)), states_of(lifted))
    for row in itertools.chain(*sequences(1, 4)):
        assert torch.equal(again(row), model(row))


def test_a_quantized_module_compiles_to_the_same() -> None:
    program, _ = made("gru")
    program.quantized(sequences()[0][0])  # its state is another by now
    program.reset()
    again = micronpu.compile(program.quantized, X, "imxrt700-neutron")
    assert [p.payload for p in again.partitions] == [p.payload for p in program.partitions]
    assert [(s.scale, s.zero_point) for s in again.states] == [(s.scale, s.zero_point) for s in program.states]
    rows = sequences()[0]
    assert all(map(torch.equal, run(program, rows), run(again, rows)))


def test_litert_model_has_states_as_io() -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    program, _ = made("lstm", quantization=micronpu.Quantization(io="int8"))
    model = Interpreter(model_content=program.to_litert(), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    runner = model.get_signature_runner()
    values = {f"state_{s.name}": s.initial.numpy() for s in program.states}
    for row in sequences()[1]:
        x = program.integer_io.quantize((row,))[0]
        results = runner(**{program.integer_io.inputs[0].name: x.numpy()}, **values)
        values = {f"state_{s.name}": results[f"output_{i + 1}"] for i, s in enumerate(program.states)}
        assert np.array_equal(results["output_0"], program.run(x).numpy())


# ---------------------------------------------------------------- what cannot be


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.kept
        self.kept = x * 0.5
        return x


class TwoQParams(nn.Module):
    """Quantized by somebody else, with a state on one grid where it is read and on another where it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, y = (self._on(v, scale) for v, scale in ((self.h, 0.1), (x, 0.1)))
        y = self._on(y + h, 0.2)
        self.h.copy_(y)
        return y

    @staticmethod
    def _on(x: torch.Tensor, scale: float) -> torch.Tensor:
        qparams = (scale, 0, -128, 127, torch.int8)
        quantized = torch.ops.quantized_decomposed
        return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *qparams), *qparams)


def _bounded(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.h.copy_(torch.tanh(self.layer(x) + self.h))
    return self.h * 1


REFUSED: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "no buffer": (
        lambda: Small(lambda self, x: self.inner(x) * 2, inner=Attribute()),
        {},
        (
            "The model keeps `inner.kept` from one call to the next, which is no buffer",
            "Try: self.register_buffer(...) with",
        ),
    ),
    "off the grid": (
        lambda: Keeps(_bounded, {"h": zeros(1, 8) + 7}, layer=linear()),
        {},
        (
            "The state `h` begins with 7, which is outside of the int8 range from -1 to 0.9922",
            "Try: an initial value within",
        ),
    ),
    "two grids": (
        lambda: torch.export.export(TwoQParams(), X).module(check_guards=False),
        {"calibration": None},
        (
            "The state `h` cannot have one pair of qparams: it is int8 with steps of 0.1 in and int8 with steps of 0.2",
            "Try: the",
        ),
    ),
    "trained": (
        lambda: ROWS["gru"](),
        {"calibration": None, "train": lambda prepared: None},
        ("The model keeps a state, `h`, from one call to the next, and quantization-aware training shows it single",),
    ),
    "an empty sequence": (
        lambda: ROWS["gru"](),
        {"calibration": [[]]},
        ("The calibration sequence 0 is shorter than one call",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    model, options, words = REFUSED[case]
    with pytest.raises(ModelError) as caught:
        micronpu.compile(model(), X, "imxrt700", **({"calibration": sequences()} | options))
    assert all(word in str(caught.value) for word in words), caught.value


def test_two_dictated_qparams() -> None:
    state = solver.State("h", solver.Value("state_h"), solver.Value("value"))
    all_qparams = [FixedQParamsObserver.with_args(scale=s, zero_point=0)() for s in (1 / 128, 1 / 256)]
    with pytest.raises(
        ModelError,
        match=r"one pair of qparams: it is read with scale 0.0078.. and written with scale 0.00",
    ):
        common_observer(state, *all_qparams)


def test_blame_and_prepare_know_no_sequences() -> None:
    with pytest.raises(ModelError, match=r"keeps a state, `h`, from one call to the next, and blame compares single"):
        micronpu.blame(ROWS["gru"](), [X] * 2, "imxrt700", calibration=[X] * 2)
    with pytest.raises(ModelError, match=r"keeps a state, `h`, .* `prepare_pt2e` knows no sequences of calls"):
        prepare_pt2e(torch.export.export(ROWS["gru"](), X).module(), NeutronQuantizer())


@pytest.mark.sweep
def test_executorch_own_entry() -> None:
    """The same program by `calibrate_and_quantize` and ExecuTorch's lowering, with first values where asked for."""
    torch.manual_seed(0)
    quantized = calibrate_and_quantize(torch.export.export(ROWS["gru"](), X), sequences(), NeutronQuantizer())
    spec = generate_neutron_compile_spec("imxrt700")
    edge = to_edge_transform_and_lower(
        torch.export.export(quantized, X), partitioner=[NeutronPartitioner(spec, NeutronTargetSpec("imxrt700"))]
    )
    config = ExecutorchBackendConfig(
        extract_delegate_segments=False, passes=[InitializedMutableBufferPass(["micronpu_state_"])]
    )
    program, (ours, _) = HostProgram(bytes(edge.to_executorch(config).buffer)), made("gru")
    assert program.states
    for row in sequences()[0]:
        assert torch.equal(program.run(row)[0], ours.run(row))


class Accumulator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total.add_(x).clone()


def test_a_state_that_methods_share() -> None:
    exported = torch.export.export(Accumulator(), X)
    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(["total"])],
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
    )
    both = to_edge_transform_and_lower({"forward": exported, "other": exported}).to_executorch(config)
    with HostProgram(bytes(both.buffer)) as program:
        assert program.methods == ("forward", "other") and [s.shape for s in program.states] == [(1, 8)]
        found = [program.run(torch.ones(1, 8), method=name)[0][0, 0].item() for name in ("other", "forward", "other")]
        assert found == [2.0, 3.0, 4.0]
        program.reset()
        assert program.run(torch.ones(1, 8))[0][0, 0] == 2.0


@pytest.mark.filterwarnings("error::FutureWarning")
def test_no_warning_of_how_torch_copies_a_graph() -> None:
    micronpu.compile(Accumulator().eval(), X, "ethos-u55-128", calibration=sequences())


def test_a_model_that_was_called_before_with_gradients_is_compiled() -> None:
    """Its state has a history then, with which torch copies no tensor."""

    class Past(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("past", torch.zeros(1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.past = self.layer(x + self.past)
            return self.past

    model, x = Past().eval(), torch.randn(1, 4)
    model(x)
    calls = [[torch.randn(1, 4) for _ in range(8)] for _ in range(4)]
    program = micronpu.compile(model, (x,), "ethos-u55-128", calibration=calls, quantization="auto")
    assert program.report.states and model.past.grad_fn is not None


def _old(model: Any, x: torch.Tensor) -> Any:
    old = model.h
    model.h = model.h * 0.5 + x
    return old, model.h


def _part_of_old(model: Any, x: torch.Tensor) -> Any:
    part = model.h[:, :2]
    model.h = x * 2
    return {"part": part}


def _swapped(model: Any, x: torch.Tensor) -> Any:
    model.h, model.g = model.g, model.h * 0.5 + x
    return model.h - model.g


def _delayed(model: Any, x: torch.Tensor) -> Any:
    y = model.h + model.g * 2
    model.g = model.h
    model.h = x
    return y


@pytest.mark.sweep
@pytest.mark.parametrize("inside", [False, True], ids=["outermost", "inside"])
@pytest.mark.parametrize("function", [_old, _part_of_old, _swapped, _delayed])
def test_values_of_states_before_an_assignment(function: Any, inside: bool) -> None:
    """The assignment becomes a write into the buffer, which a value from before it must not see."""
    model = Small(function)
    model.register_buffer("h", torch.zeros(1, 4))
    model.register_buffer("g", torch.zeros(1, 4))
    model = Small(lambda m, x: m.part(x), part=model) if inside else model
    generator = torch.Generator().manual_seed(3)
    calls = [[torch.randn(1, 4, generator=generator) for _ in range(8)] for _ in range(4)]
    program = micronpu.compile(model, (calls[0][0],), "ethos-u55-128", calibration=calls, quantization="int8")
    for x in calls[1]:
        expected, found = tree_leaves(model(x)), tree_leaves(program.run(x))
        assert len(expected) == len(found)
        assert all(torch.allclose(a, torch.as_tensor(b), atol=0.1) for a, b in zip(expected, found, strict=True))


def _half(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.h.mul_(0.5)
    model.g.add_(x)
    return model.h * 1  # type: ignore[no-any-return]


@pytest.mark.parametrize("shares", [lambda h: h, lambda h: h.view(4, 1).t()], ids=["same", "view"])
def test_states_that_share_memory_are_refused(shares: Any) -> None:
    model, x = Small(_half), torch.randn(1, 4)
    model.register_buffer("h", torch.zeros(1, 4))
    model.register_buffer("g", shares(model.h))
    with pytest.raises(ModelError, match="torch cannot write changes in place as functions in the model"):
        micronpu.compile(model, (x,), "ethos-u55-128", calibration=[[x] * 4])


@pytest.mark.parametrize("inside, path", [(False, "past"), (True, "part.past")], ids=["outermost", "inside"])
def test_states_of_a_copy_for_any_batch(inside: bool, path: str) -> None:
    """As for training and sparsity: torch.export by itself keeps assignments of the outermost module alone."""

    def assigned(model: Any, x: torch.Tensor) -> Any:
        model.past = model.past * 0.5 + x
        return model.past

    model = Small(assigned)
    model.register_buffer("past", torch.zeros(1, 4))
    model = Small(lambda m, x: m.part(x), part=model) if inside else model
    made = exported_for_any_batch(model, (torch.randn(1, 4),))
    assert [state.name for state in states_of(made).values] == [path]


class InPython(nn.Module):
    """Keeps something in Python, and may read it in the next call."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layer = linear()
        self.items: list[Any] = [torch.zeros(1, 8)]
        self.named = {"h": torch.zeros(1, 8)}
        self.inner = types.SimpleNamespace(h=torch.zeros(1, 8))
        self.later: Any = None
        self.calls = 0
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.layer(x))


def _item(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.items[0] = m.items[0] * 0.5 + x
    return m.items[0] * 2


def _appended(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.items.append(x)
    return torch.stack(m.items).sum(0)


def _named(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.named["h"] = m.named["h"] * 0.5 + x
    return m.named["h"] * 2


def _object(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.inner.h = m.inner.h * 0.5 + x
    return m.inner.h * 2


def _later(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.later = x if m.later is None else m.later * 0.5 + x
    return m.later * 2


def _counted(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return x * m.calls


def _lazy(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.later is None:
        m.later = torch.arange(8.0).cos()
    return x * m.later


def _logged(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.calls, m.later, m.named["last"] = m.calls + 1, x, x
    m.items.append(x.shape)
    return x.relu()


def _called(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.named["h"] = x  # of a call with gradients, which torch does not copy
    return x.relu()


@pytest.mark.sweep
@pytest.mark.parametrize("inside", [False, True], ids=["outermost", "inside"])
@pytest.mark.parametrize(
    ("forward", "name"),
    [
        (_item, "items[0]"),
        (_appended, "items[1]"),
        (_named, "named.h"),
        (_object, "inner.h"),
        (_later, "later"),
        (_counted, "calls"),
        (_lazy, ""),
        (_logged, ""),
        (_called, ""),
    ],
)
def test_what_python_keeps_is_refused_if_the_next_call_reads_it(forward: Any, name: str, inside: bool) -> None:
    """A program would see its first value in every call; the model has no tensors without values afterwards."""
    kept = InPython(forward)
    model = Small(lambda m, x: m.part(x), part=kept) if inside else kept
    if forward is _called:
        model(torch.ones(1, 8))
    attributes = (list(kept.items), dict(kept.named), kept.inner.h, kept.later, kept.calls)
    data = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    if name:
        with pytest.raises(micronpu.ModelError, match=re.escape(f"keeps `{'part.' * inside}{name}` from one call")):
            micronpu.check(model.eval(), (data[0],), "ethos-u55-128", calibration=data)
    else:
        micronpu.check(model.eval(), (data[0],), "ethos-u55-128", calibration=data)
    found = (kept.items, kept.named, kept.inner.h, kept.later, kept.calls)
    assert str(found) == str(attributes)
