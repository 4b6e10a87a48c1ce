"""Class attention maps as differentiable tensors: Grad-CAM, and the channel-weighted attention of ICASC.

Selvaraju et al.: "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization"
(https://arxiv.org/abs/1610.02391). Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency"
(https://arxiv.org/abs/1811.07484).

Maps come from a functional gradient call: no parameter's ``.grad`` changes, and the model runs in the mode it is in.
One backward pass per class covers all layers and all samples. Departure: gradients are of the class score itself, with
an upstream gradient of one.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foveal.attention.class_maps.choose import last_map
from foveal.attention.class_maps.gradients import BatchNorm, class_gradients
from foveal.attention.class_maps.images import explained, model_input
from foveal.attention.class_maps.kinds import MORE
from foveal.attention.class_maps.layout import Reshape
from foveal.attention.class_maps.taps import Taps, unwrapped
from foveal.errors import UserError, unknown
from foveal.kernels.aw.plain import differentiable_twice
from foveal.kernels.second_order.mode import SecondOrder

MapKind = Literal["channel", "gradcam", "gradcam++", "layercam", "eigencam"]
KINDS = ("channel", "gradcam")  # those that are trained on


def class_attention(features: Tensor, gradient: Tensor, kind: MapKind = "channel") -> Tensor:
    """Attention maps from features and the gradient of a class score with respect to them.

    With F the features of channel k and Y^c the score of class c::

        gradcam:  α_k = 1/HW Σ_ij ∂Y^c/∂F^k_ij          channel:  α_k = 1/HW Σ_ij ReLU(∂Y^c/∂F^k_ij)
        A^c = ReLU(Σ_k α_k F^k)

    Args:
        features: (N, C, H, W).
        gradient: (..., N, C, H, W), one for each class.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM, or one of :mod:`foveal.attention.class_maps.kinds`.

    Returns:
        (..., N, H, W), not negative, float32 or wider; zero for a sample whose gradient overflowed.

    >>> features = torch.tensor([[[[1.0, 2.0]]]])
    >>> gradient = torch.tensor([[[[3.0, -1.0]]]])
    >>> class_attention(features, gradient, "gradcam"), class_attention(features, gradient, "channel")
    (tensor([[[1., 2.]]]), tensor([[[1.5000, 3.0000]]]))
    """
    if kind in MORE:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            return MORE[kind](features.to(wide), torch.where(gradient.isfinite(), gradient, 0).to(wide))
    return weighted_map(features, _weights(gradient, kind))


def _weights(gradient: Tensor, kind: MapKind) -> Tensor:
    """The channels' weights α (..., N, C) in float32 or wider; zero for a sample whose gradient is not finite."""
    if kind not in KINDS:
        raise unknown("kind", str(kind), (*KINDS, *MORE))
    wide = torch.promote_types(gradient.dtype, torch.float32)
    weights = (gradient.relu() if kind == "channel" else gradient).mean((-2, -1), dtype=wide)
    return torch.where(weights.isfinite().all(-1, keepdim=True), weights, 0)


def weighted_map(features: Tensor, weights: Tensor) -> Tensor:
    """ReLU of the channels (N, C, H, W) weighted by (..., N, C); (..., N, H, W)."""
    with torch.autocast(features.device.type, enabled=False):
        return torch.einsum("...nc,nchw->...nhw", weights, features.to(weights.dtype)).relu()


@overload
def cam(model: nn.Module, x: Any, target: Tensor | int, at: str | None = ..., *args: Any, **kw: Any) -> Tensor: ...
@overload
def cam(
    model: nn.Module, x: Any, target: Tensor | int, at: Sequence[str], *args: Any, **kw: Any
) -> dict[str, Tensor]: ...


def cam(
    model: nn.Module,
    x: Any,
    target: Tensor | int,
    at: str | Sequence[str] | None = None,
    kind: MapKind = "channel",
    order: Literal[1, 2] = 1,
    *,
    batch_norm: BatchNorm = "coupled",
    reshape: Reshape | None = None,
    score: Callable[[Any], Tensor] | None = None,
) -> Tensor | dict[str, Tensor]:
    """Class attention maps of ``model`` on ``x``, differentiable.

    The model runs once, in the mode it is in. Nothing in it changes, except for the running statistics of batch norms
    in training mode, as in any forward pass; no parameter's gradient changes. Works with convolutional networks and
    token grids (ViT, Swin), under autocast, DistributedDataParallel and ``torch.compile`` (not with
    ``fullgraph=True``). Under ``torch.no_grad`` the maps are computed too, and have no graph.

    Args:
        model: any classifier that returns scores (N, classes) before softmax.
        x: its input; a tuple for several. Images may be NumPy arrays, and PIL images or bytes if the model states its
            normalisation, as models of timm do; they are not resized.
        target: the class of each sample, int64 (N,), or K classes of each, (N, K), or one number for all samples.
        at: the layer whose features the map is computed from, or several; None: the last one with a map of the image,
            in a ViT with a class token the first norm of its last block (the model runs once more to find it).
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM, ``gradcam++``, ``layercam``, or ``eigencam``, which does
            not depend on the class.
        order: 1: a loss on the maps acts through the features only; 2: through the gradient as well, by a double
            backward. Where something after the layer cannot be differentiated twice (deformable convolution, compiled
            parts), order 1 is used, with a warning; fused attention is replaced by plain attention instead.
            Activation checkpointing must use ``use_reentrant=False``, in both orders.
        batch_norm: in training mode, the samples of a batch interact through batch norm. ``coupled`` keeps these terms
            in the gradient, ``frozen`` treats the statistics as constants, so that a map depends on its sample only.
        reshape: brings the output of a layer to (N, C, H, W), for layouts that are not recognised.
        score: makes class scores (N, classes) of what the model returns, if that is something else: a segmenter's dict
            (``lambda out: out["out"].mean((2, 3))``), a detector's list, an object.

    Returns:
        Maps at the size of the layer's features, not negative, float32: (N, H, W), or (N, K, H, W) if ``target`` is
        (N, K); for several layers a dict from name to maps.

    >>> import timm, foveal
    >>> model = timm.create_model("resnet18", num_classes=10)
    >>> x = torch.rand(2, 3, 64, 64)
    >>> foveal.cam(model, x, torch.tensor([3, 7])).shape
    torch.Size([2, 2, 2])
    >>> maps = foveal.cam(model, x, torch.tensor([[3, 7], [7, 1]]), at=["layer3", "layer4"], kind="gradcam")
    >>> {name: tuple(layer_maps.shape) for name, layer_maps in maps.items()}
    {'layer3': (2, 2, 4, 4), 'layer4': (2, 2, 2, 2)}
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise UserError(f"cam needs a torch.nn.Module, not scripted or traced, got {type(model).__name__}")
    if score is not None and not callable(score):
        raise UserError(f"score must be a function of what the model returns, got {score!r}")
    inputs = x if isinstance(x, tuple) else (x,)
    if inputs and not torch.compiler.is_compiling():
        inputs = (model_input(inputs[0], unwrapped(model)), *inputs[1:])
        _check_image(inputs[0])
    first = inputs[0] if inputs else None
    if at is None:
        with explained(first, unwrapped(model)):
            at = last_map(unwrapped(model), inputs)
    taps = Taps(model, at, reshape, score)
    keep_graph = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.enable_grad():
        inputs = tuple(a.clone() if isinstance(a, Tensor) and a.is_inference() else a for a in inputs)
        with taps, twice_differentiable(order, taps), explained(first, unwrapped(model)):
            model(*inputs)
        classes = _classes(target, taps.logits)
        columns = classes if classes.ndim == 2 else classes[:, None]
        maps = class_maps(trace_classes(taps, columns, order, batch_norm=batch_norm), kind)
    taps.clear()
    if classes.ndim == 1:
        maps = {name: layer_maps[:, 0] for name, layer_maps in maps.items()}
    if not keep_graph:
        maps = {name: layer_maps.detach() for name, layer_maps in maps.items()}
    return maps[at] if isinstance(at, str) else maps


def _check_image(x: object) -> None:
    """Raise for a first input that can only be a mistake; what has no image's shape is the model's own affair."""
    if not isinstance(x, Tensor) or x.ndim != 4:
        return
    if not len(x):
        raise UserError("x is an empty batch")
    if not bool(x.isfinite().all()):
        raise UserError("x holds nan or inf, so that maps would too; check how the images were read and normalised")


def check_order(order: int) -> None:
    """Raise unless ``order`` is 1 or 2."""
    if order not in (1, 2):
        raise UserError(f"order={order}: expected 1 (through the features) or 2 (through the gradient as well)")


@contextmanager
def twice_differentiable(order: int, taps: Taps) -> Iterator[None]:
    """For order 2, operations without a second derivative run in forms that have one, and some others in forms of ours.

    Args:
        order: 1 or 2.
        taps: entered; operations before the first tapped layer and compiled parts run as usual.
    """
    check_order(order)
    if order == 1:
        yield
        return
    taps.after_first = None if taps.compiled else SecondOrder()
    with sdpa_kernel(SDPBackend.MATH), differentiable_twice():
        yield


Traced = dict[str, tuple[Tensor, list[Tensor]]]
"""Layer to its features (N, C, H, W) and the gradients of K class scores with respect to them."""


def trace_classes(taps: Taps, classes: Tensor, order: int = 1, *, batch_norm: BatchNorm = "coupled") -> Traced:
    """Features and gradients for the maps of K classes a sample, from a forward pass that has run.

    Args:
        taps: after a forward pass of the model inside it.
        classes: int64 (N, K).
        order: 1 or 2.
        batch_norm: ``coupled`` or ``frozen``.
    """
    tapped = taps.tapped()
    to_maps = {name: taps.to_maps(name) for name in tapped}
    gradients = class_gradients(taps, tapped, classes, order, batch_norm)
    traced = {}
    for name, output in tapped.items():
        maps = [to_maps[name](gradient) for gradient in gradients[name]]
        if output.values.ndim == 3 and name not in taps.checked:  # once: it waits for the device
            taps.checked.add(name)
            _check_tokens(name, maps, gradients[name], taps)
        traced[name] = to_maps[name](output.values), maps
    return traced


def class_maps(traced: Traced, kind: MapKind = "channel") -> dict[str, Tensor]:
    """Layer to maps (N, K, H, W)."""
    if kind in MORE:
        return {
            name: torch.stack([class_attention(features, gradient, kind) for gradient in gradients], 1)
            for name, (features, gradients) in traced.items()
        }
    return {
        name: weighted_map(features, torch.stack([_weights(gradient, kind) for gradient in gradients])).movedim(0, 1)
        for name, (features, gradients) in traced.items()
    }


def _check_tokens(name: str, patches: Sequence[Tensor], gradients: Sequence[Tensor], taps: Taps) -> None:
    """Warn if no gradient reaches the ``patches``, which are some of the tokens of ``gradients``."""
    if any(bool(gradient.any()) for gradient in patches):
        return
    if any(bool(gradient.any()) for gradient in gradients):
        norms = [n for n, _ in taps.core.named_modules() if n.endswith(("norm1", "ln_1"))]  # timm, torchvision
        reason = "after it only the class token is used; name the first norm of the last block"
        reason += f", {norms[-1]}" if norms else ""
    else:
        reason = "the class scores do not depend on it (a head that starts at zero?)"
    warnings.warn(f"no gradient reaches the patches at {name}, so its maps are zero: {reason}", stacklevel=4)


def _classes(target: Tensor | int, logits: Tensor) -> Tensor:
    samples, count = logits.shape
    if isinstance(target, numbers.Integral) and not isinstance(target, bool):
        target = torch.full((samples,), int(target))
    if not isinstance(target, Tensor) or target.dtype.is_floating_point or target.dtype == torch.bool:
        got = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise UserError(f"target must hold class numbers (integers), such as torch.tensor([3, 7]), got {got}")
    if target.is_inference():
        target = target.clone()
    if target.ndim not in (1, 2) or len(target) != samples or 0 in target.shape[1:]:
        raise UserError(f"target must be ({samples},) or ({samples}, K) for this batch, got {tuple(target.shape)}")
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= count):
        raise UserError(f"target must be between 0 and {count - 1}, got {int(target.min())} to {int(target.max())}")
    return target.to(logits.device, torch.int64)
