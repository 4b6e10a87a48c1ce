"""What a layer of someone else's model is: its channels, its place in a block. Knows torch, timm and torchvision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

from torch import nn

from foveal.attention.records.record import Attends

# Norms by the attribute that holds their number of channels; timm's and torchvision's derive from these.
_CHANNELS = {
    nn.Conv2d: "out_channels",
    nn.modules.batchnorm._BatchNorm: "num_features",
    nn.GroupNorm: "num_channels",
    nn.modules.instancenorm._InstanceNorm: "num_features",
}
_NO_MAPS = (nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm3d)
_EXCITES = re.compile("Squeeze|Excit|SE(?![a-z])|GlobalContext|KernelAttn")  # as timm and torchvision call them
NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def channels_of(layer: nn.Module) -> int | None:
    """Channels that ``layer`` puts out, where its type tells.

    >>> channels_of(nn.Conv2d(3, 8, 1)), channels_of(nn.BatchNorm2d(5)), channels_of(nn.ReLU())
    (8, 5, None)
    """
    for kind, attribute in _CHANNELS.items():
        if isinstance(layer, kind) and not isinstance(layer, _NO_MAPS):
            return int(getattr(layer, attribute))
    if isinstance(layer, nn.LayerNorm) and type(layer).__name__ == "LayerNorm2d":  # timm and torchvision: over channels
        return int(layer.normalized_shape[0])
    return len(layer.get_buffer("weight")) if _is_frozen(layer) else None


def _is_frozen(layer: nn.Module) -> bool:
    """Whether it is a frozen batch norm: what torchvision's and timm's have in common are these buffers."""
    return {"weight", "bias", "running_mean", "running_var"} <= layer._buffers.keys()


def is_pointwise(conv: nn.Module) -> bool:
    """Whether every output channel sees all input channels at one position."""
    return isinstance(conv, nn.Conv2d) and conv.groups == 1 and conv.kernel_size == (1, 1)


def is_depthwise(conv: nn.Module) -> bool:
    """Whether every output channel sees one input channel."""
    return isinstance(conv, nn.Conv2d) and conv.groups > 1 and conv.groups == conv.in_channels


def is_norm(layer: nn.Module) -> bool:
    """Whether ``layer`` normalises maps."""
    return (isinstance(layer, NORMS) and not isinstance(layer, _NO_MAPS)) or _is_frozen(layer)


def own_modules(model: nn.Module, *, every_name: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """All modules by name but the model itself and what :func:`foveal.insert` has attached to it.

    One that has several names comes once, or with ``every_name`` under each.
    """
    inside: list[str] = []
    for name, module in model.named_modules(remove_duplicate=not every_name):
        if hasattr(type(module), "_plain"):  # a layer with attention attached
            inside.append(f"{name}.attached" if name else "attached")
        if name and not any(name == each or name.startswith(f"{each}.") for each in inside):
            yield name, module


def convolutions(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """All convolutions by name, in order."""
    return [(name, module) for name, module in own_modules(model) if isinstance(module, nn.Conv2d)]


MOST = 5  # convolutions of a stem, or of a block that come wrapped; more are a network
_SHORTCUTS = re.compile(r"(?i:shortcut|downsample)|(^|_)(skip|sc(?![a-z]))|^(proj|identity|residual)$")
_HEADS = re.compile(r"(classifier|head|pre_logits|fc)\b")


def blocks(model: nn.Module) -> list[list[tuple[str, nn.Module]]]:
    """Layers, by full name, of each residual block and the like.

    A block has two or more convolutions among its children, not only 1×1 ones, and is no mere container. Or its
    convolutions come wrapped, each together with its norm, and are few. In a model that has no such blocks,
    depthwise-separable sequences are. Where the latter two are the exception in a model, they are no blocks, nor is
    attention that the model has of its own. Shortcuts, told by their names, are left out.
    """
    attention, plain, wrapped, sequences = _attention(model), [], [], []
    for name, module in own_modules(model):
        inner = type(module).__name__.endswith("Attn") or f"{name}.".startswith(attention)
        if inner or isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        children = [(f"{name}.{child}", each) for child, each in module.named_children()]
        layers = [child for child in children if not _SHORTCUTS.search(child[0].rsplit(".", 1)[-1])]
        direct = len(_convs(children))
        if isinstance(module, nn.Sequential):
            sequences.append(list(_unwrapped(name, module)))
        elif direct >= 2 and any(max(conv.kernel_size) > 1 for conv in _convs(module.named_modules())):
            plain.append(layers)
        elif not direct and (found := _wrapped(layers)):
            wrapped.append(found)
    half = sum(not name.startswith(attention) for name, _ in convolutions(model)) / 2
    separable = [layers for layers in sequences if _separable(layers)]
    wrapped, separable = (each if len(_convs(chain(*each))) >= half else [] for each in (wrapped, separable))
    return plain + wrapped or separable


def _convs(layers: Iterable[tuple[str, nn.Module]]) -> list[nn.Conv2d]:
    return [module for _, module in layers if isinstance(module, nn.Conv2d)]


def _separable(layers: list[tuple[str, nn.Module]]) -> bool:
    """Whether a depthwise and then a pointwise convolution are all that ``layers`` have."""
    convs = _convs(layers)
    return len(convs) == 2 and is_depthwise(convs[0]) and is_pointwise(convs[1])


def _wrapped(way: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The layers of a block whose convolutions come wrapped; none if it is no such block."""
    layers = [pair for child in way for pair in _unwrapped(*child)]
    convs = len(_convs(layers))
    nested = any(
        isinstance(inner, nn.Conv2d) and inner is not module
        for _, module in layers
        if not _EXCITES.search(type(module).__name__)
        for inner in module.modules()
    )
    return layers if 2 <= convs <= MOST and not nested else []


def _unwrapped(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What a sequence, or a convolution wrapped together with its norm, consists of; else the module itself."""
    children = list(module.named_children())
    convs, norms = sum(isinstance(m, nn.Conv2d) for _, m in children), sum(is_norm(m) for _, m in children)
    if isinstance(module, nn.Sequential) or (convs == 1 and norms):
        for child, each in children:
            yield from _unwrapped(f"{name}.{child}", each)
    else:
        yield name, module


def block_ends(model: nn.Module) -> list[str]:
    """Where a gate usually goes: after the last norm of every block, before its shortcut is added.

    Where the block has its norms before its convolutions (pre-activation), after the last convolution. In a
    depthwise-separable block (a depthwise and a pointwise convolution) after both norms. In a model without blocks,
    after the norm that follows each convolution, or after the convolution itself if there is none.
    """
    names: list[str] = []
    for layers in blocks(model):
        both = [(name, module) for name, module in layers if channels_of(module)]
        norms = [name for name, module in both if not isinstance(module, nn.Conv2d)]
        if norms:
            names += norms if _separable(layers) else [both[-1][0]]
    return list(dict.fromkeys(names)) or _after_convolutions(model)


def _after_convolutions(model: nn.Module) -> list[str]:
    gates = _attention(model)
    leaves = [(n, m) for n, m in own_modules(model) if isinstance(m, nn.Conv2d) or is_norm(m)]
    leaves = [(n, m) for n, m in leaves if not n.startswith(gates)]
    leaves = [(n, m) for n, m in leaves if not _HEADS.match(n)] or leaves
    found = []
    for i, (name, module) in enumerate(leaves):
        if isinstance(module, nn.Conv2d):
            follows = leaves[i + 1] if i + 1 < len(leaves) else None
            own = follows and is_norm(follows[1]) and channels_of(follows[1]) == module.out_channels
            found.append(follows[0] if own and follows else name)
    return found


def _attention(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the names inside attention that a model has: ours, squeeze and excitation, and the like."""
    found = (n for n, m in own_modules(model) if isinstance(m, Attends) or _EXCITES.search(type(m).__name__))
    return tuple(f"{name}." for name in found)


def spatial_convolutions(model: nn.Module) -> list[str]:
    """Where kernel attention usually goes: every dense convolution wider than 1×1 but those of the stem.

    The stem is the first convolution and what else precedes the first block in another part of the model. Where such a
    convolution is split into a depthwise and a pointwise one (MobileNet), on the latter. What lies inside
    squeeze-and-excitation modules and the like does not count.
    """
    gates = _attention(model)
    found = [(name, conv) for name, conv in convolutions(model) if not name.startswith(gates)]
    stem = _stem(model, [name for name, _ in found])
    return [
        name
        for i, ((_, before), (name, conv)) in enumerate(pairwise(found), 1)
        if (is_depthwise(before) and is_pointwise(conv))
        or (i >= stem and max(conv.kernel_size) > 1 and not is_depthwise(conv))
    ]


def _stem(model: nn.Module, convs: list[str]) -> int:
    """How many of the convolutions, by name, are the stem."""
    inside = {name for layers in blocks(model) for name, module in layers if isinstance(module, nn.Conv2d)}
    if not (block := next((name for name in convs if name in inside), "")):
        return 1
    parents = accumulate(block.split("."), "{}.{}".format)
    part = next((f"{each}." for each in parents if not f"{convs[0]}.".startswith(f"{each}.")), f"{block}.")
    before = next(i for i, name in enumerate(convs) if f"{name}.".startswith(part))
    return before if 1 <= before <= MOST else 1
