"""Files with intermediate results of a partition, for inspection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from micronpu.base.errors import FileError
from micronpu.base.files import write_file
from micronpu.ir.graph import Graph
from micronpu.passes.pipeline import Pipeline


class Intermediates:
    """The folder of one partition; without a folder nothing is computed or written.

    Args:
        folder: of the compilation, made if missing; "" for none.
        name: of the partition, and of its folder.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = Path(folder) if folder else None
        self._name = name

    def write(self, file: str, make: Callable[[], str | bytes]) -> None:
        """Write a file into the partition's folder.

        Raises:
            FileError: it cannot be written.
        """
        if self._folder is not None:
            _write(self._folder / self._name / file, make())

    def write_passes(self, graph: Graph, pipeline: Pipeline) -> None:
        """Write a graph before the passes, and after each pass that changed something.

        Raises:
            FileError: a file cannot be written.
        """
        if self._folder is None:
            return
        self.write("graph_before.txt", lambda: f"{graph}\n")
        for number, (name, text) in enumerate(pipeline.trace(graph), 1):
            _write(self._folder / self._name / "passes" / f"{number:03}_{name}.txt", text)

    def write_anyway(self, file: str, content: str) -> None:
        """Write a file that was requested separately: into the folder, or the current one without one."""
        _write((self._folder or Path()) / file, content)


def _write(path: Path, content: str | bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"The folder {path.parent} cannot be made: {error.strerror or error}.", hint="another intermediates_dir"
        ) from error
    write_file(path, content.encode() if isinstance(content, str) else content)
