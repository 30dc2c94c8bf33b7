"""Words in a WAV file, heard as they come: sound in pieces of 20 ms, features, the trained network, a decision.

    python examples/words_in_a_wav.py                                # four words, spoken one after the other
    python examples/words_in_a_wav.py mine.wav --target himax-we2    # 16 kHz, mono, 16 bits

The network looks at the last second, every 80 ms; three equal answers in a row are a word.
`wake_word` has a network that computes only what is new, `sound_to_word.py` one that computes its features itself.
"""

from __future__ import annotations

import argparse
import sys
import wave
from collections import deque
from pathlib import Path

import numpy as np
import torch

import micronpu

HERE = Path(__file__).resolve().parent / "keyword_spotting"
sys.path.insert(0, str(HERE))  # its network, weights and words
RATE, WINDOW, HOP, FRAMES, FFT = 16_000, 480, 320, 49, 512
ASK, SURE, IN_A_ROW = 4, 0.8, 3  # hops from answer to answer; the least share of a word, in so many answers

mel = 1127 * np.log(1 + np.fft.rfftfreq(FFT, 1 / RATE) / 700)
edges = np.linspace(*1127 * np.log(1 + np.array([20, 4000]) / 700), 42)
rising, falling = ((mel[:, None] - edges[at]) / (edges[1] - edges[0]) for at in (np.s_[:40], np.s_[2:]))
TRIANGLES = np.clip(np.minimum(rising, -falling), 0, None)  # [257, 40]
COSINES = np.sqrt(2 / 40) * np.cos(np.pi / 40 * (np.arange(40) + 0.5)[:, None] * np.arange(10))  # [40, 10]
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)


class Ear:
    """Features of the last second: MFCC as the network was trained with, a frame for each hop of 320 samples."""

    def __init__(self) -> None:
        self.sound, self.bands, self.loudest = np.zeros(WINDOW), deque(maxlen=FRAMES), deque(maxlen=FRAMES + 1)

    def hear(self, hop: np.ndarray) -> None:
        self.sound = np.concatenate([self.sound, hop])[-WINDOW:]
        self.bands.append(np.abs(np.fft.rfft(self.sound * HANN, FFT)) @ TRIANGLES)
        self.loudest.append(float(hop.max()))

    def features(self) -> torch.Tensor:
        """[1, 1, 49, 10]; as loud as if the second's largest sample were 1."""
        logarithms = np.log(np.stack(self.bands) / max(*self.loudest, 1e-3) + 1e-6)
        return torch.from_numpy((logarithms @ COSINES).astype(np.float32))[None, None]


def main(arguments: list[str] | None = None) -> list[str]:
    from model import calibration, dscnn, test_rows

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=HERE / "words.wav")
    parser.add_argument("--target", default="imxrt700", help="see `micronpu targets`")
    options = parser.parse_args(arguments)
    model, examples = dscnn()
    program = micronpu.compile(model, examples, options.target, calibration=calibration())
    words, ear, heard, likeliest = test_rows()[2], Ear(), [], deque(maxlen=IN_A_ROW)
    with wave.open(str(options.file)) as file:
        if file.getparams()[:3] != (1, 2, RATE):
            sys.exit(f"{options.file} is not 16 kHz, mono, 16 bits. Try: sox IN.wav -r 16000 -c 1 -b 16 OUT.wav")
        for number in range(file.getnframes() // HOP):
            ear.hear(np.frombuffer(file.readframes(HOP), "<i2") / 32768)
            if number < FRAMES or number % ASK:
                continue
            shares = torch.softmax(program.run(ear.features())[0], 0)
            likeliest.append(word := words[int(shares.argmax())] if shares.max() > SURE else "Unknown")
            if likeliest.count(word) == IN_A_ROW and word not in ("Silence", "Unknown", *heard[-1:]):
                heard.append(word)
                print(f"{number * HOP / RATE:5.2f} s  {word} ({float(shares.max()):.0%})")
    return heard


if __name__ == "__main__":
    main()
