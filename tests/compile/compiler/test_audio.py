"""`micronpu.audio.LogMel`: near to the magnitude of `torch.stft`, whole on the NPU, the same in a stream."""

from __future__ import annotations

import math
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import micronpu
from micronpu.audio import LogMel
from micronpu.base.errors import OptionError

WAV = Path(__file__).parents[3] / "examples" / "keyword_spotting" / "words.wav"


@pytest.fixture(scope="module")
def sound() -> torch.Tensor:
    """Seconds of speech, ``[rows, 1, samples]``."""
    with wave.open(str(WAV)) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / 32768
    rows = len(data) // 4000
    return torch.from_numpy(data[: rows * 4000].reshape(rows, 1, 4000))


def nearness(exact: torch.Tensor, found: torch.Tensor) -> float:
    """SQNR in dB around the mean, which says nothing of the sound."""
    return 10 * math.log10(float((exact - exact.mean()).square().sum() / (exact - found).square().sum()))


def by_stft(sound: torch.Tensor, model: LogMel, window: int = 400, hop: int = 160) -> torch.Tensor:
    """The same from the magnitude itself."""
    hann = torch.hann_window(window)
    spectrum = [
        torch.fft.rfft(sound[:, 0, i : i + window] * hann, 512).abs() * 2 / hann.sum()
        for i in range(0, sound.shape[2] - window + 1, hop)
    ]
    filters = model.bands.weight[:, :257, 0] * model.bands.weight.shape[1] / 257 * 2 / math.pi
    return torch.log(torch.stack([s @ filters.T for s in spectrum], 2) + model.floor)


@pytest.mark.parametrize(("directions", "least"), ((2, 33.0), (4, 44.0)))
def test_it_is_the_logarithm_of_the_magnitude(sound: torch.Tensor, directions: int, least: float) -> None:
    model = LogMel(directions=directions).eval()
    assert nearness(by_stft(sound, model), model(sound)) > least


def test_levels_are_those_of_full_scale() -> None:
    model = LogMel(directions=8)
    middle = model.bands.weight[20, :257, 0].argmax() * 16000 / 512
    sine = torch.sin(2 * math.pi * middle / 16000 * torch.arange(4000))[None, None]
    assert 0 < float(model(sine)[0, 20].min()) <= float(model(sine)[0, 20].max()) < 1
    assert torch.allclose(model(torch.zeros(1, 1, 4000)), torch.tensor(math.log(model.floor)))


def test_it_is_whole_on_the_npu_and_near(sound: torch.Tensor) -> None:
    model = LogMel().eval()
    rows = [x[None] for x in sound]
    exact = model(sound[1::2])
    program = micronpu.compile(model, rows[0], "ethos-u55-128", calibration=rows[::2], quantization="int16")
    assert program.report.delegated == program.report.operators and program.report.partitions == 1
    assert nearness(exact, torch.cat([program.run(x) for x in rows[1::2]])) > 26


def test_a_stream_gives_the_same_frames(sound: torch.Tensor) -> None:
    model = LogMel(window=64, hop=32, bands=8).eval()
    x = sound[:1, :, :320]
    stream = micronpu.streaming(model, (x,), dim=2, step=32)
    frames = [stream(part) for part in x.split(32, 2)]
    assert torch.allclose(torch.cat(frames[1:], 2), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    (
        ({"window": 1.5}, "`window` is 1.5"),
        ({"hop": 0}, "`hop` is 0"),
        ({"floor_db": 3}, "`floor_db` is 3"),
        ({"bands": True}, "`bands` is True"),
        ({"window": 64, "bands": 80}, "80 bands are too many"),
    ),
)
def test_bad_options_are_sentences(options: dict, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        LogMel(**options)
