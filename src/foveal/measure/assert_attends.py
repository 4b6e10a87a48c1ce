"""Assert in a test suite that a model attends to the right thing.

The sanity check is that of Adebayo et al., "Sanity Checks for Saliency Maps" (https://arxiv.org/abs/1810.03292): a
model with randomised weights has learned nothing, so a property that it also has says nothing about learning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveal.attention.class_maps.cam import MapKind, cam
from foveal.attention.class_maps.taps import Taps
from foveal.errors import UserError
from foveal.measure._inputs import at_least_float32
from foveal.measure.regions import region_mask

Attention = Callable[[nn.Module, Tensor, Tensor | None], Tensor]
Region = Tensor | Sequence[Tensor]
RANDOM_MODELS = 5
FEWEST = 5  # images; the bootstrap interval of fewer is too narrow


@dataclass(frozen=True)
class AttendedMass:
    """What :func:`assert_attends` measured.

    Attributes:
        mass: mean share of attention on the region.
        low: lower end of its bootstrap interval.
        high: upper end.
        samples: number of samples that have a region.
        random: the same share of models with randomised weights, 0 if they attend to nothing, None with
            ``sanity=False``.
    """

    mass: float
    low: float
    high: float
    samples: int
    random: float | None


def assert_attends(
    model: nn.Module,
    data: Tensor | tuple[Tensor, Tensor] | Iterable[Any],
    masks: Region | Iterable[Region],
    min_mass: float = 0.6,
    *,
    at: str = "layer4",
    kind: MapKind = "channel",
    attention: Attention | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    sanity: bool = True,
    batch: int = 32,
    seed: int = 0,
) -> AttendedMass:
    """Assert that a model's attention rests on given regions, for your own test suite.

    The share of each sample's attention inside its mask is averaged over samples; a bootstrap over samples gives an
    interval. The assertion holds if the whole interval lies at or above ``min_mass``. Then the weights of a few copies
    of the model are randomised, and their mean must be below it: otherwise the masks are so large, or lie where any
    network attends, that the assertion proves nothing. The model itself runs in eval mode and is left as it was.

    Args:
        model: any classifier; for another model give ``attention``.
        data: images (N, C, H, W), or images and classes (N,), or an iterable of batches of either. Maps are of these
            classes, or of the predicted ones if there are none.
        masks: bool (N, H, W) at any size (of torch or NumPy), or boxes (M, 4) of each image in its pixels; for an
            iterable of batches an iterable of these. Images without a region are left out.
        min_mass: the required share, in [0, 1].
        at: the layer of the class attention map.
        kind: ``channel`` or ``gradcam``, see :func:`foveal.cam`.
        attention: computes maps (N, h, w) from model, images and classes (or None), instead of class attention.
        confidence: of the interval.
        resamples: number of resamples of the bootstrap.
        sanity: whether randomised weights must fail.
        batch: number of images to run at once; only for tensors.
        seed: of the bootstrap and of the randomised weights.

    Returns:
        The measured shares.

    Raises:
        AssertionError: attention is elsewhere, there are too few samples to say so, or the assertion proves nothing.

    >>> import foveal
    >>> from torch import nn
    >>> class Bright(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.see, self.head = nn.Conv2d(3, 1, 1, bias=False), nn.Linear(1, 2, bias=False)
    ...         nn.init.constant_(self.see.weight, 1.0)
    ...         self.head.weight.data = torch.tensor([[1.0], [-1.0]])
    ...     def forward(self, x):
    ...         return self.head(self.see(x).relu().mean((2, 3)))
    >>> x, masks = torch.zeros(8, 3, 6, 6), torch.zeros(8, 6, 6, dtype=torch.bool)
    >>> x[:, :, 2:4, 2:4] = masks[:, 2:4, 2:4] = 1
    >>> foveal.measure.assert_attends(Bright(), (x, torch.zeros(8).long()), masks, at="see", sanity=False).mass
    1.0
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model must be a torch.nn.Module, got {type(model).__name__}; wrap it in one")
    if not 0 < min_mass < 1 or not 0 < confidence < 1:
        raise UserError(f"min_mass={min_mass} and confidence={confidence}: expected fractions between 0 and 1")
    if resamples < 1:
        raise UserError(f"resamples={resamples}: expected at least one")

    def class_map(model: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:
        if y is None:
            with Taps(model, at) as taps:
                model(x)
            y = taps.logits.argmax(1)
        return cam(model, x, y, at, kind)

    attend = attention or class_map
    batches = list(_batches(data, masks, batch))
    shares = _shares(model, batches, attend)
    if not len(shares):
        raise UserError("no image has a region to attend to; give masks with at least one true pixel, or boxes")
    if len(shares) < FEWEST:
        raise AssertionError(f"too few images to say it attends: {len(shares)} with a region; use at least {FEWEST}")
    low, high = _interval(shares, confidence, resamples, seed)
    mass = shares.mean().item()
    interval = f"a {confidence:.0%} interval of {low:.3f} to {high:.3f} over {len(shares)} images"
    if low < min_mass:
        reason = "attention is elsewhere" if high < min_mass else "too few or too uneven images to say it attends"
        raise AssertionError(f"{reason}: {mass:.3f} of it is on the region, {interval}; required: {min_mass}")
    random = None
    if sanity:
        # Maps that are zero do not tell where a random model looks, so they are left out.
        models = (randomised(model, seed + i) for i in range(RANDOM_MODELS))
        random_shares = torch.cat([_shares(random_model, batches, attend, zeros=False) for random_model in models])
        random = random_shares.mean().nan_to_num().item()
        if random >= min_mass:
            raise AssertionError(
                f"this proves nothing: with random weights {random:.3f} of attention is on the region too (the model: "
                f"{mass:.3f}, {interval}); require more than {min_mass} or use smaller masks"
            )
    return AttendedMass(mass, low, high, len(shares), random)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy whose weights are shuffled within every tensor: they keep their scale and lose what they learned."""
    shuffled = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in shuffled.parameters():
            order = torch.randperm(p.numel(), generator=generator).to(p.device)
            p.copy_(p.flatten()[order].view(p.shape))
    return shuffled


def _batches(data: Any, masks: Any, size: int) -> Iterator[tuple[Tensor, Tensor | None, Region]]:
    """Images, classes or None, and regions."""
    masks = _tensor(masks)
    pair = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, Tensor) or (pair and data[1].ndim < 4):  # else two batches of images
        x, y = (data, None) if isinstance(data, Tensor) else data
        if len(masks) != len(x) or (y is not None and len(y) != len(x)):
            raise UserError(f"{len(x)} images need as many masks and classes, got {len(masks)} masks")
        for i in range(0, len(x), size):
            yield x[i : i + size], None if y is None else y[i : i + size], masks[i : i + size]
        return
    if isinstance(masks, Tensor) and masks.ndim == 3:
        raise UserError("data is in batches and masks is one tensor; batch the masks too, for example masks.split(32)")
    end = object()
    for batch, region in zip(chain(data, [end]), chain(masks, [end]), strict=False):
        if (batch is end) != (region is end):
            raise UserError("data and masks must give the same number of batches")
        if batch is not end:
            x, y = batch if isinstance(batch, tuple | list) else (batch, None)
            yield x, y, _tensor(region)


def _tensor(region: Any) -> Any:
    return torch.from_numpy(region) if isinstance(region, np.ndarray) else region


def _shares(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor | None, Region]],
    attend: Attention,
    *,
    zeros: bool = True,
) -> Tensor:
    """Share of attention on the region, of every sample that has one; maps of zeros have share 0 or are left out."""
    modes = {module: module.training for module in model.modules()}
    shares = []
    try:
        model.eval()
        for x, y, region in batches:
            with torch.no_grad():
                maps = at_least_float32(attend(model, x, y).detach())
            size = tuple(region.shape[-2:]) if isinstance(region, Tensor) else tuple(x.shape[-2:])
            maps = F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0].nan_to_num()
            mask = region_mask(maps, region.to(maps.device) if isinstance(region, Tensor) else region)
            total = maps.sum((1, 2))
            share = maps.masked_fill(~mask, 0).sum((1, 2)) / total.masked_fill(total == 0, 1)
            counts = mask.flatten(1).any(1) & ((total > 0) | zeros)
            shares.append(share[counts].cpu())
    finally:
        for module, training in modes.items():
            module.training = training
    return torch.cat(shares) if shares else torch.zeros(0)


def _interval(shares: Tensor, confidence: float, resamples: int, seed: int) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean."""
    from scipy import stats  # takes a second to import

    interval = stats.bootstrap(
        (shares.numpy(),),
        np.mean,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        batch=100,
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)
