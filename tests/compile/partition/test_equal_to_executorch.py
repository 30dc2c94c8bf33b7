"""Three hundred programs by our writer and by ExecuTorch's own lowering: one meaning, and no more memory.

Both programs of a number run in the stock runtime, several calls of each method in a row: the same results bit for bit.
A tenth runs in every run of the tests, the others are marked slow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.devtools import Inspector
from tests.compile.by_executorch import by_executorch
from tests.compile.random_networks import RandomNetwork
from tests.compile.small import Small
from tests.compile.state_rows import ROWS, Keeps, sequences
from torch import nn

import micronpu
from micronpu.base.errors import ModelError
from micronpu.base.quiet import quiet
from micronpu.compiler import compile as compiling
from micronpu.compiler.assemble import Staged, named_data_of
from micronpu.program.plan import read_plan
from micronpu.runtime.plugin import load_plugin
from micronpu.runtime.program import VALUES
from micronpu.upstream.executorch import load_program

Rows = tuple[torch.Tensor, ...]

TARGETS = ("cortex-m55", "imxrt700", "ethos-u85-256", "ethos-u55-128")
CALLS = 3


@dataclass(frozen=True)
class Given:
    """Arguments of `micronpu.compile`: a model with its example, or methods, and calibration data."""

    model: Any
    example: Rows | None
    calibration: Any


# ---------------------------------------------------------------- what is drawn


def block(rng: random.Random, width: int) -> nn.Module:
    """A module of [..., width] to the same shape, and two functions, of which one may be in float on every core."""
    kind = rng.choice(("linear", "linear", "mlp", "norm"))
    torch.manual_seed(rng.randrange(1000))
    layers: list[nn.Module] = [nn.Linear(width, width)]
    if kind == "mlp":
        layers = [nn.Linear(width, 2 * width), rng.choice((nn.ReLU(), nn.GELU())), nn.Linear(2 * width, width)]
    elif kind == "norm":
        layers = [nn.LayerNorm(width), *layers]
    last = rng.choice((nn.ReLU(), nn.Sigmoid(), nn.Tanh(), Atan()))
    return nn.Sequential(*layers, last)


class Atan(nn.Module):
    """An operator that runs in float on the core."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(x, x.abs() + 1)


def network(rng: random.Random, number: int) -> Given:
    made = RandomNetwork(number, rng.choice((4, 6, 8)), wide=rng.random() < 0.6)
    return Given(made, made.example, [made.inputs(i) for i in range(3)])


def rows_of(rng: random.Random) -> tuple[int, list[torch.Tensor]]:
    """Width and inputs [n, width]."""
    width, count = rng.choice((4, 8, 12)), rng.choice((1, 2, 3))
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    return width, [torch.randn(count, width, generator=generator) for _ in range(4)]


def branches(rng: random.Random, number: int) -> Given:
    """One of two blocks, as the values want it."""
    width, rows = rows_of(rng)
    first, second, after = (block(rng, width) for _ in range(3))
    two = rng.random() < 0.5

    def forward(m: Any, x: torch.Tensor) -> Any:
        y = torch.cond(x.mean() > 0, lambda x: m.a(x).clone(), lambda x: m.b(x) * 2, (x,))
        return (m.c(y), y + x) if two else m.c(y)

    return Given(Small(forward, a=first, b=second, c=after), (rows[0],), [(x,) for x in rows])


def repeated(rng: random.Random, number: int) -> Given:
    """A block some times, or until the values are small."""
    width, rows = rows_of(rng)
    most, least = rng.randint(1, 5), rng.choice((None, 0.3))

    def goes_on(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        bounded = i < most
        return bounded if least is None else torch.logical_and(x.abs().mean() > least, bounded)

    def forward(m: Any, x: torch.Tensor) -> Any:
        start = (torch.zeros((), dtype=torch.int64), x)
        i, x = torch._higher_order_ops.while_loop(goes_on, lambda i, x: (i + 1, m.a(x)), start)
        return x, i

    return Given(Small(forward, a=block(rng, width)), (rows[0],), [(x,) for x in rows])


def scanned(rng: random.Random, number: int) -> Given:
    """A recurrent layer of so many steps that the program loops."""
    kind, steps = rng.choice((nn.LSTM, nn.GRU, nn.RNN)), rng.randint(100, 160)
    torch.manual_seed(number)
    layer = kind(rng.choice((3, 4, 8)), rng.choice((4, 6)), num_layers=rng.choice((1, 1, 2)))
    head = block(rng, layer.hidden_size)
    rows = [torch.randn(steps, 1, layer.input_size) for _ in range(3)]
    last = rng.random() < 0.5

    def forward(m: Any, x: torch.Tensor) -> Any:
        y = m.layer(x)[0]
        return m.head(y[-1] if last else y)

    return Given(Small(forward, layer=layer, head=head), (rows[0],), [(x,) for x in rows])


def kept(rng: random.Random, number: int) -> Given:
    """A model with states: one of `ROWS`, or blocks around one or two buffers."""
    if rng.random() < 0.5:
        calls = sequences(2, 4)
        return Given(rng.choice(list(ROWS.values()))(), (calls[0][0],), calls)
    width, two = rng.choice((4, 8)), rng.random() < 0.5
    names = ("h", "g") if two else ("h",)
    buffers = {name: torch.full((1, width), rng.choice((0.0, 0.25, 1.0))) for name in names}

    def forward(self: Any, x: torch.Tensor) -> Any:
        y = self.a(x + self.h)
        if two:
            self.g.copy_(self.h * 0.5 + x)
            y = y + self.g
        self.h.copy_(self.b(y))
        return self.h + x, y

    calls = [[torch.randn(1, width) for _ in range(4)] for _ in range(2)]
    return Given(Keeps(forward, buffers, a=block(rng, width), b=block(rng, width)), (calls[0][0],), calls)


def methods(rng: random.Random, number: int) -> Given:
    """Two models, or two methods that share a state and weights."""
    if rng.random() < 0.5:
        made = {name: network(rng, 1000 + 2 * number + i) for i, name in enumerate(("encode", "step"))}
        models = {name: (given.model, given.example) for name, given in made.items()}
        return Given(models, None, {name: given.calibration for name, given in made.items()})
    model, calls = Shared(rng), [[torch.randn(1, 8) for _ in range(4)] for _ in range(2)]
    x = (calls[0][0],)
    return Given({"add": (model, x), "peek": (model.peek, x)}, None, {"add": calls, "peek": calls})


class Shared(nn.Module):
    """Adds to a total that another method only reads."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.layer, self.head = block(rng, 8), block(rng, 8)
        self.register_buffer("total", torch.zeros(1, 8))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.copy_(self.total * 0.5 + self.layer(x))
        return self.total + 1

    def peek(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.total + x)


KINDS: dict[str, tuple[int, Callable[[random.Random, int], Given]]] = {
    "network": (5, network),
    "branches": (1, branches),
    "repeated": (1, repeated),
    "scanned": (1, scanned),
    "states": (2, kept),
    "methods": (2, methods),
}
"""How many of twelve numbers are of a kind."""
ORDER = [name for name, (share, _) in KINDS.items() for _ in range(share)]


@dataclass(frozen=True)
class Drawn:
    number: int

    @property
    def kind(self) -> str:
        return ORDER[self.number % len(ORDER)]

    @property
    def target(self) -> str:
        return TARGETS[(self.number // len(ORDER) + self.number) % len(TARGETS)]

    def given(self) -> tuple[Given, bool]:
        """What is compiled, and whether with integer inputs and outputs."""
        rng = random.Random(self.number)
        torch.manual_seed(self.number)
        return KINDS[self.kind][1](rng, self.number), rng.random() < 0.25


# ---------------------------------------------------------------- the comparison


def compiled(drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> tuple[micronpu.CompiledProgram, list[Staged]]:
    """The program, and the methods that it was written from."""
    seen: list[Staged] = []
    real = compiling.program_of

    def recorded(staged: Sequence[Staged], *arguments: Any) -> Any:
        seen.extend(staged)
        return real(staged, *arguments)

    given, integers = drawn.given()
    where: Any = (drawn.target,) if given.example is None else (given.example, drawn.target)
    own = partial(micronpu.compile, given.model, *where, calibration=given.calibration, verify=False)
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "program_of", recorded)
        try:
            program = own(quantization=micronpu.Quantization(io="int8" if integers else None))
        except ModelError as error:
            assert integers and "cannot be an integer" in str(error)
            program = own()
    return program, seen


def rows(examples: Rows) -> Iterator[Rows]:
    """Inputs like the examples, in their memory formats: normal distributed, or over all small integers."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(CALLS):
        made = []
        for x in examples:
            y = x.clone()
            if x.is_floating_point():
                y.copy_(torch.randn(x.shape, generator=generator))
            elif x.dtype in (torch.int8, torch.int16, torch.uint8):
                info = torch.iinfo(x.dtype)
                y.copy_(torch.randint(info.min, info.max + 1, x.shape, generator=generator))
            made.append(y)
        yield tuple(made)


def results(program: bytes, examples: dict[str, Rows]) -> list[torch.Tensor]:
    """What the methods give by turns, in the stock runtime with our plug-in."""
    load_plugin()
    loaded = load_program(program, profile=False, debug_buffer_size=0)
    methods = {name: loaded.load_method(name) for name in examples}
    turns = zip(*(rows(x) for x in examples.values()), strict=True)
    return [v.clone() for turn in turns for name, x in zip(examples, turn, strict=True) for v in methods[name](list(x))]


def planned(program: bytes, method: str) -> int:
    return sum(read_plan(program, method=method)[0].memories)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same bits."""
    return a.dtype is b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def inspected(program: micronpu.CompiledProgram, method: str, row: Rows, folder: Path) -> None:
    """ExecuTorch's Inspector takes a run with our ETRecord: a row per instruction, and the nodes of each partition."""
    etdump, etrecord = folder / f"etdump_{method}", folder / f"etrecord_{method}"
    program.save_etrecord(etrecord, method=method)
    program.run(*row, method=method, profile=etdump)
    with quiet():
        inspector = Inspector(etdump_path=str(etdump), etrecord=str(etrecord), debug_buffer_path=f"{etdump}{VALUES}")
    (block,) = (b for b in inspector.event_blocks if b.name == "Execute")
    plan, _ = read_plan(program.buffer, method=method)
    calls = Counter(call.kind for call in plan.calls)
    seen = Counter(event.name for event in block.events)
    if not calls["JumpFalseCall"]:
        assert seen["OPERATOR_CALL"] == calls["KernelCall"] and seen["DELEGATE_CALL"] == calls["DelegateCall"]
    for event in block.events:
        if event.is_delegated_op and event.delegate_debug_identifier is not None:
            assert bool(event.op_types) == bool(event.debug_handles), event.name


def compare(drawn: Drawn, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Compare both programs of a number."""
    program, staged = compiled(drawn, monkeypatch)
    examples = {one.name or "forward": one.quantized.examples for one in staged}
    named: dict[str, bytes] = {}
    for one in staged:
        named |= named_data_of(one)
    parts = {one.name or "forward": (one.host.module, one.quantized.examples) for one in staged}
    stock: list[int] = []
    theirs = by_executorch(parts, named, stock)
    mine, other = results(program.buffer, examples), results(theirs, examples)
    assert len(mine) == len(other)
    wrong = [i for i, pair in enumerate(zip(mine, other, strict=True)) if not equal(*pair)]
    assert not wrong, f"results {wrong} of {len(mine)}"
    sizes = [sum(planned(p, method) for method in examples) for p in (program.buffer, theirs)]
    assert sizes[0] <= sizes[1], f"{sizes[0]} bytes of planned memory, {sizes[1]} by ExecuTorch"
    if len(stock) == len(examples) and all(len(read_plan(theirs, method=m)[0].memories) == 1 for m in examples):
        assert sizes[0] <= sum(stock), f"{sizes[0]} bytes of planned memory, {sum(stock)} by ExecuTorch's algorithm"
    program.reset_states()
    for one in () if drawn.kind == "scanned" else staged:
        inspected(program, one.name or "forward", one.quantized.examples, folder)


SOME = (0, 3, 5, 6, 8, 10, 11, 20, 23)
"""Numbers of every run of the tests: every kind but loops, which take ten seconds to lower."""
COUNT = 300


@pytest.mark.sweep
@pytest.mark.parametrize("number", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in range(COUNT)])
def test_one_meaning(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compare(Drawn(number), monkeypatch, tmp_path)


def test_operations_of_a_loop_have_handles_of_their_own() -> None:
    """Otherwise Inspector gives them the names of operators outside of the loop."""
    x = torch.randn(130, 1, 2)
    model = Small(lambda m, x: m.head(m.layer(x)[0]).tanh(), layer=nn.LSTM(2, 2), head=nn.Linear(2, 3))
    program = micronpu.compile(model, x, "ethos-u85-256", calibration=[x], verify=False)
    handles = [{h for group in part.debug_handles.values() for h in group} for part in program.partitions]
    assert len(handles) > 1 and sum(map(len, handles)) == len(set().union(*handles))
