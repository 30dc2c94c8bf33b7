"""What networks give: densities, evidence, quantiles, distances, several outputs of unequal size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from tests.compile.idioms.networks import Idiom, between, idiom, noise
from tests.compile.small import Tensors
from torch import Tensor, nn


class _Features(Idiom):
    """[1, 16]: what a feature extractor gives, a few channels thirty times as large as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU())

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 1, 16),)


@idiom
class MixtureDensity(_Features):
    """Shares, middles and widths of a mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.pi, self.mu, self.sigma = nn.Linear(24, 4), nn.Linear(24, 4), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensors:
        h = self.body(x)
        return self.pi(h).softmax(-1), self.mu(h) * 20, torch.exp(self.sigma(h)) + 1e-3


@idiom
class MixtureLikelihood(_Features):
    """The log-likelihood of a value under a mixture of normal distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.pi, self.mu, self.sigma = nn.Linear(24, 4), nn.Linear(24, 4), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        width = F.softplus(self.sigma(h)) + 0.1
        z = (x[:, :1] - self.mu(h)) / width
        logs = F.log_softmax(self.pi(h), -1) - 0.5 * z * z - torch.log(width) - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(logs, -1)


@idiom
class Evidential(_Features):
    """Evidence, its sum, beliefs and what is left uncertain."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensors:
        alpha = F.softplus(self.out(self.body(x)) * 4) + 1
        strength = alpha.sum(-1, keepdim=True)
        return alpha / strength, 5 / strength, alpha * (strength - alpha) / (strength * strength * (strength + 1))


@idiom
class EvidentialRegression(_Features):
    """Four parameters, and the two variances that they give."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensors:
        gamma, v, alpha, beta = self.out(self.body(x)).split(1, -1)
        v, alpha, beta = F.softplus(v), F.softplus(alpha) + 1.0, F.softplus(beta)
        spread = beta / (alpha - 1 + 0.1)
        return gamma, spread, spread / (v + 0.1)


@idiom
class Quantiles(_Features):
    """Quantiles that never cross: a middle and steps that are summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        raw = self.out(self.body(x)) * 5
        return torch.cat([raw[:, :1], raw[:, :1] + torch.cumsum(F.softplus(raw[:, 1:]), -1)], -1)


@idiom
class Ordinal(_Features):
    """Ranks by cumulated thresholds (CORAL) and their expected value."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.steps = nn.Linear(24, 1, bias=False), nn.Parameter(torch.linspace(2, -2, 6))

    def forward(self, x: Tensor) -> Tensors:
        shares = torch.sigmoid(self.out(self.body(x)) * 4 + self.steps)
        return shares, shares.sum(-1), (shares > 0.5).float().sum(-1)


@idiom
class UnequalTasks(_Features):
    """One trunk with a small result, a large one and a share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 2), nn.Linear(24, 3), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.body(x)
        return {"drift": self.a(h) * 1e-4, "force": self.b(h) * 5000.0, "kind": self.c(h).softmax(-1)}


@idiom
class EarlyExit(_Features):
    """Two exits, the surer one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.more, self.second = nn.Linear(24, 4), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensors:
        h = self.body(x)
        early = self.first(h).softmax(-1)
        late = self.second(F.relu(self.more(h))).softmax(-1)
        sure = early.amax(-1, keepdim=True) > 0.5
        entropy = -(early * torch.log(early + 1e-6)).sum(-1)
        return torch.where(sure, early, late), entropy


@idiom
class Ensemble(_Features):
    """The mean and the spread of three networks, at a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(24, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensors:
        h = self.body(x)
        all_ = torch.stack([F.softmax(m(h) * 3 / 1.5, -1) for m in self.members])
        return all_.mean(0), all_.var(0, unbiased=False).sum(-1)


@idiom
class ArcFaceEmbedding(_Features):
    """A unit vector against unit vectors of classes, times 30."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.classes = nn.Linear(24, 16), nn.Parameter(torch.randn(6, 16))

    def forward(self, x: Tensor) -> Tensors:
        e = F.normalize(self.embed(self.body(x)), dim=-1)
        return e, 30 * F.linear(e, F.normalize(self.classes, dim=-1))


@idiom
class Prototypes(Idiom):
    """A query's distances from the means of a few examples of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, support: Tensor, query: Tensor) -> Tensor:
        prototypes = self.net(support).view(3, 5, 8).mean(1)
        distance = ((self.net(query)[:, None] - prototypes[None]) ** 2).sum(-1)
        return F.log_softmax(-distance * 3, -1)

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 15, 12), noise(random, 4, 12)


@idiom
class Siamese(Idiom):
    """Two sides, their absolute and squared differences and products."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.out = nn.Sequential(nn.Linear(20, 16), nn.Tanh()), nn.Linear(48, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensors:
        a, b = self.net(a), self.net(b)
        joined = torch.cat([(a - b).abs(), (a - b) ** 2, a * b], -1)
        return torch.sigmoid(self.out(joined)), F.pairwise_distance(a, b), torch.cdist(a[None], b[None])[0]

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 2, 20), noise(random, 2, 20)


@idiom
class RbfNetwork(Idiom):
    """Radial basis functions around centres, as shares."""

    def __init__(self) -> None:
        super().__init__()
        self.centers, self.log_width = nn.Parameter(torch.randn(12, 4)), nn.Parameter(torch.zeros(12) + 0.3)
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        distance = (x[:, None] - self.centers).pow(2).sum(-1)
        near = torch.exp(-distance / (2 * self.log_width.exp() ** 2))
        return self.out(near / (near.sum(-1, keepdim=True) + 1e-4))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 8, 4),)


@idiom
class VectorQuantizer(_Features):
    """The nearest code of a book, and the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.codes = nn.Linear(24, 6), nn.Parameter(torch.randn(10, 6))

    def forward(self, x: Tensor) -> Tensors:
        z = self.down(self.body(x)) * 3
        distance = z.square().sum(-1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.square().sum(-1)
        soft = (-distance).softmax(-1)
        return distance, soft @ self.codes


@idiom
class Mahalanobis(_Features):
    """An anomaly score: the distance from a mean, measured by a covariance."""

    def __init__(self) -> None:
        super().__init__()
        a = torch.randn(16, 16)
        self.register_buffer("mean", torch.randn(16) * 0.2)
        self.register_buffer("inverse", torch.linalg.inv(a @ a.T / 16 + 0.3 * torch.eye(16)))

    def forward(self, x: Tensor) -> Tensors:
        d = x - self.mean
        squared = ((d @ self.inverse) * d).sum(-1)
        return squared, torch.sqrt(squared + 1e-6)


@idiom
class AutoencoderScore(_Features):
    """A reconstruction, its error per row, and whether it is above a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.back = nn.Linear(24, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensors:
        y = self.back(torch.tanh(self.code(self.body(x))))
        error = F.mse_loss(y, x, reduction="none").mean(-1)
        return y, error, torch.sigmoid((error - 1.0) * 4)


@idiom
class Losses(Idiom):
    """Binary cross entropy from logits, focal, Huber and smooth errors, as an on-device monitor computes them."""

    def forward(self, logits: Tensor, wanted: Tensor) -> Tensors:
        bce = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        p = torch.sigmoid(logits)
        focal = bce * (1 - (p * wanted + (1 - p) * (1 - wanted))) ** 2
        return bce, focal, F.smooth_l1_loss(p, wanted, reduction="none"), F.huber_loss(logits, wanted, reduction="mean")

    def draw(self, random: torch.Generator) -> Tensors:
        return 3 * noise(random, 4, 8), (noise(random, 4, 8) > 0).float()


@idiom
class Vae(_Features):
    """Means and deviations, a sample from given noise, and the divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.mu, self.log_var, self.decode = nn.Linear(24, 4), nn.Linear(24, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor, eps: Tensor) -> Tensors:
        h = self.body(x)
        mu, log_var = self.mu(h) * 3, self.log_var(h) * 3
        z = mu + torch.exp(0.5 * log_var) * eps
        return self.decode(z), -0.5 * (1 + log_var - mu**2 - log_var.exp()).sum(-1)

    def draw(self, random: torch.Generator) -> Tensors:
        return noise(random, 1, 16), noise(random, 1, 4)


@idiom
class TabularGates(Idiom):
    """TabNet-like: masks over features that add up, gated units, features of very unequal size."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.norm.running_mean.copy_(torch.tensor([40.0, 50000.0, 0.5, 170.0, 70.0, 3.0, 0.01, 1000.0]))
        self.norm.running_var.copy_(torch.tensor([12.0, 20000.0, 0.3, 10.0, 12.0, 2.0, 0.005, 300.0]) ** 2)
        self.masks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.steps = nn.ModuleList(nn.Linear(8, 16) for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensors:
        x = self.norm(x)
        prior, total, shares = torch.ones_like(x), torch.zeros(1, 8), torch.zeros_like(x)
        for mask, step in zip(self.masks, self.steps, strict=True):
            weight = torch.softmax(mask(x) * prior * 2, -1)
            prior = prior * (1.3 - weight)
            decided = F.glu(step(x * weight), -1)
            total = total + F.relu(decided)
            shares = shares + weight * decided.sum(-1, keepdim=True)
        return self.out(total), shares

    def draw(self, random: torch.Generator) -> Tensors:
        sizes = torch.tensor([12.0, 20000.0, 0.3, 10.0, 12.0, 2.0, 0.005, 300.0])
        middles = torch.tensor([40.0, 50000.0, 0.5, 170.0, 70.0, 3.0, 0.01, 1000.0])
        return (middles + sizes * noise(random, 1, 8),)


@idiom
class NBeats(Idiom):
    """Blocks that explain a part of the window and forecast it, the rest goes on; levels of hundreds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 30)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        level = x.mean(-1, keepdim=True)
        rest, forecast = x / level - 1, torch.zeros(1, 6)
        for block in self.blocks:
            back, front = block(rest).split([24, 6], -1)
            rest, forecast = rest - back, forecast + front
        return (forecast + 1) * level

    def draw(self, random: torch.Generator) -> Tensors:
        level = 10 ** between(random, 2.0, 2.5, 1, 1)
        return (level * (1 + 0.2 * noise(random, 1, 24)),)


@idiom
class OutlierChannels(Idiom):
    """Two channels thirty times as large as the others, through layers and residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            self.a.weight[3].mul_(30)
            self.a.weight[9].mul_(30)
            self.b.weight[:, (3, 9)] *= 1 / 30

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.b(F.relu(self.a(x))))

    def draw(self, random: torch.Generator) -> Tensors:
        return (noise(random, 4, 16),)
