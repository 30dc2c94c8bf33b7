"""Pictures, labels and metrics for a model; paths of the model and its data, in a manifest relative to its folder."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from micronpu.base import timing
from micronpu.base.errors import FileError, ModelError, OptionError, reason
from micronpu.base.files import check_name
from micronpu.base.texts import plural
from micronpu.cli import console
from micronpu.cli.named_models import is_named
from micronpu.report.manifest import Sources

if TYPE_CHECKING:
    import torch

    from micronpu.cli.files import CalibrationInputs, Model


_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm")
IMAGENET, UNIT, SYMMETRIC = "imagenet", "0..1", "-1..1"
NORMALIZATIONS: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    IMAGENET: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    UNIT: ((0.0,), (1.0,)),
    SYMMETRIC: ((0.5,), (0.5,)),
}
"""Mean and standard deviation of the channels, for values from 0 to 1."""


@dataclass(frozen=True)
class Pictures:
    """Options for pictures, one for each field."""

    images: Annotated[
        Path | None,
        console.option(
            "DIR", "Folder of typical images by path, subfolders too, resized and cropped to the input size."
        ),
    ] = None
    normalize: Annotated[
        str | None,
        console.option("RANGE", f"Pixel scaling: {UNIT}, {SYMMETRIC}, or {IMAGENET} (mean/std).", default="0..1"),
    ] = None

    def check(self, others: str | None = None, option: str = "--calibration") -> None:
        """Check the options before the work is done.

        Args:
            others: value of another option that also gives inputs.
            option: name of that option.
        """
        if self.images is None:
            if self.normalize is not None:
                raise OptionError("--normalize is about pictures.", hint="--images DIR as well")
            if others is not None and not (file := check_name(_parts(others)[0])).exists():
                raise FileError(
                    f"There is no file {file}.", hint="check the path; a .npy or .npz file, or file.py:function"
                )
            return
        if others is not None:
            raise OptionError(f"--images and {option} are both typical inputs.", hint="one of the two")
        if self.normalize is not None and self.normalize not in NORMALIZATIONS:
            raise OptionError(
                f"There is no normalization {self.normalize!r}.", hint=f"one of {', '.join(NORMALIZATIONS)}"
            )
        if self.images.is_file():
            raise FileError(f"{self.images} is a file, not a folder of pictures.", hint=f"{option} {self.images}")
        if not self.images.is_dir():
            raise FileError(f"There is no folder {self.images} with pictures.", hint="check the path")

    def load(self, examples: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the pictures as inputs of the model, sorted by path."""
        assert self.images is not None
        channels, height, width = _size(examples)
        files = sorted(p for p in self.images.rglob("*") if p.suffix.lower() in _ENDINGS and p.is_file())
        if not files:
            raise ModelError(
                f"The folder {self.images} holds no pictures ({', '.join(_ENDINGS)}).", hint="another folder"
            )
        mean, deviation = NORMALIZATIONS[self.normalize or UNIT]
        if len(mean) not in (1, channels):
            raise OptionError(
                f"--normalize {self.normalize} is for {plural(len(mean), 'channel')}, and the input has {channels}.",
                hint=f"--normalize {UNIT}",
            )
        for file in files:
            yield _tensor(_pixels(file, channels, height, width), mean, deviation)


NO_PICTURES = Pictures()


def _size(examples: Sequence[torch.Tensor]) -> tuple[int, int, int]:
    shape = tuple(examples[0].shape) if len(examples) == 1 else ()
    if len(shape) != 4 or shape[0] != 1 or shape[1] not in (1, 3) or not examples[0].is_floating_point():
        shapes = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in examples)
        raise ModelError(
            f"The model takes {shapes}, and pictures are float32[1, 3, height, width], or 1 channel.",
            hint="--calibration file.py:function, which returns a list of inputs",
        )
    return shape[1], shape[2], shape[3]


def _pixels(file: Path, channels: int, height: int, width: int) -> object:
    """Return the pixels, uint8 [height, width, channels]."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ModelError("--images needs Pillow, which is not installed.", hint="pip install pillow") from error
    import numpy as np

    # A small file may declare a size of hundreds of megabytes; Pillow warns at half the size that it refuses.
    too_large = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                fitted = ImageOps.fit(picture.convert("L" if channels == 1 else "RGB"), (width, height))
        return np.array(fitted, np.uint8).reshape(height, width, channels)
    except (OSError, ValueError, SyntaxError, *too_large) as error:
        said = reason(error)
        raise FileError(f"{file} is no picture that can be read: {said}.", hint="leave it out of the folder") from error


def _tensor(pixels: object, mean: Sequence[float], deviation: Sequence[float]) -> torch.Tensor:
    import torch

    values = torch.from_numpy(pixels).permute(2, 0, 1).float() / 255
    centre, spread = (torch.tensor(list(v)).reshape(-1, 1, 1) for v in (mean, deviation))
    return ((values - centre) / spread).unsqueeze(0).contiguous()


_PYTHON, _CHIP = ".py", ".toml"


@timing.step("load")
def load_data(calibration: str | None, pictures: Pictures, loaded: Model) -> CalibrationInputs:
    """Return the calibration inputs that the options name."""
    from micronpu.cli.files import CalibrationInputs, load_calibration

    if pictures.images is not None:
        return CalibrationInputs(str(pictures.images), lambda: pictures.load(loaded.examples))
    return load_calibration(calibration, loaded)


def sources_of(
    model: str, data: CalibrationInputs, pictures: Pictures, libraries: Sequence[str] | None, target: str, program: Path
) -> Sources:
    """Return the paths of the command line for the manifest beside a program."""

    def relative(path: str) -> str:
        """Make a path relative to the manifest's folder, unless it is on another drive."""
        with contextlib.suppress(ValueError):
            return Path(os.path.relpath(path, program.parent)).as_posix()
        return path

    def seen(text: str) -> str:
        return _moved(text, relative)

    return Sources(
        seen(model),
        seen(data.name),
        seen(str(pictures.images or "")),
        pictures.normalize or "",
        tuple(map(seen, libraries or ())),
        seen(target) if _CHIP in target else "",
    )


def found_sources(
    sources: Sources, manifest: Path, model: str | None, calibration: str | None, libraries: Sequence[str] | None
) -> Sources:
    """Return the sources of a manifest, relative to the current folder.

    Args:
        model, calibration, libraries: replacements for those of the manifest, relative to the current folder.
    """

    def seen(text: str) -> str:
        return _moved(text, lambda path: os.path.normpath(manifest.parent / path))

    found = replace(
        sources,
        model=model or seen(sources.model),
        calibration=calibration or seen(sources.calibration),
        images="" if calibration else seen(sources.images),
        libraries=tuple(libraries or map(seen, sources.libraries)),
        chip=seen(sources.chip),
    )
    if not found.model:
        raise OptionError(
            f"{manifest} was written by a Python program, and does not say where the model is.",
            hint=f"micronpu reproduce {manifest} path/to/file.py:function --calibration DATA",
        )
    asked = {_file(text) for text in (model or "", calibration or "", *(libraries or ()))}
    named = [text for text in (found.model, found.calibration, *found.libraries) if text and _is_python(text)]
    if others := [text for text in named if _file(text) not in asked]:
        option = "--calibration" if others[0] == found.calibration else "--library"
        give = f" {others[0]}" if others[0] == found.model else f" {found.model} {option} {others[0]}"
        raise OptionError(
            f"{manifest} names the Python file {_parts(others[0])[0]}, which would be run, and a manifest may be "
            "anybody's.",
            hint=f"micronpu reproduce {manifest}{give}, if you know that file",
        )
    return found


def _moved(text: str, move: Callable[[str], str]) -> str:
    """Return a model or data argument with another path; one without a path unchanged."""
    if not text or is_named(text):
        return text
    path, colon, name = _parts(text)
    return move(path) + colon + name


def _parts(text: str) -> tuple[str, str, str]:
    """Split a model or data argument into path, colon and the rest."""
    path, colon, name = text.rpartition(":")
    return (path, colon, name) if colon and path.endswith((_PYTHON, _CHIP, ".npz")) else (text, "", "")


def _file(text: str) -> str:
    return os.path.realpath(check_name(_parts(text)[0])) if text else ""


def _is_python(text: str) -> bool:
    return not is_named(text) and _parts(text)[0].endswith(_PYTHON)


def load_labels(text: str | None) -> object:
    """Return the one array that ``text`` names; None for None."""
    from micronpu.cli.files import load_arrays

    if text is None:
        return None
    arrays = load_arrays(text)
    if len(arrays) != 1:
        raise ModelError(
            f"{text} holds {len(arrays)} arrays ({', '.join(arrays)}), of which one is the labels.",
            hint=f"{text.partition(':')[0]}:{next(iter(arrays), 'name')}",
        )
    return next(iter(arrays.values()))


def load_metric(text: str | None) -> str | Callable[..., object] | None:
    """Return the name of a metric, or the function that ``file.py:function`` names; None for None."""
    from micronpu.cli.files import UserFile

    path, colon, name = (text or "").rpartition(":")
    if not colon:
        return text
    file = UserFile(Path(path))
    if not file.has(name):
        raise ModelError(f"{file.path} has no function {name!r}.", hint="def metric(outputs, labels): return number")
    function: Callable[..., object] = getattr(file.module, name)
    return function
