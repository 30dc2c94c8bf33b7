"""Inputs that determine the bytes of a program: collected from the arguments of `micronpu.compile`, or read from a
manifest."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from micronpu.base.errors import OptionError
from micronpu.base.files import read_file
from micronpu.base.installed import VERSION, installed, requirements
from micronpu.base.parsing import parse_json
from micronpu.frontend.checks import Train
from micronpu.passes.pipeline import Pipeline
from micronpu.quantize.data import Digests
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.quantize.settings_file import read_quantization
from micronpu.report.manifest import Basis
from micronpu.targets.options import Options
from micronpu.targets.registry import BACKENDS, find_target, options_for
from micronpu.transforms.sparsity.entry import Transforms
from micronpu.transforms.sparsity.options import SparsityOptions, sparsity_options
from micronpu.verify.verification import Verification

_CODE = "code"
"""Key of values that a file cannot hold: Python objects, and other files."""
_NAME = re.compile(r"[\w.-]+")
_ONLY_SHOW = ("rich", "typer")
"""Dependencies of micronpu that do not influence bytes."""
_OF_VERIFICATION = ("run", "held_out", "allow_missing_kernels")
"""Options of the verification that influence bytes, or whether there is a program."""


@dataclass(frozen=True)
class CompileRequest:
    """The arguments of `micronpu.compile` that determine bytes, except the model and its data."""

    target: str
    quantization: HowToQuantize = None
    options: Options | None = None
    transforms: Transforms | None = None
    verification: Verification = Verification()  # noqa: RUF009 (a frozen value)
    train: Train | None = None

    def values_by_name(self) -> dict[str, str]:
        """Return all arguments, including defaults, value as JSON by name."""
        target = find_target(self.target)
        found: dict[str, object] = {"target": self.target}
        if target.chip is not None and target.chip.file:
            found["target"] = os.path.basename(self.target)
            found["chip file"] = hashlib.sha256(read_file(target.chip.file)).hexdigest()
        options = options_for(target, self.options)
        found |= _named("options", options.program_values())
        for name in options.files:
            if file := getattr(options, name):
                digest = hashlib.sha256(read_file(file)).hexdigest()
                found[f"options.{name}"] = {_CODE: f"the file {os.path.basename(file)}", "sha256": digest}
        how = Quantization.of(self.quantization)
        values_by_name = {f.name: getattr(how, f.name) for f in fields(how)}
        values_by_name["settings"] = None if how.settings is None else read_quantization(how.settings)
        request = self.transforms or Transforms()
        sparsity = sparsity_options(request.sparsity)
        found |= _named("quantization", values_by_name)
        found |= _named("transforms", {"sparsity": sparsity, "compress": request.compress, "passes": request.passes})
        found |= _named("verify", {name: getattr(self.verification, name) for name in _OF_VERIFICATION})
        if self.verification.data is not None:
            found["verify.data"] = {_CODE: "held-out data"}
        if self.verification.metric is not None:
            found["verify.metric"] = self.verification.metric
        if self.train is not None:
            found["train"] = _code(self.train)
        return {name: json.dumps(value, sort_keys=True, default=_code) for name, value in found.items()}

    @classmethod
    def read(cls, values_by_name: Mapping[str, str], target: str | None = None) -> CompileRequest:
        """Return the arguments from the result of `values_by_name`.

        Args:
            target: replaces the recorded target: a chip file may have moved.
        """
        values = _read(values_by_name)
        groups: dict[str, dict[str, Any]] = {"options": {}, "quantization": {}, "transforms": {}, "verify": {}}
        for name, value in values.items():
            group, _, own = name.partition(".")
            if isinstance(value, dict) and _CODE in value:
                raise OptionError(
                    f"The manifest says {name} = {value[_CODE]}, which a manifest cannot hold.",
                    hint="compile it again in Python, and compare the two with `micronpu diff --why`",
                )
            if own and group in groups:
                groups[group][own] = value
            elif name not in ("target", "chip file"):
                raise OptionError(f"The manifest has an option {name!r} that there is not.", hint="compile again")
        name = target or str(values.get("target", ""))
        given = {key: tuple(v) if isinstance(v, list) else v for key, v in groups["options"].items()}
        found = find_target(name)
        if flags := given.get("extra_flags"):
            what = f"The manifest hands {' '.join(map(str, flags))} to another tool's command, and it may be anybody's."
            raise OptionError(what, hint="compile it with these flags, and compare the two with `micronpu diff --why`")
        sparsity = groups["transforms"].pop("sparsity", None)
        try:
            made = None if sparsity is None else SparsityOptions(**sparsity)
            given.pop("silicon", None)
            return cls(
                name,
                Quantization(**groups["quantization"]),
                options_for(found, given=given),
                Transforms(sparsity=made, **groups["transforms"]),
                Verification(**groups["verify"]),
            )
        except (TypeError, ValueError) as error:
            what = f"The manifest has options that do not fit this micronpu: {error}."
            raise OptionError(what, hint="the micronpu that wrote it") from error


def basis_of(request: CompileRequest, digests: Mapping[str, Digests]) -> Basis:
    """Return the basis of a finished program from the digests of each method; the name of the only one is ""."""
    model: dict[str, str] = {}
    data: dict[str, str] = {}
    for method, own in digests.items():
        before = f"{method}: " if method else ""
        model |= {before + name: value for name, value in own.model.items()}
        data |= {before + name: value for name, value in own.data.items()}
    tools = {name: version for name, version in tool_versions().items() if name not in _ONLY_SHOW}
    tools |= _versions(BACKENDS[find_target(request.target).backend].packages)
    return Basis(model, data, request.values_by_name(), tools, _machine())


def _versions(names: Iterable[str]) -> dict[str, str]:
    return {name: version for name in names if (version := installed(name))}


def tool_versions() -> dict[str, str]:
    """Return versions of Python, micronpu and its installed dependencies."""
    names = [name[0] for text in requirements() if "extra ==" not in text and (name := _NAME.match(text))]
    return {"python": platform.python_version(), "micronpu": VERSION, **_versions(names)}


def _machine() -> dict[str, str]:
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }


def _named(group: str, values: Mapping[str, object]) -> dict[str, Any]:
    return {f"{group}.{name}": value for name, value in values.items()}


def _code(value: object) -> object:
    """Convert values for JSON: data classes to their fields, paths to text, Python objects to name and settings."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, (type, Pipeline)):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    named = value if hasattr(value, "__qualname__") else type(value)
    values_by_name: dict[str, object] = {_CODE: f"{named.__module__}.{named.__qualname__}"}
    if isinstance(value, StaticQuantizer):
        values_by_name |= {"settings": value.settings, "disabled_rewrites": sorted(value.disabled_rewrites)}
    if isinstance(value, Pipeline):
        values_by_name |= {"passes": str(value), "verify_each": value.verify_each}
    return values_by_name


def _read(values_by_name: Mapping[str, str]) -> dict[str, Any]:
    try:
        return {name: parse_json(text) for name, text in values_by_name.items()}
    except ValueError as error:
        what = f"The manifest's options are damaged: {error}."
        raise OptionError(what, hint="compile again with --manifest") from error
