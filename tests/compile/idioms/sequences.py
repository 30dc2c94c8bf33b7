"""Networks over tokens, frames and steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tests.compile.idioms.networks import Idiom, between, idiom, noise
from tests.compile.small import Tensors
from torch import Tensor, nn


class _Tokens(Idiom):
    """[1, 12, 32]: embedded tokens, a few channels larger than the others, as language models have them."""

    def draw(self, random: torch.Generator) -> Tensors:
        x = noise(random, 1, 12, 32)
        x[..., 5] *= 8
        return (x,)


class _Ids(Idiom):
    def draw(self, random: torch.Generator) -> Tensors:
        return (torch.randint(0, 40, (1, 12), generator=random),)


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


@idiom
class RotaryDecoder(_Ids):
    """RMS norms, rotary positions, grouped queries, a causal mask, SwiGLU, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.q, self.k, self.v = (nn.Linear(32, n, bias=False) for n in (32, 16, 16))
        self.o, self.up, self.gate = (nn.Linear(32, n, bias=False) for n in (32, 48, 48))
        self.down = nn.Linear(48, 32, bias=False)
        self.n1, self.n2, self.n3 = (nn.Parameter(torch.rand(32) + 0.5) for _ in range(3))
        angles = torch.arange(12.0)[:, None] * 100 ** (-torch.arange(4.0) / 4)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())
        self.register_buffer("mask", torch.triu(torch.full((12, 12), float("-inf")), 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        h = _rms(x, self.n1)
        q = _turned(self.q(h).view(1, 12, 4, 8).transpose(1, 2), self.cos, self.sin)
        k = _turned(self.k(h).view(1, 12, 2, 8).transpose(1, 2), self.cos, self.sin).repeat_interleave(2, 1)
        v = self.v(h).view(1, 12, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        seen = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(8) + self.mask, -1) @ v
        x = x + self.o(seen.transpose(1, 2).reshape(1, 12, 32))
        h = _rms(x, self.n2)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return _rms(x, self.n3) @ self.embed.weight.T / 4


@idiom
class LinearAttention(_Tokens):
    """elu + 1 of queries and keys, sums of keys times values, over their norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = k.transpose(-1, -2) @ v
        z = 1 / (q @ k.sum(-2, keepdim=True).transpose(-1, -2) + 1e-6)
        return self.out(((q @ kv) * z).transpose(1, 2).flatten(2))


@idiom
class SelectiveScan(_Tokens):
    """Mamba-like: steps that depend on the input, unrolled over eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.bc, self.dt = nn.Linear(32, 32), nn.Linear(16, 8), nn.Linear(16, 16)
        self.log_a, self.d = nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(16, 1)), nn.Parameter(torch.ones(16))
        self.out = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inp(x[:, :8] / 3).chunk(2, -1)
        u = F.silu(u)
        b, c = self.bc(u).chunk(2, -1)
        step, a = F.softplus(self.dt(u) - 1), -torch.exp(self.log_a)
        state, out = torch.zeros(1, 16, 4), []
        for t in range(8):
            state = state * torch.exp(step[:, t, :, None] * a) + (step[:, t] * u[:, t])[..., None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1) + self.d * u[:, t])
        return self.out(torch.stack(out, 1) * F.silu(gate))


@idiom
class Conformer(_Tokens):
    """Half feed-forwards, attention, a convolution module with GLU and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.f1 = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.norm, self.look = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.cnorm, self.pw1, self.pw2 = nn.LayerNorm(32), nn.Conv1d(32, 64, 1), nn.Conv1d(32, 32, 1)
        self.dw, self.bn = nn.Conv1d(32, 32, 7, padding=3, groups=32), nn.BatchNorm1d(32)
        self.last, self.out = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.f1(x)
        h = self.norm(x)
        x = x + self.look(h, h, h, need_weights=False)[0]
        h = F.glu(self.pw1(self.cnorm(x).transpose(1, 2)), 1)
        x = x + self.pw2(F.silu(self.bn(self.dw(h)))).transpose(1, 2)
        return F.log_softmax(self.out(self.last(x)), -1)


@idiom
class MaskedPooling(Idiom):
    """Frames up to a length: their masked mean, maximum and attention pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.score, self.out = nn.Linear(8, 16), nn.Linear(16, 1), nn.Linear(48, 4)

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        mask = torch.arange(16)[None] < length[:, None]
        h = torch.tanh(self.net(x))
        kept = mask[..., None].float()
        mean = (h * kept).sum(1) / length[:, None].float()
        top = h.masked_fill(~mask[..., None], float("-inf")).amax(1)
        weight = self.score(h).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out(torch.cat([mean, top, (weight[..., None] * h).sum(1)], -1))

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 1, 16, 8), torch.randint(3, 17, (1,), generator=random)


@idiom
class KeyPadding(Idiom):
    """A transformer layer of torch's own with a key padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.layer(x, src_key_padding_mask=padding)

    def draw(self, random: torch.Generator) -> Tensors:
        length = int(torch.randint(4, 11, (1,), generator=random))
        return noise(random, 1, 10, 16), torch.arange(10)[None] >= length


@idiom
class CrfForward(Idiom):
    """The partition function of a linear-chain CRF, and the score of the best path."""

    def __init__(self) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(8, 5), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> Tensors:
        emit = self.emit(x)
        alpha = best = emit[:, 0]
        for t in range(1, 8):
            alpha = torch.logsumexp(alpha[:, :, None] + self.move, 1) + emit[:, t]
            best = (best[:, :, None] + self.move).amax(1) + emit[:, t]
        return torch.logsumexp(alpha, -1), best.amax(-1), best.argmax(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 8, 8),)


@idiom
class SinusPositions(Idiom):
    """Time of day and week by sines, a step embedding of a diffusion model, FiLM."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.exp(-math.log(1000.0) * torch.arange(8.0) / 8))
        self.film, self.conv, self.out = nn.Linear(16, 24), nn.Conv1d(3, 12, 3, padding=1), nn.Conv1d(12, 3, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * self.rates
        gain, offset = self.film(torch.cat([angles.sin(), angles.cos()], -1)).chunk(2, -1)
        h = self.conv(x) * (1 + gain[..., None]) + offset[..., None]
        return self.out(F.silu(F.group_norm(h, 3)))

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 1, 3, 20), between(random, 0.0, 50.0, 1).round()


@idiom
class GatedRecurrent(Idiom):
    """A GRU cell by hand over ten frames, its last state through a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.norm, self.out = nn.Linear(6, 36), nn.Linear(12, 36), nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(1, 12)
        for t in range(10):
            xr, xz, xn = self.x(x[:, t]).chunk(3, -1)
            hr, hz, hn = self.h(h).chunk(3, -1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xn + r * hn) + z * h
        return self.out(self.norm(h))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 10, 6) * torch.tensor([1.0, 0.2, 3.0, 1.0, 0.5, 1.0]),)


@idiom
class CapsuleRouting(Idiom):
    """Squashed capsules, two rounds of routing by agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.votes = nn.Linear(20, 48), nn.Parameter(torch.randn(1, 8, 4, 5, 6) * 0.4)

    @staticmethod
    def _squash(x: Tensor) -> Tensor:
        squared = (x**2).sum(-1, keepdim=True)
        return squared / (1 + squared) * x / torch.sqrt(squared + 1e-7)

    def forward(self, x: Tensor) -> Tensors:
        low = self._squash(self.net(x).view(1, 8, 6))
        votes = (self.votes @ low[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(1, 8, 4)
        for _ in range(2):
            high = self._squash((logits.softmax(-1)[..., None] * votes).sum(1))
            logits = logits + (votes * high[:, None]).sum(-1)
        return high, high.norm(dim=-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 20),)


@idiom
class MixtureOfExperts(_Tokens):
    """Every expert runs, the gate weighs them, with a shared one beside."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.shared = nn.Linear(32, 4), nn.Linear(32, 16)
        self.up, self.down = nn.Parameter(torch.randn(4, 32, 16) * 0.2), nn.Parameter(torch.randn(4, 16, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.gate(x) / 4).softmax(-1)
        h = torch.einsum("bti,eio->bteo", x, self.up)
        h = torch.einsum("bteo,eop->btep", F.gelu(h, approximate="tanh"), self.down)
        return (h * weight[..., None]).sum(2) + self.shared(x)


@idiom
class DynamicConv(_Tokens):
    """Weights of a short convolution that each token chooses for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.values = nn.Linear(32, 3), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        w, v = self.weights(x / 4).softmax(-1), self.values(x)
        v = F.pad(v, (0, 0, 2, 0))
        return sum(w[..., i : i + 1] * v[:, i : i + 12] for i in range(3))


@idiom
class AlibiAttention(_Tokens):
    """Slopes over distances in the place of positions; queries and keys of unit length (cosine attention)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = (
            nn.Linear(32, 96),
            nn.Linear(32, 6),
            nn.Parameter(torch.log(torch.tensor(10.0))),
        )
        places = torch.arange(12.0)
        self.register_buffer(
            "apart", -(places[:, None] - places[None]).abs() * 2.0 ** -torch.arange(1.0, 5.0)[:, None, None]
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scores = q @ k.mT * self.scale.clamp(max=4.6).exp() + self.apart
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@idiom
class ExponentialSmoothing(Idiom):
    """Holt's level and trend, smoothed with what the network chooses, of temperatures in degrees."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(-1.5))

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.sigmoid(self.a), torch.sigmoid(self.b)
        level, trend = x[:, 0], x[:, 1] - x[:, 0]
        for t in range(1, 16):
            before = level
            level = a * x[:, t] + (1 - a) * (level + trend)
            trend = b * (level - before) + (1 - b) * trend
        return level[:, None] + trend[:, None] * torch.arange(1.0, 5.0)

    def draw(self, random: torch.Generator) -> Tensors:
        slope, start = noise(random, 1, 1), 20 + 6 * noise(random, 1, 1)
        return (start + 0.4 * slope * torch.arange(16.0) + 0.3 * noise(random, 1, 16),)


@idiom
class CopyPointer(Idiom):
    """One-hot inputs, a vocabulary's distribution mixed with that of copying (pointer-generator)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.query, self.vocab, self.gate = (
            nn.Embedding(20, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 20),
            nn.Linear(16, 1),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        last = self.query(x[:, -1:])
        copy = (last @ x.transpose(1, 2) / 4).softmax(-1)
        onto = copy @ F.one_hot(ids, 20).float()
        gate = torch.sigmoid(self.gate(last))
        return torch.log(gate * self.vocab(last).softmax(-1) + (1 - gate) * onto + 1e-4)

    def draw(self, random: torch.Generator) -> Tensors:
        return (torch.randint(0, 20, (1, 9), generator=random),)


@idiom
class HighwayChars(_Ids):
    """Characters by convolutions of several widths, their maxima, a highway."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 6, w) for w in (2, 3, 4))
        self.plain, self.gate, self.out = nn.Linear(18, 18), nn.Linear(18, 18), nn.Linear(18, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        x = torch.cat([torch.tanh(c(x)).max(-1)[0] for c in self.convs], -1)
        gate = torch.sigmoid(self.gate(x) - 1)
        return self.out(gate * F.relu(self.plain(x)) + (1 - gate) * x)


@idiom
class SpanScores(_Tokens):
    """Starts and ends of spans as an outer sum, upper triangle only; a biaffine score."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end, self.w = nn.Linear(32, 8), nn.Linear(32, 8), nn.Parameter(torch.randn(8, 8) * 0.3)
        self.register_buffer("mask", torch.ones(12, 12).tril(-1).bool())

    def forward(self, x: Tensor) -> Tensor:
        s, e = torch.tanh(self.start(x)), torch.tanh(self.end(x))
        scores = s @ self.w @ e.transpose(1, 2) + s.sum(-1)[..., None] + e.sum(-1)[:, None]
        return scores.masked_fill(self.mask, -1e4).flatten(1).softmax(-1)
