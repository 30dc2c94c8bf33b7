"""Input files of the command: models and calibration data from Python files, saved programs, and arrays."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, TYPE_CHECKING, Any

from micronpu.base import timing
from micronpu.base.errors import ErrorsAs, FileError, MicroNpuError, ModelError, first_line, reason
from micronpu.base.files import check_name
from micronpu.base.texts import plural
from micronpu.cli.archive import load_archive
from micronpu.cli.console import ProgressCallback
from micronpu.cli.named_models import OF_TORCHVISION, OTHER_TORCH, is_named, load_named

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Array = npt.NDArray[np.generic]

_REBUILD = (
    "a function in net.py that builds the module and loads its weights, model.load_state_dict(torch.load(FILE, "
    "weights_only=True)), or of TorchScript torch.jit.load(FILE).state_dict(); it returns (model.eval(), inputs): "
    "net.py:FUNCTION"
)
MODEL_FORMS = "path/to/file.py:function, a file .tflite, .onnx or .pt2, or timm:NAME or torchvision:NAME"


@dataclass(frozen=True)
class Model:
    """A model given on the command line.

    Attributes:
        module: `torch.nn.Module` or `torch.export.ExportedProgram`.
        examples: its example inputs.
        name: name that the output file is derived from.
        file: Python file of the model; None for a saved program.
    """

    module: Any
    examples: tuple[torch.Tensor, ...]
    name: str
    file: UserFile | None

    @property
    def is_quantized(self) -> bool:
        """True for a module that needs no calibration data."""
        from micronpu.frontend.exported import is_quantized

        return is_quantized(self.module)


class _Uncached(SourceFileLoader):
    """Compiles the source each time: a cache would lie beside the user's file, and misses a change within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class UserFile:
    """A Python file of the user, imported with its folder on `sys.path`."""

    def __init__(self, path: Path) -> None:
        self.path = check_name(path)
        self._place = path.resolve()  # resolved now, because the user's code may delete the current folder
        if not path.is_file():
            hint = "check the path" if not path.exists() else f"a file in it, {path / 'model.py'}:function"
            raise ModelError(f"There is no file {path}." if not path.exists() else f"{path} is a folder.", hint=hint)
        with self.guard(f"{path} cannot be imported"):
            self.module = self._load()

    def _load(self) -> ModuleType:
        # Under its own name, unless a library has it, so that the user's helpers that import it get the same module.
        name = self.path.stem
        if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names or _is_installed(name):
            name = f"_micronpu_{name}"
        if self.path.suffix != ".py":
            raise ModelError(f"{self.path} is no Python file.", hint=MODEL_FORMS)
        loader = _Uncached(name, str(self.path))
        spec = importlib.util.spec_from_file_location(name, self.path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def is_at(self, path: Path) -> bool:
        """Return True if a path leads to this file."""
        return path.resolve() == self._place

    def has(self, name: str) -> bool:
        return callable(getattr(self.module, name, None))

    def call(self, name: str) -> Any:
        """Return the result of a function of the file, or the value if the name is no function."""
        if not hasattr(self.module, name):
            own = {n: v for n, v in vars(self.module).items() if inspect.isfunction(v) and not n.startswith("_")}
            functions = [n for n, value in own.items() if value.__module__ == self.module.__name__]
            hint = f"one of {', '.join(functions)}" if functions else "define it"
            raise ModelError(f"{self.path} has no function {name!r}.", hint=hint)
        value = getattr(self.module, name)
        if not callable(value):
            return value
        try:
            inspect.signature(value).bind()
        except TypeError as error:
            raise ModelError(
                f"`{name}` of {self.path} cannot be called without arguments: {error}.",
                hint="a function without arguments, or with defaults for all of them",
            ) from error
        except ValueError:
            pass  # a builtin without a signature
        with self.guard(f"`{name}` of {self.path} raised an error"):
            return value()

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Let the user's code import modules of its folder; messages of its errors start with ``what``."""
        folder = str(self._place.parent)
        sys.path.insert(0, folder)
        try:
            yield
            self._check_surroundings()
        except (MicroNpuError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # including exceptions of the user's classes
            said = ": ".join(filter(None, (type(error).__name__, first_line(error))))
            hint = OTHER_TORCH if OF_TORCHVISION in said else "--debug, which shows the traceback"
            raise ModelError(f"{what}{self._line(error)}: {said}.", hint=hint) from error
        finally:
            if folder in sys.path:
                sys.path.remove(folder)

    def _check_surroundings(self) -> None:
        """Check that the user's code has not closed or deleted what the command needs."""
        for stream, number in (("stdout", 1), ("stderr", 2)):
            try:
                os.fstat(number)
            except OSError as error:
                setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
                hint = f"leave out os.close({number})"
                raise ModelError(f"{self.path} closes the command's sys.{stream}.", hint=hint) from error
            if getattr(sys, stream).closed:  # of Python alone
                setattr(sys, stream, open(number, "w", closefd=False))  # noqa: SIM115 (the same)
        try:
            os.getcwd()
        except OSError as error:
            raise ModelError(
                f"{self.path} deletes the folder that the command was started in.", hint="leave it where it is"
            ) from error

    def _line(self, error: BaseException) -> str:
        """Return the place of an error in the file, as the end of a clause."""
        here = self._place
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == here:
            return f" in line {error.lineno}"
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == here]
        return f" in line {frames[-1].lineno}" if frames else ""


def _is_installed(name: str) -> bool:
    """Return True if a package of this name is installed, even if it is not imported yet."""
    folders = [f for f in sys.path if Path(f).name in ("site-packages", "dist-packages")]
    return PathFinder.find_spec(name, folders) is not None


@timing.step("load")
def load_model(text: str, verify_import: bool = True) -> Model:
    """Return the model that ``text`` names; one of a LiteRT or ONNX file is compared with the file's runtime."""
    if text.endswith(".pt2"):
        return _load_program(Path(text))
    if is_named(text):
        return Model(*load_named(text), None)
    if (found := model_file(text)) is not None:
        from micronpu.frontend.model_files import read_model

        read = read_model(*found, verify_import=verify_import)
        return Model(read.module, read.examples, found[0].stem, None)
    if text.endswith(".pte"):
        what = f"{text} is a compiled program, and the model is expected in its place."
        raise ModelError(what, hint=f"the model that it was made of, before a program: {MODEL_FORMS}")
    path, colon, function = text.rpartition(":")
    if not colon or not path or not function.isidentifier():
        hint = f"{text}:FUNCTION" if text.endswith(".py") else MODEL_FORMS
        if text.endswith((".pt", ".pth", ".ckpt")):
            raise ModelError(f"{text!r} is a pickle or TorchScript, which is not loaded.", hint=_REBUILD)
        raise ModelError(f"{text!r} names no model.", hint=hint)
    file = UserFile(Path(path))
    return Model(*_pair(file.call(function), f"`{function}` of {path}"), function, file)


def model_file(text: str) -> tuple[Path, dict[str, list[int]]] | None:
    """Return the file that ``text`` names, and shapes of its inputs; None if it names no model file.

    Args:
        text: PATH or PATH:INPUT=1x3x48x192,...
    """
    found = re.search(r"\.(?:tflite|onnx)(?=:|$)", text, re.IGNORECASE)
    if found is None:
        return None
    path, sizes = text[: found.end()], text[found.end() + 1 :]
    shapes: dict[str, list[int]] = {}
    for part in filter(None, sizes.split(",")):
        name, _, size = part.rpartition("=")
        if not re.fullmatch(r"\d+(x\d+)*", size) or not name:
            raise ModelError(f"{part!r} is no shape of an input.", hint=f"{path}:INPUT=1x3x48x192")
        shapes[name] = [int(n) for n in size.split("x")]
    return check_name(Path(path)), shapes


def check_libraries(libraries: Sequence[str] | None) -> None:
    """Refuse libraries that cannot be imported, without importing them."""
    for path in map(Path, libraries or ()):
        if not check_name(path).is_file():
            raise ModelError(f"There is no file {path}.", hint="check the path")
        if path.suffix != ".py":
            raise ModelError(f"{path} is no Python file.", hint="a file .py that registers operators")


def register(libraries: Sequence[str] | None) -> None:
    """Import files of the user that register custom operators."""
    for path in libraries or ():
        UserFile(Path(path))


def load_with(
    libraries: Sequence[str] | None, text: str, callback: ProgressCallback, verify_import: bool = True
) -> Model:
    """Import the user's libraries and return the model that ``text`` names; begins the step "load"."""
    callback("load", 0.0)
    register(libraries)
    return load_model(text, verify_import)


def _pair(result: object, what: str) -> tuple[object, tuple[torch.Tensor, ...]]:
    import torch

    from micronpu.frontend.export import called_by_name

    hint = "return model.eval(), (torch.randn(1, 3, 32, 32),)"
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        kind = plural(len(result), "value") if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
        raise ModelError(f"{what} returns {kind}, not a pair of the model and its example inputs.", hint=hint)
    model, examples = result
    if not isinstance(model, (torch.nn.Module, torch.export.ExportedProgram)):
        raise ModelError(f"{what} returns a {type(model).__name__} where the torch.nn.Module is expected.", hint=hint)
    if isinstance(examples, Mapping) and examples and isinstance(model, torch.nn.Module):
        model, examples = called_by_name(model, examples)
    values = (examples,) if isinstance(examples, torch.Tensor) else examples
    if not isinstance(values, (tuple, list)) or not values or not all(isinstance(v, torch.Tensor) for v in values):
        kind = type(examples).__name__
        if isinstance(values, (tuple, list)):
            kind = f"{kind} of {', '.join(type(v).__name__ for v in values) or 'nothing'}"
        raise ModelError(f"{what} returns as example inputs a {kind}, not a tuple of tensors.", hint=hint)
    return model, tuple(values)


def _load_program(path: Path) -> Model:
    import micronpu.quantize  # noqa: F401  (registers the operators that a quantized program calls)

    if not check_name(path).is_file():
        raise ModelError(f"There is no file {path}.", hint="check the path")
    program = load_archive(path)
    given = program.example_inputs
    if given is None or given[1] or not given[0]:
        raise ModelError(
            f"{path} holds no example inputs that are positional.",
            hint="torch.export.export(model, (x, ...)) with all inputs in the tuple, then torch.export.save",
        )
    return Model(program, tuple(given[0]), path.stem, None)


class CalibrationInputs:
    """Calibration data, loaded on first use; a model that is quantized already needs none.

    Args:
        source: name in messages.
        load: returns the inputs.
        guard: makes the context for running the user's code, which turns its errors into messages.

    Attributes:
        used: number of inputs taken from it; None before.
        name: its text on the command line; "" if no option names it.
    """

    def __init__(
        self,
        source: str,
        load: Callable[[], Any],
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        name: str = "",
    ) -> None:
        self.source, self.name, self._load, self._guard = source, name, load, guard
        self.used: int | None = None
        self._keeps = False
        self._kept: list[Any] | None = None

    def keep(self) -> CalibrationInputs:
        """Read the data once, even if they are used several times, and return them."""
        self._keeps = True
        return self

    def __iter__(self) -> Iterator[Any]:
        if not self._keeps:
            return self._read()
        if self._kept is None:
            self._kept = list(self._read())
        return iter(self._kept)

    def _read(self) -> Iterator[Any]:
        data = self._load()
        try:
            items = iter(data)
        except TypeError as error:
            raise ModelError(
                f"{self.source} gives a value of type {type(data).__name__}, not a list of inputs.",
                hint="return [x1, x2, ...]",
            ) from error
        self.used = 0
        end = object()
        while True:
            with self._guard():  # a generator runs the user's code here
                item = next(items, end)
            if item is end:
                return
            self.used += 1
            yield item


def _from_function(file: UserFile, name: str) -> CalibrationInputs:
    source = f"`{name}` of {file.path}"
    text = f"{file.path}:{name}"
    return CalibrationInputs(source, lambda: file.call(name), lambda: file.guard(f"{source} raised an error"), text)


def load_calibration(text: str | None, model: Model) -> CalibrationInputs:
    """Return the calibration data that ``text`` names, or those of the model's file."""
    file = model.file
    if text is None and file is not None and file.has("calibration"):
        return _from_function(file, "calibration")
    if text is None:
        return CalibrationInputs("nothing", lambda: _no_calibration(model))
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py"):
        same = file is not None and file.is_at(Path(path))
        return _from_function(file if same and file is not None else UserFile(Path(path)), name)
    arrays = load_arrays(text)
    return CalibrationInputs(text, lambda: _items(arrays, text, model), name=text)


def _no_calibration(model: Model) -> object:
    file = model.file
    if model.is_quantized:
        raise ModelError(
            f"{model.name} is quantized already, and this command compares with the float model.",
            hint="the float model that it was made of",
        )
    own = f", or a function `calibration` in {file.path}" if file is not None else ""
    raise ModelError(
        "A float model needs calibration data to choose the ranges of its quantized tensors.",
        hint=f"--calibration inputs.npy (or .npz), --calibration file.py:function{own}",
    )


def _items(arrays: dict[str, Array], text: str, model: Model) -> list[tuple[Array, ...]]:
    """Return arrays, one for each input of the model, as input tuples of the batch size of the example inputs."""
    from micronpu.frontend.export import input_names

    names = input_names(model.module)
    if set(names) == set(arrays):
        arrays = {name: arrays[name] for name in names}
    if len(arrays) != len(model.examples):
        raise ModelError(
            f"{text} holds {plural(len(arrays), 'array')} ({', '.join(arrays) or 'none'}), but the model has "
            f"{plural(len(model.examples), 'input')}.",
            hint=f"name the arrays in the order of the inputs: {text.partition(':')[0]}:name,...",
        )
    columns = []
    for (name, array), example in zip(arrays.items(), model.examples, strict=True):
        row = ", ".join(map(str, example.shape[1:]))
        if array.ndim < example.dim():
            one = list(array.shape) == list(example.shape[1:])
            raise ModelError(
                f"The array {name} of {text} has shape {list(array.shape)}; data for an input "
                f"{list(example.shape)} has one row per input.",
                hint=f"stack inputs to [N, {row}]" if one else f"another file, with an array [N, {row}]",
            )
        size = example.shape[0] if array.ndim == example.dim() and example.dim() else 1
        if size == 1 or len(array) % size == 0:
            columns.append([array[i : i + size] if size > 1 else array[i] for i in range(0, len(array), size)])
        else:
            raise ModelError(
                f"The {plural(len(array), 'row')} of the array {name} of {text} cannot be cut into batches of "
                f"{size}, the batch size of the example inputs.",
                hint=f"give {len(array) - len(array) % size} rows",
            )
    counts = {name: len(column) for name, column in zip(arrays, columns, strict=True)}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ModelError(f"The arrays of {text} have different numbers of inputs: {found}.", hint="one row per input")
    return list(zip(*columns, strict=True))


def load_arrays(text: str) -> dict[str, Array]:
    """Return the arrays of a ``.npy`` or ``.npz`` file by name, in the order of the file.

    ``file.npz:b,a`` picks some of them, in this order.
    """
    import numpy as np

    name, colon, wanted = text.rpartition(":")
    path = Path(name) if colon and name.endswith(".npz") else Path(text)
    if check_name(path).is_dir():
        raise FileError(f"{path} is a folder.", hint=f"--images {path} for its pictures; or a .npy or .npz file")
    if not path.is_file():
        raise FileError(f"There is no file {path}.", hint="check the path; a .npy or .npz file is expected")
    with ErrorsAs(lambda error: _unread(path, error), FileError):
        _check_sizes(path, wanted.split(",") if path != Path(text) else None)
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return {path.stem: _native(loaded)}
        with loaded as archive:
            names = wanted.split(",") if path != Path(text) else list(archive.files)
            missing = [n for n in names if n not in archive.files]
            if missing:
                raise FileError(
                    f"{path} has no array {', '.join(map(repr, missing))}.", hint=f"one of {', '.join(archive.files)}"
                )
            return {n: _native(archive[n]) for n in names}


def _unread(path: Path, error: Exception) -> FileError:
    why, hint = reason(error), "save it with numpy.save"
    if "Object arrays" in why:
        why, hint = "it holds Python objects, which are not loaded", "numpy.array(rows, numpy.float32) before that"
    elif "magic string" in why or "pickled data" in why:
        why = "it is neither"
    return FileError(f"{path} cannot be read as .npy or .npz: {why}.", hint=hint)


_UNPACKED = 1 << 30
"""Bytes of arrays that any file may hold; beyond this, the ratio below limits them."""
_TIMES = 32


def _check_sizes(path: Path, wanted: list[str] | None) -> None:
    """Check the sizes of arrays from their headers, so that no small file unpacks to much more memory."""
    size = path.stat().st_size
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            _check_header(file, size, str(path))
        return
    with zipfile.ZipFile(path) as archive:
        entries = [e for e in archive.infolist() if wanted is None or e.filename.removesuffix(".npy") in wanted]
        for entry in entries:
            with archive.open(entry) as part:
                _check_header(part, entry.file_size, f"The array {entry.filename.removesuffix('.npy')!r} of {path}")
        unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(_UNPACKED, _TIMES * size):
        raise FileError(
            f"{path} would be unpacked to {unpacked:,} bytes, {unpacked // size} times its own size.",
            hint="numpy.save or numpy.savez, which do not compress, for data that are really so large",
        )


def _check_header(file: IO[bytes], size: int, what: str) -> None:
    """Compare the size of an array with the size of its record."""
    from numpy.lib import format as npy

    readers: dict[Any, Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    read = readers.get(npy.read_magic(file))  # type: ignore[no-untyped-call]
    if read is None:
        return  # an array of structures, which is refused later
    shape, _, dtype = read(file)
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if size != expected and not dtype.hasobject:
        raise FileError(
            f"{what} has {size:,} bytes, but its header describes {dtype}{list(shape)}, which takes {expected:,}.",
            hint="save it again with numpy.save or numpy.savez",
        )


def _native(array: Array) -> Array:
    """Return the array in this machine's byte order, which torch requires."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)
