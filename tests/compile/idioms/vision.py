"""Networks that look at pictures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.compile.idioms.networks import Idiom, between, idiom, noise, picture
from tests.compile.small import Tensors
from torch import Tensor, nn


def _block(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False), nn.BatchNorm2d(channels_out), nn.SiLU()
    )


class _Picture(Idiom):
    channels, size = 3, 32

    def draw(self, random: torch.Generator) -> Tensors:
        return (picture(random, self.channels, self.size, self.size),)


@idiom
class YoloV8Head(_Picture):
    """Boxes as expected distances of a distribution over bins, scores apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2))
        self.box, self.score = nn.Conv2d(32, 4 * 8, 1), nn.Conv2d(32, 5, 1)
        self.register_buffer("bins", torch.arange(8.0))
        rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        self.register_buffer("anchors", torch.stack([columns, rows], 0).flatten(1)[None] + 0.5)

    def forward(self, x: Tensor) -> Tensors:
        x = self.stem(x)
        distances = (self.box(x) * 4).flatten(2).view(1, 4, 8, 64).softmax(2)
        distances = torch.einsum("nbkp,k->nbp", distances, self.bins)
        before, behind = distances.chunk(2, 1)
        low, high = self.anchors - before, self.anchors + behind
        boxes = torch.cat([(low + high) / 2, high - low], 1) * 4
        return boxes, self.score(x).flatten(2).sigmoid()


@idiom
class SsdDecode(_Picture):
    """Offsets to prior boxes become corners."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 24, 2), _block(24, 32, 2))
        self.places, self.classes = nn.Conv2d(32, 4 * 3, 3, padding=1), nn.Conv2d(32, 4 * 3, 3, padding=1)
        self.register_buffer("priors", torch.rand(48, 4) * 0.5 + 0.1)

    def forward(self, x: Tensor) -> Tensors:
        x = self.stem(x)
        offsets = self.places(x).permute(0, 2, 3, 1).reshape(1, -1, 4)
        centers = self.priors[:, :2] + offsets[..., :2] * 0.1 * self.priors[:, 2:]
        sizes = self.priors[:, 2:] * torch.exp(offsets[..., 2:] * 0.2)
        boxes = torch.cat([centers - sizes / 2, centers + sizes / 2], -1)
        return boxes, self.classes(x).permute(0, 2, 3, 1).reshape(1, -1, 4).softmax(-1)


@idiom
class CenterNet(_Picture):
    """A heat map whose peaks are kept, sizes and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2))
        self.up = nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.heat, self.extent, self.offset = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 2, 1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensors:
        x = F.relu(self.up(self.stem(x)))
        heat = torch.sigmoid(self.heat(x) * 3)
        peaks = F.max_pool2d(heat, 3, 1, 1)
        return heat * (peaks == heat).float(), F.softplus(self.extent(x)) * 16, self.offset(x)


@idiom
class DetrHead(_Picture):
    """Queries look at a picture with positions; boxes by a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 32, 4))
        self.queries = nn.Parameter(torch.randn(1, 6, 32))
        self.places = nn.Parameter(torch.randn(1, 16, 32) * 0.3)
        self.look = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.hidden = nn.LayerNorm(32), nn.Linear(32, 32)
        self.box, self.score = nn.Linear(32, 4), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensors:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        found = self.look(self.queries, tokens + self.places, tokens, need_weights=False)[0]
        found = self.norm(self.queries + found)
        found = found + F.gelu(self.hidden(found))
        return self.box(found).sigmoid(), self.score(found)


@idiom
class AttentionUNet(_Picture):
    """A U-Net whose skips pass a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _block(3, 8), _block(8, 16, 2)
        self.up = nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1)
        self.w, self.g, self.psi = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 1, 1)
        self.out = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        up = self.up(self.b(a))
        gate = torch.sigmoid(self.psi(F.relu(self.w(a) + self.g(up))))
        return self.out(torch.cat([a * gate, up], 1))


@idiom
class Cbam(_Picture):
    """Attention to channels by their means and maxima, then to places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _block(3, 16, 2)
        self.mlp = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16))
        self.place, self.out = nn.Conv2d(2, 1, 7, padding=3), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        channel = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))
        x = x * channel[..., None, None]
        place = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        x = x * torch.sigmoid(self.place(place))
        return self.out(x.mean((2, 3)))


@idiom
class Eca(_Picture):
    """Efficient channel attention: a convolution along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.along, self.out = _block(3, 16, 2), nn.Conv1d(1, 1, 3, padding=1), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weight = self.along(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(1, 2)).transpose(1, 2)
        x = x * weight.sigmoid()[..., None]
        return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))


@idiom
class GhostShuffle(_Picture):
    """Cheap features beside dear ones, channels shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.dear = _block(3, 8, 2)
        self.cheap = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.mix, self.out = nn.Conv2d(16, 16, 1, groups=4), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dear(x)
        x = self.mix(torch.cat([x, F.relu(self.cheap(x))], 1))
        n, c, h, w = x.shape
        x = x.view(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.out(F.hardswish(x)).mean((2, 3))


@idiom
class UnshuffleStem(_Picture):
    """Pixels into channels in front, channels into pixels behind: a small super resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(12, 16, 3, padding=1), nn.PReLU(16), nn.Conv2d(16, 16, 3, padding=1))
        self.up = nn.Conv2d(16, 3 * 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        base = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return (base + F.pixel_shuffle(self.up(self.body(F.pixel_unshuffle(x, 2))), 4) * 0.1).clamp(0, 1)


@idiom
class PatchMerging(_Picture):
    """Windows with a table of relative places, and patches that are merged (Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 4, 4), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.randn(49, 2) * 0.5)
        qparams = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = (qparams[:, :, None] - qparams[:, None]).permute(1, 2, 0) + 3
        self.register_buffer("index", apart[..., 0] * 7 + apart[..., 1])
        self.merge, self.out = nn.Linear(64, 24, bias=False), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        windows = x.view(1, 2, 4, 2, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(4, 16, 16)
        q, k, v = self.qkv(self.norm(windows)).reshape(4, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        seen = ((q * 8**-0.5) @ k.transpose(-2, -1) + bias).softmax(-1) @ v
        windows = windows + self.proj(seen.transpose(1, 2).reshape(4, 16, 16))
        x = windows.view(1, 2, 2, 4, 4, 16).permute(0, 1, 3, 2, 4, 5).reshape(1, 8, 8, 16)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.out(self.merge(x).mean((1, 2)))


@idiom
class ConvNeXtBlock(_Picture):
    """Depthwise 7 x 7, a norm over channels, GELU, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.dw = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.a, self.b = nn.LayerNorm(16, eps=1e-6), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale, self.out = nn.Parameter(torch.full((16,), 0.1)), nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.b(F.gelu(self.a(self.norm(self.dw(x).permute(0, 2, 3, 1))))) * self.scale
        return self.out((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


@idiom
class SpatialSoftmax(_Picture):
    """Key points as the expected places of heat maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), nn.Conv2d(16, 6, 3, padding=1))
        self.temperature = nn.Parameter(torch.tensor(0.2))
        self.register_buffer("line", torch.linspace(-1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        heat = (self.stem(x) / self.temperature).flatten(2).softmax(-1).view(1, 6, 16, 16)
        return torch.stack([(heat.sum(2) * self.line).sum(-1), (heat.sum(3) * self.line).sum(-1)], -1)


@idiom
class StereoCost(Idiom):
    """Two pictures shifted against each other; the disparity by a soft argmin."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.register_buffer("shifts", torch.arange(6.0).view(1, 6, 1, 1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = self.features(left), self.features(right)
        costs = [
            (left - F.pad(right, (d, 0))[..., : right.shape[-1]]).abs().mean(1) if d else (left - right).abs().mean(1)
            for d in range(6)
        ]
        return ((-8 * torch.stack(costs, 1)).softmax(1) * self.shifts).sum(1)

    def draw(self, random: torch.Generator) -> Tensors:
        left = picture(random, 1, 16, 32)
        return left, torch.roll(left, -3, -1) + 0.02 * noise(random, 1, 1, 16, 32)


@idiom
class DepthBins(_Picture):
    """Depth in metres, as one over an affine disparity, and by bins whose widths the network chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.disparity = _block(3, 16, 2), nn.Conv2d(16, 1, 3, padding=1)
        self.widths, self.shares = nn.Linear(16, 8), nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensors:
        x = self.stem(x)
        depth = 1 / (0.01 + (10 - 0.01) * torch.sigmoid(self.disparity(x)) * 0.5 + 0.1)
        widths = F.softmax(self.widths(x.mean((2, 3))), -1) * 10
        edges = widths.cumsum(-1)
        centers = edges - widths / 2
        return depth, (self.shares(x).softmax(1) * centers[..., None, None]).sum(1)


@idiom
class GrayWorld(_Picture):
    """White balance and contrast within the model, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = _block(3, 16, 2), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        x = x * (mean.mean(1, keepdim=True) / (mean + 1e-3))
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        return self.out(self.body((x - low) / (high - low + 1e-6)).mean((2, 3)))


@idiom
class GaborEdges(_Picture):
    """Fixed filters, their magnitude and direction, pooled into a histogram (HOG)."""

    channels, size = 1, 32

    def __init__(self) -> None:
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        self.register_buffer("kernels", torch.stack([sobel, sobel.T])[:, None])
        self.out = nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        gx, gy = F.conv2d(x, self.kernels, padding=1).split(1, 1)
        size = torch.sqrt(gx**2 + gy**2 + 1e-6)
        turns = torch.cat([F.relu(gx), F.relu(-gx), F.relu(gy), F.relu(-gy)], 1)
        pooled = F.avg_pool2d(turns / (size + 0.1), 8).flatten(1)
        return self.out(pooled / (pooled.norm(dim=1, keepdim=True) + 1e-5))


@idiom
class BackgroundDifference(Idiom):
    """The change against a kept background, and the background as it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, frame: Tensor, background: Tensor) -> Tensors:
        change = (frame - background).abs()
        moved = (change > 24.0).float()
        kept = torch.where(moved > 0.5, background, background + 0.05 * (frame - background))
        return self.body(torch.cat([change / 255.0, moved], 1)), kept, moved.mean((1, 2, 3))

    def draw(self, random: torch.Generator) -> Tensors:
        back = (picture(random, 1, 24, 24) * 255).round()
        front = back.clone()
        at = int(torch.randint(0, 16, (1,), generator=random))
        front[..., at : at + 8, 4:12] += 70
        return (front + 3 * noise(random, 1, 1, 24, 24)).clamp(0, 255).round(), back


@idiom
class CoordConv(_Picture):
    """Channels of coordinates beside the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(5, 12, 3, 2, 1), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        n, _, h, w = x.shape
        rows = torch.arange(h, dtype=torch.float32).view(1, 1, h, 1).expand(n, 1, h, w) / (h - 1) * 2 - 1
        columns = torch.arange(w, dtype=torch.float32).view(1, 1, 1, w).expand(n, 1, h, w) / (w - 1) * 2 - 1
        return self.out(F.leaky_relu(self.conv(torch.cat([x, rows, columns], 1)), 0.1).amax((2, 3)))


@idiom
class StyleNorm(Idiom):
    """Adaptive instance norm: the statistics of a picture become those of a style."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.style, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(6, 16), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        x = self.conv(x)
        gain, offset = self.style(style).chunk(2, -1)
        mean = x.mean((2, 3), keepdim=True)
        std = x.std((2, 3), keepdim=True) + 1e-5
        return torch.sigmoid(self.out(F.relu((x - mean) / std * gain[..., None, None] + offset[..., None, None])))

    def draw(self, random: torch.Generator) -> Tensors:
        return picture(random, 3, 16, 16), between(random, 0.0, 2.0, 1, 6)


@idiom
class WeightNormed(_Picture):
    """Layers whose weights are normalized by hooks, with residual scaling and a stochastic depth that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 12, 3, 2, 1))
        self.b = nn.utils.parametrizations.spectral_norm(nn.Conv2d(12, 12, 3, padding=1))
        self.gain, self.out = nn.Parameter(torch.ones(1, 12, 1, 1) * 0.2), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.mish(self.a(x))
        y = F.dropout2d(self.b(x), 0.2, self.training)
        return self.out((x + self.gain * y).mean((-2, -1))) / 1.7
