"""Kernel selection: a C file that names the kernels of the NPU's library that a program needs.

A Neutron-C links its kernels with the application; the selection limits them to those that the program needs. The
vendor's converter writes the file for its kernels. The reference converter does not know the vendor's kernels; its file
lists the operators instead, to inspect and to compare programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from micronpu.base.arguments import items
from micronpu.base.errors import ConverterError, FileError, ModelError, OptionError
from micronpu.base.files import check_name, write_file
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.container.litert_view import read_model

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
    """Return C code that lists the operators of a LiteRT model, sorted.

    Raises:
        ModelError: not a LiteRT model.
    """
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
    from micronpu.targets.neutron.sdk import SdkConverter, sdk_is_installed

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
