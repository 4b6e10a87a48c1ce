"""Gradients of class scores with respect to the outputs of layers, in first or second order."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from foveal.attention.class_maps.graph import below, between, frees_buffers, missing_derivative, without_second_order
from foveal.attention.class_maps.taps import Tapped, Taps, keep_buffers
from foveal.errors import UserError, unknown

BatchNorm = Literal["coupled", "frozen"]
# Gradients of scores underflow in float16, so there the backward of the maps is scaled by this factor.
HALF_SCALE = 1024.0
CHECKPOINTED = (
    "activation checkpointing cannot run a part of the model a second time as it ran first (with order=2, fused or "
    "kernel-shaped attention); switch it off, use order=1, or name a layer outside the checkpointed part"
)
REENTRANT = (
    "activation checkpointing with use_reentrant=True allows no gradients with respect to features; checkpoint with "
    "use_reentrant=False"
)
DONATED = (
    "a compiled function in the model frees its buffers in its first backward, and maps need several; compile a module "
    "instead of a function, or set torch._functorch.config.donated_buffer = False before it first runs"
)


def class_gradients(
    taps: Taps, tapped: dict[str, Tapped], classes: Tensor, order: int, batch_norm: BatchNorm = "coupled"
) -> dict[str, list[Tensor]]:
    """Gradient of each chosen class score with respect to the output of each layer: K tensors a layer.

    One backward pass for each column of ``classes``, from the scores down to the earliest of the layers and no further.
    """
    logits, values = taps.logits, [output.values for output in tapped.values()]
    if logits.grad_fn is None:
        raise UserError("the class scores have no graph: run the model with gradients enabled")
    if batch_norm not in ("coupled", "frozen"):
        raise unknown("batch_norm", str(batch_norm), ("coupled", "frozen"))
    second, untested, hooks = _prepare(taps, tapped, order, batch_norm)
    half = any(t.dtype == torch.float16 for t in (logits, *values))
    scale = HALF_SCALE if half else 1.0
    gradients: dict[str, list[Tensor]] = {name: [] for name in tapped}
    try:
        with (
            torch.autocast(logits.device.type, enabled=False),
            torch.enable_grad(),
            torch.autograd.set_multithreading_enabled(False),  # switching threads takes longer than most launches
            keep_buffers(bool(taps.compiled)),
        ):
            ones = logits.new_zeros(classes.shape[1], *logits.shape).scatter_(2, classes.T[:, :, None], scale)
            for one in ones:  # the sum over samples of one class score each
                parts = torch.autograd.grad(
                    logits, values, one, retain_graph=True, create_graph=second, allow_unused=True
                )
                _check_used(tapped, parts, logits)
                if untested:
                    operation, untested = missing_derivative(parts), False
                    taps.twice = second = operation is None
                    if operation is not None:
                        _warn_first_order(operation, tapped)
                for name, part in zip(tapped, parts, strict=True):
                    part = part if second else part.detach()
                    gradients[name].append(part.float() / scale if half else part)
    except RuntimeError as error:
        for sign, message in (
            ("donated", DONATED),
            ("use_reentrant", REENTRANT),
            ("torch.utils.checkpoint", CHECKPOINTED),
        ):
            if sign in str(error):
                raise UserError(message) from error
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return gradients


def _prepare(taps: Taps, tapped: dict[str, Tapped], order: int, batch_norm: BatchNorm) -> tuple[bool, bool, list[Any]]:
    """Whether to build a graph of the gradients, whether that is still to be tested, and hooks to remove at the end."""
    second = order == 2 and taps.twice is not False
    untested = second and (taps.twice is None or bool(taps.compiled))  # compiled parts may be new since the last time
    if not (untested or taps.compiled or batch_norm == "frozen"):
        return second, untested, []
    nodes = between(taps.logits, [output.handed_on for output in tapped.values()])
    if untested and (operation := without_second_order(nodes)):
        taps.twice = second = untested = False
        _warn_first_order(operation, tapped, stacklevel=6)
    if frees_buffers(nodes):
        raise UserError(DONATED)
    if batch_norm == "frozen" and taps.compiled:
        raise UserError("batch_norm='frozen' is not possible in a compiled model; leave it uncompiled")
    hooks = [hook for node in nodes if (hook := _freeze(node))] if batch_norm == "frozen" else []
    return second, untested, hooks


def _check_used(layers: Iterable[str], gradients: Sequence[Tensor | None], logits: Tensor) -> None:
    """Raise if the scores do not depend on a layer."""
    for name, gradient in zip(layers, gradients, strict=True):
        if gradient is None:
            reentrant = any("CheckpointFunction" in node.name() for node in below([logits.grad_fn]))
            unused = f"the class scores do not depend on layer {name}; name one that they depend on"
            raise UserError(REENTRANT if reentrant else unused)


def _warn_first_order(name: str, layers: Iterable[str], stacklevel: int = 5) -> None:
    warnings.warn(
        f"order=2 is not possible here: {name} between {', '.join(layers)} and the class scores cannot be "
        "differentiated twice; order=1 is used",
        stacklevel=stacklevel,
    )


def _freeze(node: Any) -> Any:
    """Hook that makes the backward of a batch norm treat its statistics as constants; None for other nodes."""
    if "BatchNorm" not in node.name() or getattr(node, "_saved_training", True) is False:
        return None
    before: Any = node.next_functions[0][0]
    input: Any = getattr(node, "_saved_input", None)  # SyncBatchNorm has none
    viewed = type(before).__name__.startswith("View") and isinstance(input, Tensor) and len(input) == 1
    if viewed and tuple(before._saved_self_sym_sizes[2:]) == tuple(input.shape[2:]):
        return None  # an instance norm is a batch norm of one sample with N·C channels

    def constant(grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor]) -> Any:
        saved = getattr(node, "saved_tensors", None)  # SyncBatchNorm is written in Python
        weight, inverse_std = (saved[1], saved[3]) if saved else (node._saved_weight, node._saved_result2)
        factor = inverse_std if weight is None else weight.to(inverse_std.dtype) * inverse_std
        shape = [1, -1] + [1] * (grad_outputs[0].ndim - 2)
        return ((grad_outputs[0] * factor.view(shape)).to(grad_outputs[0].dtype), *grad_inputs[1:])

    return node.register_hook(constant)
