"""Networks over points, graphs, angles and coordinates, and control flow."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tests.compile.idioms.networks import Idiom, between, idiom, noise
from tests.compile.small import Tensors
from torch import Tensor, nn


@idiom
class PointNet(Idiom):
    """A small transform of the points, features of each, their maximum; metres."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.tout = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU()), nn.Linear(16, 9)
        self.f = nn.Sequential(nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 32, 1))
        self.out = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(2, keepdim=True)
        turn = self.tout(self.t(x).max(2).values).view(1, 3, 3) + torch.eye(3)
        return self.out(self.f((x.transpose(1, 2) @ turn).transpose(1, 2)).amax(2))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 3, 64) * torch.tensor([2.0, 1.0, 0.3])[:, None] + between(random, -5.0, 5.0, 1, 3, 1),)


@idiom
class GraphAttention(Idiom):
    """GATv2 with heads last over a dense adjacency, residual and ELU."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.score = nn.Linear(8, 16), nn.Linear(8, 16), nn.Parameter(torch.randn(4, 4) * 0.5)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        q, r = self.left(x).view(1, 10, 4, 4), self.right(x).view(1, 10, 4, 4)
        e = (F.leaky_relu(q[:, :, None] + r[:, None], 0.2) * self.score).sum(-1)
        a = e.masked_fill(edges[..., None] == 0, float("-inf")).softmax(2)
        return F.elu(torch.einsum("bijh,bjhd->bihd", a, r).flatten(2))

    def draw(self, random: torch.Generator) -> Tensors:
        edges = (between(random, 0.0, 1.0, 1, 10, 10) < 0.3) | torch.eye(10).bool()
        return noise(random, 1, 10, 8), edges.float()


@idiom
class GraphConvolution(Idiom):
    """Degrees from the adjacency, both sides normalized by their roots; SAGE means and maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(36, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges + torch.eye(10)
        root = edges.sum(-1).clamp(min=1).pow(-0.5)
        h = F.relu(self.a((edges * root[..., None] * root[:, None]) @ x))
        mean = edges @ h / edges.sum(-1, keepdim=True)
        top = (h[:, None] * (edges > 0).float()[..., None]).amax(2)
        return self.b(torch.cat([h, mean, top], -1)).mean(1)

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 1, 10, 6), (between(random, 0.0, 1.0, 1, 10, 10) < 0.3).float() * (1 - torch.eye(10))


@idiom
class EdgeConv(Idiom):
    """Differences to neighbours that are given by their places in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.out = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        there = x[0][near[0]]
        here = x[0][:, None].expand(-1, 4, -1)
        return self.out(self.net(torch.cat([here, there - here], -1)).amax(1).mean(0, keepdim=True))

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 1, 12, 4), torch.randint(0, 12, (1, 12, 4), generator=random)


@idiom
class Quaternions(Idiom):
    """A quaternion of unit length turns vectors, becomes Euler angles and a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4)

    def forward(self, x: Tensor, v: Tensor) -> Tensors:
        q = self.net(x)
        q = q / torch.linalg.norm(q, dim=-1, keepdim=True).clamp(min=1e-6)
        w, u = q[:, :1], q[:, 1:]
        t = 2 * torch.cross(u, v, dim=-1)
        turned = v + w * t + torch.cross(u, t, dim=-1)
        a, b, c, d = q.unbind(-1)
        roll = torch.atan2(2 * (a * b + c * d), 1 - 2 * (b * b + c * c))
        pitch = torch.asin((2 * (a * c - d * b)).clamp(-1, 1))
        return q, turned, roll, pitch

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 4, 6), 9.8 * F.normalize(noise(random, 4, 3), dim=-1)


@idiom
class Haversine(Idiom):
    """Kilometres between places in degrees, and the bearing."""

    def forward(self, here: Tensor, there: Tensor) -> Tensors:
        a, b = here * (math.pi / 180), there * (math.pi / 180)
        d = b - a
        h = torch.sin(d[:, 0] / 2) ** 2 + torch.cos(a[:, 0]) * torch.cos(b[:, 0]) * torch.sin(d[:, 1] / 2) ** 2
        distance = 2 * 6371.0 * torch.asin(torch.sqrt(h.clamp(0, 1)))
        y = torch.sin(d[:, 1]) * torch.cos(b[:, 0])
        x = torch.cos(a[:, 0]) * torch.sin(b[:, 0]) - torch.sin(a[:, 0]) * torch.cos(b[:, 0]) * torch.cos(d[:, 1])
        return distance, torch.atan2(y, x)

    def draw(self, random: torch.Generator) -> Tensors:
        def places() -> Tensor:
            return torch.stack([between(random, -60.0, 60.0, 6), between(random, -180.0, 180.0, 6)], -1)

        return places(), places()


@idiom
class PolarFeatures(Idiom):
    """Ranges and bearings of a radar become places, their distances and the nearest."""

    def forward(self, x: Tensor) -> Tensors:
        r, phi = x[:, 0], x[:, 1]
        xy = torch.stack([r * torch.cos(phi), r * torch.sin(phi)], -1)
        apart = (xy[:, :, None] - xy[:, None]).pow(2).sum(-1).add(1e-6).sqrt()
        nearest = (apart + 1e3 * torch.eye(8)).amin(-1)
        return xy, apart, nearest, torch.log1p(r)

    def draw(self, random: torch.Generator) -> Tensors:
        return (torch.stack([between(random, 0.5, 80.0, 1, 8), between(random, -1.5, 1.5, 1, 8)], 1),)


@idiom
class SixDofRotation(Idiom):
    """Gram-Schmidt of two vectors to a rotation matrix, a loss-like angle to another."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensors:
        y = self.net(x)
        a = F.normalize(y[:, :3], dim=-1)
        b = F.normalize(y[:, 3:] - (a * y[:, 3:]).sum(-1, keepdim=True) * a, dim=-1)
        m = torch.stack([a, b, torch.cross(a, b, dim=-1)], -1)
        trace = m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2]
        return m, torch.acos(((trace - 1) / 2).clamp(-0.999, 0.999))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 4, 8),)


@idiom
class NeuralField(Idiom):
    """Fourier features of places, sines as activations (SIREN)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.randn(2, 12) * 3)
        self.a, self.c, self.out = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        p = 2 * math.pi * x @ self.b
        h = torch.cat([torch.sin(p), torch.cos(p)], -1)
        return torch.sigmoid(self.out(torch.sin(3 * self.c(torch.sin(3 * self.a(h))))))

    def draw(self, random: torch.Generator) -> Tensors:
        return (between(random, 0.0, 1.0, 16, 2),)


@idiom
class IoUMatrix(Idiom):
    """Overlaps of boxes in pixels with anchors; a greedy suppression by their scores, softly."""

    def forward(self, boxes: Tensor, scores: Tensor) -> Tensors:
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        inter = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        iou = inter / (area[:, None] + area[None] - inter + 1e-6)
        better = (scores[None] > scores[:, None]).float()
        return iou, scores * torch.exp(-((iou * better).amax(-1) ** 2) / 0.5)

    def draw(self, random: torch.Generator) -> Tensors:
        corner, size = between(random, 0.0, 60.0, 8, 2), between(random, 10.0, 60.0, 8, 2)
        return torch.cat([corner, corner + size], -1), between(random, 0.05, 1.0, 8)


@idiom
class Inverted(Idiom):
    """An arm's joints in degrees: forward kinematics by products of small matrices."""

    def forward(self, joints: Tensor) -> Tensors:
        angle = torch.zeros(4)
        place = torch.zeros(4, 2)
        places = []
        for i, length in enumerate((0.4, 0.3, 0.15)):
            angle = angle + torch.deg2rad(joints[:, i])
            place = place + length * torch.stack([torch.cos(angle), torch.sin(angle)], -1)
            places.append(place)
        return torch.stack(places, 1), torch.rad2deg(angle)

    def draw(self, random: torch.Generator) -> Tensors:
        return (between(random, -90.0, 90.0, 4, 3),)


@idiom
class Assigned(Idiom):
    """In-place operators and assignments to slices, as scripts have them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensors:
        y = x.clone()
        y[:, :4] *= 0.01
        y[:, 4:].clamp_(-1, 1)
        h = self.net(y)
        h.relu_().add_(0.1)
        out = torch.zeros(4, 12)
        out[:, :8] = h
        out[:, 8:10] = y[:, 6:8] * 50
        out[:, 10] = (x[:, 0] > 20).float()
        out[:, 11] = x.abs().amax(-1) / 10
        return out, y[:, :4]

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 4, 8) * torch.tensor([50.0] * 4 + [1.0] * 4),)


@idiom
class Switched(Idiom):
    """A branch by a measured level (torch.cond), a gain that doubles with each bound that the size is below."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet, self.loud = nn.Linear(16, 8), nn.Linear(16, 8)
        self.register_buffer("edges", torch.tensor([0.2, 0.5, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        level = x.abs().mean()
        below = (x.abs().amax(-1)[:, None] < self.edges).sum(-1)
        x = x * 2.0 ** below.float()[:, None]
        return torch.cond(level > 0.5, self.loud, lambda x: torch.tanh(self.quiet(x)), (x,))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 2, 16) * 10 ** between(random, -1.0, 0.5, 1, 1),)


@idiom
class FuzzyRules(Idiom):
    """ANFIS: bell functions of temperature and humidity, rules as products, weighed linear results."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.tensor([[10.0, 22.0, 35.0], [20.0, 50.0, 80.0]]))
        self.width = nn.Parameter(torch.tensor([[6.0, 6.0, 6.0], [15.0, 15.0, 15.0]]))
        self.rules = nn.Linear(2, 9)

    def forward(self, x: Tensor) -> Tensor:
        near = 1 / (1 + ((x[..., None] - self.center) / self.width).abs() ** 4)
        strength = (near[:, 0, :, None] * near[:, 1, None]).flatten(1)
        strength = strength / (strength.sum(-1, keepdim=True) + 1e-6)
        return (strength * self.rules(x / 50)).sum(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (torch.stack([between(random, 5.0, 40.0, 8), between(random, 15.0, 90.0, 8)], -1),)


@idiom
class DewPoint(Idiom):
    """Magnus' formula, heat index, absolute humidity: physics of a weather station in float units."""

    def forward(self, x: Tensor) -> Tensors:
        t, rh = x[:, 0], x[:, 1]
        g = torch.log(rh / 100) + 17.62 * t / (243.12 + t)
        dew = 243.12 * g / (17.62 - g)
        pressure = 6.112 * torch.exp(17.62 * t / (243.12 + t)) * rh / 100
        return dew, pressure, 216.7 * pressure / (273.15 + t)

    def draw(self, random: torch.Generator) -> Tensors:
        return (torch.stack([between(random, -5.0, 40.0, 8), between(random, 15.0, 95.0, 8)], -1),)


@idiom
class Altitude(Idiom):
    """Metres from pascals, and their change."""

    def forward(self, pascal: Tensor) -> Tensors:
        metres = 44330.0 * (1 - (pascal / 101325.0) ** 0.1903)
        return metres, (metres[:, 1:] - metres[:, :-1]).abs().mean(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return (between(random, 85000.0, 102000.0, 1, 1) + 300 * noise(random, 1, 12),)


@idiom
class MotorCurrents(Idiom):
    """Clarke and Park of three phases, magnitude and a wrapped angle."""

    def forward(self, abc: Tensor, angle: Tensor) -> Tensors:
        a, b, c = abc.unbind(-1)
        alpha, beta = (2 * a - b - c) / 3, (b - c) / math.sqrt(3)
        cos, sin = torch.cos(angle), torch.sin(angle)
        d, q = alpha * cos + beta * sin, beta * cos - alpha * sin
        wrapped = torch.remainder(angle + 0.5 + math.pi, 2 * math.pi) - math.pi
        return torch.stack([d, q], -1), torch.hypot(alpha, beta), wrapped

    def draw(self, random: torch.Generator) -> Tensors:
        at, size = between(random, 0.0, 6.28, 16), between(random, 2.0, 15.0, 16)
        shifts = torch.tensor([0.0, -2 * math.pi / 3, 2 * math.pi / 3])
        return size[:, None] * torch.cos(at[:, None] + shifts), at + 0.3


@idiom
class PolicyHead(Idiom):
    """A squashed normal distribution's action, its log-probability, twin values and their minimum (SAC)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.mean, self.log_std = nn.Linear(24, 2), nn.Linear(24, 2)
        self.q1, self.q2 = nn.Linear(10, 1), nn.Linear(10, 1)

    def forward(self, x: Tensor, eps: Tensor) -> Tensors:
        h = self.net(x)
        log_std = torch.clamp(self.log_std(h) * 3, -5, 2)
        u = self.mean(h) + log_std.exp() * eps
        action = torch.tanh(u)
        logp = (-0.5 * eps**2 - log_std - 0.5 * math.log(2 * math.pi) - torch.log(1 - action**2 + 1e-2)).sum(-1)
        both = torch.cat([x, action], -1)
        return action, logp, torch.min(self.q1(both), self.q2(both))

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 2, 8), noise(random, 2, 2)


@idiom
class DuelingDqn(Idiom):
    """Value and advantages less their mean, actions that are not allowed masked out."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.v, self.a = nn.Sequential(nn.Linear(10, 24), nn.ReLU()), nn.Linear(24, 1), nn.Linear(24, 5)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensors:
        h = self.net(x)
        a = self.a(h)
        q = self.v(h) * 10 + a - a.mean(-1, keepdim=True)
        return q, torch.where(allowed, q, -1e8).argmax(-1), (q / 0.5).masked_fill(~allowed, -1e8).softmax(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 4, 10), (between(random, 0.0, 1.0, 4, 5) < 0.6) | torch.tensor(
            [True, False, False, False, False]
        )
