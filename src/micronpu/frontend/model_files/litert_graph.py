"""Conversion of a LiteRT file's operators to a network: constant folding, states, and control flow."""

from __future__ import annotations

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.frontend.model_files import litert_moves, litert_recurrent  # noqa: F401  (register their lowerings)
from micronpu.frontend.model_files.budget import reading
from micronpu.frontend.model_files.litert import DTYPES, FileOperator, FileTensor, LiteRtBuilder, LiteRtFile, walk
from micronpu.frontend.model_files.litert_operators import LOWERINGS as LOWERINGS
from micronpu.frontend.model_files.litert_operators import lowering
from micronpu.frontend.model_files.network import Network, State, tensor

FOLDED = ("SHAPE", "RANK", "ZEROS_LIKE", "FILL", "RANGE")
"""Operators whose result is always known when a file is read."""
_OF_CONSTANTS = ("DENSIFY", "DEQUANTIZE", "CAST", "RESHAPE", "TRANSPOSE")
_FLOATS = ("FLOAT32", "UINT8")
_INTEGERS = {"INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool}


def network_of(file: LiteRtFile) -> Network:
    """Return the file as a module."""
    build = LiteRtBuilder(file.others, file.budget)
    for given in file.inputs:
        kind = torch.float32 if given.rounding or given.type in _FLOATS else _INTEGERS.get(given.type)
        if kind is None:
            raise UnsupportedError(f"The input `{given.name}` is {given.type}.", hint="float32, int8 or int16 inputs")
        number = build.input(given.name, given.shape, kind)
        rounding = None if given.type == "UINT8" else given.rounding  # uint8 is quantized by the QUANTIZE that reads it
        if rounding is not None:  # the caller's floats are quantized first
            (number,) = build.add(given.name, lambda x: x, [number], [rounding])
        build.define(given, number, rounding)
    append(build, file)
    if build.graphs:
        raise UnsupportedError(
            f"The LiteRT file has {1 + len(file.others)} subgraphs, and no operator calls number {min(build.graphs)}.",
            hint="convert one signature of the model to a separate file",
        )
    outputs = [build.number(given) for given in file.outputs]
    if None in outputs:
        name = file.outputs[outputs.index(None)].name
        raise UnsupportedError(f"The output `{name}` does not depend on the inputs.", hint="leave it out of the model")
    return build.network([n for n in outputs if n is not None])


def append(build: LiteRtBuilder, graph: LiteRtFile) -> None:
    for operator in walk(graph):
        with reading(operator):
            if _folded(build, operator):
                continue
            if operator.kind not in LOWERINGS:
                raise _unread(operator)
            LOWERINGS[operator.kind](build, operator)


_BEHIND = "the model cut before it; `micronpu deploy --with nms,ssd_decode` writes what follows in C"
_MOST_OPTIONS = 4096
"""Bytes of a custom operator's options above which they are a program."""
_OTHERWISE = "a model without it, or the model in PyTorch, which has more operators"
_INSTEAD = {
    "CUSTOM TFLite_Detection_PostProcess": ("no NPU computes it", _BEHIND),
    "NON_MAX_SUPPRESSION_V4": ("no NPU computes it", _BEHIND),
    "NON_MAX_SUPPRESSION_V5": ("no NPU computes it", _BEHIND),
}
"""Operators of files of the wrong stage: why they are not read, and what to give instead."""


def _unread(operator: FileOperator) -> UnsupportedError:
    """Return the error that an operator is not read, with what to try."""
    why, hint = _INSTEAD.get(
        operator.kind, ("", "a model without it, or the model in PyTorch, which has more operators")
    )
    blobs = [t for t in operator.inputs if t and t.data is not None and t.type == "UINT8" and not t.scale]
    if operator.kind.startswith("CUSTOM") and (blobs or len(operator.options) > _MOST_OPTIONS):
        why, hint = "it is compiled for an NPU already", "the .tflite that was given to Vela or to another compiler"
    if operator.kind.startswith("CUSTOM Flex"):
        why, hint = "it needs TensorFlow itself", "convert the model without SELECT_TF_OPS"
    return UnsupportedError(f"{operator} is not read from LiteRT files{f': {why}' if why else ''}.", hint=hint)


def _folded(build: LiteRtBuilder, operator: FileOperator) -> bool:
    """Fold casts of constants, and shapes; return True if the result is known."""
    if operator.kind in FOLDED:
        build.fold(operator.outputs[0], _known(build, operator))
        return True
    if operator.kind not in _OF_CONSTANTS:
        return False
    given = operator.operand(0)
    if (value := build.constant(given)) is None:
        return False
    if operator.kind == "DEQUANTIZE":
        value = build.real_constant(given)
    elif operator.kind == "CAST":
        value = value.astype(DTYPES[operator.outputs[0].type])
    elif operator.kind == "TRANSPOSE":
        value = np.ascontiguousarray(value.transpose(build.integers(operator, 1)))
    else:
        value = value.reshape(operator.outputs[0].shape)
    assert value is not None
    build.fold(operator.outputs[0], value)
    return True


def _known(build: LiteRtBuilder, operator: FileOperator) -> Array:
    """Return the result of an operator that depends on shapes and constants alone."""
    shape, made = operator.operand(0).shape, operator.outputs[0]
    if operator.kind in ("SHAPE", "RANK"):
        return np.array(shape if operator.kind == "SHAPE" else len(shape), DTYPES[made.type])
    if operator.kind == "ZEROS_LIKE":
        return np.zeros(made.shape, DTYPES[made.type])
    values = [build.real_constant(t) for t in operator.inputs if t is not None]
    if any(value is None for value in values):
        raise operator.error("computes its operands at run time", "a model of fixed shapes")
    given = [value for value in values if value is not None]
    if operator.kind == "FILL":
        return np.full(made.shape, given[1], DTYPES[made.type])
    start, _, step = (value.reshape(-1)[0] for value in given)
    return np.asarray(start + step * np.arange(*made.shape), DTYPES[made.type])


# ---------------------------------------------------------------- states, control flow


@lowering("VAR_HANDLE")
def _variable(build: LiteRtBuilder, operator: FileOperator) -> None:
    names = (operator.option(n) or b"" for n in ("container", "sharedName"))
    build.variables[operator.outputs[0].key] = "/".join(n.decode("utf-8", "replace") for n in names if n)


def _variable_of(build: LiteRtBuilder, operator: FileOperator) -> str:
    name = build.variables.get(operator.operand(0).key)
    if name is None:
        raise operator.error("has a variable that no VAR_HANDLE before it names", "copy the file again")
    return name


def _state(build: LiteRtBuilder, operator: FileOperator, like: FileTensor) -> State:
    """Return the state of a variable; its initial value is the one that CALL_ONCE assigns."""
    name, rounding, dtype = _variable_of(build, operator), like.rounding, DTYPES.get(like.type)
    initial = build.initial.get(name)
    if initial is None and operator.kind == "READ_VARIABLE" and name not in build.by_name:
        raise operator.error(
            f"reads the variable `{name}`, to which nothing has assigned a value", "an initial value, with CALL_ONCE"
        )
    if initial is None:  # written before it is read, in every call
        initial = np.full(like.shape, 0 if rounding is None else rounding.zero_point, dtype)
    kind = (like.shape, like.type, rounding)
    if build.kinds.setdefault(name, kind) != kind or (initial.shape, initial.dtype) != (like.shape, dtype):
        raise operator.error(
            "has another shape, type or quantization than the variable", "one for all reads and writes"
        )
    if name not in build.by_name:
        value = tensor(initial)
        real = value.float() if rounding is None and value.is_floating_point() else value
        build.by_name[name] = build.state(name, real if rounding is None else rounding.dequantize(value))
    return build.by_name[name]


@lowering("READ_VARIABLE")
def _read_variable(build: LiteRtBuilder, operator: FileOperator) -> None:
    made = operator.outputs[0]
    build.define(made, build.written(_state(build, operator, made), made), made.rounding, operator=operator)


@lowering("ASSIGN_VARIABLE")
def _assign_variable(build: LiteRtBuilder, operator: FileOperator) -> None:
    value = build.read(operator, 1)
    if isinstance(value, torch.Tensor):
        raise operator.error("assigns a constant in every call", "a variable that the inputs change")
    _state(build, operator, operator.operand(1)).written = value


@lowering("CALL_ONCE")
def _call_once(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Initial values, which the first call of the program assigns before anything else."""
    for inner in walk(build.called(operator, "initSubgraphIndex")):
        if _folded(build, inner):
            continue
        if inner.kind == "VAR_HANDLE":
            _variable(build, inner)
        elif inner.kind == "ASSIGN_VARIABLE" and (value := build.constant(inner.operand(1))) is not None:
            build.initial[_variable_of(build, inner)] = value
        else:
            raise inner.error("computes an initial value of a variable", "initial values that are constants")


@lowering("IF")
def _if(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Compute both branches and select each result: NPUs have no branches."""
    branches = [build.called(operator, f"{name}SubgraphIndex") for name in ("then", "else")]
    for branch in branches:
        if (len(branch.inputs), len(branch.outputs)) != (len(operator.inputs) - 1, len(operator.outputs)):
            raise operator.error("has a branch with other inputs or outputs", "convert the model again")
        states = [(state, state.written) for state in build.states]
        for i, given in enumerate(branch.inputs, 1):
            source = operator.operand(i)
            if (constant := build.constant(source)) is not None:
                build.fold(given, constant)
            elif isinstance(value := build.value(operator, source), int):
                build.define(given, value, source.rounding)
        append(build, branch)
        if len(states) != len(build.states) or any(state.written != before for state, before in states):
            raise operator.error("has a branch that writes a variable", "a variable that is written in every call")
    for i in range(len(operator.outputs)):
        values = [build.value(operator, branch.outputs[i]) for branch in branches]
        build.compute(operator, torch.where, [build.read(operator, 0), *values], result=i)
