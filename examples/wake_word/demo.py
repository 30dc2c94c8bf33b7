"""A wake word in a stream of sound: a trained network hears a frame every 20 ms, and keeps what it needs of the past.

    python examples/wake_word/demo.py                        # on the Ethos-U55 of a Corstone-300
    python examples/wake_word/demo.py --target imxrt700 --report wake.html --out wake.png

The network of MLPerf Tiny looks at 30 frames. As a stream it computes only what is new.
Prints where "marvin" was said, and draws how sure the program was at every frame.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from model import HERE, trained
from PIL import Image, ImageDraw

import micronpu

FRAMES, SURE, IN_A_ROW = 30, 0.9, 3  # the least share of the word, in so many frames


def draw(shares: list[float], said: list[tuple[int, int]], path: Path) -> None:
    """Plot the program's score as a curve, with the spoken words in grey."""
    image = Image.new("RGB", (4 * len(shares), 140), "white")
    pen = ImageDraw.Draw(image)
    for first, last in said:
        pen.rectangle((4 * first, 0, 4 * last, 139), fill="#dddddd")
    pen.line((0, 130 - 120 * SURE, image.width, 130 - 120 * SURE), fill="#b04020")
    pen.line([(4 * frame, 130 - 120 * share) for frame, share in enumerate(shares)], fill="#00796b", width=3)
    image.save(path)


def main(arguments: list[str] | None = None) -> list[int]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="corstone300", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    parser.add_argument("--out", type=Path, help="a picture to write")
    options = parser.parse_args(arguments)
    with np.load(HERE / "frames.npz") as data:  # [45, 30, 40]: 15 of each, those of the stream calibrate nothing
        clips, kinds = torch.from_numpy(data["x"].astype(np.float32)), list(data["classes"][data["y"]])
    clips = clips.transpose(1, 2)[..., None]
    heard = [0, 30, 16, 1, 31, 2, 17, 32, 3, 18]  # clips one after the other
    typical = [clips[n : n + 1] for n in range(len(clips)) if n not in heard]
    model = trained()
    stream = micronpu.streaming(model, (typical[0],), dim=2, step=1)
    calibration = [list(clip.split(1, 2)) for clip in typical]
    program = micronpu.compile(stream, (typical[0][:, :, :1],), options.target, calibration=calibration)
    print(program.report.summary())
    frames = torch.cat([clips[n : n + 1] for n in heard], 2).split(1, 2)
    shares = [float(torch.softmax(program.run(frame).flatten(), 0)[0]) for frame in frames]
    over = [frame for frame in range(FRAMES, len(shares)) if min(shares[frame - IN_A_ROW + 1 : frame + 1]) > SURE]
    found = [frame for before, frame in zip([0, *over], over, strict=False) if frame > before + FRAMES // 2]
    said = [(30 * at, 30 * at + 30) for at, n in enumerate(heard) if kinds[n] == "marvin"]
    print(f"marvin was said in frames {said}; heard at {found}")
    if options.out:
        draw(shares, said, options.out)
    if options.report:
        program.report.to_html(options.report)
    return found


if __name__ == "__main__":
    main()
