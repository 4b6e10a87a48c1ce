"""The networks of the attribute-prediction experiments, on VGG-16.

Seo et al., "Hierarchical Attention Networks" (https://arxiv.org/abs/1606.02393), section 4.2. An image and an object
class go in, a logit for every attribute comes out. The backbone is torchvision's VGG-16 under torchvision's names, so
that any VGG-16 checkpoint loads; SOFT and HARD attend to its last pooling output, HAttNet to its last three.

Departures: the paper does not describe the width of the gates, the classifier, or how hard attention and the prior work
with several labels. Our choices: additive gates of width 512, a linear classifier, the Bernoulli variable of each
attribute marginalised over positions, and the log-odds of the prior added to the logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision.models import vgg

from foveal.attention.progressive import ProgressiveGate
from foveal.errors import UserError, unknown
from foveal.models.reference import glorot
from foveal.models.registry import register
from foveal.models.weights import fit_problems, read_weights

POOLS = {16: "pool3", 23: "pool4", 30: "pool5"}
"""Index of the gated pooling layers in torchvision's ``vgg16().features``."""

Gates = Literal["last", "all"]
Attend = Literal["soft", "hard"]
Prior = Literal["fixed", "trainable"]
Predict = Literal["marginal", "argmax"]


def marginal_logits(log_attention: Tensor, logits: Tensor) -> Tensor:
    """Logits of the exact marginal p(a) = Σ_ij α_ij σ(z_a(f_ij)) of independent attributes.

    Both log p and log(1 − p) are sums of exponentials of negative numbers, so neither a certain nor an impossible
    attribute overflows.

    Args:
        log_attention: log α, (N, P) over P positions; exp of it sums to one, −inf is allowed.
        logits: z, (N, P, K), the logit of every attribute at every position.

    Returns:
        (N, K) log p − log(1 − p).

    >>> attention = torch.tensor([[0.25, 0.75]])
    >>> p = torch.tensor([[[0.1], [0.5]]])
    >>> marginal_logits(attention.log(), p.logit()).sigmoid()  # 0.25 · 0.1 + 0.75 · 0.5
    tensor([[0.4000]])
    """
    log_attention, logits = log_attention.unsqueeze(2), logits.to(log_attention.dtype)
    log_p = torch.logsumexp(log_attention + nn.functional.logsigmoid(logits), dim=1)
    log_not_p = torch.logsumexp(log_attention + nn.functional.logsigmoid(-logits), dim=1)
    return log_p - log_not_p


def vgg16_features() -> nn.Sequential:
    """Torchvision's ``vgg16().features``, initialised the same; its classifier of 124 million weights is not built."""
    features = vgg.make_layers(vgg.cfgs["D"], batch_norm=False)
    for module in features:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return features


class AttributeNet(nn.Module):
    """VGG-16 with query-conditioned attention, for multi-label attribute prediction.

    State-dict names are torchvision's ``features.N.weight`` and ``features.N.bias`` for the backbone, then
    ``gates.pool3``, ``gates.pool4``, ``gates.pool5``, ``head`` and, with a prior, ``prior``.

    Args:
        queries: number of object classes that can be asked for.
        classes: number of attributes.
        gates: ``last`` for one softmax gate after pool5, ``all`` for sigmoid gates after pool3 and pool4 as well.
        attend: attention at pool5: ``soft`` sums the attended features and classifies the sum, ``hard`` classifies
            every position and marginalises over them exactly.
        context: side of the neighbourhood of the gates after pool3 and pool4; 1 for none. The last gate has none.
        hidden: width of each gate.
        head_hidden: width of two hidden layers in the classifier (4096 in VGG-16); ``None`` for a linear classifier.
        dropout: dropout after each hidden layer of the classifier; not used without ``head_hidden``.
        checkpoint: VGG-16 weights for the backbone, see :meth:`load_backbone`; ``None`` for random ones.
        prior: ``fixed`` to add a given table of log-odds of each attribute given the object class, ``trainable`` to
            learn it; both start at zero until :meth:`set_prior` is called. ``None`` for none.
        predict: for ``attend="hard"`` in eval mode: ``marginal``, or ``argmax`` to classify only the position with the
            most attention.

    >>> model = AttributeNet(4, classes=6, gates="all", hidden=8)
    >>> model(torch.rand(2, 3, 64, 64), torch.tensor([3, 0])).shape
    torch.Size([2, 6])
    """

    mean: Tensor
    std: Tensor
    prior: Tensor | None

    def __init__(
        self,
        queries: int = 488,
        *,
        classes: int = 274,
        gates: Gates = "all",
        attend: Attend = "soft",
        context: int = 3,
        hidden: int = 512,
        head_hidden: int | None = None,
        dropout: float = 0.5,
        checkpoint: str | Path | Mapping[str, Any] | None = None,
        prior: Prior | None = None,
        predict: Predict = "marginal",
    ) -> None:
        super().__init__()
        for name, value, choices in (
            ("gates", gates, get_args(Gates)),
            ("attend", attend, get_args(Attend)),
            ("prior", prior or "fixed", get_args(Prior)),
            ("predict", predict, get_args(Predict)),
        ):
            if value not in choices:
                raise unknown(f"choice of {name}", str(value), choices)
        self.queries, self.classes, self.attend, self.predict = queries, classes, attend, predict
        self.features = vgg16_features()
        if checkpoint is not None:
            self.load_backbone(checkpoint)
        channels = {"pool3": 256, "pool4": 512, "pool5": 512}
        self.gates = nn.ModuleDict(
            {
                pool: ProgressiveGate(c, queries=queries, hidden=hidden, context=context, last=pool == "pool5")
                for pool, c in channels.items()
                if gates == "all" or pool == "pool5"
            }
        )
        self.head = self._head(channels["pool5"], head_hidden, dropout)
        table = None if prior is None else torch.zeros(queries, classes)
        if prior == "trainable":
            self.register_parameter("prior", nn.Parameter(table))  # type: ignore[arg-type]
        else:
            self.register_buffer("prior", table)
        self.register_buffer("mean", torch.tensor(IMAGENET_DEFAULT_MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1), persistent=False)

    def _head(self, channels: int, hidden: int | None, dropout: float) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(2 if hidden else 0):
            assert hidden is not None
            layers += [nn.Linear(channels, hidden), nn.ReLU(), nn.Dropout(dropout)]
            channels = hidden
        head = nn.Sequential(*layers, nn.Linear(channels, self.classes))
        glorot(head)
        return head

    def load_backbone(self, checkpoint: str | Path | Mapping[str, Any]) -> None:
        """Load VGG-16 weights into the backbone.

        Args:
            checkpoint: as in :func:`read_weights`, with torchvision's or timm's names. Only ``features.*`` is used; the
                classifier of a whole VGG-16 (``classifier.*``, ``pre_logits.*``, ``head.*``) is ignored.

        Raises:
            UserError: the weights do not fit, are of another network (VGG-19, batch norm), or cannot be read.
        """
        prefix = "features."
        weights = {name: value for name, value in read_weights(checkpoint).items() if name.startswith(prefix)}
        if problems := fit_problems(self.features.state_dict(prefix=prefix), weights):
            source = checkpoint if isinstance(checkpoint, str | Path) else "the state dict"
            raise UserError(
                f"{source} does not hold VGG-16 weights: {'; '.join(problems)}. Give the weights of torchvision's or "
                "timm's vgg16 (without batch norm), whose names begin with 'features.'"
            )
        self.features.load_state_dict({name.removeprefix(prefix): value for name, value in weights.items()})

    @torch.no_grad()
    def set_prior(self, table: Tensor) -> None:
        """Set the object-conditioned prior.

        Args:
            table: (queries, classes), log-odds of each attribute given the object class; see the ``prior`` method of
                :class:`foveal.data.formats.visual_genome.attributes.VisualGenomeAttributes`. A trainable prior starts
                from here.
        """
        if self.prior is None:
            raise UserError("this network has no prior; build it with prior='fixed' or prior='trainable'")
        if table.shape != self.prior.shape:
            expected = tuple(self.prior.shape)
            raise UserError(f"the prior must be (queries, classes) = {expected}, got {tuple(table.shape)}")
        if not table.isfinite().all():
            raise UserError("the prior holds infinite or undefined log-odds; smooth the frequencies it comes from")
        self.prior.copy_(table)

    def forward(self, images: Tensor, query: Tensor) -> Tensor:
        """Logits of the attributes.

        Args:
            images: (N, 3, H, W) RGB floats in [0, 1], H and W at least 32; 224×224 in the paper. They are normalised
                here with the mean and standard deviation of ImageNet.
            query: (N,) index of the object class that is asked for.

        Returns:
            (N, classes), one independent logit per attribute.
        """
        if not images.is_floating_point():
            raise UserError(f"images must be floats in [0, 1], got {images.dtype}; divide 8-bit images by 255")
        if min(images.shape[-2:]) < 32:
            raise UserError(
                f"images must be at least 32×32 for five poolings, got {images.shape[-2]}×{images.shape[-1]}"
            )
        features = (images - self.mean) / self.std
        for i, layer in enumerate(self.features):
            features = layer(features)
            pool = POOLS.get(i, "")
            if pool in self.gates and pool != "pool5":
                features = self.gates[pool](features, query)
        top = self.gates["pool5"]
        if self.attend == "soft":
            logits = self.head(top(features, query).sum((2, 3)))
        else:
            logits = self._hard(top, features, query)  # type: ignore[arg-type]
        return logits if self.prior is None else logits + self.prior[query]

    def _hard(self, gate: ProgressiveGate, features: Tensor, query: Tensor) -> Tensor:
        n, _, h, w = features.shape
        log_attention = gate.scores(features, query).flatten(1).log_softmax(1)
        gate.note(log_attention.exp().view(n, h, w))
        positions = features.flatten(2).transpose(1, 2)
        if not self.training and self.predict == "argmax":
            best = log_attention.argmax(1)
            return self.head(positions[torch.arange(n, device=best.device), best])
        return marginal_logits(log_attention, self.head(positions))


@register(AttributeNet)
def soft_vgg16(**options: Any) -> nn.Module:
    """SOFT on VGG-16: one softmax gate after pool5, attended features summed."""
    return AttributeNet(**{"gates": "last", "attend": "soft", **options})


@register(AttributeNet)
def hard_vgg16(**options: Any) -> nn.Module:
    """HARD on VGG-16: one gate after pool5, each attribute marginalised exactly over positions."""
    return AttributeNet(**{"gates": "last", "attend": "hard", **options})


@register(AttributeNet)
def hattnet_vgg16(**options: Any) -> nn.Module:
    """HAttNet on VGG-16: gates after pool3, pool4 and pool5, each position scored by itself."""
    return AttributeNet(**{"gates": "all", "context": 1, **options})


@register(AttributeNet)
def hattnet_ctx_vgg16(**options: Any) -> nn.Module:
    """HAttNet-CTX on VGG-16: gates after pool3, pool4 and pool5, the first two with 3×3 context."""
    return AttributeNet(**{"gates": "all", "context": 3, **options})
