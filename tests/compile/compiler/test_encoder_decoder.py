"""An encoder that leaves keys and values to a decoder's steps: sound to text as in Whisper, text to text as in T5."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu

VOCABULARY, DIM, HEADS, LENGTH, LAYERS = 64, 48, 2, 48, 2
TOKENS = 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        y = torch.softmax(scores if bias is None else scores + bias, -1) @ v
        return self.o(y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1))


class Encoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind, self.attention = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Attention()
        self.rest = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y, a = self.before(x), self.attention
        x = x + a.attend(a.heads(a.q(y)), a.heads(a.k(y)), a.heads(a.v(y)), bias)
        return x + self.rest(self.behind(x))


class Decoding(nn.Module):
    def __init__(self, frames: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.own, self.cross = Attention(), Attention()
        self.rest = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        for name, size in (("keys", LENGTH), ("values", LENGTH), ("cross_keys", frames), ("cross_values", frames)):
            self.register_buffer(name, torch.zeros(1, HEADS, size, DIM // HEADS))

    def remember(self, y: torch.Tensor) -> None:
        self.cross_keys.copy_(self.cross.heads(self.cross.k(y)))
        self.cross_values.copy_(self.cross.heads(self.cross.v(y)))

    def forward(self, x: torch.Tensor, place: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (self.own.heads(f(y)) for f in (self.own.q, self.own.k, self.own.v))
        k, v = self.keys.index_copy_(2, place, k), self.values.index_copy_(2, place, v)
        x = x + self.own.attend(q, k, v, bias)
        q = self.cross.heads(self.cross.q(self.norms[1](x)))
        x = x + self.cross.attend(q, self.cross_keys, self.cross_values, None)
        return x + self.rest(self.norms[2](x))


class Translator(nn.Module):
    """What sound and text have in common.

    encode: what it reads  ->  states [1, frames, DIM], of which the decoder remembers keys and values
    forward: token [1, 1], its place [1]  ->  scores [1, 1, VOCABULARY]
    """

    frames: int

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DIM)
        self.encoder = nn.ModuleList([Encoding()])
        self.decoder = nn.ModuleList(Decoding(self.frames) for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def through(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        for block in self.encoder:
            x = block(x, bias)
        x = self.norm(x)
        for block in self.decoder:
            block.remember(x)
        return x

    def reported(self, x: torch.Tensor, place: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        for block in self.decoder:
            x = block(x, place, bias)
        return F.linear(self.last(x), self.tokens.weight)


class Sound(Translator):
    """Convolutions over a spectrogram [1, 40, 80], learned places."""

    frames = 40

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv1d(40, DIM, 3, padding=1), nn.Conv1d(DIM, DIM, 3, 2, padding=1)])
        self.here, self.places = nn.Embedding(LENGTH, DIM), nn.Parameter(torch.randn(self.frames, DIM) * 0.1)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
        return self.through(x.transpose(1, 2) + self.places, None)

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.reported(self.tokens(token) + self.here(place), place, self.mask[place])


class Text(Translator):
    """Tokens [1, 40], biases by distance."""

    frames = 40

    def __init__(self) -> None:
        super().__init__()
        self.near, self.behind = nn.Embedding(17, HEADS), nn.Embedding(17, HEADS)
        for name, size in (("apart", self.frames), ("back", LENGTH)):
            places = torch.arange(size)
            self.register_buffer(name, (places[None] - places[:, None]).clamp(-8, 8) + 8)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.through(self.tokens(x), self.near(self.apart).permute(2, 0, 1)[None])

    def forward(self, token: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        bias = self.behind(self.back[place]).permute(2, 0, 1)[None] + self.mask[place]
        return self.reported(self.tokens(token), place, bias)


Sequence = list[tuple[str, tuple[torch.Tensor, ...]]]


def sequence(kind: type[Translator], seed: int) -> Sequence:
    """What is encoded, and the tokens behind it one by one."""
    dice = torch.Generator().manual_seed(seed)
    read = (
        torch.randn(1, 40, 80, generator=dice)
        if kind is Sound
        else torch.randint(0, VOCABULARY, (1, 40), generator=dice)
    )
    tokens = torch.randint(0, VOCABULARY, (TOKENS,), generator=dice)
    return [("encode", (read,)), *(("decode", (t.reshape(1, 1), torch.tensor([i]))) for i, t in enumerate(tokens))]


def scores(step: Any, calls: Sequence) -> torch.Tensor:
    return torch.cat([step(name, inputs) for name, inputs in calls][1:])


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [Sound, Text])
def test_an_encoder_and_the_steps_of_a_decoder(kind: type[Translator]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    for p in model.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.15)
    exact, known, other = copy.deepcopy(model), [sequence(kind, seed) for seed in range(3)], sequence(kind, 9)
    program = micronpu.compile(
        {"encode": (model.encode, known[0][0][1]), "decode": (model, known[0][1][1])},
        "ethos-u85-256",
        calibration=known,
        quantization="int16",
        verify=False,
    )
    for method in program.methods.values():
        report = method.report
        assert len(method.partitions) == 1
        # Casts of tokens and places, and what is made of places alone.
        assert len(report.host) <= 4 and all(v.macs == 0 for v in report.host), [v.operator for v in report.host]
    program.reset()
    found = scores(lambda name, inputs: program.run(*inputs, method=name), other)
    with torch.no_grad():
        wanted = scores(lambda name, inputs: (exact.encode if name == "encode" else exact)(*inputs), other)
    noise = float((found - wanted).square().mean() / wanted.square().mean())
    assert 10 * math.log10(1 / noise) > 20
    assert float((found.argmax(-1) == wanted.argmax(-1)).float().mean()) >= 0.8
    program.reset()
    program.run(*sequence(kind, 11)[0][1], method="encode")  # something else was read: something else is told
    assert not torch.equal(program.run(*other[1][1], method="decode"), found[:1])
