"""Building, caching and loading the C++ plug-in."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from micronpu.errors import RuntimeUnavailableError
from micronpu.runtime import build
from micronpu.runtime.build import build_plugin, cache_directory, find_compiler, find_executorch, source_directory
from micronpu.runtime.plugin import Plugin, load_plugin


def test_sources_compile_without_a_warning():
    wheel = find_executorch()
    for source in sorted(source_directory().glob("*.cpp")):
        command = [*find_compiler(), *build._FLAGS, "-Werror", "-Wshadow", "-fsyntax-only", *wheel.include_flags]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_of_the_first_build(terminal, monkeypatch, tmp_path, capsys):
    def compile_(*arguments):
        (library := arguments[-1] / "library.so").write_bytes(b"")
        return library

    monkeypatch.setattr(build, "_compile", compile_)
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    build_plugin()
    build_plugin()
    assert capsys.readouterr().err.count("Compiling libmicronpu") == terminal


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
    monkeypatch.setattr(build, "__file__", str(package / "runtime/build.py"))
    assert source_directory() == package / "_native"
    (package / "_native/plugin.cpp").unlink()
    with pytest.raises(RuntimeUnavailableError, match="neither in"):
        source_directory()


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
