"""Kernels that a program calls, and the source that registers only these.

Signatures come from text files of ExecuTorch and torch: the lists of portable and quantized kernels, torch's
`native_functions.yaml`, and the definitions of the backends' operators.  Nothing of them is imported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from micronpu.base.errors import UnsupportedError
from micronpu.base.installed import package_folder
from micronpu.program.plan import Plan
from micronpu.targets.firmware import KernelLibrary
from micronpu.targets.registry import core_libraries, core_library

_BY_RUNTIME = ("executorch_prim::",)
_BY_RUNTIME_OPS = (
    "aten::sym_size.int",
    "aten::sym_numel",
    "aten::sym_max.Scalar",
    "aten::sym_min.Scalar",
    "aten::_local_scalar_dense",
)
"""Operators that the runtime itself registers (`kernels/prim_ops`)."""

_HELPERS = ("kernels/portable/cpu/{util,pattern}/*.cpp",)
_QUANTIZED_FILES = {
    "quantize_per_tensor": "quantize",
    "quantize_per_channel": "quantize",
    "quantize_per_token": "quantize",
    "dequantize_per_tensor": "dequantize",
    "dequantize_per_channel": "dequantize",
    "dequantize_per_token": "dequantize",
    "embedding_byte": "embedding",
    "embedding_4bit": "embedding4b",
    "embedding_2bit": "embedding2b",
}
_EXECUTORCHS = (
    KernelLibrary(
        "quantized",
        "quantized_kernels",
        "kernels/quantized/cpu",
        "Quantized",
        build_option="-DEXECUTORCH_BUILD_KERNELS_QUANTIZED=ON",
        helpers=_HELPERS,
        files=_QUANTIZED_FILES,
    ),
    KernelLibrary("portable", "portable_kernels", "kernels/portable/cpu", "Portable", helpers=_HELPERS),
)
_AT = "executorch::aten::"
_TYPES = {
    "Tensor": (f"const {_AT}Tensor&", "toTensor()"),
    "Tensor?": (f"const std::optional<{_AT}Tensor>&", f"toOptional<{_AT}Tensor>()"),
    "Tensor[]": (f"{_AT}TensorList", "toTensorList()"),
    "Tensor?[]": (f"{_AT}ArrayRef<std::optional<{_AT}Tensor>>", "toListOptionalTensor()"),
    "int": ("int64_t", "toInt()"),
    "int?": ("std::optional<int64_t>", "toOptional<int64_t>()"),
    "int[]": (f"{_AT}ArrayRef<int64_t>", "toIntList()"),
    "int[]?": (f"{_AT}OptionalArrayRef<int64_t>", f"toOptional<{_AT}ArrayRef<int64_t>>()"),
    "float": ("double", "toDouble()"),
    "float?": ("std::optional<double>", "toOptional<double>()"),
    "float[]?": (f"{_AT}OptionalArrayRef<double>", f"toOptional<{_AT}ArrayRef<double>>()"),
    "bool": ("bool", "toBool()"),
    "bool?": ("std::optional<bool>", "toOptional<bool>()"),
    "Scalar": (f"const {_AT}Scalar&", "toScalar()"),
    "Scalar?": (f"const std::optional<{_AT}Scalar>&", f"toOptional<{_AT}Scalar>()"),
    "ScalarType": (f"{_AT}ScalarType", "toScalarType()"),
    "ScalarType?": (f"std::optional<{_AT}ScalarType>", f"toOptional<{_AT}ScalarType>()"),
    "Layout?": (f"std::optional<{_AT}Layout>", f"toOptional<{_AT}Layout>()"),
    "Device?": (f"std::optional<{_AT}Device>", f"toOptional<{_AT}Device>()"),
    "MemoryFormat?": (f"std::optional<{_AT}MemoryFormat>", f"toOptional<{_AT}MemoryFormat>()"),
    "str": ("std::string_view", "toString()"),
    "str?": ("std::optional<std::string_view>", "toOptional<std::string_view>()"),
    "out": (f"{_AT}Tensor&", "toTensor()"),
    "out[]": (f"{_AT}TensorList", "toTensorList()"),
}
"""C++ types of ExecuTorch's kernels by schema type, and the conversion from an `EValue`."""


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        operator: such as "aten::add.out".
        function: its C++ name, such as "torch::executor::native::add_out".
        arguments: type in the schema and name of each, without the context.
        library: name of the library, see `kernel_libraries`.
        source: stem of the file that holds it, without "op_".
    """

    operator: str
    function: str
    arguments: tuple[tuple[str, str], ...]
    library: str

    @property
    def returns(self) -> str:
        outs = [_TYPES[kind][0] for kind, _ in self.arguments if kind == "out"]
        if not outs:
            return "void"
        return outs[0] if len(outs) == 1 else f"std::tuple<{', '.join(outs)}>"

    @property
    def values(self) -> tuple[str, ...]:
        """The argument for each parameter, taken from the runtime's stack."""
        return ("context", *(f"stack[{i}]->{_TYPES[kind][1]}" for i, (kind, _) in enumerate(self.arguments)))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Type and name of each parameter in C++, the context first."""
        own = (f"{_TYPES[kind][0]} {name}" for kind, name in self.arguments)
        return ("executorch::runtime::KernelRuntimeContext& context", *own)


def kernel_libraries() -> dict[str, KernelLibrary]:
    """Return all libraries of kernels by name, each before those that it calls: the backends' first."""
    return {library.name: library for library in (*core_libraries(), *_EXECUTORCHS)}


def kernels_of(operators: Iterable[str]) -> tuple[Kernel, ...]:
    """Return the kernels that a firmware needs in addition to the runtime for some operators.

    Raises:
        UnsupportedError: ExecuTorch has no kernel for an operator.
    """
    return tuple(_kernel(o) for o in operators if not o.startswith(_BY_RUNTIME) and o not in _BY_RUNTIME_OPS)


def _kernel(operator: str) -> Kernel:
    namespace, _, name = operator.partition("::")
    own = core_library(namespace)
    if own is not None:
        schema = own.schemas().get(name)
        function, library = f"{namespace}::native::{name.replace('.', '_')}", own.name
    else:
        key = name if namespace == "aten" else operator
        function, library = _functions().get(key, ("", ""))
        schema = _schemas().get(key)
    if schema is None or not function:
        raise UnsupportedError(
            f"The program calls {operator}, for which ExecuTorch 1.5 has no kernel.",
            hint="register one of your own in the firmware, or express the operator by others",
        )
    return Kernel(operator, function, _arguments(schema), library)


def _arguments(schema: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in re.split(r",\s*(?![^\[\(]*[\]\)])", schema[schema.index("(") + 1 : schema.index(") ->")]):
        text = part.strip()
        if text in ("*", ""):
            continue
        kind, name = text.split("=")[0].rsplit(" ", 1)
        kind = re.sub(r"SymInt", "int", re.sub(r"\[\d+\]", "[]", kind))
        if "!" in kind:
            kind = "out[]" if kind.endswith("[]") else "out"
        if kind not in _TYPES:
            raise UnsupportedError(
                f"An argument of {schema.split('(')[0]} has the type {kind}, for which no registration is written.",
                hint="ExecuTorch's own selective build with the selected_operators.yaml of another program",
            )
        found.append((kind, name))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _texts() -> tuple[tuple[str, str], ...]:
    """Return library and text of each list of kernels."""
    folder = package_folder("executorch", "kernels")
    files = (("portable", "functions.yaml"), ("portable", "custom_ops.yaml"), ("quantized", "quantized.yaml"))
    return tuple((library, (folder / library / name).read_text(encoding="utf-8")) for library, name in files)


@functools.lru_cache(maxsize=1)
def _functions() -> dict[str, tuple[str, str]]:
    """Return C++ name and library by operator."""
    found = {}
    pattern = re.compile(r"^- (?:op|func): ([\w:.]+).*?kernel_name: ([\w:]+)", re.MULTILINE | re.DOTALL)
    for library, text in _texts():
        for entry in re.split(r"^(?=- )", text, flags=re.MULTILINE):
            match = pattern.match(entry)
            if match:
                space, _, name = match[2].rpartition("::")
                found[match[1]] = (f"{space}::native::{name}", library)
    return found


@functools.lru_cache(maxsize=1)
def _schemas() -> dict[str, str]:
    """Return schema by operator; those of ExecuTorch's own lists override torch's."""
    native = package_folder("torchgen", "packaged", "ATen", "native") / "native_functions.yaml"
    found: dict[str, str] = {}
    for text in (native.read_text(encoding="utf-8"), *(text for _, text in _texts())):
        for entry in re.split(r"^(?=- )", text, flags=re.MULTILINE):
            match = re.match(r"- func: (([\w:.]+)\(.*)$", entry, re.MULTILINE)
            if match:
                found[match[2]] = match[1]
                generated = re.search(r"^  autogen: (.*)$", entry, re.MULTILINE)
                for name in generated[1].split(", ") if generated else ():
                    found[name] = _with_out(match[1])  # for an in-place operator the functional form's
    return found


def _with_out(schema: str) -> str:
    """Return the schema of the out variant that torch derives from a functional operator."""
    schema = schema.replace("Tensor(a!) self", "Tensor self")
    if "Layout?" in schema:  # the given tensor determines the tensor options
        schema = re.sub(
            r", (?:ScalarType\??|Layout\?|Device\?|bool\?) (?:dtype|layout|device|pin_memory)=None", "", schema
        )
    start = schema.index(") ->")
    results = schema[start:].count("Tensor") or 1
    outs = ["out"] if results == 1 else [f"out{i}" for i in range(results)]
    if schema[start:].startswith(") -> Tensor[]"):
        return schema[:start] + ", Tensor(a!)[] out) -> ()"
    return schema[:start] + ", " + ", ".join(f"Tensor(a!) {o}" for o in outs) + ") -> ()"


def kernel_keys(plan: Plan, operator: str) -> set[str]:
    """Return keys of an operator's kernels, such as ``v1/6;0,1|1;0,1``: type and order of axes of each tensor."""
    found = set()
    for call in plan.calls:
        if call.operator == operator:
            tensors = [t for t in (plan.values[i].tensor for i in call.arguments) if t is not None]
            found.add("v1/" + "|".join(f"{t.scalar_type};{','.join(map(str, t.dim_order))}" for t in tensors))
    return found
