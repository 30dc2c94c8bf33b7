"""Compile the C++ plug-in on first use, with the installed compiler, against the installed ExecuTorch wheel.

A platform wheel of micronpu includes libraries (`make_prebuilt`), which are used if they were built from these sources
and for the installed ExecuTorch; setting `$CXX` forces a local build.

A compiled library is stored in a cache directory under a name of two parts. The first is a hash of all its inputs
(sources, flags, `$CXX` and ExecuTorch's version), so that it is never stale. The second is the hash of the library
itself, so that a damaged one is detected and rebuilt. A finished library is moved into place atomically, so that
parallel processes never see a partial one. Loading a library runs its code: one that another user could have written is
refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from micronpu.base.cache import foreign, user_folder
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.base.leaving import scratch_folder, undone
from micronpu.base.processes import end

SUPPORTED_EXECUTORCH = "1.5"
"""Major and minor version whose C++ interface the sources use; the library's soname does not contain it."""

_ADMINISTRATOR = 0
_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_SECONDS = 300
_OTHER_CACHE = "set MICRONPU_CACHE_DIR to a directory that you can write to"
_EXACT = "-ffp-contract=off"
"""Round products and sums separately, as on x86-64; compilers for aarch64 fuse them by default."""
# ET_EVENT_TRACER_ENABLED: without it delegate events silently vanish. C10_USING_CUSTOM_GENERATED_MACROS: the wheel
# lacks the generated c10 macros header.
_FLAGS = (
    "-std=c++17",
    "-O2",
    _EXACT,
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-DC10_USING_CUSTOM_GENERATED_MACROS",
    "-DET_EVENT_TRACER_ENABLED",
)
# The simulator's inner loops are written for the vectorizer.
_SIMULATOR_FLAGS = ("-std=c++17", "-O3", _EXACT, "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


@dataclass(frozen=True)
class ExecuTorchWheel:
    """The installed ExecuTorch: its directory, its version, and the files a compiler needs from it."""

    root: Path
    version: str

    @property
    def include_flags(self) -> tuple[str, ...]:
        """`-isystem`, not `-I`: it disables warnings in ExecuTorch's headers."""
        include = self.root / "include"
        c10 = include / "executorch/runtime/core/portable_type/c10"
        return ("-isystem", str(include), "-isystem", str(c10), f"-ffile-prefix-map={include}=include")

    @property
    def library_directory(self) -> Path:
        """Directory of `libexecutorch`."""
        return self.root / "lib"


def find_executorch() -> ExecuTorchWheel:
    """Locate ExecuTorch without importing it."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeUnavailableError(
            "ExecuTorch is not installed in this Python environment, so programs cannot run on the host.",
            hint=f'pip install "executorch=={SUPPORTED_EXECUTORCH}.*"',
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    try:
        version = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    if version.split(".")[:2] != SUPPORTED_EXECUTORCH.split("."):
        raise RuntimeUnavailableError(
            f"ExecuTorch {version} is installed, but micronpu's runtime plug-in is written for {SUPPORTED_EXECUTORCH}.",
            hint=f'pip install "executorch=={SUPPORTED_EXECUTORCH}.*"',
        )
    wheel = ExecuTorchWheel(root, version)
    library = "libexecutorch.dylib" if sys.platform == "darwin" else "libexecutorch.so"
    for needed in (root / "include/executorch/runtime/backend/interface.h", wheel.library_directory / library):
        if not needed.exists():
            raise RuntimeUnavailableError(
                f"ExecuTorch {version} in {root} has no {needed.relative_to(root)}, so no plug-in can be built for it.",
                hint="install ExecuTorch from PyPI on Linux (on Windows use WSL)",
            )
    return wheel


def find_compiler() -> tuple[str, ...]:
    """Return the C++ compiler's command: `$CXX` (may include arguments) or the first of g++, clang++, c++ on the
    PATH."""
    try:
        asked = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise RuntimeUnavailableError(
            f"The environment variable CXX, {os.environ['CXX']!r}, cannot be read as a command: {error}.",
            hint="unset CXX, or close its quotation marks",
        ) from error
    if asked:
        if shutil.which(asked[0]) is None:
            raise RuntimeUnavailableError(
                f"The C++ compiler {asked[0]!r} that the environment variable CXX names was not found.",
                hint="unset CXX, or set it to an installed C++17 compiler",
            )
        return tuple(asked)
    for name in _COMPILERS:
        if shutil.which(name) is not None:
            return (name,)
    raise RuntimeUnavailableError(
        f"No C++ compiler was found on the PATH ({', '.join(_COMPILERS)}), "
        "but the host runtime plug-in is compiled on first use.",
        hint="install one (Debian and Ubuntu: apt install g++), or set CXX to the path of one",
    )


def cache_directory() -> Path:
    """Directory of built libraries: `$MICRONPU_CACHE_DIR`, or `micronpu` in the user's cache directory. Not created.

    Raises:
        RuntimeUnavailableError: the user has no home directory.
    """
    folder = user_folder()
    if folder is None:
        raise RuntimeUnavailableError(
            "The runtime plug-in, which is compiled on first use, has no place: this user has no home directory.",
            hint=_OTHER_CACHE,
        )
    return folder


def check_cache(cache: Path) -> None:
    """Check that a directory can be created or written, without doing so."""
    place = next(p for p in (cache, *cache.parents) if p.exists() or p.is_symlink())
    if not place.is_dir():
        why = f"{place} is no directory"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{place} cannot be written to"
    else:
        return
    raise RuntimeUnavailableError(
        f"The runtime plug-in cannot be kept in the cache directory {cache}: {why}.", hint=_OTHER_CACHE
    )


def source_directory() -> Path:
    """Directory of the C++ sources: `micronpu/_native` in an installed wheel, `native` at the root of a checkout."""
    package = Path(__file__).resolve().parent.parent
    candidates = (package / "_native", package.parent.parent / "native")
    for candidate in candidates:
        if (candidate / "plugin.cpp").is_file():
            return candidate
    raise RuntimeUnavailableError(
        f"The C++ sources of the runtime plug-in are neither in {candidates[0]} nor in {candidates[1]}.",
        hint="install micronpu again",
    )


def build_plugin(*, prebuilt: bool = True) -> Path:
    """Return the path of the plug-in's shared library: the package's own, or compiled (some seconds) unless cached.

    Args:
        prebuilt: accept the library of the package.

    Raises:
        RuntimeUnavailableError: no compiler, no ExecuTorch 1.5, a compile error, a cache that cannot be written, or one
            that other users can write to.
    """
    wheel = find_executorch()
    directory = source_directory()
    if prebuilt and (found := _prebuilt(_PLUGIN, directory, _FLAGS, wheel.version)) is not None:
        return found
    flags = (*_quick(_FLAGS), *wheel.include_flags)
    return _build(_PLUGIN, directory, flags, _link_flags(wheel, wheel.library_directory), wheel.version)


def build_simulator(name: str, *, prebuilt: bool = True) -> Path:
    """Return the path of the shared library of a backend's simulator, which needs no ExecuTorch; see `build_plugin`."""
    directory = source_directory() / name
    if prebuilt and (found := _prebuilt(f"lib{name}", directory, _SIMULATOR_FLAGS, "")) is not None:
        return found
    return _build(f"lib{name}", directory, _quick(_SIMULATOR_FLAGS), ("-shared",), "")


def _quick(flags: Sequence[str]) -> tuple[str, ...]:
    """Return flags of a build on first use; an attribute optimizes inner loops."""
    return tuple("-O1" if flag.startswith("-O") else flag for flag in flags)


def _simulators(directory: Path) -> list[Path]:
    return sorted({path.parent for path in directory.glob("*/*.cpp")})


def has_prebuilt() -> bool:
    """True if the package includes matching libraries, so that no compiler is needed."""
    try:
        wheel, directory = find_executorch(), source_directory()
    except RuntimeUnavailableError:
        return False
    simulators = (_prebuilt(f"lib{own.name}", own, _SIMULATOR_FLAGS, "") for own in _simulators(directory))
    return all(simulators) and _prebuilt(_PLUGIN, directory, _FLAGS, wheel.version) is not None


def make_prebuilt(folder: Path) -> list[Path]:
    """Compile all libraries for a wheel of micronpu, which stores them in `_native/prebuilt`, with a manifest of their
    inputs and versions; return the files."""
    wheel, compiler, directory = find_executorch(), find_compiler(), source_directory()
    # Relative to site-packages/micronpu/_native/prebuilt. An ExecuTorch elsewhere is loaded into the process earlier.
    here = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    neighbour = Path(f"{here}/../../../executorch/lib")
    jobs = {
        _PLUGIN: (directory, _FLAGS, wheel.include_flags, _link_flags(wheel, neighbour), wheel.version),
        **{f"lib{own.name}": (own, _SIMULATOR_FLAGS, (), ("-shared",), "") for own in _simulators(directory)},
    }
    made: dict[str, dict[str, str]] = {}
    for stem, (sources, flags, include, link_flags, version) in jobs.items():
        with scratch_folder("build-") as scratch:
            files = sorted(sources.glob("*.cpp"))
            built = _compile(compiler, (*flags, *include), link_flags, files, scratch)
            library = folder / f"{stem}{_SUFFIX}"
            shutil.copyfile(built, library)
        made[stem] = {"executorch": version, "made_of": _made_of(sources, flags), "sha256": _digest(library)}
    manifest = {"platform": sysconfig.get_platform(), "libraries": made}
    (folder / PREBUILT_MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return [folder / f"{stem}{_SUFFIX}" for stem in made] + [folder / PREBUILT_MANIFEST]


_PLUGIN = "libmicronpu"
PREBUILT = "prebuilt"
"""Folder of the wheel's libraries, inside the folder of the sources."""
PREBUILT_MANIFEST = "prebuilt.json"
"""Manifest in this folder: inputs and versions of the libraries."""


def _link_flags(wheel: ExecuTorchWheel, found_in: Path) -> tuple[str, ...]:
    """Linker flags of the plug-in; it loads ExecuTorch's library from ``found_in``."""
    return ("-shared", f"-L{wheel.library_directory}", "-lexecutorch", f"-Wl,-rpath,{found_in}")


def _made_of(directory: Path, flags: Sequence[str]) -> str:
    """Digest of the sources and flags, independent of their location."""
    digest = hashlib.sha256("\0".join(flags).encode())
    _add_sources(digest, directory)
    return digest.hexdigest()


def _prebuilt(stem: str, directory: Path, flags: Sequence[str], version: str) -> Path | None:
    """Return the package's library if it is intact, of these sources and for this ExecuTorch."""
    if os.environ.get("CXX"):
        return None
    try:
        folder = source_directory() / PREBUILT
        manifest = json.loads((folder / PREBUILT_MANIFEST).read_bytes())
        library, entry = folder / f"{stem}{_SUFFIX}", manifest["libraries"][stem]
        fits = (
            manifest["platform"] == sysconfig.get_platform()
            and entry["executorch"] == version
            and entry["made_of"] == _made_of(directory, flags)
            and entry["sha256"] == _digest(library)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return library if fits else None


def _build(stem: str, directory: Path, flags: Sequence[str], link_flags: Sequence[str], version: str) -> Path:
    """Return the library of all sources in a directory, from the cache or compiled."""
    sources = sorted(directory.glob("*.cpp"))
    digest = hashlib.sha256()
    # Excludes the compiler's version: libraries of all compilers are equivalent, and a warm cache needs no compiler.
    parts = (os.environ.get("CXX", ""), version, *flags, *link_flags)
    digest.update("\0".join(parts).encode(errors="surrogateescape"))
    _add_sources(digest, directory)
    cache = cache_directory()
    name = f"{stem}-{digest.hexdigest()[:20]}"
    try:
        if (found := _cached(cache, name)) is not None:
            return found
        compiler = find_compiler()
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_private(cache, cache)
        if sys.stderr is not None:
            print(f"Compiling {stem}, once on this machine: some seconds.", file=sys.stderr, flush=True)
        with _build_folder(cache) as scratch:
            built = _compile(compiler, flags, link_flags, sources, scratch)
            built.chmod(0o600)
            library = cache / f"{name}-{_digest(built)}{_SUFFIX}"
            os.replace(built, library)
            return library
    except OSError as error:
        raise RuntimeUnavailableError(
            f"The runtime plug-in cannot be kept in the cache directory {cache}: {error.strerror or error}.",
            hint=_OTHER_CACHE,
        ) from error


_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_BUILD = "build-"


@contextlib.contextmanager
def _build_folder(cache: Path) -> Iterator[Path]:
    """Create a locked folder for a build, and remove the unlocked folders of killed builds."""
    for folder in cache.glob(f"{_BUILD}*"):
        with contextlib.suppress(OSError):
            lock = _lock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    while True:
        with scratch_folder(_BUILD, cache) as folder:
            try:
                lock = _lock(folder)
            except (BlockingIOError, FileNotFoundError):
                continue  # another build removed it before it was locked
            except OSError:  # a file system without locks
                yield folder
                return
            try:
                yield folder
            finally:
                os.close(lock)
            return


def _lock(folder: Path) -> int:
    """Return the descriptor of a lock; raise `OSError` if the folder is locked or removed, or cannot be locked."""
    if sys.platform == "win32":
        raise OSError("folders have no locks on Windows")
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder)  # the previous holder may have removed it
    except OSError:
        os.close(opened)
        raise
    return opened


def _add_sources(digest: Any, directory: Path) -> None:
    for file in sorted((*directory.glob("*.cpp"), *directory.glob("*.h"))):
        content = file.read_bytes()
        digest.update(f"\0{file.name}\0{len(content)}\0".encode() + content)


def _cached(cache: Path, name: str) -> Path | None:
    if not cache.is_dir():
        return None
    _check_private(cache, cache)
    for library in sorted(cache.glob(f"{name}-*{_SUFFIX}")):
        _check_private(library, cache)
        if library.name == f"{name}-{_digest(library)}{_SUFFIX}":
            return library
        library.unlink()
    return None


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:32]


def _check_private(path: Path, cache: Path) -> None:
    """Refuse a path that another user, except the administrator, owns or can write to."""
    status = path.stat() if path == cache else path.lstat()
    if found := foreign(status, is_folder=path == cache, trusted=(_ADMINISTRATOR,)):
        raise RuntimeUnavailableError(
            f"The runtime plug-in is not loaded from the cache directory {cache}, because {path} {found}, "
            "who could have put any code there.",
            hint=f"delete {cache} and build again, or set MICRONPU_CACHE_DIR to a directory of your own (chmod 700)",
        )


def _compile(
    compiler: Sequence[str], flags: Sequence[str], link_flags: Sequence[str], sources: Sequence[Path], scratch: Path
) -> Path:
    """Compile the sources as one translation unit, then link.

    Headers take most of the time of a source: 16 sources alone take 14 CPU seconds, as one 6, in four groups 8.
    Messages and `__FILE__` contain a source's name without its folder, which differs between machines.
    """
    flags = (*flags, f"-ffile-prefix-map={sources[0].parent}=native")
    by_size = sorted(sources, key=lambda source: (source.stat().st_size, source.name))
    included = (part for source in by_size for part in ("-include", str(source)))
    made, library = scratch / "all.o", scratch / "libmicronpu.so"
    command = (*compiler, *flags, *included, "-x", "c++", "-c", os.devnull, "-o", str(made))
    _run(command, f"compiling {', '.join(source.name for source in by_size)}")
    _run((*compiler, str(made), *link_flags, "-o", str(library)), "linking the runtime plug-in")
    return library


def _finished(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`, but in a separate session, so that the compiler's children are killed with it."""
    started: list[subprocess.Popen[str]] = []
    with undone(lambda: [*map(end, started)]):
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        ) as process:
            started.append(process)
            try:
                output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
            finally:
                end(process)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _run(command: Sequence[str], doing: str) -> str:
    """Run the compiler; return its output, or raise an error with the first error line."""
    # The C locale keeps messages (with the word "error") and the version text independent of the user.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = _finished(command, environment)
    except subprocess.TimeoutExpired as error:
        raise RuntimeUnavailableError(
            f"The C++ compiler {command[0]} did not finish {doing} within {_TIMEOUT_SECONDS} s.",
            hint="another compiler through the environment variable CXX",
        ) from error
    except OSError as error:
        raise RuntimeUnavailableError(
            f"The C++ compiler {command[0]} could not be started: {error.strerror or error}.",
            hint="set CXX to an installed C++17 compiler",
        ) from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        first = next((line for line in lines if re.search(r"\berror: ", line)), lines[0] if lines else "no message")
        raise RuntimeUnavailableError(
            f"The C++ compiler {command[0]} failed with exit code {done.returncode} when {doing}: {first}",
            hint="a C++17 compiler (g++ 9 or clang 10, or newer) through the environment variable CXX",
        )
    return done.stdout


def load_library(
    path: Path, what: str, version: str, wanted: int, functions: Mapping[str, tuple[object, ...]]
) -> ctypes.CDLL:
    """Load a library that micronpu has built.

    Args:
        what: description for messages.
        version: name of its function that returns the version of its interface.
        wanted: required version.
        functions: types of the result and of the arguments of its other functions, by name.

    Raises:
        RuntimeUnavailableError: it cannot be loaded, lacks a function, or has another interface.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in {version: (ctypes.c_int32,), **functions}.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        found = getattr(library, version)()
    except (OSError, AttributeError) as error:
        raise RuntimeUnavailableError(
            f"The {what} {path} cannot be loaded: {error}.", hint="delete that file, so that it is built again"
        ) from error
    if found != wanted:
        raise RuntimeUnavailableError(
            f"The {what} {path} has interface version {found}, but micronpu needs {wanted}.",
            hint="delete that file, so that it is built again",
        )
    return library


Library = TypeVar("Library")


def load_or_build(path: Path, load: Callable[[Path], Library], build: Callable[..., Path]) -> Library:
    """Load a library; if it is the package's, and requires a newer C++ library than installed, compile it here."""
    try:
        return load(path)
    except RuntimeUnavailableError:
        if (compiled := build(prebuilt=False)) == path:
            raise
        return load(compiled)
