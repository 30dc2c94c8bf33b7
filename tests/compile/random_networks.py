"""Random small networks from a seed: what users write, in combinations that nobody wrote down.

A network is a list of steps over all values so far.  Steps are made while example inputs run through them, so that
every step fits the shapes that it meets, and the finished module runs the same steps again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Function = Callable[..., Tensor | tuple[Tensor, ...]]
_MOST_ELEMENTS = 6000


@dataclass(frozen=True)
class Step:
    """One step: what it is called, a function of the values at `reads`, and the module that the function calls."""

    name: str
    function: Function
    reads: tuple[int, ...]
    module: nn.Module | None = None

    def __call__(self, module: nn.Module | None, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        operands = [values[i] for i in self.reads]
        made = self.function(*operands) if module is None else self.function(module, *operands)
        return made if isinstance(made, tuple) else (made,)


class RandomNetwork(nn.Module):
    """The network of a seed.

    Args:
        length: number of steps; a shorter network of the same seed has the first of them.
        wide: draw from `WIDE`, too: writes in place, shared layers, indices and more.

    Attributes:
        example: random inputs; some are channels last.
        names: what the steps are, in order.
    """

    def __init__(self, seed: int, length: int = 8, wide: bool = False) -> None:
        super().__init__()
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        self.shapes = self._input_shapes()
        self.channels_last = self._random.random() < 0.25
        self.example = self.inputs(0)
        self.register_buffer("table", torch.randn(self.example[0].shape[1:]))
        self.layers = nn.ModuleList()
        self._steps: list[tuple[Step, int]] = []
        self.eval()
        values = [x.clone() for x in self.example]
        makers = [*MAKERS, *WIDE] if wide else MAKERS
        attempts = 0
        while len(self._steps) < length and attempts < 20 * length:
            attempts += 1
            step = self._random.choice(makers)(self._random, values)
            if wide and step is not None and step.module is not None and self.layers:
                step = self._shared(step, values)
            if step is None:
                continue
            kept = [v.clone() for v in values]
            try:
                with torch.no_grad():
                    made = step(step.module.eval() if step.module is not None else None, values)
            except RuntimeError:  # a write into what `expand` gave, whose elements are one in memory
                values = kept
                continue
            if wide and not all(_fits(t) for t in (*made, *values)):
                values = kept  # which the step may have written into
                continue
            if any(not 0 < t.numel() <= _MOST_ELEMENTS or t.dim() > 5 for t in made):
                continue
            # Values that grow or vanish make every comparison say nothing.
            if any(not 1e-2 < float(t.abs().max()) < 50 or not bool(t.isfinite().all()) for t in made):
                continue
            self._steps.append((step, len(self.layers) if step.module is not None else -1))
            if step.module is not None:
                self.layers.append(step.module)  # a shared layer is in the list twice
            values += made
        self._outputs = self._choose_outputs(len(values))
        self.names = [step.name for step, _ in self._steps]
        self.eval()

    def _shared(self, step: Step, values: Sequence[Tensor]) -> Step:
        """The step with a layer that was used before, now and then and where it fits."""
        if self._random.random() < 0.7:
            return step
        layer = self._random.choice(list(self.layers))
        if type(layer) is not type(step.module):
            return step
        try:
            with torch.no_grad():
                step.function(layer, *(values[i].clone() for i in step.reads))
        except (RuntimeError, ValueError, AssertionError):
            return step
        return Step(f"shared_{step.name}", step.function, step.reads, layer)

    def _input_shapes(self) -> list[tuple[int, ...]]:
        pick = self._random.choice
        batch = pick((1, 1, 1, 2, 3))
        main: tuple[int, ...] = pick(
            (
                (batch, pick((1, 3, 4, 8, 11)), pick((5, 8, 9, 12)), pick((6, 8, 10))),
                (batch, pick((1, 3, 4, 8, 11)), pick((5, 8, 9, 12)), pick((6, 8, 10))),
                (batch, pick((4, 6, 12)), pick((8, 10, 17))),
                (batch, pick((8, 16, 21))),
                (pick((7, 16, 30)),),
                (batch, pick((2, 4)), pick((3, 4)), pick((4, 6)), pick((4, 6))),
            )
        )
        shapes = [main]
        if self._random.random() < 0.4:
            shapes.append(main if self._random.random() < 0.5 else (1, *main[1:]))
        if self._random.random() < 0.15:
            shapes.append((batch, 10))
        return shapes

    def inputs(self, seed: int) -> tuple[Tensor, ...]:
        """Random inputs."""
        generator = torch.Generator().manual_seed(seed)
        made = [torch.randn(shape, generator=generator) for shape in self.shapes]
        if self.channels_last:
            made = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in made]
        return tuple(made)

    def _choose_outputs(self, count: int) -> list[int]:
        chosen = [count - 1]
        given = len(self.example)
        read = {i for step, _ in self._steps for i in step.reads}
        chosen += [i for i in range(given, count - 1) if i not in read and self._random.random() < 0.6]
        if self._random.random() < 0.35 and count > given:
            chosen.append(self._random.randrange(given, count))  # also what others read, or the same one twice
        if self._random.random() < 0.1:
            chosen.append(0)  # an input passed through
        if self._random.random() < 0.08:
            chosen.append(-1)  # a constant
        self._random.shuffle(chosen)
        return chosen

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        values = list(inputs)
        for step, layer in self._steps:
            values += step(self.layers[layer] if layer >= 0 else None, values)
        results = tuple(self.get_buffer("table") if i < 0 else values[i] for i in self._outputs)
        return results[0] if len(results) == 1 else results


def _fits(x: Tensor) -> bool:
    return 0 < x.numel() <= _MOST_ELEMENTS and x.dim() <= 5 and bool(x.isfinite().all()) and float(x.abs().max()) < 50


Maker = Callable[[random.Random, Sequence[Tensor]], Step | None]
MAKERS: list[Maker] = []


Made = tuple[str, Function, nn.Module | None]
_NOTHING: Made = ("", lambda: (), None)


def _of_rank(*ranks: int) -> Callable[[Callable[[random.Random, Tensor], Made]], Maker]:
    """A maker of steps of one operand, mostly a late one, of these ranks."""

    def register(make: Callable[[random.Random, Tensor], Made]) -> Maker:
        def maker(rng: random.Random, values: Sequence[Tensor]) -> Step | None:
            fitting = [i for i, v in enumerate(values) if v.dim() in ranks]
            if not fitting:
                return None
            index = fitting[-1] if rng.random() < 0.7 else rng.choice(fitting)
            name, function, module = make(rng, values[index])
            return Step(name, function, (index,), module) if name else None

        MAKERS.append(maker)
        return maker

    return register


def _call(module: nn.Module, *operands: Tensor) -> Tensor:
    result: Tensor = module(*operands)
    return result


@_of_rank(4)
def conv2d(rng: random.Random, x: Tensor) -> Made:
    c, h, w = x.shape[1:]
    kernel = (rng.choice([k for k in (1, 2, 3, 5) if k <= h]), rng.choice([k for k in (1, 2, 3, 5) if k <= w]))
    dilation = rng.choice((1, 1, 1, 2)) if 2 * (max(kernel) - 1) < min(h, w) else 1
    kind = rng.choice(("dense", "dense", "depthwise", "multiplied", "grouped", "transposed", "transposed"))
    padding = rng.choice((0, kernel[0] // 2, (kernel[0] // 2, kernel[1] // 2), 1))
    stride = rng.choice((1, 1, 2, 3, 4, (2, 1), (1, 3)))
    bias = rng.random() < 0.7
    if kind == "transposed":
        groups = c if rng.random() < 0.3 else 1
        out = groups * rng.choice((1, 2)) if groups > 1 else rng.choice((2, 5, 8))
        layer: nn.Module = nn.ConvTranspose2d(
            c,
            out,
            kernel,
            rng.choice((1, 2, 2, 3, (1, 2))),
            rng.choice((0, 0, 1)) if min(kernel) > 2 else 0,
            groups=groups,
            bias=bias,
        )
        return "conv_transpose2d", _call, layer
    groups = {"dense": 1, "depthwise": c, "multiplied": c}.get(kind) or next(g for g in (4, 3, 2, 1) if c % g == 0)
    out = {"depthwise": c, "multiplied": 2 * c}.get(kind) or groups * rng.choice((1, 2, 5))
    layer = nn.Conv2d(c, out, kernel, stride, padding, dilation, groups, bias)
    if rng.random() < 0.4:
        layer = nn.Sequential(layer, nn.BatchNorm2d(out), rng.choice((nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU))())
    return f"conv2d_{kind}", _call, layer


@_of_rank(3)
def conv1d(rng: random.Random, x: Tensor) -> Made:
    c, n = x.shape[1:]
    kernel = rng.choice([k for k in (1, 2, 3, 5) if k <= n])
    out = rng.choice((2, 5, 8))
    if rng.random() < 0.25:
        return "conv_transpose1d", _call, nn.ConvTranspose1d(c, out, kernel, rng.choice((1, 2, 3)))
    groups = c if rng.random() < 0.3 else 1
    layer = nn.Conv1d(
        c, c if groups > 1 else out, kernel, rng.choice((1, 1, 2, 3)), rng.choice((0, kernel // 2)), groups=groups
    )
    return "conv1d", _call, layer


@_of_rank(5)
def conv3d(rng: random.Random, x: Tensor) -> Made:
    size = tuple(rng.choice([k for k in (1, 2, 3) if k <= n]) for n in x.shape[2:])
    return "conv3d", _call, nn.Conv3d(x.shape[1], rng.choice((2, 5)), size, rng.choice((1, 1, 2)))


@_of_rank(2, 3, 4, 5)
def linear(rng: random.Random, x: Tensor) -> Made:
    return "linear", _call, nn.Linear(x.shape[-1], rng.choice((1, 4, 8, 13)), rng.random() < 0.7)


@_of_rank(4)
def pool2d(rng: random.Random, x: Tensor) -> Made:
    h, w = x.shape[2:]
    kernel = (rng.choice([k for k in (1, 2, 3, h) if k <= h]), rng.choice([k for k in (1, 2, 3, w) if k <= w]))
    stride, padding = rng.choice((1, 2, 3, kernel)), tuple(rng.choice((0, k // 2)) for k in kernel)
    if rng.random() < 0.5:
        ceil = rng.random() < 0.3
        return "max_pool2d", lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil), None
    counted = rng.random() < 0.5
    return "avg_pool2d", lambda x: F.avg_pool2d(x, kernel, stride, padding, count_include_pad=counted), None


@_of_rank(3)
def pool1d(rng: random.Random, x: Tensor) -> Made:
    kernel = rng.choice([k for k in (1, 2, 3) if k <= x.shape[2]])
    stride = rng.choice((1, 2))
    function = rng.choice((F.max_pool1d, F.avg_pool1d))
    return "pool1d", lambda x: function(x, kernel, stride), None


@_of_rank(3, 4)
def adaptive_pool(rng: random.Random, x: Tensor) -> Made:
    functions = (
        (F.adaptive_avg_pool1d, F.adaptive_max_pool1d)
        if x.dim() == 3
        else (F.adaptive_avg_pool2d, F.adaptive_max_pool2d)
    )
    function, size = rng.choice(functions), rng.choice((1, 2, 3))
    return "adaptive_pool", lambda x: function(x, size), None


_UNARY: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("relu", F.relu), ("relu6", F.relu6), ("hardswish", F.hardswish), ("hardsigmoid", F.hardsigmoid),
    ("sigmoid", torch.sigmoid), ("tanh", torch.tanh), ("silu", F.silu), ("gelu", F.gelu), ("elu", F.elu),
    ("leaky_relu", F.leaky_relu), ("abs", torch.abs), ("neg", torch.neg), ("exp", lambda x: torch.exp(x.clamp(-2, 1))),
    ("rsqrt", lambda x: torch.rsqrt(x * x + 1)), ("clamp", lambda x: x.clamp(-0.7, 1.2)), ("sin", torch.sin),
    ("mish", F.mish), ("softplus", F.softplus), ("scaled", lambda x: x * 1.7 - 0.3), ("halved", lambda x: x / 2),
    ("square", lambda x: x**2), ("reversed_sub", lambda x: 1 - x),
)  # fmt: skip


@_of_rank(1, 2, 3, 4, 5)
def unary(rng: random.Random, x: Tensor) -> Made:
    return (*rng.choice(_UNARY), None)


@_of_rank(1, 2, 3, 4, 5)
def softmax(rng: random.Random, x: Tensor) -> Made:
    axis = rng.choice((-1, -1, 1 if x.dim() > 1 else 0))
    function = rng.choice((torch.softmax, torch.softmax, torch.log_softmax))
    return "softmax", lambda x: function(x, axis), None


@_of_rank(1, 2, 3, 4, 5)
def reduce(rng: random.Random, x: Tensor) -> Made:
    axes = tuple(sorted(rng.sample(range(x.dim()), rng.randint(1, min(2, x.dim())))))
    keep = x.dim() == len(axes) or rng.random() < 0.5
    function = rng.choice((torch.mean, torch.mean, torch.sum, torch.amax, torch.amin))
    if function is torch.mean and rng.random() < 0.2:
        return "var", lambda x: torch.var(x, axes, correction=0, keepdim=keep), None
    return "reduce", lambda x: function(x, axes, keep), None


@_of_rank(2, 3, 4, 5)
def norm(rng: random.Random, x: Tensor) -> Made:
    kinds = ["layer"]
    if x.dim() >= 3:
        kinds += ["group", "instance"]
    kind = rng.choice(kinds)
    if kind == "layer":
        return "layer_norm", _call, nn.LayerNorm(x.shape[-1])
    if kind == "group":
        groups = rng.choice([g for g in (1, 2, 4) if x.shape[1] % g == 0])
        return "group_norm", _call, nn.GroupNorm(groups, x.shape[1])
    kinds3 = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    return ("instance_norm", _call, kinds3[x.dim()](x.shape[1])) if math.prod(x.shape[2:]) > 1 else _NOTHING


@_of_rank(3)
def attention(rng: random.Random, x: Tensor) -> Made:
    width = x.shape[2]
    heads = rng.choice([h for h in (1, 2, 4) if width % h == 0])
    if rng.random() < 0.5:
        layer = nn.MultiheadAttention(width, heads, batch_first=True)
        return "multihead_attention", lambda m, x: m(x, x, x, need_weights=False)[0], layer

    def dot_product(x: Tensor) -> Tensor:
        y = x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(y, y, y).transpose(1, 2).reshape(x.shape)

    return "attention", dot_product, None


@_of_rank(3)
def recurrent(rng: random.Random, x: Tensor) -> Made:
    kind = rng.choice((nn.GRU, nn.LSTM))
    layer = kind(x.shape[2], rng.choice((4, 6)), batch_first=True, bidirectional=rng.random() < 0.2)
    return "recurrent", lambda m, x: m(x)[0], layer


@_of_rank(1, 2, 3, 4, 5)
def cut(rng: random.Random, x: Tensor) -> Made:
    axis = rng.randrange(x.dim())
    size = x.shape[axis]
    if size < 2:
        return _NOTHING
    kind = rng.choice(("slice", "step", "split", "chunk", "select", "flip", "roll", "narrow"))
    begin = rng.randrange(size - 1)
    end = rng.randint(begin + 1, size)
    if kind == "slice":
        return "slice", lambda x: x.narrow(axis, begin, end - begin), None
    if kind == "step":
        index = (slice(None),) * axis + (slice(begin, None, rng.choice((2, 3))),)
        return "step", lambda x: x[index], None
    if kind == "split":
        return "split", lambda x: tuple(torch.split(x, [begin + 1, size - begin - 1], axis)), None
    if kind == "chunk":
        return "chunk", lambda x: tuple(torch.chunk(x, 2, axis)), None
    if kind == "select" and x.dim() > 1:
        return "select", lambda x: x.select(axis, begin), None
    if kind == "flip":
        return "flip", lambda x: torch.flip(x, (axis,)), None
    if kind == "roll":
        return "roll", lambda x: torch.roll(x, begin + 1, axis), None
    return "narrow", lambda x: x.narrow(axis, begin, 1), None


@_of_rank(2, 3, 4, 5)
def move(rng: random.Random, x: Tensor) -> Made:
    kind = rng.choice(("permute", "transpose", "reshape", "flatten", "unsqueeze", "squeeze", "pad", "repeat", "expand"))
    order = list(range(x.dim()))
    rng.shuffle(order)
    if kind == "permute":
        return "permute", lambda x: x.permute(order), None
    if kind == "transpose":
        return "transpose", lambda x: x.transpose(order[0], order[1]), None
    if kind == "reshape":
        rest = math.prod(x.shape[1:])
        factor = next((f for f in (5, 4, 3, 2) if rest % f == 0), 1)
        shape = rng.choice(
            ((x.shape[0], factor, rest // factor), (x.shape[0], rest // factor, 1, factor), (-1, x.shape[-1]))
        )
        return "reshape", lambda x: x.reshape(shape), None
    if kind == "flatten":
        start = rng.randrange(x.dim())
        return "flatten", lambda x: x.flatten(start), None
    if kind == "unsqueeze":
        axis = rng.randrange(x.dim() + 1)
        return "unsqueeze", lambda x: x.unsqueeze(axis), None
    if kind == "squeeze":
        return "squeeze", lambda x: x.squeeze(0), None
    if kind == "pad":
        amounts = [rng.choice((0, 1, 2)) for _ in range(2 * rng.randint(1, min(x.dim(), 3)))]
        value = rng.choice((0.0, 0.0, 0.5))
        return "pad", lambda x: F.pad(x, amounts, value=value), None
    if kind == "repeat":
        counts = [rng.choice((1, 1, 2)) for _ in range(x.dim())]
        return "repeat", lambda x: x.repeat(counts), None
    return "expand", lambda x: x.unsqueeze(0).expand(2, *x.shape), None


@_of_rank(4)
def picture(rng: random.Random, x: Tensor) -> Made:
    kind = rng.choice(("nearest", "bilinear", "bilinear", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"))
    factor = rng.choice((2, 2, 3, 4))
    if kind == "pixel_shuffle" and x.shape[1] % 4 == 0:
        return kind, lambda x: F.pixel_shuffle(x, 2), None
    if kind == "pixel_unshuffle" and x.shape[2] % 2 == 0 == x.shape[3] % 2:
        return kind, lambda x: F.pixel_unshuffle(x, 2), None
    if kind == "channel_shuffle" and x.shape[1] % 2 == 0:
        return kind, lambda x: F.channel_shuffle(x, 2), None
    if kind == "bilinear":
        align = rng.random() < 0.4
        return kind, lambda x: F.interpolate(x, scale_factor=factor, mode=kind, align_corners=align), None
    return "nearest", lambda x: F.interpolate(x, scale_factor=factor), None


_BINARY: tuple[tuple[str, Function], ...] = (
    ("add", torch.add), ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("minimum", torch.minimum),
    ("maximum", torch.maximum), ("add_relu", lambda a, b: F.relu(a + b)), ("weighted", lambda a, b: a + 0.5 * b),
    ("div", lambda a, b: a / (b * b + 1)), ("where", lambda a, b: torch.where(a > b, a, b)),
)  # fmt: skip


def binary(rng: random.Random, values: Sequence[Tensor]) -> Step | None:
    """An elementwise function of two values, broadcast or not; the same one twice is fine."""
    pairs = []
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            try:
                torch.broadcast_shapes(a.shape, b.shape)
            except RuntimeError:
                continue
            pairs.append((i, j))
    name, function = rng.choice(_BINARY)
    late = [p for p in pairs if len(values) - 1 in p]
    return Step(name, function, rng.choice(late if late and rng.random() < 0.7 else pairs))


def concat(rng: random.Random, values: Sequence[Tensor]) -> Step | None:
    """Two or three values joined on an axis, also one with itself."""
    first = rng.randrange(len(values))
    axis = rng.randrange(values[first].dim())

    def rest(x: Tensor) -> tuple[int, ...]:
        return (*x.shape[:axis], -1, *x.shape[axis + 1 :])

    fitting = [i for i, v in enumerate(values) if v.dim() == values[first].dim() and rest(v) == rest(values[first])]
    chosen = (first, *(rng.choice(fitting) for _ in range(rng.choice((1, 1, 2)))))
    if rng.random() < 0.15:
        return Step("stack", lambda *x: torch.stack(x, axis), (first, first))
    return Step("concat", lambda *x: torch.cat(x, axis), chosen)


def product(rng: random.Random, values: Sequence[Tensor]) -> Step | None:
    """A product of two matrices, the second one also transposed."""
    pairs = [(i, j) for i, a in enumerate(values) for j, b in enumerate(values) if a.dim() == b.dim() in (3, 4)]
    pairs = [(i, j) for i, j in pairs if values[i].shape[:-2] == values[j].shape[:-2]]
    plain = [(i, j) for i, j in pairs if values[i].shape[-1] == values[j].shape[-2]]
    if plain:
        return Step("matmul", lambda a, b: a @ b * (a.shape[-1] ** -0.5), rng.choice(plain))
    turned = [(i, j) for i, j in pairs if values[i].shape[-1] == values[j].shape[-1]]
    if not turned:
        return None
    return Step("matmul", lambda a, b: a @ b.transpose(-1, -2) * (a.shape[-1] ** -0.5), rng.choice(turned))


MAKERS += [binary, binary, binary, concat, product, conv2d, conv2d, conv2d, cut, move, move, unary, picture]


# ---------------------------------------------------------------- what wide networks have besides

_WRITES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("relu_", lambda x: F.relu(x, inplace=True)), ("hardtanh_", lambda x: F.hardtanh(x, inplace=True)),
    ("add_", lambda x: x.add_(0.25)), ("mul_", lambda x: x.mul_(0.5)), ("clamp_", lambda x: x.clamp_(-1.0, 1.0)),
    ("leaky_relu_", lambda x: F.leaky_relu(x, 0.1, inplace=True)), ("silu_", lambda x: F.silu(x, inplace=True)),
)  # fmt: skip

_MORE: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("add_zero", lambda x: x + 0), ("mul_one", lambda x: x * 1.0), ("sign", torch.sign), ("round", torch.round),
    ("floor", torch.floor), ("cos", torch.cos), ("atan", torch.atan), ("softsign", F.softsign), ("selu", F.selu),
    ("celu", F.celu), ("hardshrink", F.hardshrink), ("softshrink", F.softshrink), ("log1p", lambda x: x.abs().log1p()),
    ("sqrt", lambda x: (x.abs() + 0.1).sqrt()), ("positive", lambda x: (x > 0.1).float()),
    ("choice", lambda x: torch.where(x > 0, x, 0.5 * x)), ("filled", lambda x: x.masked_fill(x > 0.5, 0.25)),
    ("cube", lambda x: x**3 * 0.1), ("logsigmoid", F.logsigmoid), ("threshold", lambda x: F.threshold(x, 0.2, -0.3)),
)  # fmt: skip


def _wide(*ranks: int) -> Callable[[Callable[[random.Random, Tensor], Made]], Maker]:
    """As `_of_rank`, for `WIDE`."""

    def register(make: Callable[[random.Random, Tensor], Made]) -> Maker:
        maker = _of_rank(*ranks)(make)
        WIDE.append(MAKERS.pop())
        return maker

    return register


WIDE: list[Maker] = []


@_wide(1, 2, 3, 4, 5)
def write(rng: random.Random, x: Tensor) -> Made:
    """A write into a value, an input of the network included, that others may read before and after."""
    return (*rng.choice(_WRITES), None)


@_wide(1, 2, 3, 4, 5)
def write_part(rng: random.Random, x: Tensor) -> Made:
    """A write into a part of a copy."""
    axis = rng.randrange(x.dim())
    begin = rng.randrange(x.shape[axis])

    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y.narrow(axis, begin, 1).mul_(0.5)
        return y

    return "write_part", function, None


@_wide(1, 2, 3, 4, 5)
def more(rng: random.Random, x: Tensor) -> Made:
    return (*rng.choice(_MORE), None)


@_wide(2, 3, 4, 5)
def index(rng: random.Random, x: Tensor) -> Made:
    axis = rng.randrange(x.dim())
    function = rng.choice((torch.argmax, torch.argmin))
    return "index", lambda x: function(x, axis, keepdim=True).float() * 0.1, None


@_wide(2, 3, 4)
def border(rng: random.Random, x: Tensor) -> Made:
    mode = rng.choice(("reflect", "replicate", "circular"))
    if x.shape[-1] < 3 or x.dim() < 2:
        return _NOTHING
    if x.dim() == 4:
        return ("border", lambda x: F.pad(x, (1, 2, 1, 0), mode=mode), None) if x.shape[2] > 2 else _NOTHING
    return "border", lambda x: F.pad(x, (1, 2), mode=mode), None


@_wide(2, 3, 4)
def running(rng: random.Random, x: Tensor) -> Made:
    axis = rng.randrange(x.dim())
    return "cumsum", lambda x: torch.cumsum(x, axis) / x.shape[axis], None


@_wide(3)
def masked(rng: random.Random, x: Tensor) -> Made:
    def function(x: Tensor) -> Tensor:
        y = x[:, None]
        return F.scaled_dot_product_attention(y, y, y, is_causal=True)[:, 0]

    return "causal_attention", function, None


@_wide(2, 3, 4)
def prelu(rng: random.Random, x: Tensor) -> Made:
    return "prelu", _call, nn.PReLU(x.shape[1] if rng.random() < 0.5 else 1)


@_wide(2, 3, 4)
def batch_norm(rng: random.Random, x: Tensor) -> Made:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[x.dim()]
    return "batch_norm", _call, kind(x.shape[1])
