"""What ExecuTorch's runtime would believe of a plan is checked before it is asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
from executorch.exir.schema import (
    BoolList,
    EValue,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    Operator,
    OptionalTensorList,
    ScalarType,
    String,
    TensorDataLocation,
    TensorList,
)
from tests.runtime.test_host_program import add_pte, int8
from torch import nn

import micronpu.quantize  # noqa: F401  (registers the operators of quantized programs)
from micronpu.base.errors import PayloadError
from micronpu.program.operators import Kind
from micronpu.program.plan import recorded_bytes
from micronpu.program.plan_check import check_plan
from micronpu.runtime import HostProgram

X = torch.linspace(-1, 1, 12).reshape(1, 3, 2, 2)


class Net(nn.Module):
    """Kernels with lists, optional arguments, constants and quantization parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 1)
        self.register_buffer("scales", torch.tensor([0.1, 0.2, 0.3]).double())
        self.register_buffer("zeros", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor.default(x, 0.01, 0, -128, 127, torch.int8)
        y = ops.dequantize_per_tensor.default(q, 0.01, 0, -128, 127, torch.int8)
        c = ops.quantize_per_channel.default(y, self.scales, self.zeros, 1, -128, 127, torch.int8)
        z = ops.dequantize_per_channel.default(c, self.scales, self.zeros, 1, -128, 127, torch.int8)
        return torch.cat([self.convolution(y), z], 1), z.sum((2, 3))


@functools.cache
def program() -> bytes:
    torch.manual_seed(0)
    edge = to_edge(torch.export.export(Net().eval(), (X,)), compile_config=EdgeCompileConfig(_check_ir_validity=False))
    import executorch.kernels.quantized  # noqa: F401

    return bytes(edge.to_executorch().buffer)


class Plan:
    """A plan to be damaged."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.values = plan.values

    def call(self, name: str) -> Any:
        """The first call of an operator."""
        index = next(i for i, o in enumerate(self.plan.operators) if o.name.endswith(f"::{name}"))
        calls = [i.instr_args for c in self.plan.chains for i in c.instructions]
        return next(c for c in calls if getattr(c, "op_index", None) == index)

    def value(self, name: str, position: int) -> Any:
        """An argument of the first call of an operator."""
        return self.values[self.call(name).args[position]]

    def first(self, wanted: Callable[[Any], bool]) -> Any:
        tensors = [v.val for v in self.values if type(v.val).__name__ == "Tensor"]
        return next(t for t in tensors if wanted(t))

    @property
    def constant(self) -> Any:
        return self.first(lambda t: t.data_buffer_idx and not t.allocation_info)

    @property
    def placed(self) -> Any:
        return self.first(lambda t: t.allocation_info is not None)

    def index_of(self, value: Any) -> int:
        return next(i for i, v in enumerate(self.values) if v.val is value)

    def add(self, value: Any) -> int:
        self.values.append(EValue(value))
        return len(self.values) - 1

    def instruction(self, made: Any) -> None:
        from executorch.exir.schema import Instruction

        self.plan.chains[0].instructions.append(Instruction(made))


def damaged(pte: bytes, change: Callable[[Plan], None]) -> bytes:
    file = deserialize_pte_binary(pte)
    change(Plan(file.program.execution_plan[0]))
    return bytes(serialize_pte_binary(file))


def setting(find: Callable[[Plan], Any], **values: Any) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        for name, value in values.items():
            setattr(find(plan), name, value)

    return change


def argument(name: str, position: int, value: Any) -> Callable[[Plan], None]:
    """Gives the first call of an operator another argument."""

    def change(plan: Plan) -> None:
        plan.call(name).args[position] = plan.add(value)

    return change


CASES: dict[str, tuple[Callable[[Plan], Any], str]] = {
    "constant too short": (
        setting(lambda p: p.constant, sizes=[999, 1, 1, 1]),
        r"has 3996 bytes, but its constant \d+",
    ),
    "constant that is not there": (setting(lambda p: p.constant, data_buffer_idx=99), r"is constant 99 of \d"),
    "constant in another file": (
        lambda p: setattr(p.constant, "extra_tensor_info", _external()),
        "whose data is in another file",
    ),
    "memory too short": (
        lambda p: p.plan.non_const_buffer_sizes.__setitem__(1, 8),
        r"ends at byte \d+ of 8 in memory 1",
    ),
    "memory that is not there": (
        setting(lambda p: p.placed.allocation_info, memory_id=7),
        "in memory 7, which the plan",
    ),
    "memory far away": (setting(lambda p: p.placed.allocation_info, memory_offset_high=3), "ends at byte 12884"),
    "memory between elements": (
        setting(
            lambda p: p.first(lambda t: t.allocation_info and t.scalar_type == 6).allocation_info, memory_offset_low=2
        ),
        "at byte 2 of its memory, which is no multiple of 4",
    ),
    "memory without end": (
        lambda p: p.plan.non_const_buffer_sizes.__setitem__(1, 1 << 40),
        "memory 1 has 1099511627776 bytes, but its tensors take",
    ),
    "memory below zero": (lambda p: p.plan.non_const_buffer_sizes.__setitem__(0, -5), "memory 0 has -5 bytes"),
    "size below zero": (setting(lambda p: p.placed, sizes=[1, 3, -2, 2]), r"of the shape \[1, 3, -2, 2\]"),
    "sizes that overflow": (setting(lambda p: p.placed, sizes=[1 << 30, 1 << 30, 0, 4]), "is a tensor of"),
    "too many axes": (setting(lambda p: p.placed, sizes=[1] * 17, dim_order=list(range(17))), "a tensor of 17 axes"),
    "axes twice": (setting(lambda p: p.placed, dim_order=[0, 1, 1, 2]), r"the order of axes .*0, 1, 1, 2"),
    "axes too few": (setting(lambda p: p.placed, dim_order=[0]), "has? the order of axes|with the order of axes"),
    "offset": (setting(lambda p: p.placed, storage_offset=4), "begins inside its memory"),
    "unknown type": (setting(lambda p: p.placed, scalar_type=ScalarType.COMPLEX32), "of the unknown type 8"),
    "no memory": (
        lambda p: setattr(p.value("quantize_per_tensor", 6).val, "allocation_info", None),
        "argument 6 of instruction 0, quantized_decomposed::quantize_per_tensor.out, is a tensor without memory",
    ),
    "no such value": (lambda p: p.call("cat").args.__setitem__(0, 500), "value 500 of 53"),
    "no such operator": (setting(lambda p: p.call("cat"), op_index=77), "calls operator 77 of"),
    "missing argument": (lambda p: p.call("cat").args.__delitem__(slice(1, None)), "has 1 arguments instead of 3"),
    "further argument": (lambda p: p.call("cat").args.extend([0, 0]), "has 6 arguments instead of 3"),
    "integer for a list": (argument("cat", 0, Int(3)), "has a int as `tensors`, which must be tensor list"),
    "text for a number": (argument("cat", 1, String("x")), "has a string as `dim`, which must be int"),
    "nothing for a tensor": (argument("convolution", 0, Null()), "has a null as `input`, which must be tensor"),
    "nothing in a list": (
        lambda p: p.call("cat").args.__setitem__(0, p.add(TensorList([p.add(Null())]))),
        "a tensor list, holds a null",
    ),
    "list in itself": (
        lambda p: p.add(TensorList([len(p.values)])),
        "a tensor list, holds a tensor list",
    ),
    "list in a list": (
        lambda p: p.add(OptionalTensorList([p.add(TensorList([]))])),
        "an? optional tensor list, holds a tensor list",
    ),
    "tensor among integers": (lambda p: p.add(IntList([0])), r"a int list, holds a (tensor|double)"),
    "write into a constant": (
        lambda p: p.call("cat").args.__setitem__(2, p.values.index(next(v for v in p.values if v.val is p.constant))),
        "writes into a constant",
    ),
    "move to another kind": (lambda p: p.instruction(MoveCall(p.add(Int(1)), 0)), "moves a int into a"),
    "move into another shape": (
        lambda p: p.instruction(MoveCall(p.index_of(p.constant), p.index_of(p.placed))),
        "into one of another type or shape, or a constant",
    ),
    "tensor that is freed": (lambda p: p.instruction(FreeCall(0)), "is a FreeCall, which no program has that runs"),
    "memory that a jump skips": (lambda p: _skipped(p), "argument 0 of instruction 9, .* is a tensor without memory"),
    "jump back": (lambda p: p.instruction(JumpFalseCall(p.add(Int(1)), 0)), "branches on a int"),
    "endless loop": (lambda p: p.instruction(JumpFalseCall(_bool(p), 0)), "instruction 0, which is neither forward"),
    "scale of zero": (lambda p: setattr(p.value("quantize_per_tensor", 1).val, "double_val", 0.0), "has the scale 0"),
    "scale that is none": (argument("dequantize_per_tensor", 1, "nan"), "has the scale nan"),
    "range beyond the type": (argument("quantize_per_tensor", 3, Int(-129)), "the range -129 to 127 of int8"),
    "another shape": (
        setting(lambda p: p.value("quantize_per_tensor", 6).val, sizes=[1, 3, 2, 1]),
        r"makes \[1, 3, 2, 1\] of",
    ),
    "range backwards": (argument("dequantize_per_tensor", 3, Int(128)), "the range 128 to 127 of int8"),
    "type that the tensor has not": (
        argument("quantize_per_tensor", 5, Int(0)),
        "a int8 tensor where `dtype` says uint8",
    ),
    "axis that is not there": (argument("quantize_per_channel", 3, Int(9)), "has the axis 9 of 4"),
    "too few scales": (argument("quantize_per_channel", 3, Int(3)), "has 3 float64 `scales` for 2 channels"),
    "output that is not there": (lambda p: p.plan.outputs.__setitem__(0, -1), "element -1 of a vector"),
    "boolean list": (argument("cat", 0, BoolList([True])), "has a bool list as `tensors`"),
}


def _external() -> Any:
    from executorch.exir.schema import ExtraTensorInfo

    return ExtraTensorInfo(fully_qualified_name="x", location=TensorDataLocation.EXTERNAL)


def _bool(plan: Plan) -> int:
    from executorch.exir.schema import Bool

    return plan.add(Bool(False))


def _skipped(plan: Plan) -> None:
    """Jump over a view, whose result the last instruction reads."""
    like = plan.value("quantize_per_tensor", 0)
    plan.plan.operators.append(Operator("executorch_prim::et_view", "default"))
    made = plan.add(replace(like.val, allocation_info=None))
    sizes = plan.add(IntList([plan.add(Int(n)) for n in like.val.sizes]))
    plan.instruction(JumpFalseCall(_bool(plan), len(plan.plan.chains[0].instructions) + 2))
    plan.instruction(KernelCall(len(plan.plan.operators) - 1, [plan.values.index(like), sizes, made]))
    first = plan.call("quantize_per_tensor")
    plan.instruction(KernelCall(first.op_index, [made, *first.args[1:]]))


def test_a_branch_of_executorchs_writer_runs() -> None:
    """It moves the results of both branches."""
    model = nn.Module()
    model.forward = lambda x: torch.cond(x.sum() > 0, lambda x: (x + 1, x - 2), lambda x: (x * 2, x - 3), (x,))  # type: ignore[assignment]
    branches = bytes(to_edge(torch.export.export(model, (X,))).to_executorch().buffer)
    for x in (X + 1, X - 1):
        for got, wanted in zip(HostProgram(branches).run(x), model(x), strict=True):
            assert torch.equal(got, wanted)


def test_a_whole_plan_runs() -> None:
    torch.manual_seed(0)
    expected = Net().eval()(X)
    for got, wanted in zip(HostProgram(program()).run(X), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_damage_is_a_sentence(case: str) -> None:
    change, sentence = CASES[case]
    if case == "scale that is none":
        from executorch.exir.schema import Double

        change = argument("dequantize_per_tensor", 1, Double(float("nan")))
    with pytest.raises(PayloadError, match=sentence) as caught:
        HostProgram(damaged(program(), change))
    assert "Try: " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda p: setattr(p.plan.delegates[0].processed, "index", 9), "element 9|payload 9 of|segment 9"),
        (lambda p: setattr(p.plan.chains[0].instructions[0].instr_args, "delegate_index", 3), "calls delegate 3 of 1"),
        (lambda p: p.plan.chains[0].instructions[0].instr_args.args.__setitem__(0, 60), "value 60 of 3"),
    ],
)
def test_damaged_calls_of_delegates(change: Any, sentence: str) -> None:
    with pytest.raises((PayloadError, IndexError), match=sentence):
        HostProgram(damaged(add_pte(), change))


def test_reading_does_not_recurse_into_lists() -> None:
    """Of 3,000 lists each holding the one before, and a call of the last."""

    def change(plan: Plan) -> None:
        index = plan.add(TensorList([0]))
        for _ in range(3000):
            index = plan.add(TensorList([index]))
        plan.call("cat").args[0] = index

    with pytest.raises(PayloadError, match="a list of tensors holds another list"):
        recorded_bytes(damaged(program(), change), "forward")


def test_the_check_is_of_the_method_that_runs() -> None:
    with pytest.raises(PayloadError, match="methods of the same name"):
        check_plan(program(), "The program", "backward")
    check_plan(add_pte(), "The program", "forward")
    HostProgram(add_pte()).run(int8(1, 8), int8(1, 8))


NO_MEANING = {"axis", "eps"}  # checked with the tensor's rank where a kernel reads it; a float that is added
MEANINGS = ("dtype", "scale", "zero_point", "quant_min", "quant_max")


def test_every_number_of_quantization_has_a_meaning_that_is_checked():
    """ExecuTorch's kernels end the process where one is wrong: a number of a new kernel needs a check, or a reason."""
    from micronpu.program import operators

    numbers = {Kind.INT, Kind.DOUBLE}
    for name in operators._listed():
        parameters = operators.signature_of(name).parameters
        if name.startswith("quantized_decomposed::"):
            open_ = [p.name for p in parameters if p.kinds - {Kind.NULL} <= numbers and not p.name.endswith(MEANINGS)]
            assert set(open_) <= NO_MEANING, name


@pytest.mark.parametrize(
    ("kernel", "position", "found"),
    [
        ("dequantize_per_tensor.out", 6, "int8"),
        ("dequantize_per_channel.out", 7, "unknown"),
        ("sum.IntList_out", 3, ""),
    ],
)
def test_a_type_that_is_not_that_of_the_result(kernel, position, found):
    def change(program):
        plan = program.execution_plan[0]
        called = [i for i, o in enumerate(plan.operators) if f"{o.name}.{o.overload}".endswith(kernel)]
        for instruction in plan.chains[0].instructions:
            call = instruction.instr_args
            if getattr(call, "op_index", None) in called:
                plan.values.append(EValue(Int({"int8": 1, "unknown": 99, "": 3}[found])))
                call.args[position] = len(plan.values) - 1

    file = deserialize_pte_binary(program())
    change(file.program)
    with pytest.raises(PayloadError, match=r"as `out_dtype` the unknown type 99|tensor where `(out_)?dtype` says"):
        check_plan(bytes(serialize_pte_binary(file)), "it", "forward")


@pytest.mark.parametrize(
    "parts",
    (
        lambda x: torch.split(x, [2, 4], 1),
        lambda x: torch.split(x, 2, 1),
        lambda x: torch.unbind(x, 2),
    ),
    ids=("split_with_sizes", "split", "unbind"),
)
def test_kernels_that_give_a_list_are_known(parts) -> None:
    """Of any program of ExecuTorch's: its emitter names the list twice, which no schema says."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(part + 1 for part in parts(x * 2))

    x = torch.arange(24.0).reshape(1, 6, 4)
    program = to_edge(torch.export.export(Net().eval(), (x,))).to_executorch()
    got = HostProgram(program.buffer).run(x)
    for mine, wanted in zip(got, Net()(x), strict=True):
        assert torch.equal(mine, wanted)
