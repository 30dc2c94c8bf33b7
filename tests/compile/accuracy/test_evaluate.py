"""A program judged on data: the figures are those of its own runs, and what does not fit is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(2, 8, 3), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(torch.relu(self.conv(x)).mean((2, 3)))
        return y


X = torch.randn(60, 2, 6, 6, generator=torch.Generator().manual_seed(1))
MODEL = Net().eval()
with torch.no_grad():
    WANTED = MODEL(X)
Y = WANTED.argmax(1).numpy().copy()
Y[:12] = (Y[:12] + 1) % 4  # float has 48 of 60 right


@pytest.fixture(scope="module", params=[None, "int8"])
def program(request):
    return micronpu.compile(
        MODEL, X[:1], "imxrt700-neutron", calibration=X[:8], quantization=micronpu.Quantization(io=request.param)
    )


def test_the_figures_are_those_of_the_programs_own_runs(program):
    integer_io = program.integer_io
    found = torch.cat([program.run(*(integer_io.quantize((x,)) if integer_io else (x,))) for x in X[:, None]])
    found = integer_io.dequantize((found,))[0] if integer_io else found
    got = micronpu.evaluate(MODEL, X, program, Y, quantized=program.quantized)
    assert [j.name for j in got.judged] == ["float", "quantized", "program"]
    ratio = 10 * torch.log10(WANTED.square().sum() / (WANTED - found).square().sum())
    assert got.program.against_float.sqnr == pytest.approx(float(ratio), abs=1e-3)
    assert got.program.against_float.agreeing == int((found.argmax(1) == WANTED.argmax(1)).sum())
    assert got.of("float").score.value == pytest.approx(48 / 60)
    right = found.argmax(1).numpy() == Y
    assert got.program.score.value == pytest.approx(right.mean())
    difference = got.program.difference
    assert difference.value == pytest.approx(right.mean() - 48 / 60)
    assert difference.worse - difference.better == 48 - right.sum()
    assert got.against_quantized.sqnr > 30 and got.model == "float model"
    if integer_io is None:  # given what a file that is quantized already is
        again = micronpu.evaluate(program.quantized, X, program)
        assert again.model == "quantized model" and "against the quantized model" in again.verdict
    assert got.program.score.low < got.program.score.value < got.program.score.high


def test_what_is_noise_and_what_is_not(program):
    got = micronpu.evaluate(MODEL, list(X), program.buffer, Y)
    assert got.program.difference.is_noise
    assert "noise" in got.verdict or "No difference" in got.verdict
    broken = Net().eval()
    with torch.no_grad():
        broken.fc.weight.copy_(MODEL.fc.weight.roll(1, 0))
        broken.fc.bias.copy_(MODEL.fc.bias.roll(1, 0))
    got = micronpu.evaluate(broken, X, program, Y)
    assert not got.program.difference.is_noise and "more than chance" in got.verdict


def test_data_in_another_scale_are_named(program):
    notes = micronpu.evaluate(MODEL, 255 * X, program).notes
    assert "The values of input_0 are from -" in notes[0] and "of them saturate. Try: the same scale" in notes[0]
    assert "they use 0." in micronpu.evaluate(MODEL, X / 255, program.buffer).notes[0]
    assert micronpu.evaluate(MODEL, X, program).notes == ()
    # A program that calibrated on the wrong scale, for data as in training.
    other = micronpu.compile(MODEL, X[:1], "imxrt700-neutron", calibration=255 * X[:8], quantization="int8")
    evaluation = micronpu.evaluate(MODEL, X, other)
    assert "of its range" in " ".join(str(evaluation).split()) and evaluation.notes[0].startswith(
        "The values of input_0 are from -"
    )


def test_labels_that_are_mixed_up_are_named():
    model = Net().eval()
    with torch.no_grad():
        model.fc.bias -= WANTED.mean(0)  # so that all classes occur
        right = model(X).argmax(1).numpy()
    program = micronpu.compile(model, X[:1], "imxrt700-neutron", calibration=X[:8], quantization="int8")
    assert micronpu.evaluate(model, X, program, right).notes == ()
    for labels, cause in (
        (np.roll(right, 1), "% with the label of the next row"),
        (np.roll(right, -1), "% with the label of the previous row"),
        ((right + 1) % 4, "% with the classes numbered in another order"),
    ):
        (note,) = micronpu.evaluate(model, X, program, labels).notes
        assert "The float model itself is right on " in note and cause in note
    shuffled = np.random.default_rng(0).permutation(right)
    for metric in ("top1", "f1"):
        (note,) = micronpu.evaluate(model, X, program, shuffled, metric=metric).notes
        assert "are chance. Try: " in note


def pairs(outputs, labels, inputs):
    """A metric of one's own on pairs of rows: the mean score, the inputs being there."""
    assert inputs.shape[1:] == (2, 6, 6) and len(inputs) == len(outputs) == 2 * len(labels)
    return float((outputs.reshape(len(labels), 2, 4).mean((1, 2)) * labels).mean())


def test_labels_for_several_rows_each(program):
    labels = np.arange(30.0)
    got = micronpu.evaluate(MODEL, X, program, labels, metric=pairs)
    assert got.of("float").score.value == pytest.approx(
        float((WANTED.numpy().reshape(30, 8).mean(1) * labels).mean()), rel=1e-4
    )
    assert (got.labels, got.rows, got.metric) == (30, 60, "pairs")
    low, high = got.program.score.low, got.program.score.high
    assert low < got.program.score.value < high
    without = micronpu.evaluate(MODEL, X, program)
    assert without.metric == "" and without.program.score is None and "On 60 rows: " in without.verdict


class Two(nn.Module):
    """Two inputs, one of them an index, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.fc = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.fc(x + self.table(index))
        return y.argmax(1), y


class Listens(nn.Module):
    """Scores of all frames of a sequence so far."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("heard", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.heard = 0.5 * self.heard + torch.tanh(self.layer(x))
        return self.heard * 1.0


def test_sequences_begin_anew(tmp_path):
    model, random = Listens().eval(), torch.Generator().manual_seed(2)
    data = [list(torch.randn(n, 1, 4, generator=random)) for n in (5, 3, 4, 6)]
    program = micronpu.compile(
        model, data[0][:1], "imxrt700-neutron", calibration=data, verify=micronpu.Verification(held_out=0)
    )
    truth, found = [], []
    for sequence in data:
        heard = torch.zeros(1, 4)
        program.reset()
        for x in sequence:
            heard = 0.5 * heard + torch.tanh(model.layer(x))
            truth.append(heard.detach())
            found.append(program.run(x))
    truth, found = torch.cat(truth), torch.cat(found)
    model.heard.fill_(0.7)  # what it holds is put back
    with pytest.raises(MicroNpuError, match=r"sequences of \[1\] calls, the data for \[5, 3, 4, 6\]"):
        micronpu.evaluate(model, data, program, [[0]])
    model.heard.zero_()
    labels = truth.argmax(1)
    got = micronpu.evaluate(
        model, data, program, [part.tolist() for part in labels.split([5, 3, 4, 6])], quantized=program.quantized
    )
    assert (got.rows, got.labels) == (18, 18) and got.of("float").score.value == 1.0
    ratio = 10 * torch.log10(truth.square().sum() / (truth - found).square().sum())
    assert got.program.against_float.sqnr == pytest.approx(float(ratio), abs=1e-3)
    assert got.of("quantized").against_float.sqnr > 20 and not model.heard.any()
    assert got.program.score.value == pytest.approx(float((found.argmax(1) == labels).float().mean()))
    last = torch.tensor([4, 7, 11, 17])
    got = micronpu.evaluate(model, data, program, (labels[last] + 1) % 4)
    assert got.labels == 4 and got.of("float").score.value == 0 and "the last call of each" in got.notes[0]
    got = micronpu.evaluate(model, data, program)
    assert got.rows == 18 and "18 calls of 4 sequences, each from the initial state" in got.notes[0]
    program.save(tmp_path / "m.pte")
    np.save(tmp_path / "y.npy", labels[last].numpy())
    (tmp_path / "m.py").write_text(
        "import torch\nfrom tests.compile.accuracy.test_evaluate import Listens\n"
        "def model(): return Listens().eval(), (torch.zeros(1, 4),)\n"
        "def data():\n    random = torch.Generator().manual_seed(2)\n"
        "    return [list(torch.randn(n, 1, 4, generator=random)) for n in (5, 3, 4, 6)]\n"
    )
    given = [f"{tmp_path}/m.py:model", f"{tmp_path}/m.pte", "--data", f"{tmp_path}/m.py:data"]
    result = CliRunner().invoke(app, ["evaluate", *given, "--labels", f"{tmp_path}/y.npy"])
    assert result.exit_code == 0, result.output
    assert "the last call of each" in " ".join(result.output.split())


def test_several_inputs_and_outputs_and_batches():
    random = torch.Generator().manual_seed(3)
    rows = [(torch.randn(2, 4, generator=random), torch.randint(0, 6, (2,), generator=random)) for _ in range(12)]
    model = Two().eval()
    program = micronpu.compile(model, rows[0], "imxrt700-neutron", calibration=rows)
    with torch.no_grad():
        wanted = torch.cat([model(*row)[1] for row in rows])
    got = micronpu.evaluate(model, rows, program, wanted.numpy(), metric="mae", output=1)
    found = torch.cat([program.run(*row)[1] for row in rows])
    assert got.rows == 24 and not got.larger_is_better
    assert got.of("float").score.value == pytest.approx(0.0, abs=1e-6)
    assert got.program.score.value == pytest.approx(float((found - wanted).abs().mean()), rel=1e-4)
    assert got.verdict.startswith("The loss of +0.0") and "more than chance" in got.verdict


def test_an_array_is_cut_into_the_batches_of_the_program():
    program = micronpu.compile(MODEL, X[:4], "imxrt700-neutron", calibration=X[:8].split(4))
    assert micronpu.evaluate(MODEL, X, program, Y).of("float").score.value == pytest.approx(0.8)
    with pytest.raises(MicroNpuError, match="The 58 rows of the data cannot be cut into the program's batches of 4"):
        micronpu.evaluate(MODEL, X[:58], program, Y[:58])


REFUSED = {
    "labels of other rows": ({"labels": Y[:50]}, "There are 50 labels for 60 rows of data."),
    "a class that there is not": ({"labels": np.full(60, 4)}, "from 4 to 4, but the output has 4 classes"),
    "no labels": ({"metric": "top1"}, "A metric is given, and no labels"),
    "wrong metric": ({"labels": Y, "metric": "accuracy"}, "There is no metric 'accuracy'. Try: one of top1, auc"),
    "text as labels": ({"labels": ["a"] * 60}, "not an array of numbers"),
    "another shape": (
        {"data": X[:, :1]},
        "Evaluation item 0, input 0 has shape [1, 6, 6], the model takes [1, 2, 6, 6]",
    ),
    "another type": ({"data": X.int()}, "has dtype int32, the model takes float32"),
    "no rows": ({"data": X[:0]}, "The evaluation data is empty."),
    "no such output": ({"output": 1}, "There is no output 1: the program has 1."),
    "another model": ({"model": nn.Sequential(MODEL, nn.Linear(4, 5)).eval()}, "the float model [60, 5]"),
    "training mode": ({"model": Net().train()}, "in training mode"),
    "a file that is none": ({"program": "there is none.pte"}, "there is none.pte"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name, program):
    given, said = REFUSED[name]
    chosen = {"model": MODEL, "program": program, "data": X} | given
    with pytest.raises(MicroNpuError) as caught:
        micronpu.evaluate(**chosen)
    assert said in str(caught.value), str(caught.value)


SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 8, 3), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.zeros(1, 2, 6, 6),)

def share(outputs, labels):
    return (outputs.argmax(1) == labels).mean()
"""


def test_the_command(tmp_path, program):
    (tmp_path / "model.py").write_text(SOURCE)
    program.save(tmp_path / "net.pte")
    np.savez(tmp_path / "x.npz", x=X.numpy(), y=Y)
    said = [str(tmp_path / "model.py:net"), str(tmp_path / "net.pte"), "--data", f"{tmp_path}/x.npz:x"]
    labels = ["--labels", f"{tmp_path}/x.npz:y"]
    done = CliRunner().invoke(app, ["evaluate", *said, *labels, "--report-json", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    assert "80.00 %" in done.output and "program (.pte)" in done.output
    reported = json.loads((tmp_path / "out.json").read_text())
    assert reported["version"] == 1 and reported["judged"][0]["score"]["value"] == pytest.approx(0.8)
    own = CliRunner().invoke(app, ["evaluate", *said, *labels, "--metric", f"{tmp_path}/model.py:share"])
    assert own.exit_code == 0 and "share" in own.output
    wrong = CliRunner().invoke(app, ["evaluate", *said, "--labels", f"{tmp_path}/x.npz"])
    assert wrong.exit_code == 1 and "holds 2 arrays (x, y), of which one is the labels" in wrong.output
    for more, words in {
        ("x.npy",): "no argument for x.npy. Try: --data x.npy",
        ("x",): "no argument for x.",
    }.items():
        wrong = CliRunner().invoke(app, ["evaluate", *said[:2], *more])
        assert wrong.exit_code == 2 and words in " ".join(wrong.output.replace("│", "").split())
    program.save(tmp_path / "net.tflite")
    wrong = CliRunner().invoke(app, ["evaluate", said[0], str(tmp_path / "net.tflite"), *said[2:]])
    assert wrong.exit_code == 1 and "is a model, and a compiled program is expected" in " ".join(wrong.output.split())
    wrong = CliRunner().invoke(app, ["evaluate", *said, *labels, "--metric", f"{tmp_path}/model.py:none"])
    assert wrong.exit_code == 1 and "has no function 'none'" in wrong.output


def test_a_model_may_be_a_file(tmp_path, program):
    program.save(file := tmp_path / "net.tflite")
    rows = torch.clamp(torch.round(X[:16] * 20), -128, 127).to(torch.int8)
    made = micronpu.compile(file, None, "cortex-m33")
    assert micronpu.evaluate(str(file), list(rows.split(1)), made).rows == 16
    assert micronpu.advise(file, target="cortex-m33").ideas
    for judge in (micronpu.blame, micronpu.fix):
        with pytest.raises(MicroNpuError, match="is quantized already, so that there is no float model"):
            judge(file, list(rows.split(1)), "cortex-m33")


def test_rows_that_saturate_are_noted_though_few_of_their_values_do():
    """As faults, of which a threshold in float would be reached and in the program never is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    healthy = [0.3 * torch.randn(1, 32) for _ in range(32)]
    faults = [x + torch.zeros(1, 32).index_fill_(1, torch.tensor([i % 32]), 4.0) for i, x in enumerate(healthy)]
    program = micronpu.compile(model, healthy[0], "ethos-u55-128", calibration=healthy)
    notes = micronpu.evaluate(model, [(x,) for x in healthy + faults], program).notes
    assert len(notes) == 1 and "far beyond that in 32 of 64 rows, 1." in notes[0]
    assert not micronpu.evaluate(model, [(x,) for x in healthy], program).notes
