"""ExecuTorch's float program of a model, as the baseline for a program for an NPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from micronpu.base.errors import ModelError, first_line
from micronpu.base.files import write_file
from micronpu.report.texts import plural

if TYPE_CHECKING:
    from micronpu.cli.files import Model


def write_baseline(model: Model, path: Path) -> str:
    """Write a program with portable float kernels: no quantization, no NPU.

    Returns:
        A sentence about the program.
    """
    from executorch.exir import to_edge_transform_and_lower

    from micronpu.base.quiet import quiet
    from micronpu.frontend.export import export
    from micronpu.frontend.exported import exported
    from micronpu.program.pte import read_pte

    if not exported(model.module, model.examples).is_float:
        raise ModelError("The model is quantized already, and --float is about the float model.", hint="that one")
    try:
        with quiet():
            data = to_edge_transform_and_lower(export(model.module, model.examples)).to_executorch().buffer
    except Exception as error:
        raise ModelError(
            f"ExecuTorch cannot lower the float model: {first_line(error) or type(error).__name__}.",
            hint="micronpu compile without --float, which says more",
        ) from error
    write_file(path, data)
    (method,) = read_pte(data).methods.values()
    kernels = plural(len(set(method.operators)), "kernel")
    return f"Wrote {path}: {len(data):,} bytes, {kernels} of ExecuTorch in float, nothing on an NPU."
