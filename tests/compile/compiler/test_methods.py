"""Several methods in one program: states and qparams that they share, and what is refused."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compile.compiler.test_precision import LogPower
from tests.compile.compiler.test_precision import rows as samples
from torch import nn

import micronpu
from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.program.plan import read_plan
from micronpu.runtime import ArrayProgram, HostProgram, RunOptions
from micronpu.transforms.sparsity.options import SparsityOptions

LENGTH, DIM = 16, 8


class Cached(nn.Module):
    """Attends over what earlier calls have left in a cache; `n` rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.register_buffer("keys", torch.zeros(1, LENGTH, DIM))
        self.register_buffer("eye", torch.eye(LENGTH))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """x [1, n, DIM], places [n, LENGTH] one-hot -> [1, n, DIM]"""
        n = x.shape[1]
        new = self.k(x)
        spread = places.transpose(0, 1) @ new if n > 1 else places.transpose(0, 1) * new
        self.keys.copy_(self.keys * (1 - places.sum(0)[:, None]) + spread)
        y = torch.softmax(self.q(x) @ self.keys.transpose(1, 2), -1) @ self.keys
        return self.o(y + x)

    def clear(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, DIM] -> what is kept, as a mean [1, DIM], and forgets it."""
        y = self.keys.mean(1) + x
        self.keys.copy_(self.keys * 0)
        return y

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        """Only reads the cache."""
        return torch.relu(self.keys.mean(1) + x)


def model() -> Cached:
    torch.manual_seed(3)
    return Cached().eval()


def call(start: int, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(1, LENGTH, DIM, generator=torch.Generator().manual_seed(seed))
    return rows[:, start : start + n], torch.eye(LENGTH)[start : start + n]


def calibration() -> dict[str, Any]:
    return {
        "prefill": [[call(i, 4, seed) for i in range(0, LENGTH, 4)] for seed in range(3)],
        "decode": [[call(i, 1, seed) for i in range(LENGTH)] for seed in range(3)],
    }


def compiled(target: str = "ethos-u85-256", **options: Any) -> Any:
    own, options = model(), {"calibration": calibration(), **options}
    return micronpu.compile({"prefill": (own, call(0, 4)), "decode": (own, call(0, 1))}, target, **options)


@functools.cache
def of_integers(target: str, activations: str) -> Any:
    """For tests that reset its states before they run it."""
    return compiled(target, quantization=activations)


@pytest.fixture(scope="module")
def shared() -> micronpu.CompiledProgram:
    """For tests that run and read it: whoever runs it resets its states before."""
    program: micronpu.CompiledProgram = compiled()
    return program


@pytest.mark.parametrize(
    ("target", "activations"), [("ethos-u85-256", "int16"), ("imxrt700", "int8"), ("cortex-m33", "int8")]
)
def test_prefill_and_decode_share_a_cache(target: str, activations: Any) -> None:
    program = of_integers(target, activations)
    states = {name: method.states for name, method in program.methods.items()}
    (own,), (other,) = states["prefill"], states["decode"]
    assert (own.name, own.scale, own.zero_point, own.dtype) == (other.name, other.scale, other.zero_point, other.dtype)
    assert [s.name for s in program.states] == ["keys"]

    def decoded(first: int) -> list[torch.Tensor]:
        program.reset()
        if first:
            program.run(*call(0, first, 7), method="prefill")
        else:
            for i in range(4):
                program.run(*call(i, 1, 7), method="decode")
        return [program.run(*call(i, 1, 7), method="decode") for i in range(4, 8)]

    step = program.methods["decode"].report.outputs[0].scale
    behind, alone = decoded(4), decoded(0)
    for a, b in zip(behind, alone, strict=True):
        assert (a - b).abs().max() <= 1.01 * step  # the same grids everywhere: what prefill keeps is what decode keeps
    program.reset()
    forgotten = [program.run(*call(i, 1, 7), method="decode") for i in range(4, 8)]
    # Of an output whose range has a margin, some 7 integers.
    assert max(float((a - b).abs().max()) for a, b in zip(behind, forgotten, strict=True)) > 5 * step


@pytest.mark.sweep
@pytest.mark.parametrize(("activations", "layers"), [("int16", 1), ("int8", 2)])
def test_a_text_read_at_once_and_token_by_token(activations: Any, layers: int) -> None:
    """The same integers, in whatever portions: caches, scores, and what is told next."""
    from tests.compile.docs.test_examples import example

    torch.manual_seed(1)
    length, portion = 48, 4  # in int16 shorter rows leave hidden keys a step, see docs/quantization.md
    own = example("language_model/model").Model(24, 16, layers, heads=4, groups=2, hidden=24, length=length).eval()
    for p in own.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.4)  # far from the ranges that a fresh model has, each layer in its own way
    texts = [torch.randint(0, 24, (length,)) for _ in range(4)]

    def calls(text: torch.Tensor, n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(text[None, i : i + n], torch.arange(i, i + n)) for i in range(0, length, n)]

    program = micronpu.compile(
        {"prefill": (own, calls(texts[0], portion)[0]), "decode": (own, calls(texts[0], 1)[0])},
        "ethos-u85-256",
        calibration={"prefill": [calls(t, portion) for t in texts[:2]], "decode": [calls(texts[2], 1)]},
        quantization=activations,
        verify=False,
    )
    portions = {"prefill": calls(texts[3], portion), "decode": calls(texts[3], 1)}
    found = {}
    for name, rows in portions.items():
        program.reset()
        found[name] = torch.cat([program.run(*row, method=name)[0] for row in rows])
    assert torch.equal(found["prefill"], found["decode"])
    program.reset()
    mixed = [program.run(*portions["prefill"][0], method="prefill")[0]]
    mixed += [program.run(*row, method="decode")[0] for row in portions["decode"][portion : 2 * portion]]
    mixed += [program.run(*row, method="prefill")[0] for row in portions["prefill"][2:]]
    assert torch.equal(torch.cat(mixed), found["decode"])
    assert len(found["decode"].unique()) > 100


def test_against_the_float_model_along_a_sequence() -> None:
    program, exact = of_integers("ethos-u85-256", "int16"), model()
    program.reset()
    with torch.no_grad():
        for start, n in ((0, 4), (4, 1), (5, 1), (6, 4), (10, 1)):
            wanted = exact(*call(start, n, 9))
            got = program.run(*call(start, n, 9), method="prefill" if n == 4 else "decode")
            assert (got - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_methods_of_a_module_and_one_that_only_reads() -> None:
    own = model()
    x = torch.randn(1, DIM)
    program = micronpu.compile(
        {"forward": (own, call(0, 1)), "clear": (own.clear, (x,)), "peek": (own.peek, (x,))},
        target="ethos-u85-256",
        calibration=[
            [("forward", call(0, 1, s)), ("forward", call(1, 1, s)), ("peek", (x,)), ("clear", (x,)), ("peek", (x,))]
            for s in range(3)
        ],
    )
    assert type(own) is Cached
    program.reset()
    program.run(*call(0, 1))
    program.run(*call(1, 1))
    full = program.run(x, method="peek")
    assert torch.equal(full, program.run(x, method="peek"))  # reading changes nothing
    program.run(x, method="clear")
    step = program.methods["peek"].report.outputs[0].scale
    empty = program.run(x, method="peek")
    assert (empty - torch.relu(x)).abs().max() <= 2 * step < (full - empty).abs().max()


class Doubled(nn.Module):
    """`read` returns twice what `forward` has left."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(torch.tanh(x))
        return self.kept + x

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept * 2


def test_a_state_that_calibration_shows_only_at_its_first_value() -> None:
    own, rows = Doubled().eval(), [torch.randn(1, DIM, generator=torch.Generator().manual_seed(i)) for i in range(12)]
    methods = {"forward": (own, (rows[0],)), "read": (own.read, (rows[0],))}
    wanted = 2 * torch.tanh(rows[11])
    error = []
    for calibration in (
        {name: [rows] for name in methods},
        [[(name, row) for row in rows for name in methods]],
    ):
        program = micronpu.compile(methods, target="imxrt700", calibration=calibration, quantization="int8")
        found = {
            name: [w.what for w in one.report.warnings if w.level == "warning"] for name, one in program.methods.items()
        }
        program.run(rows[11], method="forward")
        error.append(float((program.run(rows[11], method="read") - wanted).abs().max()))
        assert not found["forward"]
        if isinstance(calibration, dict):
            assert len(found["read"]) == 1 and "The state `kept`, which other methods write" in found["read"][0]
        else:
            assert not found["read"]
    assert error[0] > 0.5 > 0.05 > error[1]


def test_every_way_to_run_the_file(tmp_path: Path, shared: micronpu.CompiledProgram) -> None:
    program = shared
    path = program.save(tmp_path / "both.pte")
    rows = [("prefill", call(0, 4, 5)), ("decode", call(4, 1, 5)), ("decode", call(5, 1, 5))]
    program.reset()
    wanted = [program.run(*inputs, method=name) for name, inputs in rows]
    for make in (
        lambda: HostProgram(path, method="decode"),
        lambda: HostProgram(path, RunOptions(isolated=True), method="prefill"),
        lambda: HostProgram(path, RunOptions(profile=True), method="prefill"),
    ):
        with make() as host:
            assert host.methods == ("decode", "prefill") and len(host.states) == 1
            for _ in range(2):
                for (name, inputs), y in zip(rows, wanted, strict=True):
                    assert torch.equal(host.run(*inputs, method=name)[0], y)
                host.reset()
    with ArrayProgram(path, method="decode") as arrays:
        for (name, inputs), y in zip(rows, wanted, strict=True):
            (found,) = arrays.run_arrays(*(t.numpy() for t in inputs), method=name)
            assert (found == y.numpy()).all()
        with pytest.raises(OptionError, match="is loaded without the method 'other'"):
            arrays.run_arrays(*(t.numpy() for t in rows[0][1]), method="other")
    for again in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        again.reset()
        for (name, inputs), y in zip(rows, wanted, strict=True):
            assert torch.equal(again.run(*inputs, method=name), y)


def test_planned_memories_and_the_report(tmp_path: Path, shared: micronpu.CompiledProgram) -> None:
    program = shared
    plans = {name: read_plan(program.buffer, method=name)[0] for name in program.methods}
    places = {
        name: [(v.planned, v.offset) for v in plan.values if v.initial is not None] for name, plan in plans.items()
    }
    assert set(map(tuple, places.values())) == {((2, 0),)}  # one memory for both, beside each one's own
    assert {len(plan.memories) for plan in plans.values()} == {2}
    text = str(program.report)
    assert "2 methods: decode" in text and "1 state that all of them have" in text
    for name, method in program.methods.items():
        assert method.report.headline.lines[-1] in text.partition(f"Method {name}\n")[2]
        assert program.report.to_dict()["methods"][name] == method.report.to_dict()
    program.report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<iframe") == 2 and "<h2>prefill</h2>" in page
    assert program.save_etrecord(tmp_path / "record.bin", method="decode").stat().st_size > 0
    assert "2 methods" in repr(program)
    program.reset()
    plain = program.run(*call(0, 4), method="prefill")
    program.reset()
    assert torch.equal(program.run(*call(0, 4), method="prefill", check=True), plain)


class Other(Cached):
    def __init__(self, length: int = LENGTH, first: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("keys", torch.full((1, length, DIM), first))


ONE, FOUR = (torch.ones(1, DIM),), (torch.ones(4, DIM),)


def _with(**changed: Any) -> Any:
    """Two methods of a layer, which are refused for something else."""

    def make() -> Any:
        layer = nn.Linear(DIM, 4).eval()
        data = {"calibration": {"prefill": [FOUR], "decode": [ONE]}, **changed}
        return micronpu.compile({"prefill": (layer, FOUR), "decode": (layer, ONE)}, "ethos-u85-256", **data)

    return make


def _two(other: nn.Module, length: int = LENGTH) -> Any:
    rows = (torch.randn(1, 1, DIM), torch.eye(length)[:1])
    return micronpu.compile({"a": (model(), call(0, 1)), "b": (other.eval(), rows)}, "ethos-u85-256", calibration={})


REFUSED: dict[str, tuple[Any, str]] = {
    "another shape": (lambda: _two(Other(8), 8), r"`a` and `b` disagree on the state `keys`: float32\[1, 16, 8\] in"),
    "another first value": (lambda: _two(Other(first=1.0)), "begin with different values of the state `keys`"),
    "calibration of one": (
        _with(calibration={"decode": [ONE]}),
        "The method `prefill` has no calibration data",
    ),
    "calibration of another": (
        _with(calibration={"prefill": [FOUR], "decode": [ONE], "forward": []}),
        "for `forward`, which is no method",
    ),
    "no call of one": (_with(calibration=[[("decode", ONE)]]), "`prefill` has no calibration data: no sequence"),
    "no call": (_with(calibration=[[ONE]]), "which is no call of a method"),
    "held-out calls": (
        _with(calibration=[[("decode", ONE)]], verify=micronpu.Verification(held_out=1)),
        "`held_out` counts samples of one method",
    ),
    "a wrong row": (
        _with(calibration=[[("decode", torch.ones(1, 3))]]),
        "Method `decode`: Calibration item 0, input 0 has",
    ),
    "no example": (
        lambda: micronpu.compile({"a": model()}, "ethos-u85-256"),
        "`a` is .*; it is a model with its example inputs",
    ),
    "no methods": (lambda: micronpu.compile({}, "ethos-u85-256"), "The dictionary of methods is empty"),
    "no name": (
        lambda: micronpu.compile({"a b": (model(), call(0, 1))}, "ethos-u85-256"),
        "'a b', which is no name in C",
    ),
    "training": (_with(train=lambda prepared: None), "`train` changes the weights of one method"),
    "auto for calls in turn": (
        _with(calibration=[[("decode", ONE), ("prefill", FOUR)]], quantization="auto"),
        "is chosen by `micronpu.compile` with calibration data",
    ),
    "sparse weights": (_with(transforms="2:4"), "`transforms` changes the weights of one method"),
    "data of no method": (
        _with(verify=micronpu.Verification(data=[ONE])),
        "`data` of verify= is of type list, and each of several methods has its own",
    ),
    "metric of another": (
        _with(verify=micronpu.Verification(metric={"forward": "mae"})),
        "`metric` of verify= has an entry for `forward`, which is no method",
    ),
    "labels without data": (
        _with(verify=micronpu.Verification(data={"decode": []}, labels={"prefill": []}, metric="mae")),
        "`labels` are the labels of `data`",
    ),
    "check": (lambda: micronpu.check({"a": (model(), call(0, 1))}, "ethos-u85-256"), "`check` takes one model"),  # type: ignore[arg-type]
    "training mode": (lambda: micronpu.compile({"a": (Cached(), call(0, 1))}, "ethos-u85-256"), "Method `a`: "),
    "examples behind": (
        lambda: micronpu.compile({"a": (model(), call(0, 1))}, call(0, 1)),  # type: ignore[call-overload]
        "Each of several methods has its own `example_inputs`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises((ModelError, OptionError), match=words) as found:
        make()
    assert found.value.hint


def test_no_such_method(shared: micronpu.CompiledProgram) -> None:
    with pytest.raises(OptionError, match=r"no method 'forward'.*'decode', 'prefill'"):
        shared.run(*call(0, 1))


def test_one_method_is_several(tmp_path: Path) -> None:
    """A program of one method has what a program of several has, and the other way round."""
    layer, rows = nn.Linear(8, 4).eval(), [torch.randn(1, 8) for _ in range(4)]
    alone = micronpu.compile(layer, rows[0], "corstone300", calibration=rows)
    named = micronpu.compile({"a": (layer, (rows[0],))}, "corstone300", calibration={"a": rows}, quantization="int8")
    wanted = alone.run(rows[0])
    assert torch.equal(alone.run(rows[0], method="forward"), wanted) and list(alone.methods) == ["forward"]
    assert torch.equal(alone.methods["forward"].run(rows[0]), wanted)
    with pytest.raises(OptionError, match=r"no method 'a'.*method= one of 'forward'"):
        alone.run(rows[0], method="a")
    assert torch.equal(named.run(rows[0]), wanted) and torch.equal(named.run(rows[0], method="a"), wanted)
    assert len(named.partitions) == len(alone.partitions) and named.to_litert() == alone.to_litert()
    for own in (named, named.methods["a"]):
        assert torch.equal(own.quantized(rows[0]), alone.quantized(rows[0]))
        assert [len(own.rows), own.integer_io, own.states] == [len(alone.rows), None, ()]
    deployed = named.deploy(tmp_path / "deployed", vectors={"a": {"input": torch.cat(rows)}})
    assert deployed.vectors == 4
    assert named.methods["a"].deploy(tmp_path / "one").vectors == alone.deploy(tmp_path / "two").vectors
    assert set(named.manifest().basis.model) == {f"a: {name}" for name in alone.manifest().basis.model}


def test_a_method_is_judged_like_a_program() -> None:
    """Its report has the notes and warnings of the same model alone, and its first samples are those of the user."""
    torch.manual_seed(0)
    layer, row = nn.Linear(8, 4).double().eval(), torch.randn(1, 8, dtype=torch.double)
    rows = [row if i < 20 else 2 * row for i in range(24)]
    alone = micronpu.compile(layer, row, "corstone300", calibration=rows, quantization="int16")
    named = micronpu.compile({"a": (layer, (row,))}, "corstone300", calibration={"a": rows}, quantization="int16")
    report = named.report.methods["a"]
    assert any("float64 is computed as float32" in note for note in report.notes)
    assert any(warning.rule == "uninformative-data" for warning in report.warnings)
    assert (report.notes, report.warnings) == (alone.report.notes, alone.report.warnings)
    assert len(named.rows) == len(alone.rows) == 4
    assert all(
        torch.equal(*pair)
        for ours, wanted in zip(named.rows, alone.rows, strict=True)
        for pair in zip(ours, wanted, strict=True)
    )


def test_methods_from_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = [torch.randn(1, 8) for _ in range(4)]
    methods: dict[str, Any] = {}
    for name, model in (("a", nn.Linear(8, 4)), ("b", nn.Sequential(nn.Linear(8, 6), nn.ReLU()))):
        micronpu.compile(model.eval(), rows[0], "cortex-m55", calibration=rows).save(tmp_path / f"{name}.tflite")
        methods[name] = (str(tmp_path / f"{name}.tflite"), None)
    program = micronpu.compile(methods, "corstone300")
    for name, (path, _) in methods.items():
        alone = micronpu.compile(path, target="corstone300")
        row = alone.rows[0][0]
        assert torch.equal(program.run(row, method=name), alone.run(row))
    with pytest.raises(FileError, match=r"Method `a`: .*none\.tflite"):
        micronpu.compile({"a": (tmp_path / "none.tflite", None)}, "corstone300")


def test_what_each_of_several_methods_has(tmp_path: Path, shared: micronpu.CompiledProgram) -> None:
    first, second = shared.methods.values()
    assert shared.partitions == (*first.partitions, *second.partitions)
    assert shared.to_litert(method="decode") == first.to_litert() != second.to_litert()
    first.save(tmp_path / "decode.tflite")
    for attribute in ("quantized", "rows", "integer_io"):
        with pytest.raises(ModelError, match=f"Each of the methods 'decode', 'prefill' has its own `{attribute}`"):
            getattr(shared, attribute)
    with pytest.raises(ModelError, match="has its own `LiteRT model`"):  # the first one's was written
        shared.save(tmp_path / "both.tflite")
    assert shared.manifest().bytes == len(shared.buffer)
    assert second.save(tmp_path / "both.pte").read_bytes() == shared.buffer
    row = call(0, 1, 2)
    shared.reset()
    fresh = shared.run(*row, method="decode")
    for own in (copy.copy(shared), copy.deepcopy(first)):  # the others' states are their own
        assert torch.equal(own.run(*row, method="decode"), fresh)
    second.reset()
    assert torch.equal(first.run(*row), fresh) and torch.equal(second.run(*row, method="decode") - fresh, fresh * 0)


def test_each_of_several_methods_is_evaluated(tmp_path: Path) -> None:
    """The given one, not the first in the file, or "forward"."""
    own, rows = nn.Linear(8, 4).eval(), [torch.randn(1, 8) for _ in range(8)]
    other = nn.Sequential(own, nn.Tanh()).eval()
    methods = {"forward": (own, (rows[0],)), "bounded": (other, (rows[0],))}
    program = micronpu.compile(
        methods, "corstone300", calibration=dict.fromkeys(methods, rows), quantization=micronpu.Quantization(io="int8")
    )
    path = program.save(tmp_path / "both.pte")
    for name, (model, _) in methods.items():
        one = program.methods[name]
        found = [micronpu.evaluate(model, rows, one, quantized=one.quantized)]
        found += [
            micronpu.evaluate(model, rows, program, method=name),
            micronpu.evaluate(model, rows, path, method=name),
        ]
        if name == "forward":
            found.append(micronpu.evaluate(model, rows, program))
        assert min(e.program.against_float.sqnr for e in found) > 25
    assert micronpu.evaluate(other, rows, program).program.against_float.sqnr < 20
    two = micronpu.compile(
        {name: methods["bounded"] for name in "ab"},
        "corstone300",
        calibration=dict.fromkeys("ab", rows),
        quantization="int8",
    )
    with pytest.raises(OptionError, match=r"The program has no method 'forward'\. Try: method= one of 'a', 'b'"):
        micronpu.evaluate(other, rows, two)


def log_power(**options: Any) -> Any:
    """Four rows at once, and one: a model that int8 is not enough for."""
    own = LogPower().eval()
    data = {name: samples(n, 64) for name, n in (("four", 4), ("one", 1))}
    methods = {name: (own, (own_rows[0],)) for name, own_rows in data.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        return micronpu.compile(methods, "ethos-u85-256", calibration=data, **options)


def sqnr(program: Any) -> dict[str, float]:
    return {name: method.report.accuracy.sqnr for name, method in program.methods.items()}


@pytest.fixture(scope="module")
def int8() -> Any:
    return log_power(quantization="int8")


@pytest.mark.parametrize(
    "quantization", ["accurate", {"adaptive_rounding": True, "bias_correction": True, "fit_ranges": True}]
)
def test_what_is_chosen_by_data_is_the_same_in_all_methods(int8: Any, quantization: Any) -> None:
    """Corrected weights, fitted ranges and precisions: four rows at once have the results of one after the other."""
    program, before = log_power(quantization=quantization), sqnr(int8)
    assert all(after > before[name] + 4 for name, after in sqnr(program).items())
    (four,) = samples(4, 64, count=1)
    found = torch.cat([program.run(row[None], method="one") for row in four])
    assert torch.equal(program.run(four, method="four"), found) and len(found.unique()) > 16
    if quantization == "accurate":
        both = program.report.methods.values()
        chosen = [note for report in both for note in report.notes if note.startswith("Precision: ")]
        assert len(chosen) == 2 and chosen[0] == chosen[1] and "int16" in chosen[0]
        milliseconds = [
            sum(t.milliseconds for m in p.methods.values() for t in m.report.latency) for p in (program, int8)
        ]
        assert milliseconds[1] < milliseconds[0] <= 2 * milliseconds[1]


def test_methods_take_the_weights_that_a_model_was_given_before() -> None:
    """Sparse ones, and ones of fewer bits, as docs/methods.md describes."""
    torch.manual_seed(0)
    own, data = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 16)).eval(), samples(1, 128, count=64)
    options = SparsityOptions(steps=2, points=1, batch=4, least_gain=0.0)
    found = micronpu.sparsify(own, data, "ethos-u85-256", sparsity=options)
    own.load_state_dict(found.model.state_dict(), strict=False)
    methods = {"one": (own, (data[0],)), "four": (own, (torch.cat(data[:4]),))}
    calls = {"one": data, "four": [torch.cat(data[i : i + 4]) for i in range(0, 64, 4)]}
    settings = {"adaptive_rounding": True, "default": {"weight_bits": 6}}
    program = micronpu.compile(methods, "ethos-u85-256", calibration=calls, quantization=settings)
    found_weights = []
    for method in program.methods.values():
        assert any(operation.sparse for operation in method.report.operations)
        found_weights.append([t for t in method.quantized.state_dict().values() if t.dtype is torch.int8])
        assert len(found_weights[-1]) == 2 and all(24 <= int(w.abs().max()) <= 31 for w in found_weights[-1])
    assert all(map(torch.equal, *found_weights))


def test_methods_that_calibration_calls_in_turn_are_corrected_on_the_states_that_others_leave() -> None:
    """A step that is called after `fill` alone reads what that has left; alone it would read zeros."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(8, 8, bias=False)
            self.register_buffer("kept", torch.zeros(1, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.kept) + 0 * x

        def fill(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.copy_(x)
            return x * 2

    own, data = Filled().eval(), [row + 3 for row in samples(1, 8)]
    methods = {"forward": (own, (data[0],)), "fill": (own.fill, (data[0],))}
    turns = [[("fill", (row,)), ("forward", (row,))] for row in data]
    errors = []
    for corrected in (False, True):
        how = micronpu.Quantization(per_channel=False, settings={"bias_correction": corrected})
        program = micronpu.compile(methods, "corstone300", calibration=turns, quantization=how)
        with torch.no_grad():
            off = torch.zeros(1, 8)
            for row in data:
                program.reset()
                program.run(row, method="fill")
                off += program.run(row) - own.layer(row)
        errors.append(float((off / len(data)).abs().max()))
    assert errors[1] < errors[0] / 2


def test_data_and_metrics_by_method() -> None:
    data = samples(1, 64, count=40)[24:]
    labels = [float(row.sum()) for row in data]
    score = lambda outputs, labels: -float(abs(outputs.mean(1) - labels).mean())  # noqa: E731
    program = log_power(
        quantization="int8",
        verify=micronpu.Verification(data={"one": data}, labels={"one": labels}, metric={"one": score}),
    )
    four, one = (program.report.methods[name].accuracy for name in ("four", "one"))
    assert four.metric is None and len(four.rows) < 16
    assert one.metric.labelled and one.held_out and len(one.rows) == 16
    with torch.no_grad():
        exact = torch.cat([LogPower().eval()(row) for row in data])
    assert one.metric.float_model == pytest.approx(score(exact.numpy(), labels), rel=1e-5)
    every = log_power(quantization="int8", verify=micronpu.Verification(metric="mae"))
    assert all(report.accuracy.metric is not None for report in every.report.methods.values())


def test_a_bound_method_is_evaluated() -> None:
    own, rows = model(), [torch.randn(1, DIM, generator=torch.Generator().manual_seed(i)) for i in range(8)]
    methods = {"clear": (own.clear, (rows[0],)), "peek": (own.peek, (rows[0],))}
    calls = [[(name, row) for row in rows for name in methods]]
    program = micronpu.compile(methods, target="imxrt700", calibration=calls, quantization="int8")
    found = micronpu.evaluate(own.clear, [rows], program, method="clear")
    assert found.program.against_float.sqnr > 30 and not own.keys.any()
