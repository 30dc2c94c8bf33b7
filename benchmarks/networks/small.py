"""Small networks of the kinds that people run on microcontrollers, with random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarks.networks.detectors import Fomo, SsdLite, Yolo
from torch import Tensor, nn

Make = Callable[[], nn.Module]
Shapes = tuple[tuple[int, ...], ...]


class By(nn.Module):
    """A function of modules and inputs."""

    def __init__(self, call: Callable[..., object], **parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> object:
        return self.call(self, *inputs)


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, **options: int) -> nn.Sequential:
    padding = options.get("dilation", 1) * (kernel // 2)
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False, **options)  # type: ignore[arg-type]
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def classic_unet() -> nn.Module:
    """Up by bilinear interpolation with aligned corners."""

    def forward(m: By, x: Tensor) -> Tensor:
        a = m.a(x)
        b = m.b(F.max_pool2d(a, 2))
        c = m.c(F.max_pool2d(b, 2))
        up = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=True)
        d = m.d(torch.cat([b, up], 1))
        up = F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=True)
        return m.e(torch.cat([a, up], 1))

    parts = {"a": conv(3, 16), "b": conv(16, 32), "c": conv(32, 64), "d": conv(96, 32), "e": nn.Conv2d(48, 2, 1)}
    return By(forward, **parts)


def temporal_shift() -> nn.Module:
    """TSM: a part of the channels comes from the frame before, another from the one behind."""

    def shift(x: Tensor) -> Tensor:
        frames = x.unsqueeze(0)
        out = torch.zeros_like(frames)
        out[:, :-1, :4] = frames[:, 1:, :4]
        out[:, 1:, 4:8] = frames[:, :-1, 4:8]
        out[:, :, 8:] = frames[:, :, 8:]
        return out.squeeze(0)

    def forward(m: By, x: Tensor) -> Tensor:
        x = m.a(x)
        x = x + m.b(shift(x))
        return m.head(x.mean((2, 3))).mean(0, keepdim=True)

    return By(forward, a=conv(3, 32, 3, 2), b=conv(32, 32), head=nn.Linear(32, 8))


def cached_attention() -> nn.Module:
    """One step of a small language model, its keys and values of before as inputs."""

    def forward(m: By, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = m.norm(x)
        q, k, v = (t.view(1, 1, 4, 16).transpose(1, 2) for t in m.qkv(y).chunk(3, -1))
        keys, values = torch.cat([keys[:, :, 1:], k], 2), torch.cat([values[:, :, 1:], v], 2)
        seen = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(1, 1, 64)
        x = x + m.out(seen)
        return x + m.mlp(m.norm2(x)), keys, values

    mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    norms = {"norm": nn.LayerNorm(64), "norm2": nn.LayerNorm(64)}
    return By(forward, qkv=nn.Linear(64, 192), out=nn.Linear(64, 64), mlp=mlp, **norms)


def voice_activity() -> nn.Module:
    """As Silero VAD: a transform by convolution, its magnitude, convolutions, an LSTM cell with its state as inputs."""

    def forward(m: By, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bands = m.transform(F.pad(x.unsqueeze(1), (0, 32), mode="reflect"))
        magnitude = torch.sqrt(bands[:, :33] ** 2 + bands[:, 33:] ** 2 + 1e-6)
        features = m.body(magnitude)
        h, c = m.cell(features.mean(-1), (h, c))
        return m.head(F.relu(h)).sigmoid(), h, c

    layers = [nn.Conv1d(33, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, 2, 1), nn.ReLU()]
    transform = nn.Conv1d(1, 66, 64, 32, bias=False)
    return By(
        forward, transform=transform, body=nn.Sequential(*layers), cell=nn.LSTMCell(32, 32), head=nn.Linear(32, 1)
    )


def noise_suppression() -> nn.Module:
    """As RNNoise: dense layers and three GRUs, joined."""

    def forward(m: By, x: Tensor) -> tuple[Tensor, Tensor]:
        dense = torch.tanh(m.dense(x))
        vad, _ = m.vad(dense)
        noise, _ = m.noise(torch.cat([dense, vad, x], -1))
        gains, _ = m.gru(torch.cat([vad, noise, x], -1))
        return m.gains(gains).sigmoid(), m.active(vad).sigmoid()

    grus = {"vad": nn.GRU(24, 24), "noise": nn.GRU(90, 48), "gru": nn.GRU(114, 96)}
    return By(forward, dense=nn.Linear(42, 24), gains=nn.Linear(96, 22), active=nn.Linear(24, 1), **grus)


def wavenet() -> nn.Module:
    """Gated dilated convolutions with skips."""

    def forward(m: By, x: Tensor) -> Tensor:
        x, skips = m.first(x), 0.0
        for layer in m.layers:
            gate, value = layer(F.pad(x, (2 * layer.dilation[0], 0))).chunk(2, 1)
            y = torch.tanh(value) * torch.sigmoid(gate)
            skips, x = skips + y, x + y
        return m.head(F.relu(skips))

    layers = nn.ModuleList([nn.Conv1d(16, 32, 3, dilation=2**i) for i in range(4)])
    return By(forward, first=nn.Conv1d(1, 16, 1), layers=layers, head=nn.Conv1d(16, 1, 1))


def crnn() -> nn.Module:
    """Convolutions over a spectrogram, a bidirectional GRU over time."""

    def forward(m: By, x: Tensor) -> Tensor:
        y = m.conv(x)
        rows = y.permute(0, 3, 1, 2).flatten(2)
        return m.head(m.gru(rows)[0]).log_softmax(-1)

    body = nn.Sequential(conv(1, 16), nn.MaxPool2d((2, 1)), conv(16, 16), nn.MaxPool2d((2, 2)))
    return By(forward, conv=body, gru=nn.GRU(16 * 8, 24, batch_first=True, bidirectional=True), head=nn.Linear(48, 12))


def keyword_transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", norm_first=True)

    def forward(m: By, x: Tensor) -> Tensor:
        return m.head(m.body(m.embed(x) + m.place.weight).mean(1))

    parts = {"embed": nn.Linear(40, 32), "place": nn.Embedding(16, 32), "head": nn.Linear(32, 12)}
    return By(forward, body=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), **parts)


def point_net() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]
    head = nn.Sequential(nn.BatchNorm1d(128), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return By(lambda m, x: m.head(m.body(x).max(2)[0]), body=nn.Sequential(*layers), head=head)


def video() -> nn.Module:
    """As C3D: convolutions and pools over time and space."""
    layers = [nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d((1, 2, 2))]
    layers += [nn.Conv3d(8, 16, 3, padding=1), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 5))


def siamese() -> nn.Module:
    """Two pictures, how alike they are."""
    body = nn.Sequential(
        conv(1, 16, 3, 2), conv(16, 32, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 16)
    )
    return By(lambda m, x, y: F.cosine_similarity(m.body(x), m.body(y)), body=body)


def prototypes() -> nn.Module:
    """Few-shot: distances to the prototypes of the classes, an input."""
    body = nn.Sequential(conv(1, 16, 3, 2), conv(16, 32, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return By(lambda m, x, p: (-torch.cdist(m.body(x), p)).softmax(-1), body=body)


def squeeze_excite() -> nn.Module:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Conv2d(8, 32, 1), nn.Hardsigmoid())
    return By(
        lambda m, x: m.head((lambda y: y * m.gate(y))(m.a(x)).mean((2, 3))),
        a=conv(3, 32, 3, 2),
        gate=gate,
        head=nn.Linear(32, 5),
    )


def super_resolution() -> nn.Module:
    """ESPCN, added to the bicubic picture."""
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh()]
    body = nn.Sequential(*layers, nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3))
    return By(lambda m, x: m.body(x) + F.interpolate(x, scale_factor=3, mode="bicubic"), body=body)


def denoiser() -> nn.Module:
    return By(
        lambda m, x: x - m.out(m.body(x)),
        body=nn.Sequential(conv(1, 24), conv(24, 24), conv(24, 24)),
        out=nn.Conv2d(24, 1, 3, padding=1),
    )


def generator() -> nn.Module:
    layers: list[nn.Module] = [nn.ConvTranspose2d(32, 32, 4), nn.BatchNorm2d(32), nn.ReLU()]
    for a, b in ((32, 16), (16, 8)):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(8, 1, 3, padding=1), nn.Tanh())


def pyramid() -> nn.Module:
    """Segmentation with a feature pyramid, added from coarse to fine, then to the size of the picture."""

    def forward(m: By, x: Tensor) -> Tensor:
        a = m.a(x)
        b = m.b(a)
        c = m.c(b)
        p = m.lb(b) + F.interpolate(m.lc(c), size=b.shape[-2:], mode="nearest")
        p = m.la(a) + F.interpolate(p, size=a.shape[-2:], mode="nearest")
        return F.interpolate(m.head(p), scale_factor=4, mode="bilinear", align_corners=False)

    sides = {name: nn.Conv2d(width, 24, 1) for name, width in (("la", 16), ("lb", 24), ("lc", 32))}
    return By(
        forward, a=conv(3, 16, 3, 4), b=conv(16, 24, 3, 2), c=conv(24, 32, 3, 2), head=nn.Conv2d(24, 3, 1), **sides
    )


def dilated_pyramid() -> nn.Module:
    """DeepLab's: dilated convolutions and the picture's mean, side by side."""

    def forward(m: By, x: Tensor) -> Tensor:
        y = m.a(x)
        mean = F.interpolate(m.pool(y), size=y.shape[-2:], mode="bilinear", align_corners=True)
        y = m.join(torch.cat([m.d1(y), m.d2(y), m.d3(y), mean], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=True)

    taps = {f"d{i}": conv(24, 16, 3, dilation=rate) for i, rate in enumerate((1, 2, 4), 1)}
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 16, 1), nn.ReLU())
    return By(forward, a=conv(3, 24, 3, 4), pool=pool, join=nn.Conv2d(64, 3, 1), **taps)


def linear_norms() -> nn.Module:
    """As LeViT: linear layers with batch norms over rows."""

    def forward(m: By, x: Tensor) -> Tensor:
        y = m.norm(m.linear(x).flatten(0, 1)).reshape(1, 16, 32)
        q, k = y.chunk(2, -1)
        seen = (q @ k.transpose(1, 2) * 0.25 + m.bias).softmax(-1) @ F.hardswish(y)
        return m.head((x + seen).mean(1))

    made = By(
        forward,
        linear=nn.Linear(32, 32, bias=False),
        norm=nn.BatchNorm1d(32),
        head=nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 10)),
    )
    made.bias = nn.Parameter(torch.randn(16, 16))
    return made


def dynamic_choice() -> nn.Module:
    """Spikes: what is above a threshold goes on, the rest stays."""

    def forward(m: By, x: Tensor) -> Tensor:
        y = m.a(x)
        spikes = torch.where(y > 0.5, torch.ones_like(y), torch.zeros_like(y))
        rest = y.masked_fill(y > 0.5, 0.0)
        return m.head((spikes + 0.5 * rest).mean((2, 3)))

    return By(forward, a=conv(1, 16, 3, 2), head=nn.Linear(16, 4))


def autoencoder() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((640, 128), (128, 8), (8, 128)):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 640))


def embedder() -> nn.Module:
    """Speaker embedding: mean and deviation over time, a unit vector."""

    def forward(m: By, x: Tensor) -> Tensor:
        y = m.body(x)
        return F.normalize(m.head(torch.cat([y.mean(-1), y.std(-1)], 1)), dim=1)

    body = nn.Sequential(
        nn.Conv1d(40, 32, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(32), nn.Conv1d(32, 32, 3, dilation=2), nn.ReLU()
    )
    return By(forward, body=body, head=nn.Linear(64, 16))


def conformer() -> nn.Module:
    """Speech: attention with relative positions (as Transformer-XL shifts them), gated depthwise convolution."""
    steps, width, heads = 12, 16, 2
    each = width // heads
    angles = torch.arange(steps - 1, -steps, -1.0)[:, None] * torch.exp(torch.arange(0, width, 2) * -0.5)
    distances = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None]

    def attention(m: By, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (heads, each)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
        places = m.places(distances).unflatten(-1, (heads, each)).transpose(1, 2)
        shifted = F.pad((query + m.bias.weight) @ places.transpose(-2, -1), (1, 0))
        shifted = shifted.view(1, heads, 2 * steps, steps)[:, :, 1:].reshape(1, heads, steps, 2 * steps - 1)
        scores = (query @ key.transpose(-2, -1) + shifted[..., :steps]) / each**0.5
        return m.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def forward(m: By, x: Tensor) -> Tensor:
        x = x + 0.5 * m.first(x)
        x = x + attention(m, m.norm(x))
        gated = F.glu(m.wide(x.transpose(1, 2)), 1)
        x = x + m.narrow(F.silu(m.batch(m.deep(gated)))).transpose(1, 2)
        return m.last(x + 0.5 * m.second(x))

    def dense() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width))

    parts: dict[str, nn.Module] = {"first": dense(), "second": dense(), "norm": nn.LayerNorm(width)}
    parts |= {"qkv": nn.Linear(width, 3 * width), "places": nn.Linear(width, width, bias=False)}
    parts |= {"bias": nn.Embedding(1, each), "out": nn.Linear(width, width), "last": nn.LayerNorm(width)}
    parts |= {"wide": nn.Conv1d(width, 2 * width, 1), "deep": nn.Conv1d(width, width, 7, padding=3, groups=width)}
    return By(forward, batch=nn.BatchNorm1d(width), narrow=nn.Conv1d(width, width, 1), **parts)


def axial_attention() -> nn.Module:
    """Pictures: attention along the rows, then along the columns."""

    def along(layer: nn.Module, x: Tensor) -> Tensor:
        query, key, value = layer(x).unflatten(-1, (3, 2, 8)).permute(3, 0, 1, 4, 2, 5).unbind(0)
        return F.scaled_dot_product_attention(query, key, value).transpose(2, 3).flatten(3)

    def forward(m: By, x: Tensor) -> Tensor:
        rows = m.stem(x).permute(0, 2, 3, 1)
        columns = (rows + along(m.rows, rows)).transpose(1, 2)
        columns = columns + along(m.columns, columns)
        return m.head(columns.transpose(1, 2).permute(0, 3, 1, 2))

    return By(
        forward, stem=conv(3, 16, 3, 2), rows=nn.Linear(16, 48), columns=nn.Linear(16, 48), head=nn.Conv2d(16, 4, 1)
    )


def tracker() -> nn.Module:
    """As SiamRPN: what is looked for is the kernel, per channel, of a convolution over the picture."""

    def forward(m: By, what: Tensor, where: Tensor) -> Tensor:
        kernel, picture = m.body(what), m.body(where)
        return m.head(F.conv2d(picture, kernel.transpose(0, 1), groups=16))

    return By(forward, body=nn.Sequential(conv(1, 8, 3, 2), conv(8, 16)), head=nn.Conv2d(16, 5, 1))


def separator() -> nn.Module:
    """As Conv-TasNet: an encoder of waves, a mask for each of two sources, a decoder of stride 8."""

    def forward(m: By, x: Tensor) -> Tensor:
        waves = F.relu(m.encode(x))
        masks = torch.sigmoid(m.masks(m.deep(m.norm(waves)))).unflatten(1, (2, 16))
        return m.decode((waves.unsqueeze(1) * masks).flatten(0, 1)).view(1, 2, -1)

    deep = nn.Sequential(nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16), nn.PReLU())
    ends = {"encode": nn.Conv1d(1, 16, 16, 8, bias=False), "decode": nn.ConvTranspose1d(16, 1, 16, 8, bias=False)}
    return By(forward, norm=nn.GroupNorm(1, 16), deep=deep, masks=nn.Conv1d(16, 32, 1), **ends)


def experts() -> nn.Module:
    """A mixture of which the best expert answers."""

    def forward(m: By, x: Tensor) -> Tensor:
        gates = m.gate(x).softmax(-1)
        gates = gates * (gates >= gates.amax(-1, keepdim=True))
        answers = torch.stack([expert(x) for expert in m.experts], 1)
        return (gates.unsqueeze(-1) * answers).sum(1)

    made = [nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8)) for _ in range(4)]
    return By(forward, gate=nn.Linear(16, 4), experts=nn.ModuleList(made))


def selective_scan() -> nn.Module:
    """As Mamba: a state whose decay and input follow from the sequence, 16 steps written out."""

    def forward(m: By, x: Tensor) -> Tensor:
        value, gate = m.enter(x).chunk(2, -1)
        value = F.silu(m.near(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, into, out = m.select(value).split([16, 4, 4], -1)
        step = F.softplus(step).unsqueeze(-1)
        decay, entering = torch.exp(-step * m.rates.weight.exp()), step * into.unsqueeze(2) * value.unsqueeze(-1)
        state = torch.zeros(1, 16, 4)
        seen = []
        for time in range(x.shape[1]):
            state = decay[:, time] * state + entering[:, time]
            seen.append((state * out[:, time].unsqueeze(1)).sum(-1))
        return m.leave(torch.stack(seen, 1) * F.silu(gate))

    near = nn.Conv1d(16, 16, 4, padding=3, groups=16)
    parts = {"enter": nn.Linear(8, 32), "select": nn.Linear(16, 24), "leave": nn.Linear(16, 8)}
    return By(forward, near=near, rates=nn.Embedding(16, 4), **parts)


def capsules() -> nn.Module:
    """Routing by agreement, three rounds."""

    def squashed(x: Tensor) -> Tensor:
        square = (x**2).sum(-1, keepdim=True)
        return square / (1 + square) * x / torch.sqrt(square + 1e-6)

    def forward(m: By, x: Tensor) -> Tensor:
        votes = m.votes(squashed(m.body(x).reshape(1, 18, 4))).unflatten(-1, (3, 6)).transpose(1, 2)
        routes = torch.zeros(1, 3, 18)
        for number in range(3):
            found = squashed((routes.softmax(1).unsqueeze(-1) * votes).sum(2))
            if number < 2:
                routes = routes + (votes * found.unsqueeze(2)).sum(-1)
        return found.norm(dim=-1)

    body = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 8, 3))
    return By(forward, body=body, votes=nn.Linear(4, 18))


NETWORKS: dict[str, tuple[Make, Shapes]] = {
    "classic_unet": (classic_unet, ((1, 3, 48, 48),)),
    "temporal_shift": (temporal_shift, ((4, 3, 32, 32),)),
    "cached_attention": (cached_attention, ((1, 1, 64), (1, 4, 16, 16), (1, 4, 16, 16))),
    "voice_activity": (voice_activity, ((1, 512), (1, 32), (1, 32))),
    "noise_suppression": (noise_suppression, ((4, 1, 42),)),
    "wavenet": (wavenet, ((1, 1, 64),)),
    "crnn": (crnn, ((1, 1, 32, 16),)),
    "keyword_transformer": (keyword_transformer, ((1, 16, 40),)),
    "point_net": (point_net, ((1, 3, 64),)),
    "video": (video, ((1, 3, 8, 24, 24),)),
    "siamese": (siamese, ((1, 1, 28, 28), (1, 1, 28, 28))),
    "prototypes": (prototypes, ((1, 1, 28, 28), (5, 32))),
    "squeeze_excite": (squeeze_excite, ((1, 3, 32, 32),)),
    "super_resolution": (super_resolution, ((1, 1, 16, 16),)),
    "denoiser": (denoiser, ((1, 1, 32, 32),)),
    "generator": (generator, ((1, 32, 1, 1),)),
    "pyramid": (pyramid, ((1, 3, 64, 64),)),
    "dilated_pyramid": (dilated_pyramid, ((1, 3, 48, 48),)),
    "linear_norms": (linear_norms, ((1, 16, 32),)),
    "dynamic_choice": (dynamic_choice, ((1, 1, 28, 28),)),
    "autoencoder": (autoencoder, ((1, 640),)),
    "embedder": (embedder, ((1, 40, 50),)),
    "conformer": (conformer, ((1, 12, 16),)),
    "axial_attention": (axial_attention, ((1, 3, 16, 16),)),
    "tracker": (tracker, ((1, 1, 16, 16), (1, 1, 32, 32))),
    "separator": (separator, ((1, 1, 128),)),
    "experts": (experts, ((1, 16),)),
    "selective_scan": (selective_scan, ((1, 16, 8),)),
    "capsules": (capsules, ((1, 1, 13, 13),)),
    "yolo": (Yolo, ((1, 3, 96, 96),)),
    "ssd_lite": (SsdLite, ((1, 3, 96, 96),)),
    "fomo": (Fomo, ((1, 3, 96, 96),)),
}
