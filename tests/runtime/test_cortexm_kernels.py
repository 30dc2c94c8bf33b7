"""The host kernels of `cortex_m::*` in the stock ExecuTorch runtime, against the NumPy reference, bit for bit."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import executorch.backends.cortex_m.passes  # noqa: F401  (defines the operators)
import pytest
import torch
from executorch.backends.cortex_m.library import cmsis_nn
from executorch.exir import EdgeCompileConfig, to_edge
from tests import cortexm_rows as cases
from tests.cortexm_interpreter import call_reference
from tests.cortexm_reference import REFERENCES
from tests.cortexm_rows import HALF, ONE, SMALL, Row, bias, channel_scales, image, int8, scratch
from tests.runtime.program_writer import program_of_calls

from micronpu.base.errors import ModelError, PayloadError
from micronpu.runtime import HostProgram
from micronpu.runtime.plugin import load_plugin

ROWS = cases.rows()


def tensors_of(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs of a program with these arguments."""
    return tuple(argument for argument in arguments if isinstance(argument, torch.Tensor))


def program_of(operator: str, arguments: tuple[Any, ...]) -> HostProgram:
    """A program of one call."""
    return HostProgram(program_of_calls([(operator, arguments)]))


def run(operator: str, arguments: tuple[Any, ...]) -> torch.Tensor:
    (y,) = program_of(operator, arguments).run(*tensors_of(arguments))
    return y


@functools.cache
def outputs(operator: str) -> dict[Row, torch.Tensor]:
    """Of all rows of an operator, by one program that calls it as often."""
    rows = [row for row in ROWS if row.operator == operator]
    with HostProgram(program_of_calls([(operator, row.arguments) for row in rows])) as program:
        return dict(zip(rows, program.run(*(t for row in rows for t in tensors_of(row.arguments))), strict=True))


@pytest.mark.sweep
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_kernel_is_the_reference(row: Row) -> None:
    y = outputs(row.operator)[row]
    expected = call_reference(row.operator, row.arguments)
    assert y.dtype == expected.dtype
    assert torch.equal(y, expected)
    if row.eager is not None:
        eager = getattr(torch.ops.cortex_m, row.operator)(*row.arguments)
        assert (eager.double() - expected.double()).abs().max() <= row.eager
        assert eager.shape == expected.shape


def test_every_schema_has_a_kernel_a_reference_and_rows() -> None:
    from executorch.runtime import Runtime

    load_plugin()
    prefix = "cortex_m::"
    schemas = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith(prefix)}
    kernels = {name for name in Runtime.get().operator_registry.operator_names if name.startswith(prefix)}
    assert len(schemas) == 23
    assert kernels == {f"{name}.out" for name in schemas}
    assert {prefix + name for name in REFERENCES} == schemas
    assert {prefix + row.operator for row in ROWS} == schemas


def test_rows_exercise_the_arithmetic() -> None:
    """Outputs take many values, and some of them are clamped: a row whose results are all alike shows nothing."""
    distinct = {
        operator: max(len(call_reference(operator, row.arguments).unique()) for row in ROWS if row.operator == operator)
        for operator in {row.operator for row in ROWS}
    }
    assert min(distinct.values()) >= 15, distinct


# ---------------------------------------------------------------- where the eager implementation is another arithmetic


def differences(operator: str) -> set[int]:
    found = set()
    for row in ROWS:
        if row.operator == operator and row.eager is not None:
            eager = getattr(torch.ops.cortex_m, operator)(*row.arguments)
            expected = call_reference(operator, row.arguments)
            found |= set((eager.int() - expected.int()).flatten().tolist())
    return found


@pytest.mark.parametrize("operator", ["quantized_avg_pool2d", "softmax", "quantized_div"])
def test_eager_arithmetic_in_floating_point_differs_by_one(operator: str) -> None:
    """ExecuTorch's eager forms of these compute in float32: close to the device's numbers, and not the same."""
    assert {0} < differences(operator) <= {-1, 0, 1}


# ---------------------------------------------------------------- registration


@pytest.mark.sweep
def test_kernels_of_others_stay() -> None:
    """A kernel that is registered first is kept: registering its name again would end the process."""
    code = """
        import ctypes, pathlib, subprocess, sys, tempfile
        import executorch.extension.pybindings.portable_lib
        from micronpu.host import build
        from micronpu.host.build import find_compiler, find_executorch
        wheel = find_executorch()
        source = '''
        #include <executorch/runtime/kernel/operator_registry.h>
        using namespace executorch::runtime;
        static void nothing(KernelRuntimeContext&, Span<EValue*>) {}
        static auto done = register_kernel(Kernel("cortex_m::minimum.out", nothing));
        '''
        with tempfile.TemporaryDirectory() as folder:
            file, library = pathlib.Path(folder, "other.cpp"), pathlib.Path(folder, "other.so")
            file.write_text(source)
            command = [*find_compiler(), *build._FLAGS, "-O0", *wheel.include_flags, "-shared"]
            command += [str(file), "-o", str(library)]
            subprocess.run([*command, f"-L{wheel.library_directory}", "-lexecutorch"], check=True)
            ctypes.CDLL(str(library))
        from micronpu.runtime.plugin import load_plugin
        load_plugin()
        from executorch.runtime import Runtime
        names = [n for n in Runtime.get().operator_registry.operator_names if n.startswith("cortex_m::")]
        print(len(names), len(set(names)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["23", "23"]


# ---------------------------------------------------------------- shapes that change


def exported(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> bytes:
    """The module through ExecuTorch's compiler."""
    program = torch.export.export(module, inputs, **options)
    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return bytes(edge.to_executorch().buffer)


def test_batch_may_change() -> None:
    weights, x = int8(9, 31), int8(8, 31)
    arguments = (x, weights, bias(9), None, 3, 0, 1, [1518500250], [-9], 127, -128)
    batch = torch.export.Dim("batch", min=1, max=8)

    class Linear(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.ops.cortex_m.quantized_linear(x, w, b, *arguments[3:])

    program = HostProgram(exported(Linear(), tensors_of(arguments), dynamic_shapes=({0: batch}, None, None)))
    for rows in (8, 3, 1, 5):
        given = (int8(rows, 31, seed=rows), *arguments[1:])
        (y,) = program.run(*tensors_of(given))
        assert torch.equal(y, call_reference("quantized_linear", given))


# ---------------------------------------------------------------- scratch memory

BACKENDS = (cmsis_nn.Backend.MVE, cmsis_nn.Backend.DSP, cmsis_nn.Backend.SCALAR)


def sizes(
    shape: Any, weight: torch.Tensor, y: torch.Tensor, stride: Any, padding: Any, dilation: Any
) -> dict[str, Any]:
    n, c, h, w = shape
    return {
        "input_nhwc": [n, h, w, c],
        "filter_nhwc": list(weight.shape),
        "output_nhwc": [y.shape[0], y.shape[2], y.shape[3], y.shape[1]],
        "padding_hw": list(padding),
        "stride_hw": list(stride),
        "dilation_hw": list(dilation),
        "input_offset": 128,
        "output_offset": 0,
        "activation_min": -128,
        "activation_max": 127,
    }


@pytest.mark.parametrize("note", cases.CONVOLUTIONS)
def test_scratch_that_cmsis_nn_asks_for_is_enough_for_a_convolution(note: str) -> None:
    shape, *_, stride, padding, dilation, _ = cases.CONVOLUTIONS[note]
    (row,) = (row for row in ROWS if row.operator == "quantized_conv2d" and row.note == note)
    expected = call_reference(row.operator, row.arguments)
    of = sizes(shape, row.arguments[1], expected, stride, padding, dilation)
    needed = [cmsis_nn.convolve_wrapper_buffer_size(b, cmsis_nn.DataType.A8W8, **of) for b in BACKENDS]
    for size in set(needed):
        assert torch.equal(run(row.operator, (*row.arguments[:-1], scratch(size))), expected)
    if min(needed):
        with pytest.raises(PayloadError, match=r"quantized_conv2d: scratch has 3 bytes, but CMSIS-NN needs at least"):
            run(row.operator, (*row.arguments[:-1], scratch(3)))


@pytest.mark.parametrize("note", cases.TRANSPOSED)
def test_scratch_that_cmsis_nn_asks_for_is_enough_for_a_transposed_convolution(note: str) -> None:
    shape, _, _, stride, padding = cases.TRANSPOSED[note]
    (row,) = (row for row in ROWS if row.operator == "quantized_transpose_conv2d" and row.note == note)
    expected = call_reference(row.operator, row.arguments)
    of = {**sizes(shape, row.arguments[1], expected, stride, padding, (1, 1)), "padding_offsets_hw": [0, 0]}
    no_output = {key: value for key, value in of.items() if key != "output_nhwc"}
    for backend in BACKENDS:
        first = cmsis_nn.transpose_conv_buffer_size(backend, cmsis_nn.DataType.A8W8, **of)
        second = cmsis_nn.transpose_conv_reverse_conv_buffer_size(backend, cmsis_nn.DataType.A8W8, **no_output)
        assert torch.equal(run(row.operator, (*row.arguments[:-2], scratch(first), scratch(second))), expected)
        for less in [(3, second)] + [(first, second - 1)] * (second > 0):
            with pytest.raises(
                PayloadError, match=r"scratch has \d+ bytes, but CMSIS-NN needs at least \d+\. Try: sizes"
            ):
                run(row.operator, (*row.arguments[:-2], *map(scratch, less)))


# ---------------------------------------------------------------- refusals

X = image(1, 6, 5, 4)
WINDOW = ([1, 1], [1, 1], [1, 1])
WEIGHT = int8(4, 3, 3, 6)
SCALES = channel_scales(4, 54)
CONVOLUTION = (X, WEIGHT, None, *WINDOW, 128, 0, *SCALES, -128, 127, scratch())
POOL = ([2, 2], [2, 2], [0, 0])
ADD = (3, *HALF, X, 4, *ONE, -5, *SMALL, -128, 127)
TRANSPOSED = (X, WEIGHT, None, [2, 2], [0, 0], [0, 0], [1, 1], 128, 0, *SCALES, -128, 127, scratch(), scratch())


def changed(arguments: tuple[Any, ...], *pairs: Any) -> tuple[Any, ...]:
    """The arguments with some replaced: position, value, position, value..."""
    new = list(arguments)
    for position, value in zip(pairs[::2], pairs[1::2], strict=True):
        new[position] = value
    return tuple(new)


REFUSED = {
    "convolution of a contiguous image": (
        "quantized_conv2d",
        changed(CONVOLUTION, 0, X.contiguous()),
        r"the input, int8 \[1, 6, 5, 4\], must be channels-last, .* Try: model and example inputs in channels-last",
    ),
    "nhwc form of an odd layout": (
        "quantized_conv2d_nhwc",
        changed(CONVOLUTION, 0, image(1, 5, 4, 6)),
        r"the input, int8 \[1, 5, 4, 6\], must be contiguous",
    ),
    "channels that do not divide": (
        "quantized_conv2d",
        changed(CONVOLUTION, 1, int8(4, 3, 3, 4)),
        r"the weight int8 \[4, 3, 3, 4\] does not go with an input of 6 channels",
    ),
    "bias of another length": (
        "quantized_conv2d",
        changed(CONVOLUTION, 2, bias(3)),
        r"the bias must have 4 elements, but is int32 \[3\]",
    ),
    "bias of int8": ("quantized_conv2d", changed(CONVOLUTION, 2, int8(4)), "the bias must be int32, but is int8"),
    "scales of another length": (
        "quantized_conv2d",
        changed(CONVOLUTION, 9, channel_scales(3, 9)[1]),
        r"a per-channel multiplier or shift must have the shape \[4\]",
    ),
    "shift out of range": (
        "quantized_conv2d",
        changed(CONVOLUTION, 9, torch.tensor([0, 0, 0, -32], dtype=torch.int32)),
        "the shift of a channel is -32, but must be from -31 to 31",
    ),
    "negative multiplier": (
        "quantized_conv2d",
        changed(CONVOLUTION, 8, torch.tensor([1, 1, 1, -1], dtype=torch.int32)),
        "the multiplier of a channel is -1",
    ),
    "offset out of range": ("quantized_conv2d", changed(CONVOLUTION, 6, 129), "input_offset is 129, but must be from"),
    "activation turned round": ("quantized_conv2d", changed(CONVOLUTION, 10, 5, 11, 4), "activation_max is 4, but"),
    "depth multiplier that does not fit": (
        "quantized_depthwise_conv2d",
        (X, int8(1, 3, 3, 6), None, *WINDOW, 2, 0, 0, *channel_scales(6, 9), -128, 127, scratch(0)),
        "does not go with an input of 6 channels and the depth multiplier 2",
    ),
    "output padding": ("quantized_transpose_conv2d", changed(TRANSPOSED, 5, [1, 0]), "there is output padding, but"),
    "dilated transposed convolution": (
        "quantized_transpose_conv2d",
        changed(TRANSPOSED, 6, [1, 2]),
        "CMSIS-NN's transposed convolution ignores it",
    ),
    "average pool of a contiguous image": (
        "quantized_avg_pool2d",
        (X.contiguous(), *POOL, False, 0, *ONE, scratch()),
        "must be channels-last",
    ),
    "max pool with two zero points": (
        "quantized_max_pool2d",
        (X, *POOL, [1, 1], False, 0, 1, -128, 127),
        "the zero points 0 and 1",
    ),
    "max pool with dilation": (
        "quantized_max_pool2d",
        (X, *POOL, [1, 2], False, 0, 0, -128, 127),
        "the dilation is not 1",
    ),
    "max pool of a contiguous image": (
        "quantized_max_pool2d",
        (X.contiguous(), *POOL, [1, 1], False, 0, 0, -128, 127),
        "must be channels-last",
    ),
    "addition of two layouts": ("quantized_add", (X.contiguous(), *ADD), "different orders in memory"),
    "addition of int16": ("quantized_add", (X.to(torch.int16), *ADD), "the first input must be int8, but is int16"),
    "zero point out of range": ("quantized_add", (X, *changed(ADD, 0, -129)), "a zero point is -129, but must be from"),
    "division of shapes": ("quantized_div", (X, 0, X.to(torch.int16), 0, 0, 1.0), "the second input must be int8"),
    "division by a scale of 0": (
        "quantized_div",
        (X, 0, X, 0, 0, 0.0),
        "the scale is 0.000000, but must be a positive float32",
    ),
    "minimum of float32": ("minimum", (X.float(), X.float()), "the inputs must be int8 or int32, but one is float32"),
    "maximum of images": ("maximum", (X, X), r"the first input, int8 \[1, 6, 5, 4\], must be contiguous"),
    "maximum of two layouts": ("maximum", (X.contiguous(), X), r"the second input, int8 .*, must be contiguous"),
    "minimum of two types": ("minimum", (X.int(), X), "the second input must be int32, but is int8"),
    "minimum of rank 5": ("minimum", (int8(1, 2, 1, 2, 2), int8(1, 2, 1, 2, 2)), "takes at most 4"),
    "transposition of an image": ("transpose", (X, [0, 2, 3, 1]), "the input, int8 .*, must be contiguous"),
    "transposition of int32": (
        "transpose",
        (X.int().contiguous(), [0, 2, 3, 1]),
        "the input must be int8, but is int32",
    ),
    "linear of an image": (
        "quantized_linear",
        (image(1, 3, 2, 31), int8(9, 31), None, None, 0, 0, 0, [1], [0], 127, -128),
        "the input, int8 .*, must be contiguous",
    ),
    "two multipliers": (
        "quantized_linear",
        (int8(1, 31), int8(2, 31), None, None, 0, 0, 0, [1, 1], [0, 0], 127, -128),
        "there must be one multiplier and one shift, but there are 2 and 2",
    ),
    "bias and kernel sum": (
        "quantized_linear",
        (int8(1, 31), int8(2, 31), bias(2), bias(2).reshape(1, 2), 0, 0, 0, [1], [0], 127, -128),
        "bias and kernel_sum are both given",
    ),
    "softmax over rows of an image": (
        "softmax",
        (X, -1, 0, -128, *cases.softmax_arguments(0.1)),
        "axis -1 of the input, .* must be the innermost",
    ),
    "softmax with negative shift": (
        "softmax",
        (int8(2, 4), -1, 0, -128, 1 << 30, -1, -5),
        "the shift of the input is -1",
    ),
    "softmax of 512 equal numbers": (
        "softmax",
        (torch.zeros(1, 512, dtype=torch.int8), -1, 0, -128, *cases.softmax_arguments(0.1)),
        "sum up to 512 or more, .* Try: fewer classes",
    ),
    "quantization of int32": (
        "quantize_per_tensor",
        (X.int(), 0.1, 0, -128, 127, torch.int8),
        "the input must be float32, but is int32",
    ),
    "quantization to uint8": (
        "quantize_per_tensor",
        (X.float(), 0.1, 0, 0, 255, torch.uint8),
        "the output must be int8 or int16, but is uint8",
    ),
    "quantization beyond the type": (
        "quantize_per_tensor",
        (X.float(), 0.1, 0, -129, 127, torch.int8),
        "quant_min is -129, but must be from -128 to 127",
    ),
}


def test_a_type_that_the_plan_gives_otherwise_is_seen_before_the_kernel_runs() -> None:
    with pytest.raises(PayloadError, match="has a int8 tensor where `dtype` says int16"):
        run("dequantize_per_tensor", (X, 0.1, 0, -128, 127, torch.int16))


@pytest.mark.parametrize(("operator", "arguments", "sentence"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_a_sentence(operator: str, arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(
        PayloadError, match=f"failed in method 'forward': cortex_m::{re.escape(operator)}: .*{sentence}"
    ):
        run(operator, arguments)


def test_a_refusal_leaves_the_program_usable() -> None:
    arguments = (int8(1, 512), -1, 0, -128, *cases.softmax_arguments(0.1))
    program, x = program_of("softmax", arguments), arguments[0]
    with pytest.raises(PayloadError, match="sum up to 512 or more"):
        program.run(torch.zeros_like(x))
    (y,) = program.run(x)
    assert torch.equal(y, call_reference("softmax", arguments))
    with pytest.raises(ModelError, match="sum up to 512 or more"):
        call_reference("softmax", (torch.zeros_like(x), *arguments[1:]))


def test_contiguous_input_of_a_channels_last_program_is_refused() -> None:
    program, inputs = program_of("quantized_conv2d", CONVOLUTION), tensors_of(CONVOLUTION)
    with pytest.raises(ModelError, match=r"another memory layout than the program, .* compiled for channels-last"):
        program.run(X.contiguous(), *inputs[1:])


@functools.cache
def convolution_pte() -> bytes:
    """A convolution whose tensors are all constants or planned memory, but for the image."""

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number, argument in enumerate(CONVOLUTION):
                if isinstance(argument, torch.Tensor) and number:
                    self.register_buffer(f"x{number}", argument)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rest = [getattr(self, f"x{number}", argument) for number, argument in enumerate(CONVOLUTION)]
            return torch.ops.cortex_m.quantized_conv2d(x, *rest[1:])

    return exported(Call(), (CONVOLUTION[0],))


def damaged_runs(change: Any) -> Iterator[str]:
    """What the stock runtime says of programs with one argument changed, one after the other.

    Args:
        change: is given the values of the plan, the arguments of the call, and the number of the argument.
    """
    from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary
    from executorch.runtime import Runtime

    plugin = load_plugin()
    for number in range(len(CONVOLUTION) + 1):
        file = deserialize_pte_binary(convolution_pte())
        plan = file.program.execution_plan[0]
        instructions = [i.instr_args for chain in plan.chains for i in chain.instructions]
        (call,) = (i for i in instructions if type(i).__name__ == "KernelCall")
        if not change(plan.values, call.args, number):
            continue
        plugin.clear_error()
        # Only the plug-in stands between this plan and its kernel: micronpu's own checks are not asked.
        method = Runtime.get().load_program(bytes(serialize_pte_binary(file))).load_method("forward")
        with pytest.raises(RuntimeError):
            method.execute([CONVOLUTION[0]])
        failure = plugin.take_error()
        assert failure is not None, number
        yield failure.sentence


def test_arguments_of_another_kind_are_sentences() -> None:
    from executorch.exir.schema import EValue, Null, String

    def change(values: Any, args: list[int], number: int) -> bool:
        optional = number < len(CONVOLUTION) and type(values[args[number]].val).__name__ == "Null"
        values.append(EValue(String("x") if optional or number == 2 else Null()))
        args[number] = len(values) - 1
        return True

    sentences = list(damaged_runs(change))
    assert len(sentences) == len(CONVOLUTION) + 1
    for number, sentence in enumerate(sentences):
        assert f"quantized_conv2d: argument {number} must be " in sentence


def test_missing_arguments_are_sentences() -> None:
    def change(values: Any, args: list[int], number: int) -> bool:
        del args[number:]
        return True

    for number, sentence in enumerate(damaged_runs(change)):
        assert f"it is called with {number} arguments, but has {len(CONVOLUTION) + 1}" in sentence


def test_tensors_without_memory_are_sentences() -> None:
    seen = []

    def change(values: Any, args: list[int], number: int) -> bool:
        tensor = values[args[number]].val
        if type(tensor).__name__ != "Tensor" or number in (0, len(CONVOLUTION)):  # these are given by the caller
            return False
        tensor.data_buffer_idx, tensor.allocation_info = 0, None
        seen.append(number)
        return True

    sentences = list(damaged_runs(change))
    assert len(seen) >= 4
    for number, sentence in zip(seen, sentences, strict=True):
        assert f"argument {number} must be a tensor with memory" in sentence
