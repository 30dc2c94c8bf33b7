"""The process that runs the vendor's converter: ``python -m micronpu.targets.neutron.sdk_worker FOLDER``.

FOLDER contains ``request.json`` and, for a conversion, ``model.tflite``. The worker writes ``result.json`` and, on
success, ``converted.tflite`` or ``merged.c``; a result has either ``error`` (a kind, with ``detail``) or ``versions``.
The vendor's output goes to the standard output and error set by the parent. A missing result means that the process
died. Standard input is a socket; when its other end is closed, the worker ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from micronpu.base.leaving import tie, working

PACKAGE = "eiq_neutron_sdk"

_CONVERTERS = (("neutron_compiler", "compileModel"), ("neutron_converter", "convertModel"))
"""Module and function of the converter: names since SDK 3.2.2, and earlier names."""
_OPTIONS = {
    "excluded_graph_passes": "excludeGraphPasses",
    "fetch_constants_to_sram": "fetchConstantsToSRAM",
    "dump_kernel_selection_code": "dumpKernelSelectionCode",
    "profiling": "useProfiling",
}
_DUMPS = {"dumpAfterImport": "console", "dumpAfterGenerate": "console", "verbose": True, "dumpMicrocode": True}
"""Profiling options: the board numbers kernels, and only these dumps name what they compute (see kernel_map)."""


class _FailureError(Exception):
    """Ends the work with a kind for which the parent has a message."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(kind)


def _tie_to_parent() -> None:
    """End this process when the other end of its standard input, a socket, is closed."""
    parent = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    tie(parent)
    working(parent).__enter__()


def main(folder: Path) -> None:
    """Execute the request and write the result."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    # First on the path: the SDK that the parent has found, not another one.
    sys.path[:0] = request["path"]
    try:
        sdk, versions = _load(request["sdk_version"])
        if request["action"] == "merge":
            _function(sdk, "merge_kernel_selection_files")(request["files"], str(folder / "merged.c"))
        else:
            _convert(request, folder)
        result: dict[str, object] = {"versions": versions}
    except _FailureError as failure:
        result = {"error": failure.kind, "detail": failure.detail}
    except Exception as error:
        result = {"error": "exception", "detail": f"{type(error).__name__}: {error}"}
    temporary = folder / "result.json.part"
    temporary.write_text(json.dumps(result), encoding="utf-8")
    os.replace(temporary, folder / "result.json")


def _load(wanted: str) -> tuple[object, dict[str, str]]:
    """Return the package and its versions, which must agree with each other and with the requested one."""
    try:
        sdk = importlib.import_module(PACKAGE)
    except Exception as error:
        raise _FailureError("import", f"{type(error).__name__}: {error}") from error
    versions = {}
    try:
        versions[PACKAGE] = installed = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        installed = ""
    stated = getattr(sdk, "__version__", None)
    if isinstance(stated, str):
        versions[PACKAGE] = stated
        if installed and installed != stated:
            raise _FailureError("two versions", f"the package calls itself {stated}, its installation says {installed}")
    found = versions.get(PACKAGE, "")
    if wanted and found != wanted:
        raise _FailureError("version", found)
    return sdk, versions


def _function(owner: object, name: str) -> Any:
    function = getattr(owner, name, None)
    if not callable(function):
        raise _FailureError("function", f"{getattr(owner, '__name__', PACKAGE)}.{name}")
    return function


def _converter() -> tuple[Any, Any]:
    for name, function in _CONVERTERS:
        module = f"{PACKAGE}.{name}"
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise _FailureError("import", f"{type(error).__name__}: {error}") from error
            continue
        if callable(convert := getattr(found, function, None)):
            return found, convert
    raise _FailureError("function", " or ".join(f"{name}.{function}" for name, function in _CONVERTERS))


def _convert(request: dict[str, Any], folder: Path) -> None:
    converter, convert = _converter()
    context = _function(converter, "CompilationContext")()
    context.targetOpts = _target(_function(converter, "getNeutronTarget"), request["target"])
    options = context.compilationOpts
    if hasattr(options, "minNumOpsPerGraph"):
        options.minNumOpsPerGraph = 1  # a partition may have a single operator
    for name, attribute in _OPTIONS.items():
        if hasattr(options, attribute):
            setattr(options, attribute, request[name])
        elif request[name]:
            raise _FailureError("option", f"{name} ({attribute})")
    if request["profiling"]:
        for attribute, value in _DUMPS.items():
            if hasattr(options, attribute):
                setattr(options, attribute, value)
    for flag in request["extra_flags"]:
        _set_flag(options, flag)
    model = (folder / "model.tflite").read_bytes()
    converted = convert(list(model), context)
    if isinstance(converted, int):  # bytes(5) would be five zeros
        raise _FailureError("garbage", "int")
    try:
        data = converted if isinstance(converted, (bytes, bytearray)) else bytes(converted)
    except (TypeError, ValueError) as error:
        raise _FailureError("garbage", type(converted).__name__) from error
    (folder / "converted.tflite").write_bytes(data)


def _target(look_up: Any, name: str) -> Any:
    try:
        target = look_up(name)
    except Exception as error:
        raise _FailureError("target", ", ".join(_known_targets()) or str(error)) from error
    if target is None:
        raise _FailureError("target", ", ".join(_known_targets()))
    return target


def _known_targets() -> Iterable[str]:
    try:
        utilities = importlib.import_module(f"{PACKAGE}.neutron_library_utils")
        return sorted(str(getattr(t, "name", t)) for t in utilities.getNeutronTargets())
    except Exception:
        return ()


def _set_flag(options: object, flag: str) -> None:
    """Set the attribute for a flag such as ``--verbose`` or ``--dump-after-import=console``."""
    name, equals, text = flag.lstrip("-").partition("=")
    known = {a.replace("_", "").lower(): a for a in dir(options) if not a.startswith("_")}
    attribute = known.get(name.replace("-", "").replace("_", "").lower())
    if attribute is None:
        raise _FailureError("flag", f"{flag} (known are {', '.join(sorted(known.values()))})")
    present = getattr(options, attribute)
    value: object = text
    try:
        if isinstance(present, bool):
            value = {"": True, "true": True, "1": True, "false": False, "0": False}[text.lower()]
        elif isinstance(present, int):
            value = int(text)
        elif not equals:
            raise ValueError
    except (KeyError, ValueError) as error:
        raise _FailureError("flag value", f"{flag} ({attribute} is {present!r})") from error
    setattr(options, attribute, value)


if __name__ == "__main__":
    _tie_to_parent()
    main(Path(sys.argv[1]))
