"""Recognises the layers of third-party models (torch, timm, torchvision): their channels and their place in a block."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

from torch import nn

from foveal.attention.records.record import Attends
from foveal.compat import BATCH_NORM, INSTANCE_NORM

# Layers by the attribute that holds their number of channels; those of timm and torchvision derive from these.
_CHANNELS: tuple[tuple[tuple[type[nn.Module], ...], str], ...] = (
    ((nn.Conv2d,), "out_channels"),
    (BATCH_NORM, "num_features"),
    ((nn.GroupNorm,), "num_channels"),
    (INSTANCE_NORM, "num_features"),
)
_NO_MAPS = (nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm3d)
_EXCITES = re.compile("Squeeze|Excit|SE(?![a-z])|GlobalContext|KernelAttn")  # timm's and torchvision's names
NORMS = (*BATCH_NORM, nn.GroupNorm, *INSTANCE_NORM)


def channels_of(layer: nn.Module) -> int | None:
    """Number of output channels of ``layer``, or None if its type does not tell.

    >>> channels_of(nn.Conv2d(3, 8, 1)), channels_of(nn.BatchNorm2d(5)), channels_of(nn.ReLU())
    (8, 5, None)
    """
    for classes, attribute in _CHANNELS:
        if isinstance(layer, classes) and not isinstance(layer, _NO_MAPS):
            return int(getattr(layer, attribute))
    if isinstance(layer, nn.LayerNorm) and type(layer).__name__ == "LayerNorm2d":  # timm and torchvision: over channels
        return int(layer.normalized_shape[0])
    return len(layer.get_buffer("weight")) if _is_frozen(layer) else None


def _is_frozen(layer: nn.Module) -> bool:
    """Whether it is a frozen batch norm of torchvision or timm, recognised by its buffers."""
    return {"weight", "bias", "running_mean", "running_var"} <= {name for name, _ in layer.named_buffers(recurse=False)}


def is_pointwise(conv: nn.Module) -> bool:
    """Whether every output channel sees all input channels at one position."""
    return isinstance(conv, nn.Conv2d) and conv.groups == 1 and conv.kernel_size == (1, 1)


def is_depthwise(conv: nn.Module) -> bool:
    """Whether every output channel sees one input channel."""
    return isinstance(conv, nn.Conv2d) and conv.groups > 1 and conv.groups == conv.in_channels


def is_norm(layer: nn.Module) -> bool:
    """Whether ``layer`` normalises maps."""
    return (isinstance(layer, NORMS) and not isinstance(layer, _NO_MAPS)) or _is_frozen(layer)


def excites(module: nn.Module) -> bool:
    """Whether a module of the network is squeeze and excitation or similar, by its name; a block around it is not.

    >>> import timm
    >>> block = timm.create_model("legacy_seresnet18").layer1[0]  # an SEResNetBlock
    >>> excites(block.se_module), excites(block)
    (True, False)
    """
    named = _EXCITES.search(type(module).__name__)
    return named is not None and all(max(conv.kernel_size) == 1 for conv in _convs(module.named_modules()))


def own_modules(model: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, except the model itself and what :func:`foveal.insert` has attached to it.

    A module with several names comes once, or with ``every_name`` under each of them.
    """
    attached: list[str] = []
    for name, module in model.named_modules(remove_duplicate=not every_name):
        if hasattr(type(module), "_plain"):  # a layer with attention attached
            attached.append(f"{name}.attached" if name else "attached")
        if name and not any(name == prefix or name.startswith(f"{prefix}.") for prefix in attached):
            yield name, module


def convolutions(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """All convolutions by name, in order."""
    return [(name, module) for name, module in own_modules(model) if isinstance(module, nn.Conv2d)]


MOST = 5  # convolutions of a stem, or of a block with wrapped convolutions; more are a network
SHORTCUTS = re.compile(r"(?i:shortcut|downsample)|(^|_)(skip|sc(?![a-z]))|^(proj|identity|residual)$")
_HEADS = re.compile(r"(classifier|head|pre_logits|fc)\b")


def blocks(model: nn.Module) -> list[list[tuple[str, nn.Module]]]:
    """Layers, by full name, of each residual block and similar.

    A block has two or more convolutions among its children, not only 1×1 ones, and is not just a container; or it has a
    few wrapped convolutions, each together with its norm. In a model without such blocks, depthwise-separable sequences
    are blocks. The latter two only count if they hold at least half of the model's convolutions. Attention modules of
    the model are no blocks. Shortcuts, recognised by their names, are left out.
    """
    attention, plain, wrapped, sequences = attention_prefixes(model), [], [], []
    for name, module in own_modules(model):
        is_attention = type(module).__name__.endswith("Attn") or f"{name}.".startswith(attention)
        if is_attention or isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        children = [(f"{name}.{child}", layer) for child, layer in module.named_children()]
        layers = [child for child in children if not SHORTCUTS.search(child[0].rsplit(".", 1)[-1])]
        direct = len(_convs(children))
        if isinstance(module, nn.Sequential):
            sequences.append(list(_unwrapped(name, module)))
        elif direct >= 2 and any(max(conv.kernel_size) > 1 for conv in _convs(module.named_modules())):
            plain.append(layers)
        elif not direct and (unwrapped := _wrapped(layers)):
            wrapped.append(unwrapped)
    half = sum(not name.startswith(attention) for name, _ in convolutions(model)) / 2
    separable = [layers for layers in sequences if _separable(layers)]
    wrapped, separable = (group if len(_convs(chain(*group))) >= half else [] for group in (wrapped, separable))
    return plain + wrapped or separable


def _convs(layers: Iterable[tuple[str, nn.Module]]) -> list[nn.Conv2d]:
    return [module for _, module in layers if isinstance(module, nn.Conv2d)]


def _separable(layers: list[tuple[str, nn.Module]]) -> bool:
    """Whether the convolutions of ``layers`` are a depthwise one followed by a pointwise one."""
    convs = _convs(layers)
    return len(convs) == 2 and is_depthwise(convs[0]) and is_pointwise(convs[1])


def _wrapped(children: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The layers of a block with wrapped convolutions; none if it is no such block."""
    layers = [pair for child in children for pair in _unwrapped(*child)]
    convs = len(_convs(layers))
    nested = any(
        isinstance(inner, nn.Conv2d) and inner is not module
        for _, module in layers
        if not excites(module)
        for inner in module.modules()
    )
    return layers if 2 <= convs <= MOST and not nested else []


def _unwrapped(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a sequence, or of a convolution wrapped together with its norm; else the module itself."""
    children = list(module.named_children())
    convs, norms = sum(isinstance(m, nn.Conv2d) for _, m in children), sum(is_norm(m) for _, m in children)
    if isinstance(module, nn.Sequential) or (convs == 1 and norms):
        for child, layer in children:
            yield from _unwrapped(f"{name}.{child}", layer)
    else:
        yield name, module


def block_ends(model: nn.Module) -> list[str]:
    """Names of the default sites for a gate: the last norm of every block, before the shortcut is added.

    In a block whose norms come before its convolutions (pre-activation), the last convolution. In a depthwise-separable
    block (a depthwise and a pointwise convolution), both norms. In a model without blocks, the norm that follows each
    convolution, or the convolution itself if there is none.
    """
    names: list[str] = []
    for layers in blocks(model):
        candidates = [(name, module) for name, module in layers if channels_of(module)]
        norms = [name for name, module in candidates if not isinstance(module, nn.Conv2d)]
        if norms:
            names += norms if _separable(layers) else [candidates[-1][0]]
    return list(dict.fromkeys(names)) or _after_convolutions(model)


def _after_convolutions(model: nn.Module) -> list[str]:
    gates = attention_prefixes(model)
    leaves = [(n, m) for n, m in own_modules(model) if isinstance(m, nn.Conv2d) or is_norm(m)]
    leaves = [(n, m) for n, m in leaves if not n.startswith(gates)]
    leaves = [(n, m) for n, m in leaves if not _HEADS.match(n)] or leaves
    names = []
    for i, (name, module) in enumerate(leaves):
        if isinstance(module, nn.Conv2d):
            follows = leaves[i + 1] if i + 1 < len(leaves) else None
            own = follows and is_norm(follows[1]) and channels_of(follows[1]) == module.out_channels
            names.append(follows[0] if own and follows else name)
    return names


def attention_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names inside the attention modules of a model: foveal's, squeeze and excitation, and similar."""
    names = (n for n, m in own_modules(model) if isinstance(m, Attends) or excites(m))
    return tuple(f"{name}." for name in names)


def spatial_convolutions(model: nn.Module) -> list[str]:
    """Names of the default sites for kernel attention: dense convolutions wider than 1×1, except those of the stem.

    The stem is the first convolution and the others before the first block that are in another part of the model. Where
    such a convolution is split into a depthwise and a pointwise one (MobileNet), it is the pointwise one. Convolutions
    inside squeeze-and-excitation modules and similar do not count.
    """
    gates = attention_prefixes(model)
    convs = [(name, conv) for name, conv in convolutions(model) if not name.startswith(gates)]
    stem = stem_length(model, [name for name, _ in convs])
    return [
        name
        for i, ((_, before), (name, conv)) in enumerate(pairwise(convs), 1)
        if (is_depthwise(before) and is_pointwise(conv))
        or (i >= stem and max(conv.kernel_size) > 1 and not is_depthwise(conv))
    ]


def stem_length(model: nn.Module, convs: list[str]) -> int:
    """Number of the convolutions, by name, that form the stem."""
    inside = {name for layers in blocks(model) for name, module in layers if isinstance(module, nn.Conv2d)}
    if not (block := next((name for name in convs if name in inside), "")):
        return 1
    parents = accumulate(block.split("."), "{}.{}".format)
    part = next((f"{parent}." for parent in parents if not f"{convs[0]}.".startswith(f"{parent}.")), f"{block}.")
    before = next(i for i, name in enumerate(convs) if f"{name}.".startswith(part))
    return before if 1 <= before <= MOST else 1
