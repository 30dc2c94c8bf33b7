"""A language model of Llama's form, as one writes it: a step takes n tokens behind those that its cache holds."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):
    def __init__(self, dim, heads, groups, hidden, length):
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, dim // heads
        self.before, self.behind = Norm(dim), Norm(dim)
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, groups * self.each, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)
        self.register_buffer("keys", torch.zeros(1, groups, length, self.each), persistent=False)
        self.register_buffer("values", torch.zeros(1, groups, length, self.each), persistent=False)

    def forward(self, x, cos, sin, mask, pos=None):
        y = self.before(x)
        q, k, v = (f(y).view(*y.shape[:2], -1, self.each).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if pos is not None:  # a step: what is new goes into the cache, and all of that is read
            k, v = self.keys.index_copy_(2, pos, k), self.values.index_copy_(2, pos, v)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.each) + mask, -1) @ v
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.behind(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, vocab, dim=64, layers=5, heads=8, groups=4, hidden=172, length=256):
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, groups, hidden, length) for _ in range(layers))
        self.norm = Norm(dim)
        each = dim // heads
        angle = torch.outer(torch.arange(length).float(), 10000 ** (-torch.arange(0, each, 2).float() / each))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.05)

    def forward(self, tokens, pos):
        """tokens [1, n], their positions [n] -> scores of the next tokens [1, n, vocab]"""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[pos], self.sin[pos], self.mask[pos], pos)
        return F.linear(self.norm(x), self.embedding.weight)

    def whole(self, tokens):
        """Texts from their beginning [b, n] -> scores [b, n, vocab], without the cache: for training."""
        n = tokens.shape[1]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:n], self.sin[:n], self.mask[:n, :n])
        return F.linear(self.norm(x), self.embedding.weight)
