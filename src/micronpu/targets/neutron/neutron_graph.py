"""The program inside a converted LiteRT model: read and check the single NeutronGraph operator.

    inputs of the operator      the program's inputs ... , microcode, weights, kernels
    outputs of the operator     the program's outputs ... , scratch                         payload version 0
                                the program's outputs ... , scratch, profile, debug         payload version 1

Microcode words with a published meaning (32 bits, little-endian): [0] magic, [6] size of the microcode, [7] size of the
weights, then the numbers of inputs and outputs in [11] and [12] (version 0) or [13] and [14] (version 1).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass

from micronpu.base.errors import ConverterError, ModelError, NothingLeftError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.base.texts import plural
from micronpu.container.litert_view import UINT8, ModelView, OperatorView, TensorView, read_model
from micronpu.container.payload import SILICON_MAGIC

CUSTOM_CODE = "NeutronGraph"
_SECTIONS = ("microcode", "weights", "kernels")
_EXTRA_OUTPUTS = {1: 0, 3: 1}  # outputs after the program's own: payload version
_COUNT_WORDS = {0: 11, 1: 13}  # payload version: word with the number of inputs


def _broken(what: str) -> ConverterError:
    hint = "report this to the vendor with the model and the log, which `intermediates_dir` keeps"
    return ConverterError(what, hint=hint)


@dataclass(frozen=True)
class NeutronProgram:
    """Contents of a NeutronGraph operator: its sections without padding; for each of its inputs and outputs, the index
    in the original model; and the payload's version."""

    microcode: bytes
    weights: bytes
    kernels: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    payload_version: int


def read_program(converted: bytes, original: bytes) -> NeutronProgram:
    """Extract the program from a converted LiteRT model; raise `ConverterError` if it is inconsistent with the
    original."""
    try:
        model = read_model(converted)
    except CorruptFlatbufferError as error:
        raise _broken(
            f"The Neutron converter gave {len(converted)} bytes that are not a LiteRT model: {error}."
        ) from error
    try:
        source = read_model(original)
    except CorruptFlatbufferError as error:
        raise ModelError(
            f"The Neutron converter needs a LiteRT model, and the bytes are none: {error}.",
            hint="pass the contents of a .tflite file",
        ) from error
    operator = _only_operator(model)
    version = _payload_version(operator, len(source.outputs))
    real_inputs = operator.inputs[:-3]
    real_outputs = operator.outputs[: len(source.outputs)]
    tensors = [_section(model, index, name) for index, name in zip(operator.inputs[-3:], _SECTIONS, strict=True)]
    microcode, weights = _sized(tensors[0].data, tensors[1].data)
    _check_counts(microcode, version, len(real_inputs), len(real_outputs))
    _check_extra(model, operator, len(source.outputs))
    inputs = _matched(model, model.inputs, source, source.inputs, "input")
    outputs = _matched(model, model.outputs, source, source.outputs, "output")
    _check_unread(source, set(inputs.values()))
    return NeutronProgram(
        microcode,
        weights,
        tensors[2].data,
        tuple(_position(model, inputs, index, "reads", "input") for index in real_inputs),
        _once(tuple(_position(model, outputs, index, "writes", "output") for index in real_outputs), source),
        version,
    )


def _only_operator(model: ModelView) -> OperatorView:
    ours = [o for o in model.operators if o.name == CUSTOM_CODE]
    others = Counter(o.name for o in model.operators if o.name != CUSTOM_CODE)
    if others:
        names = ", ".join(f"{count} x {name}" for name, count in sorted(others.items()))
        raise ConverterError(
            f"The Neutron converter left operators over that the NPU does not take: {names}; a partition must become "
            f"exactly one {CUSTOM_CODE}.",
            hint='an older rule set with converter_flavor="SDK_25_12", or operators_not_to_delegate with the ATen '
            "operators behind these",
        )
    if not ours:
        raise NothingLeftError(
            f"The Neutron converter returned an empty partition: its model has no {CUSTOM_CODE} operator.",
            hint="leave the operators of the partition to the host with operators_not_to_delegate",
        )
    if len(ours) > 1:
        raise ConverterError(
            f"The Neutron converter cut the partition into {len(ours)} {CUSTOM_CODE} operators; a payload holds one.",
            hint="operators_not_to_delegate with an operator between them",
        )
    operator = ours[0]
    if len(operator.inputs) < len(_SECTIONS):
        raise _broken(
            f"The {CUSTOM_CODE} operator has {plural(len(operator.inputs), 'input')}, but microcode, weights and "
            "kernels alone are three."
        )
    return operator


def _payload_version(operator: OperatorView, outputs: int) -> int:
    extra = len(operator.outputs) - outputs
    if extra not in _EXTRA_OUTPUTS:
        raise _broken(
            f"The {CUSTOM_CODE} operator has {plural(len(operator.outputs), 'output')} where the partition has "
            f"{outputs}: one more (scratch) or three more (scratch, profile, debug) are expected."
        )
    return _EXTRA_OUTPUTS[extra]


def _section(model: ModelView, index: int, name: str) -> TensorView:
    """Return one of the three constants; only the kernels may be empty."""
    if index < 0:
        raise _broken(f"The {CUSTOM_CODE} operator comes without its {name}.")
    tensor = model.tensors[index]
    if index in model.inputs or index in model.outputs:
        raise _broken(
            f"The {name} of the {CUSTOM_CODE} operator are an input or output of the model instead of a constant."
        )
    size = math.prod(tensor.shape)
    if tensor.type != UINT8 or size != len(tensor.data):
        raise _broken(
            f"The {name} of the {CUSTOM_CODE} operator are declared as {tensor}, but hold {len(tensor.data)} bytes."
        )
    return tensor


def _sized(microcode: bytes, weights: bytes) -> tuple[bytes, bytes]:
    """Return microcode and weights without padding, by the sizes in the microcode."""
    if len(microcode) < 60 or int.from_bytes(microcode[:4], "little") != SILICON_MAGIC:
        raise _broken(
            f"The {len(microcode)} bytes of microcode do not begin as Neutron microcode does: the first word is "
            f"0x{int.from_bytes(microcode[:4], 'little'):08x}, not 0x{SILICON_MAGIC:08x}, or the head is cut short."
        )
    sizes = struct.unpack_from("<2I", microcode, 24)
    sections = []
    for name, section, size in zip(_SECTIONS, (microcode, weights), sizes, strict=False):
        # A buffer may end in padding, but not in data that the board would ignore.
        if size > len(section) or any(section[size:]):
            raise _broken(f"The microcode announces {size} bytes of {name}, but it came with {len(section)}.")
        sections.append(section[:size])
    if len(sections[0]) < 60:
        raise _broken(f"The microcode announces {sizes[0]} bytes, fewer than its header has.")
    return sections[0], sections[1]


def _check_counts(microcode: bytes, version: int, inputs: int, outputs: int) -> None:
    counted = struct.unpack_from("<2I", microcode, 4 * _COUNT_WORDS[version])
    if counted != (inputs, outputs):
        raise _broken(
            f"The microcode counts {plural(counted[0], 'input')} and {plural(counted[1], 'output')} where the "
            f"{CUSTOM_CODE} operator has {inputs} and {outputs}."
        )


def _check_extra(model: ModelView, operator: OperatorView, outputs: int) -> None:
    """Check that scratch, profile and debug buffers are not inputs, outputs or constants of the model."""
    for index, name in zip(operator.outputs[outputs:], ("scratch", "profile", "debug"), strict=False):
        if index in model.inputs or index in model.outputs or model.tensors[index].data:
            raise _broken(
                f"The {name} buffer of the {CUSTOM_CODE} operator is an input, output or constant of the model."
            )


def _matched(
    model: ModelView, given: tuple[int, ...], source: ModelView, wanted: tuple[int, ...], what: str
) -> dict[int, int]:
    """Map tensors of the converted model to positions in the original, for all inputs or all outputs.

    By name if the names are unchanged, which detects a new order; by position if the converter has renamed them.
    Shapes, element types and quantization must equal those of the original.
    """
    names = [model.tensors[i].name for i in given]
    originals = [source.tensors[i].name for i in wanted]
    unique = len(set(names)) == len(names) and len(set(originals)) == len(originals)
    if unique and set(names) <= set(originals):
        pairs = [(index, originals.index(name)) for index, name in zip(given, names, strict=True)]
    elif len(given) == len(wanted):
        pairs = [(index, position) for position, index in enumerate(given)]
    else:
        raise _broken(f"The converted model has {len(given)} {what}s where the partition has {len(wanted)}.")
    for index, position in pairs:
        new, old = model.tensors[index], source.tensors[wanted[position]]
        requantized = bool(new.scale) and (new.scale, new.zero_point) != (old.scale, old.zero_point)
        if new.shape != old.shape or new.type != old.type or requantized:
            raise _broken(
                f"The converter changed {what} {position} of the partition, `{old.name}`, from {old} to {new}."
            )
    return dict(pairs)


def _check_unread(source: ModelView, known: set[int]) -> None:
    """A converter may drop unread inputs only."""
    read = {index for operator in source.operators for index in operator.inputs} | set(source.outputs)
    for position, index in enumerate(source.inputs):
        if position not in known and index in read:
            raise _broken(
                f"The converted model has lost input {position} of the partition, `{source.tensors[index].name}`, "
                "which the partition reads."
            )


def _position(model: ModelView, known: dict[int, int], index: int, verb: str, what: str) -> int:
    if index not in known:
        name = model.tensors[index].name if index >= 0 else "nothing"
        raise _broken(f"The {CUSTOM_CODE} operator {verb} `{name}`, which is no {what} of the partition.")
    return known[index]


def _once(outputs: tuple[int, ...], source: ModelView) -> tuple[int, ...]:
    if sorted(outputs) != list(range(len(source.outputs))):
        raise _broken(
            f"The {CUSTOM_CODE} operator writes the outputs {sorted(outputs)} of the partition, which has "
            f"{len(source.outputs)}, each to be written once."
        )
    return outputs
