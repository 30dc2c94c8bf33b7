"""Makes `weights.npz`, `features.npz`, `sounds.npz` and `words.wav` of this example from the project's data folder.

    python examples/keyword_spotting/make_data.py --data FOLDER

FOLDER (or the environment variable MICRONPU_DATA) holds `kws_dscnn_folded.npz`, `kws_mfcc.npz` and `kws_audio.npz`. The
same input gives the same bytes. Only needed to make the files again: they are kept beside this script.
"""

from __future__ import annotations

import argparse
import os
import wave
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CALIBRATION_ROWS = 100
TEST_ROWS_PER_CLASS = 25


def write_weights(data: Path) -> None:
    """Copies the trained weights: PyTorch layout, `state_dict` keys of `model.DSCNN`."""
    with np.load(data / "kws_dscnn_folded.npz") as source:
        np.savez_compressed(HERE / "weights.npz", **{name: source[name] for name in source.files})


def write_features(data: Path) -> None:
    """Picks rows 0..99 for calibration, and of the others the first 25 of each class, in their old order."""
    with np.load(data / "kws_mfcc.npz") as source:
        x, y, classes = source["x"], source["y"], source["classes"]
    held_out = np.arange(CALIBRATION_ROWS, len(y))
    per_class = [held_out[y[held_out] == index][:TEST_ROWS_PER_CLASS] for index in range(len(classes))]
    rows = np.sort(np.concatenate(per_class)).astype(np.int32)
    np.savez_compressed(
        HERE / "features.npz",
        calibration_x=x[:CALIBRATION_ROWS],
        calibration_y=y[:CALIBRATION_ROWS],
        test_x=x[rows],
        test_y=y[rows],
        test_row=rows,
        classes=classes,
    )


def write_sound(data: Path) -> None:
    """Four words, a second each, and the last quarter of the last one twice more; beside them 16 other recordings."""
    spoken = [24, 29, 12, 1]
    with np.load(data / "kws_audio.npz") as source:
        clips = source["pcm"][spoken]
        others = [row for row in range(len(source["y"])) if row not in spoken]
        np.savez_compressed(HERE / "sounds.npz", pcm=source["pcm"][others[:: len(others) // 16][:16]])
    samples = np.concatenate([*clips, clips[-1][-4000:], clips[-1][-4000:]]).astype("<i2")
    with wave.open(str(HERE / "words.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, len(samples), "NONE", "not compressed"))
        file.writeframes(samples.tobytes())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("MICRONPU_DATA"), help="the data folder")
    data: Path | None = parser.parse_args().data
    if data is None:
        parser.error("no data folder. Try: --data FOLDER, or set MICRONPU_DATA")
    needed = ("kws_dscnn_folded.npz", "kws_mfcc.npz", "kws_audio.npz")
    if missing := [name for name in needed if not (data / name).is_file()]:
        parser.error(f"{data} does not hold {' and '.join(missing)}. Try: another --data FOLDER")
    write_weights(data)
    write_features(data)
    write_sound(data)


if __name__ == "__main__":
    main()
