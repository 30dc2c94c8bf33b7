"""Models in files of other tools: LiteRT (`.tflite`) and ONNX (`.onnx`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.files import check_name, read_file
from micronpu.frontend.export import as_inputs, called_by_name, input_names, rows_in_order
from micronpu.frontend.facts import COMPARED, INTEGER_IO, KEEPS_INTEGERS, LEFT_OUT, NOT_COMPARED
from micronpu.frontend.integers import stated_io, to_integer_io
from micronpu.frontend.model_files import own_runtime
from micronpu.frontend.model_files.budget import reading
from micronpu.frontend.model_files.metadata import of_litert
from micronpu.frontend.model_files.network import Network, Shapes
from micronpu.frontend.model_files.own_runtime import OwnRuntime, RuntimeRefusalError, calls_of
from micronpu.frontend.model_files.recorder import FileModel, exported
from micronpu.program.file_facts import clean

SUFFIXES = (".tflite", ".onnx")
Started = Callable[[], AbstractContextManager[OwnRuntime]]
"""Starts the runtime of a file; ends it when the context ends."""


def is_model_file(model: object) -> bool:
    """Return True for a path with the suffix of a model file."""
    return isinstance(model, (str, os.PathLike)) and Path(model).suffix.lower() in SUFFIXES


def read_model(
    path: str | os.PathLike[str], shapes: Shapes = (), *, verify_import: bool = True, calibration: object = None
) -> FileModel:
    """Read a LiteRT or ONNX file, and compare the module with the file's own runtime.

    Args:
        shapes: of the inputs, in order or by name, if the file leaves sizes open.
        verify_import: False not to run the file: for one that its runtime cannot run.
        calibration: inputs in order, some of which are used for the comparison beside random ones.

    Raises:
        FileError: it cannot be read.
        ImportMismatchError: the runtime computes other results.
        ModelError, UnsupportedError: it is damaged, or has an unsupported operator, which the message names.
        OptionError: `shapes` or `verify_import` is invalid.
    """
    name = check_name(path)
    check_switch("verify_import", verify_import)
    _check_shapes(shapes)
    if name.suffix.lower() not in SUFFIXES:
        raise ModelError(f"{name} is no model file.", hint=f"a file that ends in {' or '.join(SUFFIXES)}")
    data = read_file(name, "The model")
    with reading(name, "is damaged, or has a form that is not read"):
        return _read(data, name, shapes, verify_import, calibration)


def _read(data: bytes, name: Path, shapes: Shapes, verify: bool, calibration: object) -> FileModel:
    if name.suffix.lower() == ".onnx":
        from micronpu.frontend.model_files.onnx import read_onnx
        from micronpu.frontend.model_files.onnx_runtime import OnnxRuntime

        network = read_onnx(data, name, shapes)
        started = partial(OnnxRuntime, data, name, network) if verify else None
        read = _read_with(network, name, started, calibration)
        INTEGER_IO.say(read.module, stated_io(read.module))
        return read
    from micronpu.frontend.model_files.litert import parse
    from micronpu.frontend.model_files.litert_graph import network_of
    from micronpu.frontend.model_files.litert_runtime import LiteRtRuntime, sizes_of

    file = parse(data, sizes_of(parse(data, {}), data, shapes)) if shapes else parse(data)
    network = network_of(file)
    named = replace(network.file_facts, outputs=tuple(clean(tensor.name) for tensor in file.outputs))
    network.file_facts = of_litert(file.metadata, data, named)
    runtime = partial(LiteRtRuntime, file, data, network.keys)
    read = _read_with(network, name, runtime if verify else None, calibration)
    for node in read.module.graph.nodes if file.is_quantized else ():
        KEEPS_INTEGERS.say(node, True)
    if not file.is_quantized or not file.has_integer_io:
        return read
    integer_io = to_integer_io(read.module, as_bytes=file.bytes)
    INTEGER_IO.say(read.module, integer_io)
    return replace(read, examples=integer_io.quantize(read.examples))


def _read_with(network: Network, name: Path, started: Started | None, calibration: object) -> FileModel:
    """Return a network as a module, with a note why it could not be compared with its file's runtime.

    Args:
        started: returns the runtime as a context; None not to compare.
    """
    module = exported(network, name)
    LEFT_OUT.say(module, network.left_out)
    if started is None:
        NOT_COMPARED.say(module, "because `verify_import` is off: whether it computes what the file says is unknown.")
    else:
        try:
            with started() as runtime:
                own_runtime.verify_import(network, runtime, calls_of(calibration, network))
                COMPARED.say(module, runtime.title)
        except RuntimeRefusalError as error:
            NOT_COMPARED.say(module, f"which cannot run the file. {error.what}")
    return FileModel(module, network.examples(), network.input_names)


def _check_shapes(shapes: Any) -> None:
    rows = list(shapes.values()) if isinstance(shapes, Mapping) else shapes
    plain = isinstance(rows, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in rows)
    if not plain or not all(isinstance(size, int) and size > 0 for row in rows for size in row):
        raise OptionError(
            f"`shapes` is {described(shapes)}.", hint='[(1, 3, 48, 192)], or by name {"input": (1, 3, 48, 192)}'
        )


def opened(model: Any, example_inputs: Any, calibration: object, verify_import: bool = True) -> tuple[Any, Any, Any]:
    """Return the model argument of `micronpu.compile` as a module, with inputs and calibration data in the same order.

    Args:
        model: a module or program, or the path of a file.
        example_inputs: in order or by name; for a file None, or inputs of the sizes that it leaves open.
        verify_import: False not to compare a file with its runtime.
    """
    by_name = isinstance(example_inputs, Mapping)
    if is_model_file(model):
        shapes: Shapes = ()
        if example_inputs is not None:
            given = [tuple(t.shape) for t in as_inputs(tuple(example_inputs.values()) if by_name else example_inputs)]
            shapes = dict(zip(example_inputs, given, strict=True)) if by_name else given
        file = read_model(model, shapes, verify_import=verify_import, calibration=calibration)
        examples = _laid_out(file.examples, as_inputs(example_inputs)) if shapes and not by_name else file.examples
        return file.module, examples, rows_in_order(calibration, file.names)
    if not by_name:
        names = input_names(model)
        return model, example_inputs, rows_in_order(calibration, names) if names else calibration
    return *called_by_name(model, example_inputs), rows_in_order(calibration, example_inputs)


def _laid_out(examples: tuple[torch.Tensor, ...], given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the examples of a file in the memory layout of the caller's."""
    last = torch.channels_last
    return tuple(
        mine.contiguous(memory_format=last)
        if mine.ndim == 4 and not theirs.is_contiguous() and theirs.is_contiguous(memory_format=last)
        else mine
        for mine, theirs in zip(examples, given, strict=True)
    )
