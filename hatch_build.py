"""Puts the compiled plug-in and simulator into the wheel, which then is one for this platform.

`python -m build` does: its environment gets ExecuTorch, whose headers and library the plug-in is compiled against.
pip, where it installs from sources, does not wait for that: such an installation compiles on first use. So does one
that was built where there is no C++ compiler.

    MICRONPU_PREBUILT=1    fail rather than leave the libraries out
    MICRONPU_PREBUILT=0    leave them out
    MICRONPU_EXECUTORCH=.../site-packages    where ExecuTorch is, instead of in the build's environment
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "micronpu/_native"


class PrebuiltLibraries(BuildHookInterface):
    """Hatch's hook of the wheel."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """What the build's environment gets beside hatchling."""
        build = self._library_builder()
        asked = os.environ.get("MICRONPU_PREBUILT")
        elsewhere = os.environ.get("MICRONPU_EXECUTORCH") or asked == "0"
        by_pip = "PIP_BUILD_TRACKER" in os.environ and asked != "1"
        if elsewhere or by_pip:
            return []
        try:
            build.find_compiler()
        except build.RuntimeUnavailableError:
            return []
        return [f"executorch=={build.SUPPORTED_EXECUTORCH}.*"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, unless the wheel is that of an editable installation."""
        asked = os.environ.get("MICRONPU_PREBUILT")
        if version != "standard" or asked == "0":
            return
        build = self._library_builder()
        if place := os.environ.get("MICRONPU_EXECUTORCH"):
            sys.path.append(place)
        self._scratch = tempfile.TemporaryDirectory()
        try:
            made = build.make_prebuilt(Path(self._scratch.name))
        except build.RuntimeUnavailableError as error:
            if asked == "1":
                raise
            self.app.display_warning(f"The wheel compiles its plug-in on first use: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"] |= {str(file): f"{INSIDE}/{build.PREBUILT}/{file.name}" for file in made}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Deletes what was compiled."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _library_builder(self) -> ModuleType:
        """The package's module that compiles, by itself: the package needs NumPy, which may not be there."""
        sources = Path(self.root) / "src"
        sys.path.insert(0, str(sources))
        try:
            file = sources / "micronpu/host/build.py"
            spec = importlib.util.spec_from_file_location("micronpu_build", file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(sources))
        return module
