"""The vendor's converter as a plug-in, if `eiq_neutron_sdk` is installed; and kernel selections of both converters.

The converter is closed and native, so it runs in a separate process with a time limit, and its output is checked before
it is used. Any failure raises one clear message.

A kernel selection is a C file that names the kernels of the NPU's library that a program needs. A Neutron-C links its
kernels with the application; the selection limits them to those that the program needs. The vendor's converter writes
the file for its kernels. The reference converter does not know the vendor's kernels; its file lists the operators
instead, to inspect and to compare programs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from micronpu.base.arguments import items
from micronpu.base.errors import ConverterError, FileError, ModelError, OptionError
from micronpu.base.files import check_name, write_file
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.base.leaving import scratch_folder
from micronpu.base.order import reachable
from micronpu.base.parsing import parse_json
from micronpu.base.processes import finished, how_it_ended, last_words, tied
from micronpu.container.litert_view import read_model
from micronpu.container.payload import Artifacts
from micronpu.emit.litert import to_litert
from micronpu.ir import DType, GraphBuilder, QParams, TensorType
from micronpu.ops.elementwise import Add
from micronpu.targets.neutron.converter import ConverterOptions, NeutronConverter, ReferenceConverter
from micronpu.targets.neutron.neutron_graph import read_program
from micronpu.targets.neutron.target_spec import NeutronTargetSpec, no_silicon

PACKAGE = "eiq_neutron_sdk"
CONVERTERS = ("auto", "reference", "sdk")
"""Converter names of `select_converter`."""

_HOME = Path(__file__).parents[3]
"""Import path of this package, for worker processes."""
_INSTALL = (
    f'install {PACKAGE} from the vendor (Linux on x86-64), or the converter "reference" for a program for the host'
)
_LOG_LIMIT = 4 << 20  # maximum bytes of the log: its end, which has the errors
_CYCLES = re.compile(r"cycles?\s+estimation\s*[=:]\s*([\d,]+)", re.IGNORECASE)
_WARNING = re.compile(r"^.*\bwarning\b.*$", re.IGNORECASE | re.MULTILINE)


def sdk_is_installed() -> bool:
    """True if `eiq_neutron_sdk` is installed; it is not imported."""
    return _sdk_folder() is not None


def _sdk_folder() -> str | None:
    """The folder to add to the path to import the SDK."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    locations = list(spec.submodule_search_locations or ())
    found = locations[0] if locations else spec.origin
    return str(Path(found).parent) if found else None


def default_converter(target: NeutronTargetSpec | None = None) -> NeutronConverter:
    """Return the vendor's converter if it is installed and supports the chip (default: any), else the reference one."""
    serves = target is None or bool(target.npu.converter)
    return SdkConverter() if serves and sdk_is_installed() else ReferenceConverter()


def select_converter(name: str, target: NeutronTargetSpec) -> NeutronConverter:
    """Return a converter by name: "auto", "reference" or "sdk".

    Raises:
        ConverterError: "sdk" for a chip whose programs the ExecuTorch runtime does not support.
    """
    if name == "auto":
        return default_converter(target)
    if name == "reference":
        return ReferenceConverter()
    if why := no_silicon(target.chip):
        raise ConverterError(why, hint='--converter reference, converter="reference" in Python')
    return SdkConverter()


def try_sdk(target: str, timeout: float = 60.0) -> str:
    """Convert a model of two operators for a chip such as ``imxrt700`` with the installed SDK, and describe the
    result."""
    builder, qparams = GraphBuilder(), QParams.per_tensor(0.05, 3)
    x = builder.input(TensorType((1, 8), DType.INT8, qparams))
    y = builder.emit(Add(), x, x, qparams=qparams)
    model = to_litert(builder.finish(builder.emit(Add(), y, x, qparams=qparams)))
    made = SdkConverter().convert(model.data, ConverterOptions(target, timeout=timeout))
    return f"{made.versions[PACKAGE]}, makes a program of two operators for {target}"


@dataclass(frozen=True)
class _Outcome:
    result: Mapping[str, Any]
    folder: Path
    log: str


class SdkConverter:
    """Converts to programs for silicon with the vendor's SDK, in a separate process that searches some folders for it
    first, by default its location in this process."""

    name = "sdk"

    def __init__(self, search_path: Sequence[str | os.PathLike[str]] = ()) -> None:
        self._search_path = [os.fspath(p) for p in search_path]

    def convert(self, litert_model: bytes, options: ConverterOptions) -> Artifacts:
        """See `NeutronConverter.convert`."""
        excluded = ",".join(options.excluded_graph_passes)
        request = {**asdict(options), "action": "convert", "excluded_graph_passes": excluded}
        with self._work(request, {"model.tflite": litert_model}, options.timeout) as done:
            converted = _result_file(done, "converted.tflite")
            program = read_program(converted, litert_model)
            selection = _kernel_selection(done) if options.dump_kernel_selection_code else ""
            cycles, warnings = parse_log(done.log)
            versions = {str(k): str(v) for k, v in done.result["versions"].items()}
        return Artifacts(
            microcode=program.microcode,
            weights=program.weights,
            kernels=program.kernels,
            kind="silicon",
            versions=versions or {PACKAGE: "unknown"},
            inputs=program.inputs,
            outputs=program.outputs,
            payload_version=program.payload_version,
            cycles=cycles,
            warnings=warnings,
            kernel_selection=selection,
            log=done.log,
            kernel_operators=kernel_operators(done.log) if options.profiling else None,
        )

    def merge_kernel_selections(self, files: Sequence[Path], *, timeout: float = 60.0) -> str:
        """Merge kernel selections of the SDK; raises like `convert`."""
        request = {"action": "merge", "files": [str(f.resolve()) for f in files], "sdk_version": ""}
        with self._work(request, {}, timeout) as done:
            return _result_file(done, "merged.c").decode("utf-8", errors="replace")

    @contextlib.contextmanager
    def _work(self, request: dict[str, Any], files: Mapping[str, bytes], timeout: float) -> Iterator[_Outcome]:
        """Run a worker; its folder exists within the context."""
        path = self._search_path
        if not path:
            folder = _sdk_folder()
            if folder is None:
                raise ConverterError(f"The Neutron converter {PACKAGE} is not installed.", hint=_INSTALL)
            path = [folder]
        with scratch_folder("micronpu-sdk-") as folder_path:
            (folder_path / "request.json").write_text(json.dumps({**request, "path": path}), encoding="utf-8")
            for file, data in files.items():
                (folder_path / file).write_bytes(data)
            code = _run_worker(folder_path, timeout)
            log = _read_log(folder_path / "log.txt")
            try:
                if code is None:
                    raise ConverterError(
                        f"The Neutron converter {PACKAGE} did not finish within {timeout:g} seconds and was ended."
                        + last_words(log),
                        hint="a longer converter_timeout, or a smaller model",
                    )
                yield _Outcome(_checked_result(folder_path, code, log, request), folder_path, log)
            except ConverterError as error:
                error.log = log  # also for errors from the caller's checks
                raise


def _run_worker(folder: Path, timeout: float) -> int | None:
    """Exit code of a worker, negative if a signal ended it, None on a timeout."""
    paths = [str(_HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "micronpu.targets.neutron.sdk_worker", str(folder)]
    with (folder / "log.txt").open("wb") as log:
        worker, lifeline = tied(command, log, cwd=folder, env=environment)
        with lifeline:
            return finished(worker, timeout)


def _read_log(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_LIMIT))
        return file.read().decode("utf-8", errors="replace")


def _checked_result(folder: Path, code: int, log: str, request: Mapping[str, object]) -> Mapping[str, object]:
    result: object = None
    if code == 0:
        with contextlib.suppress(OSError, ValueError):
            result = parse_json((folder / "result.json").read_text(encoding="utf-8"))
    if not isinstance(result, dict) or not ("error" in result or isinstance(result.get("versions"), dict)):
        how = how_it_ended(code) if code else "ended the process without a result"
        raise ConverterError(
            f"The Neutron converter {PACKAGE} {how}.{last_words(log)}",
            hint="another version of the SDK, or operators_not_to_delegate to find the operator that it stumbles over",
        )
    if "error" in result:
        raise _failure(str(result["error"]), str(result.get("detail", "")), log, request)
    return result


def _failure(kind: str, detail: str, log: str, request: Mapping[str, object]) -> ConverterError:
    wanted, target, sdk = request.get("sdk_version"), request.get("target"), f"The Neutron converter {PACKAGE}"
    first, newer = detail.splitlines()[0] if detail else "an error without a message", "another version of the SDK"
    omit, without = "leave it out", "operators_not_to_delegate with the operator that it names"
    known = {
        "import": (f"{sdk} cannot be imported: {detail}", _INSTALL),
        "version": (
            f"{sdk} has version {detail or 'unknown'}, but the compilation asks for {wanted}; converter and "
            "firmware of the board must match",
            f"install {PACKAGE} {wanted}, or change sdk_version together with the firmware",
        ),
        "two versions": (f"{sdk} is a mixture of two versions: {detail}", "install it anew"),
        "function": (
            f"{sdk} has no {detail}, which micronpu calls",
            "another version of the SDK; micronpu knows the functions of 3.2 and of those that follow it",
        ),
        "target": (f"{sdk} does not know the target {target!r}", f"one of {detail}" if detail else newer),
        "option": (f"This version of the Neutron converter {PACKAGE} has no option for {detail}", "a newer SDK"),
        "flag": (f"{sdk} does not know the extra flag {detail}", omit),
        "flag value": (f"The extra flag {detail} has no value that {PACKAGE} takes there", f"another value, or {omit}"),
        "garbage": (f"{sdk} gave a {detail} instead of the bytes of a model", newer),
    }
    what, hint = known.get(kind, (f"{sdk} refused the partition: {first.rstrip('.')}", without))
    return ConverterError(f"{what}.{last_words(log) if kind == 'garbage' else ''}", hint=hint)


def _result_file(done: _Outcome, name: str) -> bytes:
    try:
        return (done.folder / name).read_bytes()
    except OSError as error:
        raise ConverterError(
            f"The Neutron converter {PACKAGE} says that it succeeded, but left no {name}.", hint="install it anew"
        ) from error


def _kernel_selection(done: _Outcome) -> str:
    files = sorted(done.folder.glob("*kernel_selection*.c"))
    if len(files) != 1:
        raise ConverterError(
            f"The Neutron converter {PACKAGE} wrote {len(files)} kernel selections instead of one.",
            hint="compile without dump_kernel_selection_code",
        )
    return files[0].read_text(encoding="utf-8", errors="replace")


def parse_log(log: str) -> tuple[int | None, tuple[str, ...]]:
    """Parse the converter's own cycle estimate (NPU alone), and its distinct warnings."""
    found = [int(m.replace(",", "")) for m in _CYCLES.findall(log) if m.strip(",")]
    warnings = dict.fromkeys(line.strip() for line in _WARNING.findall(log))
    return (found[-1] if found else None), tuple(warnings)


_OPERATOR = re.compile(r"Type:\s+\w+\s+Inputs:(?P<inputs>.*?)Outputs:(?P<outputs>.*?)Location:\s+\d+", re.S)
_TENSOR = re.compile(r"\[\d+\]:\s+(\S+)")
_KERNELS = re.compile(
    r'NeutronOperator\s+"subgraph_(?P<number>\d+)":\s*Operators:.*?Kernels:(?P<kernels>.*?)'
    r'(?=NeutronOperator\s+"|NeutronGraph\s+"|\n\s*\n|=|\Z)',
    re.S,
)
_MADE = re.compile(r"Name:\s+subgraph_(?P<number>\d+)\s+Inputs:(?P<inputs>.*?)Outputs:(?P<outputs>.*?)Tensors:", re.S)
_CALLS = re.compile(r"numKernelCalls\s+0x([0-9a-fA-F]+)")


@dataclass(frozen=True)
class _Step:
    """An operator of either graph, by the names of its inputs and outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def kernel_operators(log: str) -> tuple[tuple[int, ...], ...] | None:
    """Return, for each kernel in the board's numbering, the operators of the LiteRT model that it computes.

    A board that measures a program reports its kernels by number, and the converter fuses and splits operators before
    it numbers them. With profiling it prints the model as read, the kernels of each converted operator, and the graph:

        Graphs: ...  Type: CONV_2D  Inputs: [0]: x [1]: w  Outputs: [0]: y  Location: 0      the model as read
        = Extract Graphs = ... NeutronOperator "subgraph_001": Operators: PAD CONV_2D  Kernels: Pad Conv2DStandardV2
        Graphs: ...  Name: subgraph_001  Inputs: [0]: x  Outputs: [0]: y  Tensors: ...       the resulting graph

    Tensors keep their names, or get a suffix after a slash. So an operator of the converter computes the model's
    operators between the tensors that it reads and writes. Unknown relations are omitted, never guessed.

    Args:
        log: output of a conversion with profiling.

    Returns:
        Sorted operator numbers; () for a kernel that the log does not assign. None if the log lists no kernels, or
        other kernels than the program calls.
    """
    parts = log.split("Graphs:")
    if len(parts) != 3:
        return None
    read, made = parts[1:]
    steps = [_step(match) for match in _OPERATOR.finditer(read.partition("= Optimize Graph =")[0])]
    extracted = read.partition("= Extract Graphs =")[2].partition("Generate code for NeutronGraph")[0]
    boundaries = {int(match["number"]): _step(match) for match in _MADE.finditer(made)}
    kernels: list[tuple[int, ...]] = []
    for match in _KERNELS.finditer(extracted):
        number = int(match["number"])
        computed = _between(boundaries[number], steps) if number in boundaries else ()
        kernels += [computed] * len([line for line in match["kernels"].splitlines() if line.strip()])
    calls = _CALLS.search(log)
    if not kernels or (calls and int(calls[1], 16) != len(kernels)):
        return None
    return tuple(kernels)


def _step(match: re.Match[str]) -> _Step:
    return _Step(tuple(_TENSOR.findall(match["inputs"])), tuple(_TENSOR.findall(match["outputs"])))


def _between(boundary: _Step, steps: Sequence[_Step]) -> tuple[int, ...]:
    """The operators that compute a subgraph's outputs from its inputs."""
    producer = {name: i for i, step in enumerate(steps) for name in step.outputs}
    known = producer.keys() | {name for step in steps for name in step.inputs}
    read = set(_known(boundary.inputs, known))
    # The operators that write its results belong to the subgraph even if it also reads them: a part of a split.
    ends = [producer[name] for name in _known(boundary.outputs, known) if name in producer]
    inside = producer.keys() - read
    return tuple(sorted(reachable(ends, lambda step: [producer[n] for n in steps[step].inputs if n in inside])))


def _known(names: Iterable[str], known: Iterable[str]) -> Iterable[str]:
    """Map each name to a tensor of the model: the name itself, or a prefix before one of its slashes."""
    known = set(known)
    for name in names:
        while name and name not in known:
            name = name.rpartition("/")[0]
        if name:
            yield name


MARK = "micronpu kernel selection, format 1"
SUFFIX = "_kernel_selection.c"
"""Suffix of such files."""

_HEAD = f"""\
/* {MARK}
 *
 * Derived from the LiteRT operators of the program: each needs at least one kernel. The vendor's converter was not
 * asked, and it alone knows which kernel of its library serves an operator. To link only those, compile with
 * converter="sdk" and use the file that the converter writes.
 */
#include <stddef.h>

const char *const micronpu_neutron_operators[] = {{
"""
_TAIL = "    NULL,\n};\n"
_ENTRY = re.compile(r'^    "([^"\n]+)",$', re.MULTILINE)


def selection_of_model(litert_model: bytes) -> str:
    """Return C code that lists the operators of a LiteRT model, sorted."""
    try:
        operators = read_model(litert_model).operators
    except CorruptFlatbufferError as error:
        raise ModelError(
            f"The kernel selection needs a LiteRT model, and the bytes are none: {error}.",
            hint="pass the contents of a .tflite file",
        ) from error
    return render_selection(o.name for o in operators)


def render_selection(operators: Iterable[str]) -> str:
    """Return C code that lists operators without duplicates, sorted."""
    return _HEAD + "".join(f'    "{name}",\n' for name in sorted(set(operators))) + _TAIL


def parse_selection(text: str) -> tuple[str, ...] | None:
    """Return the operators in a file of `render_selection`; None for other files."""
    return tuple(_ENTRY.findall(text)) if MARK in text else None


def merge_kernel_selections(
    files: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], *, timeout: float = 60.0
) -> Path:
    """Write one kernel selection for several programs of one application.

    Files of the reference converter are merged here; the vendor's SDK merges those of its converter.

    Args:
        files: kernel selections, all of the same kind.
        output: the file to write; replaced only when the new one is complete.
        timeout: limit in seconds of the SDK.

    Raises:
        FileError: a file cannot be read or written.
        OptionError: no files, or files of both kinds.
        ConverterError: files of the vendor's converter, and its SDK is missing or fails.
    """
    paths = [check_name(file) for file in items("files", files, "paths")]
    if not paths:
        raise OptionError("There are no kernel selections to merge.", hint=f"pass the *{SUFFIX} files of your programs")
    parsed = [parse_selection(_read(path)) for path in paths]
    ours = [p for p in parsed if p is not None]
    if ours and len(ours) < len(parsed):
        other = paths[parsed.index(None)]
        raise OptionError(
            f"{other} is a kernel selection of the vendor's converter and {paths[parsed.index(ours[0])]} one of the "
            "reference converter: one lists kernels, the other operators.",
            hint="compile all programs with the same converter",
        )
    if ours:
        return write_file(output, render_selection(name for names in ours for name in names).encode())
    if not sdk_is_installed():
        raise ConverterError(
            f"{paths[0]} is not a kernel selection of micronpu, and the eiq_neutron_sdk, whose it may be, is not "
            "installed.",
            hint="install the SDK that wrote it",
        )
    return write_file(output, SdkConverter().merge_kernel_selections(paths, timeout=timeout).encode())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise FileError(
            f"The kernel selection {path} cannot be read: {why}.", hint=f"the path of a *{SUFFIX} file"
        ) from error
