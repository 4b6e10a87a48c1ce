"""Further kinds of class maps, from features and the gradient of a class score.

- Grad-CAM++: Chattopadhay et al. (https://arxiv.org/abs/1710.11063), in the closed form that assumes an exponential of
  the score: α_k = Σ_ij ReLU(g) · g² / (2 g² + g³ Σ_ab F_ab).
- LayerCAM: Jiang et al., "LayerCAM: Exploring Hierarchical Class Activation Maps for Localization" (IEEE TIP 2021):
  every position has its own weight, ReLU(g).
- EigenCAM: Muhammad and Yeasin (https://arxiv.org/abs/2008.00299): the first principal component of the features, which
  no class has a part in. Its sign is open; here the entry with the greatest magnitude is positive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def grad_cam_plus_plus(features: Tensor, gradient: Tensor) -> Tensor:
    """Grad-CAM++, (..., N, H, W) from features (N, C, H, W) and gradients (..., N, C, H, W)."""
    square = gradient**2
    below = 2 * square + features.sum((-2, -1), keepdim=True) * gradient**3
    share = torch.where(gradient != 0, square / (below + 1e-6), 0)
    weights = (gradient.relu() * share).sum((-2, -1), keepdim=True)
    return (weights * features).sum(-3).relu()


def layer_cam(features: Tensor, gradient: Tensor) -> Tensor:
    """LayerCAM, (..., N, H, W) from features (N, C, H, W) and gradients (..., N, C, H, W)."""
    return (gradient.relu() * features).sum(-3).relu()


def eigen_cam(features: Tensor, gradient: Tensor) -> Tensor:
    """EigenCAM, (..., N, H, W) from features (N, C, H, W); gradients (..., N, C, H, W) give the shape alone."""
    positions = features.flatten(2).mT  # (N, HW, C)
    positions = positions - positions.mean(1, keepdim=True)
    component = torch.linalg.svd(positions, full_matrices=False).Vh[:, 0]
    projection = (positions @ component[:, :, None])[..., 0]
    peak = projection.gather(1, projection.abs().argmax(1, keepdim=True))
    maps = (projection * peak.sign()).relu().unflatten(1, features.shape[2:])
    return maps.expand(*gradient.shape[:-4], *maps.shape)


MORE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam++": grad_cam_plus_plus,
    "layercam": layer_cam,
    "eigencam": eigen_cam,
}
