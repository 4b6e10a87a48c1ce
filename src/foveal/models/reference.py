"""The five networks of the colour-reference experiments.

Seo et al., "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), section 4.1. All share one CNN: four
stages of 3×3 convolution without padding, ReLU and 2×2 max pooling. They differ in where and how they attend.

Departures, where neither the paper nor the authors' code says anything: SOFT and HARD keep the batch norms between
stages, and STN's localisation network gets the query as an embedding, concatenated with the flattened map.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foveal.attention.progressive import ProgressiveGate
from foveal.attention.records.record import Attends
from foveal.errors import UserError
from foveal.kernels import fused_available
from foveal.models.registry import register


def hard_logits(log_attention: Tensor, logits: Tensor) -> Tensor:
    """Log-probabilities of the exact marginal p(y) = Σ_ij α_ij p(y | f_ij).

    Args:
        log_attention: log α, (N, P) over P positions.
        logits: class logits at every position, (N, P, K).

    Returns:
        (N, K) log-probabilities. They are normalised, so as logits their cross entropy is −log p(y*).
    """
    return torch.logsumexp(log_attention.unsqueeze(2) + logits.log_softmax(2), dim=1)


def pooled_conv(images: Tensor, weight: Tensor) -> Tensor:
    """3×3 convolution without padding or bias, then 2×2 max pooling that drops odd borders.

    Args:
        images: (N, C_in, H, W).
        weight: (C, C_in, 3, 3).

    Returns:
        (N, C, (H − 2) // 2, (W − 2) // 2).
    """
    if images.shape[1] <= 4 and len(weight) in (16, 32, 64) and fused_available(images.device):
        from foveal.kernels.conv_pool import conv_pool

        half = torch.is_autocast_enabled("cuda")
        dtype = torch.get_autocast_dtype("cuda") if half else images.dtype
        return conv_pool(images.to(dtype), weight.to(dtype))
    return F.max_pool2d(F.conv2d(images, weight), 2)


class Stage(nn.Module):
    """3×3 convolution without padding, ReLU, 2×2 max pooling that drops odd borders.

    Bias and ReLU commute with the maximum, so they are applied to the pooled map, a quarter of the size.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C_in, H, W) to (N, C, (H − 2) // 2, (W − 2) // 2)."""
        if type(self.conv) is not nn.Conv2d:  # attention is inserted
            return torch.relu(F.max_pool2d(self.conv(images), 2))
        features = pooled_conv(images, self.conv.weight)
        return torch.relu(features + self.conv.bias[:, None, None])  # type: ignore[index]


def feature_size(image_size: int, stages: int) -> int:
    """Side of the map after ``stages`` stages: 100 gives 49, 23, 10, 4."""
    for _ in range(stages):
        image_size = (image_size - 2) // 2
    return image_size


def receptive_grid(stages: int) -> tuple[float, float]:
    """Centre of the first receptive field after ``stages`` stages, and the distance to the next, in pixels.

    Without padding the map does not span the image: after four stages the centres of its columns are pixels 22.5 to
    70.5.

    >>> receptive_grid(4)
    (22.5, 16.0)
    """
    step = 2.0**stages
    return 1.5 * (step - 1), step


def glorot(model: nn.Module) -> None:
    """Glorot-uniform weights and zero biases in every convolution, linear layer and embedding."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.Embedding):
            nn.init.xavier_uniform_(module.weight)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]


class ReferenceNet(nn.Module):
    """CNN with attention after the pooling of some stages.

    Args:
        channels: channels of every stage.
        queries: number of query classes.
        classes: number of answers.
        stages: number of CNN stages; the last one always has a gate, normalised over positions.
        gates: ``last`` for classical attention at the top, ``all`` for a gate after every stage.
        attend: attention at the top: ``soft`` sums the attended features and classifies the sum, ``hard`` classifies
            every position and marginalises over them exactly.
        context: side of each gate's neighbourhood; 1 for none.
        hidden: width of each gate.
        dropout: dropout before the classifier.
        norm: batch norm after each stage's attended map and before the classifier.
        norm_momentum: share of the new batch in the running statistics; the authors' code uses 0.5.
        norm_eps: added to the variance; the authors' code uses 0.01.
        predict: for ``attend="hard"`` in eval mode: ``marginal``, or ``argmax`` to classify only the position with the
            most attention.
    """

    def __init__(
        self,
        channels: int = 32,
        *,
        queries: int = 10,
        classes: int = 5,
        stages: int = 4,
        gates: Literal["last", "all"] = "all",
        attend: Literal["soft", "hard"] = "soft",
        context: int = 1,
        hidden: int = 32,
        dropout: float = 0.5,
        norm: bool = True,
        norm_momentum: float = 0.1,
        norm_eps: float = 1e-5,
        predict: Literal["marginal", "argmax"] = "marginal",
    ) -> None:
        super().__init__()
        if min(channels, stages, hidden) < 1:
            raise UserError(f"channels={channels}, stages={stages}, hidden={hidden}: expected at least 1 of each")
        self.attend, self.predict = attend, predict
        top = stages - 1
        self.stages = nn.ModuleList(Stage(3 if i == 0 else channels, channels) for i in range(stages))
        self.gates = nn.ModuleDict(
            {
                str(i): ProgressiveGate(channels, queries=queries, hidden=hidden, context=context, last=i == top)
                for i in range(stages)
                if gates == "all" or i == top
            }
        )
        for i, gate in self.gates.items():
            gate.grid = receptive_grid(int(i) + 1)  # type: ignore[assignment]
        bn: dict[str, Any] = {"eps": norm_eps, "momentum": norm_momentum}
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels, **bn) if norm else nn.Identity() for _ in range(top))
        self.head = nn.Sequential(
            nn.BatchNorm1d(channels, **bn) if norm else nn.Identity(),
            nn.Dropout(dropout),
            nn.Linear(channels, classes),
        )
        glorot(self)

    def forward(self, images: Tensor, query: Tensor) -> Tensor:
        """Logits of the answers.

        Args:
            images: (N, 3, H, W) in [0, 1]; 100×100 in the paper.
            query: (N,) which object is asked for.

        Returns:
            (N, classes); for ``attend="hard"`` they are the log-probabilities of the marginal.
        """
        if feature_size(min(images.shape[-2:]), len(self.stages)) < 1:
            raise UserError(f"images of {tuple(images.shape[-2:])} are too small for {len(self.stages)} stages")
        features = images
        for i, (stage, norm) in enumerate(zip(self.stages[:-1], self.norms, strict=True)):
            features = stage(features)
            if str(i) in self.gates:
                features = self.gates[str(i)](features, query)
            features = norm(features)
        features = self.stages[-1](features)
        gate = self.gates[str(len(self.stages) - 1)]
        if self.attend == "soft":
            return self.head(gate(features, query).sum((2, 3)))
        return self._hard(gate, features, query)  # type: ignore[arg-type]

    def _hard(self, gate: ProgressiveGate, features: Tensor, query: Tensor) -> Tensor:
        n, c, h, w = features.shape
        log_attention = gate.scores(features, query).flatten(1).log_softmax(1)
        gate.note(log_attention.exp().view(n, h, w))
        positions = features.flatten(2).transpose(1, 2)
        if not self.training and self.predict == "argmax":
            best = log_attention.argmax(1)
            return self.head(positions[torch.arange(n, device=best.device), best]).log_softmax(1)
        return hard_logits(log_attention, self.head(positions.reshape(n * h * w, c)).view(n, h * w, -1))


class AffineCrop(Attends):
    """Sample the image in a given affine window; the record is the window as a map over the image.

    Args:
        padding: beyond the image lie ``zeros``, or its ``border`` continues.
    """

    kind = "spatial"

    def __init__(self, padding: Literal["zeros", "border"] = "zeros") -> None:
        super().__init__()
        self.padding = padding

    def forward(self, images: Tensor, theta: Tensor) -> Tensor:
        """Crop ``images`` (N, C, H, W) with ``theta`` (N, 2, 3) to (N, C, H, W)."""
        if self.watchers:
            self.note(self.window(theta.float(), images.shape[-2:]))
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images.to(grid.dtype), grid, padding_mode=self.padding, align_corners=False)

    @staticmethod
    def window(theta: Tensor, size: tuple[int, int] | torch.Size, sharpness: float = 20.0) -> Tensor:
        """The window as a map (N, H, W): 1 inside, 0 outside, soft at the border."""
        n = len(theta)
        identity = torch.eye(2, 3, device=theta.device).expand(n, 2, 3)
        positions = F.affine_grid(identity, [n, 1, *size], align_corners=False).flatten(1, 2)  # (N, HW, 2) as (x, y)
        (a, b), (c, d) = theta[:, :, :2].unbind(1)[0].unbind(1), theta[:, :, :2].unbind(1)[1].unbind(1)
        det = a * d - b * c
        det = torch.where(det.abs() < 1e-4, torch.full_like(det, 1e-4), det)
        inverse = torch.stack([torch.stack([d, -b], 1), torch.stack([-c, a], 1)], 1) / det[:, None, None]
        inside = (positions - theta[:, None, :, 2]) @ inverse.transpose(1, 2)
        return torch.sigmoid(sharpness * (1 - inside.abs())).prod(2).view(n, *size)


class SpatialTransformerNet(nn.Module):
    """STN baseline: a query-conditioned localisation network chooses a crop of the image, which is classified.

    Args:
        channels: channels of every stage of both CNNs.
        queries: number of query classes.
        classes: number of answers.
        stages: number of CNN stages.
        image_size: side of the input image; the localisation network flattens its last map.
        hidden: width of the query embedding and of the localisation layer.
        padding: as in :class:`AffineCrop`.
        dropout, norm, norm_momentum, norm_eps: as in :class:`ReferenceNet`.
    """

    def __init__(
        self,
        channels: int = 32,
        *,
        queries: int = 10,
        classes: int = 5,
        stages: int = 4,
        image_size: int = 100,
        hidden: int = 32,
        padding: Literal["zeros", "border"] = "zeros",
        dropout: float = 0.5,
        norm: bool = True,
        norm_momentum: float = 0.1,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        side = feature_size(image_size, stages)
        if side < 1:
            raise UserError(f"image_size={image_size} is too small for {stages} stages")

        def bn() -> nn.Module:
            return nn.BatchNorm2d(channels, eps=norm_eps, momentum=norm_momentum) if norm else nn.Identity()

        def cnn() -> nn.Sequential:
            parts: list[nn.Module] = []
            for i in range(stages):
                parts.append(Stage(3 if i == 0 else channels, channels))
                if i < stages - 1:
                    parts.append(bn())
            return nn.Sequential(*parts)

        self.localise, self.recognise = cnn(), cnn()
        self.query = nn.Embedding(queries, hidden)
        self.locate = nn.Linear(channels * side * side + hidden, hidden)
        self.theta = nn.Linear(hidden, 6)
        self.crop = AffineCrop(padding)
        self.norm = nn.BatchNorm1d(channels, eps=norm_eps, momentum=norm_momentum) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(channels, classes)
        glorot(self)
        nn.init.zeros_(self.theta.weight)
        self.theta.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])  # the identity window

    def forward(self, images: Tensor, query: Tensor) -> Tensor:
        """Logits (N, classes) for ``images`` (N, 3, H, W) in [0, 1] and ``query`` (N,)."""
        localised = torch.cat([self.localise(images).flatten(1), self.query(query)], 1)
        located = torch.relu(self.locate(localised))
        with torch.autocast(images.device.type, enabled=False):  # bfloat16 would move the window in steps of a pixel
            theta = self.theta(located.to(self.theta.weight.dtype)).view(-1, 2, 3)
        features = self.recognise(self.crop(images, theta)).mean((2, 3))
        return self.classify(self.dropout(self.norm(features)))


@register(ReferenceNet)
def soft(**options: Any) -> nn.Module:
    """SOFT: one softmax gate at the top of the CNN, attended features summed."""
    return ReferenceNet(**{"gates": "last", "attend": "soft", **options})


@register(ReferenceNet)
def hard(**options: Any) -> nn.Module:
    """HARD: one gate at the top, trained on the exact marginal likelihood over positions."""
    return ReferenceNet(**{"gates": "last", "attend": "hard", **options})


@register(ReferenceNet)
def hattnet(**options: Any) -> nn.Module:
    """HAttNet: a gate after every stage, each position scored by itself."""
    return ReferenceNet(**{"gates": "all", "context": 1, **options})


@register(ReferenceNet)
def hattnet_ctx(**options: Any) -> nn.Module:
    """HAttNet-CTX: a gate after every stage, each position scored with its 3×3 neighbourhood."""
    return ReferenceNet(**{"gates": "all", "context": 3, **options})


@register(SpatialTransformerNet)
def stn(**options: Any) -> nn.Module:
    """STN: an affine window placed by a query-conditioned localisation network."""
    return SpatialTransformerNet(**options)
