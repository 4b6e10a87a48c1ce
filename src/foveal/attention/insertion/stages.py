"""Stages of a network and the blocks in them: where mechanisms go that belong inside the deeper blocks."""

from __future__ import annotations

from itertools import chain, pairwise

from torch import nn

from foveal.attention.insertion.family_rules import BLOCKS, between, family_of, matches
from foveal.attention.insertion.layers import (
    SHORTCUTS,
    attention_prefixes,
    blocks,
    convolutions,
    own_modules,
    stem_length,
)
from foveal.attention.insertion.registry import Gate

MOST = 5  # stages of a network whose stages are single blocks; more parts are blocks
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)
Convs = dict[str, nn.Conv2d]  # by name, in order


def block_convolutions(model: nn.Module, stages: int) -> list[str]:
    """Names of the spatial convolution of each block of the last ``stages`` stages.

    It is the last convolution wider than 1×1 that another convolution follows: the second of a bottleneck, the first
    of a basic block, the depthwise one of an inverted residual. Where none follows (ConvNeXt, DenseNet), the last one.
    """
    return [name for name, _ in _sites(model, stages)]


def inside_blocks(model: nn.Module, stages: int) -> dict[str, bool]:
    """The place after the spatial convolution of each block, with its norm and activation.

    Returns:
        The convolution that follows it in the block, and True: the place is its input. Where none follows, the spatial
        convolution itself, and False: the place is its output.
    """
    return {following or name: bool(following) for name, following in _sites(model, stages)}


class InsideBlocks(Gate):
    """A gate that usually goes inside the blocks of the last two stages, after their spatial convolution."""

    stages = 2

    @classmethod
    def usual(cls, model: nn.Module) -> list[str]:
        """One place in each block."""
        return list(inside_blocks(model, cls.stages))

    @classmethod
    def usual_before(cls, model: nn.Module) -> list[str]:
        """Where the place is the input of a layer."""
        return [name for name, before in inside_blocks(model, cls.stages).items() if before]


def _sites(model: nn.Module, stages: int) -> list[tuple[str, str]]:
    """Spatial convolution and the one that follows, or "", of each block of the last stages."""
    sites = []
    for block in chain(*_stages(model)[-stages:]):
        pairs = [(name, following) for name, following in pairwise([*block, ""]) if _is_spatial(block[name])]
        followed = [pair for pair in pairs if pair[1]]
        sites += (followed or pairs)[-1:]
    return sites


def _is_spatial(conv: nn.Conv2d) -> bool:
    """Whether it looks at neighbours, and is no patch embedding, whose patches do not overlap."""
    return max(conv.kernel_size) > 1 and (conv.kernel_size != conv.stride)


def _stages(model: nn.Module) -> list[list[Convs]]:
    """Blocks by stage, each with its convolutions except the shortcut's and those of attention modules.

    Stages are the parts that the network itself consists of (``layer1`` … ``layer4``). If these are many single blocks,
    a stage begins where a block or a pooling before it lowers the resolution. Some families have rules of their own.
    """
    convs = _block_layers(model)
    stages = _known_blocks(model, convs) or [_blocks(model, part) for part in _split(_network(convs)).values()]
    stages = [stage for stage in stages if stage]
    if len(stages) <= MOST or any(len(stage) > 1 for stage in stages):
        return stages
    return _by_resolution(model, [stage[0] for stage in stages])


def _known_blocks(model: nn.Module, convs: Convs) -> list[list[Convs]]:
    """Blocks by stage in families whose blocks have known names, or are within a tree of modules (DLA); else none."""
    family = family_of(model)
    if family == "dla":
        members = [(layers[0][0].partition(".")[0], {name for name, _ in layers}) for layers in blocks(model)]
    else:
        names = [name for name, _ in own_modules(model) if matches(name, BLOCKS.get(family, ""))]
        members = [
            (".".join(block.split(".")[:2]), {name for name in convs if name.startswith(f"{block}.")})
            for block in names
        ]
    stages: dict[str, list[Convs]] = {}
    for stage, inside in members:
        block = {name: conv for name, conv in convs.items() if name in inside}
        if any(map(_is_spatial, block.values())):
            stages.setdefault(stage, []).append(block)
    return list(stages.values())


def _block_layers(model: nn.Module) -> Convs:
    """The convolutions of a model except those of the stem, of shortcuts and of attention modules."""
    family = family_of(model)
    gates = attention_prefixes(model)
    convs = {name: conv for name, conv in convolutions(model) if not name.startswith(gates)}
    stem = list(convs)[: stem_length(model, list(convs))]
    # Split attention, as in ResNeSt, is a spatial convolution with 1×1 ones of its own on pooled maps.
    split = tuple(f"{name}." for name, module in own_modules(model) if type(module).__name__.endswith("Attn"))
    return {
        name: conv
        for name, conv in convs.items()
        if name not in stem
        and not between(name, family)
        and not any(map(SHORTCUTS.search, name.split(".")))
        and (_is_spatial(conv) or not name.startswith(split))
    }


def _split(convs: Convs) -> dict[str, Convs]:
    """The children, by name, of the deepest module that holds all of ``convs``; each with its own."""
    if len(convs) < 2:
        return dict.fromkeys(convs, convs)
    paths = [name.split(".") for name in convs]
    common = next(i for i, level in enumerate(zip(*paths, strict=False)) if len(set(level)) > 1)
    children: dict[str, Convs] = {}
    for path, (name, conv) in zip(paths, convs.items(), strict=True):
        children.setdefault(".".join(path[: common + 1]), {})[name] = conv
    return children


def _network(convs: Convs) -> Convs:
    """``convs`` without those of a small part beside the network, such as a head."""
    parts = [part for part in _split(convs).values() if any(map(_is_spatial, part.values()))]
    largest = max(parts, key=len, default={})
    if len(largest) < len(convs) and (len(parts) == 1 or (len(parts) == 2 and len(largest) > 0.75 * len(convs))):
        return _network(largest)
    return convs


def _blocks(model: nn.Module, stage: Convs) -> list[Convs]:
    """The blocks of a stage that have a spatial convolution: its children, or itself if these are layers."""
    parts = _split(stage)
    children = [model.get_submodule(name) for name in parts]
    layers = all(map(_is_layer, children)) or any(isinstance(child, nn.Conv2d) for child in children)
    return [block for block in ([stage] if layers else parts.values()) if any(map(_is_spatial, block.values()))]


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a convolution, perhaps together with its norm and activation, but nothing more."""
    modules = list(module.modules())
    return sum(isinstance(m, nn.Conv2d) for m in modules) == 1 and not any(isinstance(m, nn.Linear) for m in modules)


def _by_resolution(model: nn.Module, blocks: list[Convs]) -> list[list[Convs]]:
    """Blocks in a row, divided into stages where the resolution becomes lower."""
    order = {name: i for i, (name, _) in enumerate(own_modules(model))}
    pools = [order[name] for name, m in own_modules(model) if isinstance(m, _POOLS) and m.stride not in (1, (1, 1))]
    stages: list[list[Convs]] = []
    last = -1
    for block in blocks:
        first = order[next(iter(block))]
        lower = any(max(conv.stride) > 1 for conv in block.values()) or any(last < pool < first for pool in pools)
        if lower or not stages:
            stages.append([])
        stages[-1].append(block)
        last = first
    return stages
