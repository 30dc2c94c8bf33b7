"""Building, caching and loading the C++ plug-in."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from micronpu.base.errors import RuntimeUnavailableError
from micronpu.host import build
from micronpu.host.build import build_plugin, cache_directory, find_compiler, find_executorch, source_directory
from micronpu.runtime.plugin import Plugin, load_plugin


@pytest.mark.sweep
@pytest.mark.parametrize(("folder", "more"), [(".", ("-Wshadow",)), ("ethosu_sim", ())])
def test_sources_compile_without_a_warning(folder, more, monkeypatch, tmp_path):
    """As one source, as the product compiles them; the same bytes once, as those of the libraries."""
    sources = build.source_directory() / folder
    flags = (*build._FLAGS, *more, "-fsyntax-only", "-Werror", *find_executorch().include_flags)
    made_of = build._made_of(sources, (*find_compiler(), *flags))
    known = cache_directory() / f"compiled-without-a-warning-{made_of}"
    if known.exists():
        return
    run, compiled = build._run, []

    def compile_only(command, doing):
        if "-c" not in command:
            return ""
        compiled.extend(part for part in command if part.endswith(".cpp"))
        return run(command, doing)

    monkeypatch.setattr(build, "_run", compile_only)
    files = sorted(sources.glob("*.cpp"))
    build._compile(find_compiler(), flags, (), files, tmp_path)
    assert sorted(compiled) == list(map(str, files)) and len(files) > 10
    known.parent.mkdir(parents=True, exist_ok=True)
    known.touch()


def test_second_build_is_the_cached_file(monkeypatch):
    first = build_plugin()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build_plugin() == first
    assert first.parent == cache_directory()


def test_parallel_builds_in_an_empty_cache_do_not_race(monkeypatch, tmp_path):
    """Threads stand for pytest workers: nothing is shared but the directory."""
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "new"))
    source = tmp_path / "native"
    source.mkdir()
    (source / "plugin.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int micronpu_abi_version() { return 1; }\n'
    )
    monkeypatch.setattr(build, "source_directory", lambda: source)
    with ThreadPoolExecutor(3) as pool:
        paths = {future.result() for future in [pool.submit(build_plugin) for _ in range(3)]}
    (path,) = paths
    assert ctypes.CDLL(str(path)).micronpu_abi_version() == 1
    assert list((tmp_path / "new").iterdir()) == [path], "temporary files are left"


def test_a_changed_source_gives_another_library(monkeypatch, tmp_path):
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "source_directory", lambda: tmp_path)
    compiled = []

    def compile_(*arguments):
        compiled.append(arguments)
        (tmp_path / "made").write_bytes(b"x")
        return tmp_path / "made"

    monkeypatch.setattr(build, "_compile", compile_)
    (tmp_path / "plugin.cpp").write_text("int a;")
    (tmp_path / "a.h").write_text("")
    names = {build_plugin()}
    assert build_plugin() in names, "built twice"
    (tmp_path / "a.h").write_text("// changed")
    names.add(build_plugin())
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))
    names.add(build_plugin())
    assert len(names) == len(compiled) == 3


def test_the_first_build_is_reported(monkeypatch, tmp_path, capsys):
    def compile_(*arguments):
        (library := arguments[-1] / "library.so").write_bytes(b"")
        return library

    monkeypatch.setattr(build, "_compile", compile_)
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "cache"))
    build_plugin()
    build_plugin()
    assert capsys.readouterr().err.count("Compiling libmicronpu") == 1


def test_missing_compiler_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/g++ -m32")
    with pytest.raises(RuntimeUnavailableError, match="'/nowhere/g\\+\\+' that the environment variable CXX names"):
        build_plugin()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeUnavailableError, match=r"No C\+\+ compiler was found .*apt install"):
        build_plugin()


def test_cxx_may_hold_arguments(monkeypatch):
    name = find_compiler()[0]
    monkeypatch.setenv("CXX", f"{name} -DX=1")
    assert find_compiler() == (name, "-DX=1")


@pytest.mark.parametrize("version", ["1.4.0", "1.50.0", "2.5.1", "0.1"])
def test_wrong_executorch_is_a_sentence(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(RuntimeUnavailableError, match=f"ExecuTorch {version} is installed.*for 1.5"):
        find_executorch()


def test_patch_releases_of_executorch_are_taken(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.5.7+cpu")
    assert find_executorch().version == "1.5.7+cpu"


def test_absent_executorch_is_a_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailableError, match=r"not installed.*pip install"):
        find_executorch()


def test_compile_error_shows_the_compilers_first_error(monkeypatch, tmp_path):
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "plugin.cpp").write_text("#warning harmless\nint f() { return missing; }\n")
    monkeypatch.setattr(build, "source_directory", lambda: tmp_path)
    with pytest.raises(RuntimeUnavailableError, match=r"when compiling plugin.cpp: .*plugin.cpp:2:.*missing"):
        build_plugin()
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_that_cannot_be_made_is_a_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(RuntimeUnavailableError, match=r"cannot be kept.*MICRONPU_CACHE_DIR"):
        build_plugin()


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A plug-in of one line in a cache of its own; the folder of the cache."""
    source = tmp_path / "native"
    source.mkdir()
    (source / "plugin.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int micronpu_abi_version() { return 1; }\n'
    )
    monkeypatch.setattr(build, "source_directory", lambda: source)
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_private(small):
    library = build_plugin()
    assert small.stat().st_mode & 0o777 == 0o700
    assert library.stat().st_mode & 0o777 == 0o600


def test_what_a_killed_build_has_left_goes_with_the_next(small):
    """But not what another build works in at that time."""
    small.mkdir(mode=0o700)
    (small / "build-killed").mkdir()
    (small / "build-killed" / "half.o").touch()
    with build._build_folder(small) as other:
        (other / "half.o").touch()
        build_plugin()
        assert {p.name for p in small.glob("build-*")} == {other.name} and (other / "half.o").exists()
    assert not list(small.glob("build-*"))


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\x7fELF", lambda data: b""])
def test_a_damaged_library_is_built_again(small, damage):
    """A cut one would end the process with SIGBUS while it is loaded."""
    library = build_plugin()
    library.write_bytes(damage(library.read_bytes()))
    assert ctypes.CDLL(str(build_plugin())).micronpu_abi_version() == 1
    assert len(list(small.iterdir())) == 1


def test_what_others_can_write_to_is_not_loaded(small, monkeypatch):
    library = build_plugin()
    for path, mode in ((library, 0o620), (small, 0o770), (small, 0o702)):
        before = path.stat().st_mode & 0o777
        path.chmod(mode)
        with pytest.raises(RuntimeUnavailableError, match=f"{path} can be written to by others .mode {mode:o}"):
            build_plugin()
        path.chmod(before)
    assert build_plugin() == library
    elsewhere = small.parent / "other.so"
    library.rename(elsewhere)
    library.symlink_to(elsewhere)
    with pytest.raises(RuntimeUnavailableError, match=r"can be written to|no regular file"):
        build_plugin()
    library.unlink()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(build, "_ADMINISTRATOR", 54321)
    with pytest.raises(RuntimeUnavailableError, match=f"{small} belongs to another user"):
        build_plugin()


def test_a_warm_cache_needs_no_compiler(small, monkeypatch):
    library = build_plugin()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert build_plugin() == library


def test_a_broken_cxx_is_a_sentence(monkeypatch):
    monkeypatch.setenv("CXX", "g++ 'x")
    with pytest.raises(RuntimeUnavailableError, match=r"CXX, .* cannot be read as a command: No closing quotation"):
        find_compiler()


def test_no_home_is_a_sentence(monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    for name in ("MICRONPU_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build.Path, "home", nobody)
    with pytest.raises(RuntimeUnavailableError, match=r"no home directory\. Try: set MICRONPU_CACHE_DIR"):
        cache_directory()


def test_sources_of_an_installed_wheel_come_first(monkeypatch, tmp_path):
    package = tmp_path / "site-packages/micronpu"
    (package / "_native").mkdir(parents=True)
    (package / "_native/plugin.cpp").write_text("")
    monkeypatch.setattr(build, "__file__", str(package / "host/build.py"))
    assert source_directory() == package / "_native"
    (package / "_native/plugin.cpp").unlink()
    with pytest.raises(RuntimeUnavailableError, match="neither in"):
        source_directory()


@pytest.fixture
def with_libraries(monkeypatch, tmp_path):
    """A package of two small sources with the libraries made of them, as in a wheel for this platform."""
    for stem in ("plugin", "ethosu_sim/sim"):
        (tmp_path / stem).parent.mkdir(exist_ok=True)
        (tmp_path / f"{stem}.cpp").write_text(
            'extern "C" __attribute__((visibility("default"))) int micronpu_abi_version() { return 7; }\n'
            'extern "C" __attribute__((visibility("default"))) const char* micronpu_source() { return __FILE__; }\n'
        )
    monkeypatch.setattr(build, "source_directory", lambda: tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / build.PREBUILT
    folder.mkdir()
    build.make_prebuilt(folder)
    monkeypatch.setattr(build, "_build", lambda stem, *_: Path("compiled here"))
    return folder


def test_libraries_of_the_package_are_taken_where_they_fit(with_libraries, monkeypatch):
    found = build_plugin(), build.build_simulator("ethosu_sim")
    assert [path.parent for path in found] == [with_libraries] * 2
    assert ctypes.CDLL(str(found[0])).micronpu_abi_version() == 7
    here = str(build.source_directory()).encode()
    assert all(here not in path.read_bytes() for path in found), "where it was built is nobody's business"
    assert build_plugin(prebuilt=False) == Path("compiled here")
    monkeypatch.setenv("CXX", "clang++")
    assert build_plugin() == Path("compiled here"), "somebody wants another compiler"


def _other_executorch(folder):
    reported = json.loads((folder / "prebuilt.json").read_text())
    assert reported["libraries"]["libmicronpu"]["executorch"] == importlib.metadata.version("executorch")
    reported["libraries"]["libmicronpu"]["executorch"] = "1.5.0rc1"
    (folder / "prebuilt.json").write_text(json.dumps(reported))


def _other_platform(folder):
    reported = json.loads((folder / "prebuilt.json").read_text())
    (folder / "prebuilt.json").write_text(json.dumps(reported | {"platform": "linux-riscv64"}))


@pytest.mark.parametrize(
    "spoil",
    [
        _other_executorch,
        _other_platform,
        lambda folder: (folder / "prebuilt.json").write_text('{"libraries": []}'),
        lambda folder: (folder / "prebuilt.json").unlink(),
        lambda folder: (folder / "libmicronpu.so").write_bytes(b"\x7fELF"),
        lambda folder: (folder.parent / "plugin.cpp").write_text("// another"),
    ],
    ids=["other ExecuTorch", "other platform", "no list", "no file", "damaged", "other sources"],
)
def test_libraries_of_the_package_that_do_not_fit_are_left(with_libraries, spoil):
    spoil(with_libraries)
    assert build_plugin() == Path("compiled here")


def test_a_library_of_the_package_that_does_not_load_is_compiled_here(tmp_path):
    """One of a newer system asks for a C++ library that an older one does not have."""
    opened = []

    def open_(path):
        opened.append(path)
        if path == tmp_path:
            raise RuntimeUnavailableError("version `GLIBCXX_3.4.99' not found")
        return "plug-in"

    assert build.load_or_build(tmp_path, open_, lambda prebuilt: Path("compiled here")) == "plug-in"
    assert opened == [tmp_path, Path("compiled here")]


@pytest.fixture
def hook(monkeypatch):
    """The hook of the wheel, without the build system that calls it."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("hatch_build", root / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("MICRONPU_PREBUILT", "MICRONPU_EXECUTORCH", "PIP_BUILD_TRACKER", "CXX"):
        monkeypatch.delenv(name, raising=False)
    made = module.PrebuiltLibraries()
    made.root = str(root)
    made.warnings = []
    made.app = SimpleNamespace(display_warning=made.warnings.append)
    return made


def test_the_wheel_is_for_a_platform_where_it_has_libraries(hook, monkeypatch):
    builder = hook._library_builder()
    monkeypatch.setattr(hook, "_library_builder", lambda: builder)
    monkeypatch.setattr(builder, "make_prebuilt", lambda folder: [folder / "libmicronpu.so"])
    data = {"force_include": {}, "pure_python": True}
    hook.initialize("editable", data)
    assert data["pure_python"], "an editable installation compiles on first use"
    hook.initialize("standard", data)
    assert not data["pure_python"] and data["tag"].startswith("py3-none-")
    assert list(data["force_include"].values()) == ["micronpu/_native/prebuilt/libmicronpu.so"]
    hook.finalize("standard", data, "")
    assert not Path(*data["force_include"]).parent.exists()

    def fail(folder):
        raise builder.RuntimeUnavailableError("ExecuTorch is not installed.")

    monkeypatch.setattr(builder, "make_prebuilt", fail)
    data = {}
    hook.initialize("standard", data)
    assert data == {} and "on first use: ExecuTorch is not installed." in hook.warnings[0]
    monkeypatch.setenv("MICRONPU_PREBUILT", "0")
    hook.initialize("standard", data)
    assert len(hook.warnings) == 1
    monkeypatch.setenv("MICRONPU_PREBUILT", "1")
    with pytest.raises(builder.RuntimeUnavailableError):
        hook.initialize("standard", data)


def test_a_build_gets_executorch_unless_pip_installs(hook, monkeypatch):
    assert hook.dependencies() == ["executorch==1.5.*"]
    monkeypatch.setenv("PIP_BUILD_TRACKER", "/tmp/x")
    assert hook.dependencies() == []
    monkeypatch.setenv("MICRONPU_PREBUILT", "1")
    assert hook.dependencies() == ["executorch==1.5.*"]
    monkeypatch.setenv("MICRONPU_EXECUTORCH", "/somewhere")
    assert hook.dependencies() == []
    monkeypatch.delenv("MICRONPU_EXECUTORCH")
    monkeypatch.setenv("PATH", "")
    assert hook.dependencies() == [], "no compiler"


@pytest.mark.slow
def test_a_wheel_with_libraries_runs_programs_without_a_compiler(tmp_path):
    """Built by pip from the checkout, unpacked elsewhere, and run with nothing on the PATH and no cache."""
    root = Path(__file__).parents[2]
    place = find_executorch().root.parent
    environment = os.environ | {"MICRONPU_PREBUILT": "1", "MICRONPU_EXECUTORCH": str(place)}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(root)], check=True, env=environment)
    (wheel,) = tmp_path.glob("micronpu-*-py3-none-linux_*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "there"), str(wheel)], check=True)
    script = """
import sys, numpy
from micronpu.runtime import ArrayProgram, plugin
from micronpu.targets.ethosu.host import simulator
for name in ("neutron", "ethosu-litert"):
    with numpy.load(f"{sys.argv[1]}/{name}.npz") as arrays, ArrayProgram(f"{sys.argv[1]}/{name}.pte") as program:
        found = program.run_arrays(*(arrays[n] for n in arrays.files if n.startswith("input")))
        assert (found[0] == arrays["output_0"]).all()
print(plugin._loaded.path, simulator._library._name)
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "there"), "PATH": ""}
    environment |= {"MICRONPU_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("CXX", None)
    command = [sys.executable, "-c", script, str(root / "tests/golden")]
    done = subprocess.run(command, check=True, env=environment, cwd=tmp_path, capture_output=True, text=True)
    folder = tmp_path / "there/micronpu/_native/prebuilt"
    assert done.stdout.split() == [str(folder / "libmicronpu.so"), str(folder / "libethosu_sim.so")]
    assert not (tmp_path / "cache").exists()


def test_cache_directory_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("MICRONPU_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "micronpu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache/micronpu"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "Library/Caches/micronpu"


def test_the_delegate_is_registered_once():
    plugin = load_plugin()
    assert load_plugin() is plugin
    from executorch.runtime import Runtime

    assert Runtime.get().backend_registry.registered_backend_names.count("NeutronBackend") == 1
    assert ctypes.CDLL(str(plugin.path)).micronpu_register() == 0


STOCK = """
import sys
import numpy as np
import torch
import executorch.export
from executorch.runtime import Runtime
import micronpu.recipes

def run(name):
    arrays = np.load(f"{name}.npz")
    method = Runtime.get().load_program(f"{name}.pte").load_method("forward")
    inputs = [torch.from_numpy(arrays[key]) for key in arrays.files if key.startswith("input")]
    (output,) = method.execute(inputs)
    assert np.array_equal(output.numpy(), arrays["output_0"]), name

try:
    run(sys.argv[1])
except RuntimeError as error:
    assert "error: 0x:20" in str(error), error
else:
    raise AssertionError("something else registers")
import micronpu.runtime.register

for name in sys.argv[1:]:
    run(name)

model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.ones(1, 4)
recipe = micronpu.recipes.get_corstone300_recipe(calibration=[(x,)])
session = executorch.export.export(model, [(x,)], recipe)
(output,) = session.run_method("forward", (x,))
assert (output - model(x)).abs().max() < 0.1, (output, model(x))
"""


@pytest.mark.sweep
def test_one_import_registers_with_the_runtime_of_executorch():
    golden = Path(__file__).parents[1] / "golden"
    names = sorted(str(path.with_suffix("")) for path in golden.glob("*.pte"))
    done = subprocess.run([sys.executable, "-c", STOCK, *names], capture_output=True, text=True)
    assert names and done.returncode == 0, done.stderr


def test_the_runtime_logs_nothing_of_our_calls(capfd):
    """Beside ExecuTorch's Python interface, which has logging of its own: that goes on for the calls of others."""
    from executorch.runtime import Runtime

    path = min((Path(__file__).parents[1] / "golden").glob("*.pte"))
    data = path.read_bytes().replace(b"EthosUBackend", b"EthosUBackenX").replace(b"NeutronBackend", b"NeutronBackenX")
    host = load_plugin(torch=True).host
    capfd.readouterr()
    for _ in range(2):
        assert host.load(data, len(data), b"forward", None) is None
        assert capfd.readouterr().err == ""
        with pytest.raises(RuntimeError):
            Runtime.get().load_program(data).load_method("forward")
        assert "BackenX" in capfd.readouterr().err


def test_a_second_copy_of_the_plugin_does_not_abort(tmp_path):
    """Another file is another library for the loader: its registration is refused with a sentence."""
    copy = tmp_path / "copy.so"
    copy.write_bytes(load_plugin().path.read_bytes())
    with pytest.raises(RuntimeUnavailableError, match="already registered"):
        Plugin(copy)


def test_a_damaged_library_is_a_sentence(tmp_path):
    path = tmp_path / "libmicronpu.so"
    path.write_bytes(b"not a library")
    with pytest.raises(RuntimeUnavailableError, match=r"cannot be loaded.*delete that file"):
        Plugin(path)


def test_importing_the_runtime_loads_no_heavy_library():
    code = (
        "import sys, micronpu.runtime; "
        "print([m for m in ('torch', 'executorch', 'ai_edge_litert', 'flatbuffers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "order", ["load_plugin(torch=False); load_plugin()", "import torch; load_plugin(torch=False); load_plugin()"]
)
def test_the_interface_of_executorch_is_loaded_without_a_word(order):
    script = f"from micronpu.runtime.plugin import load_plugin; {order}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
