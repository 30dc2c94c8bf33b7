"""Files about a program for firmware developers: report, kernel selection, operators of the core."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir.backend.partitioner import Partitioner
from executorch.export import ExportRecipe, StageType
from executorch.export.stages import PipelineArtifact, Stage

from micronpu.base.arguments import check_type
from micronpu.base.errors import OptionError
from micronpu.base.files import check_folder, write_file
from micronpu.recipes.lowering import OutliningPartitioner, partitioners_of

REPORT = "report"
OPERATORS = "host_operators.txt"


class MicroNpuStage(Enum):
    """Additional stages."""

    FILES = "micronpu_files"


FILES = MicroNpuStage.FILES
"""Value for ``pipeline_stages`` of a recipe and `ExportSession.register_stage`."""


def check_files_dir(folder: object) -> Path | None:
    """Return the folder to write to, or None."""
    if not isinstance(folder, (str, Path)):
        raise OptionError(f"`files_dir` is {folder!r}; it is the path of a folder.", hint="a path such as 'out'")
    if not str(folder):
        return None
    check_folder(folder, "The files about the program cannot be written")
    return Path(folder)


def write_report_files(partitioners: Sequence[Partitioner], folder: Path) -> list[Path]:
    """Write the delegation report as JSON and HTML, and the files that the firmware needs for each partition."""
    written = []
    for partitioner in partitioners:
        if not isinstance(partitioner, OutliningPartitioner) or partitioner.report is None:
            continue
        written.append(write_file(folder / f"{REPORT}.json", (partitioner.report.to_json() + "\n").encode()))
        partitioner.report.to_html(folder / f"{REPORT}.html")
        written.append(folder / f"{REPORT}.html")
        for part in partitioner.partitions:
            for name, text in part.firmware_files().items():
                written.append(write_file(folder / name, text.encode()))
    return written


def host_operators(program: ExecutorchProgramManager) -> list[str]:
    """Return the operators that a runtime must register, such as ``cortex_m::quantized_add.out``, sorted."""
    plans = program.executorch_program.execution_plan
    return sorted({f"{o.name}.{o.overload}" if o.overload else o.name for plan in plans for o in plan.operators})


def stages_with_files(recipe: ExportRecipe) -> list[object]:
    """Return the stages that a session runs for a float module, followed by `FILES`."""
    check_type("recipe", recipe, ExportRecipe, hint="micronpu.recipes.get_imxrt700_recipe()")
    lowering = recipe.lowering_recipe
    return [
        StageType.SOURCE_TRANSFORM,
        StageType.QUANTIZE,
        StageType.TORCH_EXPORT,
        StageType.TO_EDGE_TRANSFORM_AND_LOWER,
        *([StageType.EDGE_PROGRAM_MANAGER_TRANSFORM] if lowering and lowering.edge_manager_transform_passes else []),
        StageType.TO_EXECUTORCH,
        FILES,
    ]


class WriteFiles:
    """Writes the report files when a program is lowered; for ``edge_manager_transform_passes`` of a recipe."""

    def __init__(self, partitioner: Partitioner, folder: Path) -> None:
        self.partitioner = partitioner
        self.folder = folder

    def __call__(self, edge: EdgeProgramManager) -> list[Any]:
        write_report_files([self.partitioner], self.folder)
        return []


class FilesStage(Stage):
    """Writes all files about a finished program, as a stage of a session after `StageType.TO_EXECUTORCH`.

    In addition to the files of a recipe with ``files_dir`` it writes ``host_operators.txt``, one operator per line, for
    ExecuTorch's selective build.

        recipe.pipeline_stages = stages_with_files(recipe)
        session = ExportSession(model, [(x,)], recipe)
        session.register_stage(FILES, FilesStage(recipe, "build/kws"))
        session.export()

    Args:
        recipe: that of the session.
        files_dir: an existing folder.
    """

    def __init__(self, recipe: ExportRecipe, files_dir: str | Path) -> None:
        super().__init__()
        folder = check_files_dir(files_dir)
        if folder is None:
            raise OptionError("FilesStage was given no folder.", hint='FilesStage(recipe, "build")')
        self.folder = folder
        self.partitioners = partitioners_of(recipe)

    @property
    def stage_type(self) -> MicroNpuStage:
        return FILES

    @property
    def valid_predecessor_stages(self) -> list[StageType]:
        return [StageType.TO_EXECUTORCH]

    @property
    def can_start_pipeline(self) -> bool:
        return False

    def run(self, artifact: PipelineArtifact) -> None:
        """Write the files, and pass on the artifact unchanged."""
        write_report_files(self.partitioners, self.folder)
        lines = "".join(f"{name}\n" for name in host_operators(artifact.data))
        write_file(self.folder / OPERATORS, lines.encode())
        self._artifact = artifact
