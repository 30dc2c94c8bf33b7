"""Raw sound in, a word out, wholly on the NPU: the features are layers of the network.

    python examples/sound_to_word.py                               # on the Ethos-U55 of a Corstone-300
    python examples/sound_to_word.py --target imxrt700 --report word.html

`micronpu.audio.LogMel` computes the spectrum by convolutions and without squares, which 8 bits could not hold. A linear
layer turns it into MFCC, what the trained network of `keyword_spotting` takes. Prints what is heard in four recordings
of a second, none of which calibrated anything, in float and by the program.
"""

from __future__ import annotations

import argparse
import math
import sys
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import micronpu
from micronpu.audio import LogMel

HERE = Path(__file__).resolve().parent / "keyword_spotting"
RATE, BANDS, COEFFICIENTS = 16_000, 40, 10


class SoundToWord(nn.Module):
    """[1, 1, 16000], a second of sound, as loud as if its largest sample were 1, to the scores of 12 words."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.cosines = network, nn.Linear(BANDS, COEFFICIENTS)
        self.mel = LogMel(RATE, window=480, hop=320, bands=BANDS, high_hz=4000, floor_db=-60)
        angles = math.pi / BANDS * (torch.arange(BANDS) + 0.5) * torch.arange(COEFFICIENTS)[:, None]
        with torch.no_grad():
            self.cosines.weight.copy_(math.sqrt(2 / BANDS) * torch.cos(angles))
            # LogMel gives 1 for a sine of full scale; the network was trained on sums over a window of 480 samples.
            self.cosines.bias.copy_(self.cosines.weight.sum(1) * math.log(480 / 4))

    def forward(self, sound: Tensor) -> Tensor:
        return self.network(self.cosines(self.mel(sound).transpose(1, 2))[:, None])


def loud(samples: np.ndarray) -> Tensor:
    """Recordings [N, 16000] as the network takes them, [N, 1, 16000]."""
    sound = torch.from_numpy(samples.astype(np.float32))[:, None]
    return sound / sound.abs().amax(2, keepdim=True)


def main(arguments: list[str] | None = None) -> list[tuple[str, str]]:
    sys.path.insert(0, str(HERE))
    from model import dscnn, test_rows

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="corstone300", help="see `micronpu targets`")
    parser.add_argument("--report", type=Path, help="a page to write")
    options = parser.parse_args(arguments)
    model, words = SoundToWord(dscnn()[0]).eval(), test_rows()[2]
    with np.load(HERE / "sounds.npz") as file:
        typical = loud(file["pcm"])
    program = micronpu.compile(model, typical[:1], options.target, calibration=list(typical.split(1)))
    print(program.report.summary())
    heard = []
    with wave.open(str(HERE / "words.wav")) as file:
        samples = np.frombuffer(file.readframes(4 * RATE), "<i2").reshape(4, RATE)
    for sound in loud(samples):
        with torch.no_grad():
            answers = [words[int(run(sound[None]).argmax())] for run in (model, program.run)]
        heard.append((answers[0], answers[1]))
        print(f"heard: {answers[0]} in float, {answers[1]} on the chip")
    if options.report:
        program.report.to_html(options.report)
    return heard


if __name__ == "__main__":
    main()
