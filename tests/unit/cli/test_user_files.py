"""Python files of the user, whatever they are called."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from micronpu.cli.files import UserFile
from micronpu.targets.ethosu.accelerators import vela_package


def test_a_file_called_as_an_installed_package_takes_nothing_from_it(tmp_path, monkeypatch):
    vela = vela_package()
    monkeypatch.delitem(sys.modules, "ethosu", raising=False)
    file = tmp_path / "ethosu.py"
    file.write_text("def model():\n    return 7\n")
    assert UserFile(file).call("model") == 7
    assert "ethosu" not in sys.modules
    assert vela is not None and vela_package() == vela
    # As Python itself has it for a script in this folder, with `import ethosu` in a file beside it.
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("ethosu")
        assert importlib.util.find_spec("ethosu").origin == str(file)
        assert vela_package() == vela
    finally:
        sys.modules.pop("ethosu", None)
