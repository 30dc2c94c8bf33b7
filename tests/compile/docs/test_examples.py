"""The examples of one file each, run as they stand, and the list of all."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import runpy
import sys
import wave
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import showpieces
from tests.compile.docs.blocks import form

EXAMPLES = Path(__file__).parents[3] / "examples"


HELPERS = sorted({path.stem for path in EXAMPLES.glob("*/*.py")})


def example(name: str) -> ModuleType:
    """An example as a module; it imports what its folder holds by bare names, as a script does."""
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for helper in HELPERS:
        sys.modules.pop(helper, None)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        for helper in HELPERS:
            sys.modules.pop(helper, None)
    return module


def test_the_list_names_every_example_and_no_other() -> None:
    listed = re.findall(r"^\| \[([\w.]+)\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert "keyword_spotting/demo.ipynb" in (EXAMPLES / "README.md").read_text()
    there = {p.name for p in EXAMPLES.iterdir() if p.suffix == ".py" or any(p.glob("*.py"))}
    assert {name for name, _ in listed} == {link for _, link in listed} == there
    for path in [*EXAMPLES.glob("*.py"), *(EXAMPLES / f"{name}.py" for name in showpieces.SCRIPTS)]:
        assert len(path.read_text().splitlines()) <= 80, path


@pytest.mark.slow
def test_anomaly_score(capsys: pytest.CaptureFixture[str]) -> None:
    in_float, in_int8 = example("anomaly_score/demo").main(["--target", "ethos-u55-128"])
    assert in_float > 0.85, "the network has learnt what the machine sounds like"
    assert abs(in_int8 - in_float) < 0.03
    printed = capsys.readouterr().out
    assert f"AUC float  {in_float:.3f}" in printed and f"AUC int8   {in_int8:.3f}" in printed


@pytest.mark.slow
def test_blame_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = example("blame_and_fix").main(["--rows", "24", "--seconds", "600"])
    assert after > before + 5.0, "equalization makes the channels even again"
    printed = capsys.readouterr().out
    assert "Try: " in printed and "22 of 22 operators on the NPU" in printed


@pytest.mark.slow
def test_choose_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("choose_a_chip")
    assert module.main(["imxrt700", "himax-we2"]) == "imxrt700", "less SRAM"
    assert "himax-we2" in capsys.readouterr().out


@pytest.mark.sweep
def test_words_in_a_wav(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "model", raising=False)
    module = example("words_in_a_wav")
    assert module.main(["--target", "imxrt700-neutron"]) == ["Stop", "Yes", "Go", "Left"]
    assert "1.20 s  Stop" in capsys.readouterr().out
    with wave.open(str(tmp_path / "fast.wav"), "wb") as file:
        file.setparams((2, 2, 44_100, 0, "NONE", ""))
    with pytest.raises(SystemExit, match="not 16 kHz, mono"):
        module.main([str(tmp_path / "fast.wav")])
    sys.modules.pop("model", None)


def test_the_features_of_a_wav_are_those_of_the_network() -> None:
    """A recording of the file and its row among those that calibrate: what the network was trained with."""
    module, folder = example("words_in_a_wav"), EXAMPLES / "keyword_spotting"
    with wave.open(str(folder / "words.wav")) as file:
        sound = np.frombuffer(file.readframes(16_000), "<i2") / 32768
    ear = module.Ear()
    ear.sound[320:] = sound[:160]
    for at in range(160, 160 + 49 * 320, 320):
        ear.hear(sound[at : at + 320])
    ear.loudest.append(sound.max())
    row = np.load(folder / "features.npz")["calibration_x"][24]
    assert np.abs(ear.features()[0, 0].numpy() - row).max() < 1e-4


@pytest.mark.sweep
def test_visual_wake_word(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("visual_wake_word/demo").main(["--target", "himax-we2"])
    for name, (in_float, on_the_chip) in found.items():
        assert (on_the_chip > 0.5) == (in_float > 0.5) == (name == "astronaut")
        assert abs(on_the_chip - in_float) < 0.1
    assert "62 of 62 operators on the NPU" in capsys.readouterr().out


def printed_by(script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a demo prints that runs as a script, as `python examples/.../demo.py` does."""
    path, output = EXAMPLES / script, io.StringIO()
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    helpers = {p.stem for p in EXAMPLES.glob("*/*.py")}
    for name in helpers:
        monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        for name in helpers:
            sys.modules.pop(name, None)
    return output.getvalue()


@pytest.mark.sweep
def test_wake_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each word that is said is heard while it is said, and nothing else is."""
    files = ["--out", str(tmp_path / "wake.png"), "--report", str(tmp_path / "wake.html")]
    heard = example("wake_word/demo").main(files)
    said = [(60, 90), (180, 210), (270, 300)]
    assert len(heard) == len(said) and all(first < at <= last for at, (first, last) in zip(heard, said, strict=True))
    assert f"marvin was said in frames {said}" in capsys.readouterr().out
    assert (tmp_path / "wake.png").stat().st_size > 500 and "<html" in (tmp_path / "wake.html").read_text()


def test_sound_to_word(capsys: pytest.CaptureFixture[str]) -> None:
    heard = example("sound_to_word").main(["--target", "ethos-u55-128"])
    assert heard == [(word, word) for word in ("Stop", "Yes", "Go", "Left")]
    assert "29 of 29 operators on the NPU" in capsys.readouterr().out


@pytest.mark.slow
def test_gesture(tmp_path: Path) -> None:
    in_float, on_the_chip = example("gesture/demo").main(["--out", str(tmp_path / "gestures.png")])
    assert in_float > 0.9 and on_the_chip > in_float - 0.03
    assert (tmp_path / "gestures.png").exists()


@pytest.mark.slow
def test_segmentation(tmp_path: Path) -> None:
    in_float, on_the_chip = example("segmentation/demo").main(["--out", str(tmp_path / "leaf.png")])
    assert in_float > 0.85 and on_the_chip > in_float - 0.02
    assert (tmp_path / "leaf.png").exists()


@pytest.mark.sweep
def test_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log, and " * 60)
    sizes = ["--steps", "150", "--vocab", "40", "--dim", "16", "--layers", "1", "--length", "32", "--new", "4"]
    printed = printed_by("language_model/demo.py", [str(text), *sizes], monkeypatch)
    in_float, here = map(float, re.findall(r"([\d.]+) in float, ([\d.]+) here", printed)[0])
    assert in_float < 20 and abs(here - in_float) < 0.05 * in_float
    assert "2 methods: decode" in printed and "tokens a second on ethos-u85-256" in printed


@pytest.mark.slow
def test_sparse_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = tmp_path / "sparse.svg"
    text = printed_by("sparse_weights/demo.py", ["--steps", "4", "--plot", str(plot)], monkeypatch)
    assert "Of 300 other recordings, float hears" in text and f"Wrote {plot}." in "".join(text.splitlines())
    points = re.findall(r"(\d+) sparse layers, ([\d,]+) cycles: ([\d.]+)% right", text)
    assert len(points) > 1 and all(float(right) > 50 for *_, right in points)
    cycles = [int(found.replace(",", "")) for _, found, _ in points]
    assert min(cycles) < max(cycles)
    assert plot.read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--recipe"]])
def test_quantization_aware_training(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On pictures of a bar in ten places, so that there is something to learn without the data set."""
    dice, data = np.random.default_rng(0), tmp_path / "few.npz"
    labels = dice.integers(0, 10, 720)
    pictures = dice.integers(0, 40, (720, 28, 28), np.uint8)
    pictures[np.arange(28) // 2 - 2 == labels[:, None]] += 200
    np.savez(data, train_x=pictures[:640], train_y=labels[:640], test_x=pictures[640:], test_y=labels[640:])
    output = tmp_path / "fashion.pte"
    given = ["--data", str(data), "--epochs", "4", "--qat-epochs", "1", "--output", str(output), *arguments]
    text = printed_by("quantization_aware_training/demo.py", given, monkeypatch)
    found = re.findall(r"^  (float|int8, after training|int8, in training) +([\d.]+) %$", text, re.MULTILINE)
    assert [name for name, _ in found] == ["float", "int8, after training", "int8, in training"]
    assert min(float(right) for _, right in found) > 50, "chance is 10 %"
    assert f"Wrote {output}, {output.stat().st_size:,} bytes." in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "network", "target", "operators"),
    [("torchvision", "mobilenet_v2", "alif-e7", 101), ("timm", "lcnet_050.ra2_in1k", "corstone320", 71)],
)
def test_networks_of_libraries(
    name: str, network: str, target: str, operators: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    program = example(f"{name}_network").main(["--network", network, "--target", target])
    assert program.report.delegated == len(program.report.verdicts) == operators
    assert "sram: " in capsys.readouterr().out


@pytest.mark.sweep
@pytest.mark.chooses
def test_the_notebook_runs_and_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells one after the other, in its folder; numbers may be another machine's."""
    folder = EXAMPLES / "keyword_spotting"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads((folder / "demo.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec("".join(cell["source"]), namespace)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            assert form(said.getvalue()) == form(shown)
    sys.modules.pop("model", None)
