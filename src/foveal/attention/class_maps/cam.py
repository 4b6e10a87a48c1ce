"""Class attention maps as differentiable tensors: Grad-CAM, and the channel-weighted attention of ICASC.

Selvaraju et al.: "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization"
(https://arxiv.org/abs/1610.02391). Wang et al.: "Sharpen Focus: Learning with Attention Separability and Consistency"
(https://arxiv.org/abs/1811.07484).

Maps come from a functional gradient call: no parameter's ``.grad`` is touched, and the model runs in the mode it is in.
One backward pass for each class serves all layers and all samples. Departure: gradients are of the class score itself,
with an upstream gradient of one.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from foveal.attention.class_maps.graph import below, between, not_again, once_only, runs_once
from foveal.attention.class_maps.taps import Grid, Tapped, Taps, keep_buffers
from foveal.errors import UserError, unknown
from foveal.kernels.aw.plain import differentiable_twice
from foveal.kernels.second_order.mode import SecondOrder

Kind = Literal["channel", "gradcam"]
BatchNorm = Literal["coupled", "frozen"]
KINDS = ("channel", "gradcam")
# Gradients of scores are small enough to vanish in float16, where the attention backward runs this much larger.
HALF_SCALE = 1024.0
CHECKPOINTED = (
    "activation checkpointing cannot run a part of the model again as it ran the first time (with order=2, fused or "
    "kernel-shaped attention); switch it off, use order=1, or name a layer outside of what is checkpointed"
)
REENTRANT = (
    "activation checkpointing with use_reentrant=True allows no gradients with respect to features; checkpoint with "
    "use_reentrant=False"
)
DONATED = (
    "a compiled function in the model frees its buffers in its first backward, and maps need several; compile a module "
    "instead of a function, or set torch._functorch.config.donated_buffer = False before it first runs"
)


def class_attention(features: Tensor, gradient: Tensor, kind: Kind = "channel") -> Tensor:
    """Attention maps from features and the gradient of a class score with respect to them.

    With F the features of channel k and Y^c the score of class c::

        gradcam:  α_k = 1/HW Σ_ij ∂Y^c/∂F^k_ij          channel:  α_k = 1/HW Σ_ij ReLU(∂Y^c/∂F^k_ij)
        A^c = ReLU(Σ_k α_k F^k)

    Args:
        features: (N, C, H, W).
        gradient: (..., N, C, H, W), one for each class asked for.
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM.

    Returns:
        (..., N, H, W), not negative, float32 or wider. Zero where the gradient overflowed.

    >>> features = torch.tensor([[[[1.0, 2.0]]]])
    >>> gradient = torch.tensor([[[[3.0, -1.0]]]])
    >>> class_attention(features, gradient, "gradcam"), class_attention(features, gradient, "channel")
    (tensor([[[1., 2.]]]), tensor([[[1.5000, 3.0000]]]))
    """
    return _map(features, _weights(gradient, kind))


def _weights(gradient: Tensor, kind: Kind) -> Tensor:
    """The channels' weights α (..., N, C) in float32 or wider; zero for a sample whose gradient is not finite."""
    if kind not in KINDS:
        raise unknown("kind", str(kind), KINDS)
    wide = torch.promote_types(gradient.dtype, torch.float32)
    weights = (gradient.relu() if kind == "channel" else gradient).mean((-2, -1), dtype=wide)
    return torch.where(weights.isfinite().all(-1, keepdim=True), weights, 0)


def _map(features: Tensor, weights: Tensor) -> Tensor:
    """ReLU of the channels (N, C, H, W) weighted by (..., N, C)."""
    with torch.autocast(features.device.type, enabled=False):
        return torch.einsum("...nc,nchw->...nhw", weights, features.to(weights.dtype)).relu()


@overload
def cam(model: nn.Module, x: Any, target: Tensor | int, at: str = ..., *args: Any, **kw: Any) -> Tensor: ...
@overload
def cam(
    model: nn.Module, x: Any, target: Tensor | int, at: Sequence[str], *args: Any, **kw: Any
) -> dict[str, Tensor]: ...


def cam(
    model: nn.Module,
    x: Any,
    target: Tensor | int,
    at: str | Sequence[str] = "layer4",
    kind: Kind = "channel",
    order: Literal[1, 2] = 1,
    *,
    batch_norm: BatchNorm = "coupled",
    reshape: Grid | None = None,
) -> Tensor | dict[str, Tensor]:
    """Class attention maps of ``model`` on ``x``, differentiable.

    The model runs once, in the mode it is in; nothing about it changes but the running statistics of batch norms in
    training mode, as in any forward pass, and no parameter's gradient is touched. Works
    with convolutional networks and with token grids (ViT, Swin), under autocast, DistributedDataParallel and
    ``torch.compile`` (not with ``fullgraph=True``). Under ``torch.no_grad`` the maps are computed all the same, and
    come without a graph.

    Args:
        model: any classifier that returns scores (N, classes) before softmax.
        x: its input; a tuple for several.
        target: the class of each sample, int64 (N,), or K classes of each, (N, K), or one number for all samples.
        at: the layer whose features the map is made of, or several; use the last convolutional stage, and in a ViT
            with a class token the first norm of its last block (``blocks.11.norm1``).
        kind: ``channel`` for A_ch, ``gradcam`` for Grad-CAM.
        order: 1: a loss on the maps acts through the features only; 2: through the gradient as well, by a double
            backward. Where something after the layer cannot be differentiated twice (deformable convolution, compiled
            parts), order 1 is used and a warning says so; fused attention is replaced by plain attention instead.
            Activation checkpointing must be that of ``use_reentrant=False``, in both orders.
        batch_norm: batch norm in training mode lets samples of a batch see each other. ``coupled`` keeps these terms
            in the gradient, ``frozen`` treats the statistics as constants, so that a map depends on its sample alone.
        reshape: brings what a layer puts out to (N, C, H, W), for layouts that are not recognised.

    Returns:
        Maps at the size of the layer's features, not negative, float32: (N, H, W), or (N, K, H, W) if ``target`` is
        (N, K); for several layers a dict from name to maps.

    >>> import timm, foveal
    >>> model = timm.create_model("resnet18", num_classes=10)
    >>> x = torch.rand(2, 3, 64, 64)
    >>> foveal.cam(model, x, torch.tensor([3, 7])).shape
    torch.Size([2, 2, 2])
    >>> maps = foveal.cam(model, x, torch.tensor([[3, 7], [7, 1]]), at=["layer3", "layer4"], kind="gradcam")
    >>> {name: tuple(each.shape) for name, each in maps.items()}
    {'layer3': (2, 2, 4, 4), 'layer4': (2, 2, 2, 2)}
    """
    taps = Taps(model, at, reshape)
    wanted = torch.is_grad_enabled()
    inputs = x if isinstance(x, tuple) else (x,)
    with torch.inference_mode(False), torch.enable_grad():
        inputs = tuple(a.clone() if isinstance(a, Tensor) and a.is_inference() else a for a in inputs)
        with taps, twice_differentiable(order, taps):
            model(*inputs)
        classes = _classes(target, taps.logits)
        several = classes if classes.ndim == 2 else classes[:, None]
        maps = class_maps(trace_classes(taps, several, order, batch_norm=batch_norm), kind)
    taps.clear()
    if classes.ndim == 1:
        maps = {name: each[:, 0] for name, each in maps.items()}
    if not wanted:
        maps = {name: each.detach() for name, each in maps.items()}
    return maps[at] if isinstance(at, str) else maps


def check_order(order: int) -> None:
    """Raise unless ``order`` is 1 or 2."""
    if order not in (1, 2):
        raise UserError(f"order={order}: expected 1 (through the features) or 2 (through the gradient as well)")


@contextmanager
def twice_differentiable(order: int, taps: Taps) -> Iterator[None]:
    """For order 2, run what has a backward that cannot be differentiated, or only slowly, in forms that can.

    Args:
        order: 1 or 2.
        taps: open; what the model does before the first tapped layer is left alone, and what is compiled.
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
    """What the maps of K classes of each sample are made of, from a forward pass that has run.

    Args:
        taps: after a forward pass of the model inside it.
        classes: int64 (N, K).
        order: 1 or 2.
        batch_norm: ``coupled`` or ``frozen``.
    """
    tapped = taps.tapped()
    grids = {name: taps.grid(name) for name in tapped}
    gradients = class_gradients(taps, tapped, classes, order, batch_norm)
    found = {}
    for name, each in tapped.items():
        parts = [grids[name](gradient) for gradient in gradients[name]]
        if each.values.ndim == 3:
            _check_tokens(name, parts, gradients[name], taps)
        found[name] = grids[name](each.values), parts
    return found


def class_maps(traced: Traced, kind: Kind = "channel") -> dict[str, Tensor]:
    """Layer to maps (N, K, H, W)."""
    return {
        name: _map(features, torch.stack([_weights(gradient, kind) for gradient in gradients])).movedim(0, 1)
        for name, (features, gradients) in traced.items()
    }


def class_gradients(
    taps: Taps, tapped: dict[str, Tapped], classes: Tensor, order: int, batch_norm: BatchNorm = "coupled"
) -> dict[str, list[Tensor]]:
    """Gradient of each chosen class score with respect to what each layer put out: K tensors a layer.

    One backward pass a column of ``classes``, from the scores down to the earliest of the layers and no further.
    """
    logits, values = taps.logits, [each.values for each in tapped.values()]
    stops = [each.handed_on for each in tapped.values()]
    if logits.grad_fn is None:
        raise UserError("the class scores have no graph: run the model with gradients enabled")
    if batch_norm not in ("coupled", "frozen"):
        raise unknown("batch_norm", str(batch_norm), ("coupled", "frozen"))
    again, hooks = order == 2 and taps.twice is not False, []
    unsure = again and (taps.twice is None or bool(taps.compiled))  # which may be new since the last time
    if unsure or taps.compiled or batch_norm == "frozen":
        nodes = between(logits, stops)
        if unsure and (name := once_only(nodes)):
            taps.twice = again = unsure = False
            _warn_once_only(name, tapped)
        if runs_once(nodes):
            raise UserError(DONATED)
        if batch_norm == "frozen" and taps.compiled:
            raise UserError("batch_norm='frozen' cannot reach into a compiled model; leave it uncompiled")
        hooks = [hook for node in nodes if (hook := _freeze(node))] if batch_norm == "frozen" else []
    half = any(t.dtype == torch.float16 for t in (logits, *values))
    scale = HALF_SCALE if half else 1.0
    found: dict[str, list[Tensor]] = {name: [] for name in tapped}
    try:
        with (
            torch.autocast(logits.device.type, enabled=False),
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),  # to change threads takes longer than many a launch
            keep_buffers(bool(taps.compiled)),
        ):
            ones = logits.new_zeros(classes.shape[1], *logits.shape).scatter_(2, classes.T[:, :, None], scale)
            for one in ones:  # of the sum of all samples' scores of a class
                parts = torch.autograd.grad(
                    logits, values, one, retain_graph=True, create_graph=again, allow_unused=True
                )
                for name, part in zip(tapped, parts, strict=True):
                    if part is None:
                        hidden = any("CheckpointFunction" in node.name() for node in below([logits.grad_fn]))
                        said = f"the class scores do not depend on layer {name}; name one that they come from"
                        raise UserError(REENTRANT if hidden else said)
                if unsure:
                    name, unsure = not_again(parts), False
                    taps.twice = again = name is None
                    if name is not None:
                        _warn_once_only(name, tapped)
                for name, part in zip(tapped, parts, strict=True):
                    part = part if again else part.detach()
                    found[name].append(part.float() / scale if half else part)
    except RuntimeError as error:
        for sign, said in (
            ("donated", DONATED),
            ("use_reentrant", REENTRANT),
            ("torch.utils.checkpoint", CHECKPOINTED),
        ):
            if sign in str(error):
                raise UserError(said) from error
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _warn_once_only(name: str, layers: Iterable[str]) -> None:
    warnings.warn(
        f"order=2 is not possible here: {name} between {', '.join(layers)} and the class scores cannot be "
        "differentiated twice; order=1 is used",
        stacklevel=5,
    )


def _freeze(node: Any) -> Any:
    """Make a batch norm's backward treat its statistics as constants until the hook is removed."""
    if "BatchNorm" not in node.name() or getattr(node, "_saved_training", True) is False:
        return None
    before: Any = node.next_functions[0][0]
    input: Any = getattr(node, "_saved_input", None)  # SyncBatchNorm has none
    viewed = type(before).__name__.startswith("View") and isinstance(input, Tensor) and len(input) == 1
    if viewed and tuple(before._saved_self_sym_sizes[2:]) == tuple(input.shape[2:]):
        return None  # an instance norm is a batch norm of one sample with N·C channels

    def constant(grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor]) -> Any:
        saved = getattr(node, "saved_tensors", None)  # SyncBatchNorm is written in Python
        weight, spread = (saved[1], saved[3]) if saved else (node._saved_weight, node._saved_result2)
        factor = spread if weight is None else weight.to(spread.dtype) * spread
        shape = [1, -1] + [1] * (grad_outputs[0].ndim - 2)
        return ((grad_outputs[0] * factor.view(shape)).to(grad_outputs[0].dtype), *grad_inputs[1:])

    return node.register_hook(constant)


def _check_tokens(name: str, patches: Sequence[Tensor], gradients: Sequence[Tensor], taps: Taps) -> None:
    """Warn if no gradient reaches the ``patches``, a part of the tokens that ``gradients`` are of."""
    if any(bool(gradient.any()) for gradient in patches):
        return
    if any(bool(gradient.any()) for gradient in gradients):
        norms = [n for n, _ in taps.core.named_modules() if n.endswith(("norm1", "ln_1"))]  # timm, torchvision
        why = "after it only the class token is read; name the first norm of the last block"
        why += f", {norms[-1]}" if norms else ""
    else:
        why = "the class scores do not depend on it (a head that starts at zero?)"
    warnings.warn(f"no gradient reaches the patches at {name}, so its maps are zero: {why}", stacklevel=4)


def _classes(target: Tensor | int, logits: Tensor) -> Tensor:
    samples, count = logits.shape
    if isinstance(target, numbers.Integral):
        target = torch.full((samples,), int(target))
    if not isinstance(target, Tensor) or target.dtype.is_floating_point or target.dtype == torch.bool:
        said = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise UserError(f"target must hold class numbers (integers), got {said}")
    if target.is_inference():
        target = target.clone()
    if target.ndim not in (1, 2) or len(target) != samples or 0 in target.shape[1:]:
        raise UserError(f"target must be ({samples},) or ({samples}, K) for this batch, got {tuple(target.shape)}")
    if target.numel() and (int(target.min()) < 0 or int(target.max()) >= count):
        raise UserError(f"target must be between 0 and {count - 1}, got {int(target.min())} to {int(target.max())}")
    return target.to(logits.device, torch.int64)
