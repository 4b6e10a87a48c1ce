"""Backbones of detectors: networks of torchvision and timm that put out maps of several strides.

ResNets are torchvision's own, taken apart as torchvision's detectors do, so that weights of these fit. Other networks
of torchvision are taken apart where their resolution changes, and those of timm by its ``features_only``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import timm
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from foveal.compat import BATCH_NORM
from foveal.errors import UserError, unknown

LEAST, SINGLE = 4, 16  # stride of the first map of a pyramid, and of a map that is alone
STAGES = ("layer1", "layer2", "layer3", "layer4")  # of a ResNet
PROBE = 64  # side of the image that strides are found with
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Maps:
    """A network that puts out maps, by name or in order.

    Attributes:
        body: the network.
        channels: of its maps.
        strides: of its maps.
    """

    body: nn.Module
    channels: list[int]
    strides: list[int]


class Backbone(nn.Module):
    """A network that puts out maps; a subclass makes those of a detector of them.

    Args:
        maps: of the network.
        width: channels of the detector's maps.
        frozen_norms: whether the batch norms of the network keep their statistics and weights. Norms of attention
            that is inserted later are trained in any case.
    """

    def __init__(self, maps: Maps, width: int, *, frozen_norms: bool = False) -> None:
        super().__init__()
        self.body, self.out_channels = maps.body, width
        norms = {name: m for name, m in maps.body.named_modules() if isinstance(m, BATCH_NORM)} if frozen_norms else {}
        self.frozen_norms = tuple(norms)
        for norm in norms.values():
            norm.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of everything but frozen norms, which are always in eval mode."""
        super().train(mode)
        for name in self.frozen_norms:
            self.body.get_submodule(name).training = False  # of the norm alone, not of attention on it
        return self


class PyramidBackbone(Backbone):
    """A network and a feature pyramid on its maps; arguments as in :class:`Backbone`."""

    def __init__(self, maps: Maps, width: int, *, frozen_norms: bool = False) -> None:
        super().__init__(maps, width, frozen_norms=frozen_norms)
        self.fpn = FeaturePyramidNetwork(maps.channels, width, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Maps by name from (N, 3, H, W): ``0`` the finest, ``pool`` the coarsest; (N, width, h, w) each."""
        return self.fpn(by_name(self.body(images)))


class SingleMap(Backbone):
    """A network and a 1×1 convolution on its last map; arguments as in :class:`Backbone`."""

    def __init__(self, maps: Maps, width: int, *, frozen_norms: bool = False) -> None:
        super().__init__(maps, width, frozen_norms=frozen_norms)
        self.reduce = nn.Sequential(nn.Conv2d(maps.channels[-1], width, 1), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """The map ``0``, (N, width, h, w), of images (N, 3, H, W)."""
        return {"0": self.reduce(list(by_name(self.body(images)).values())[-1])}


def by_name(maps: Any) -> OrderedDict[str, Tensor]:
    """Maps as an ordered dict, called by their numbers."""
    values = maps.values() if isinstance(maps, Mapping) else maps
    return OrderedDict((str(n), value) for n, value in enumerate(values))


def feature_maps(
    name: str, *, single: bool, features: Sequence[int] | None, options: Options, pretrained: bool
) -> Maps:
    """The network called ``name``, of torchvision or timm, taken apart into its maps.

    Args:
        name: of the network.
        single: whether one map of stride 16 is wanted, rather than all.
        features: which maps; None for the usual ones.
        options: of the network.
        pretrained: whether to download its weights.
    """
    of_torchvision = torchvision.models.list_models(module=torchvision.models)
    resnet = name in of_torchvision and hasattr(torchvision.models.resnet, name)
    if resnet and not set(options) - {"width_per_group", "groups", "replace_stride_with_dilation"}:
        return _resnet(name, single, features, options, pretrained)
    if timm.is_model(name):
        return _of_timm(name, single, features, options, pretrained)
    if name not in of_torchvision:
        raise unknown("backbone", name, {*timm.list_models(), *of_torchvision})
    return _of_torchvision(name, single, features, options, pretrained)


def _resnet(name: str, single: bool, features: Sequence[int] | None, options: Options, pretrained: bool) -> Maps:
    builder = torchvision.models.get_model_builder(name)
    settings: dict[str, Any] = {"weights": "DEFAULT" if pretrained else None, **options}
    dilated = single and features is None and name not in ("resnet18", "resnet34")  # whose blocks cannot be dilated
    if dilated:
        settings["replace_stride_with_dilation"] = [False, False, True]
    network = builder(**settings)
    channels = [network.inplanes // 8 * 2**n for n in range(4)]
    strides = [4, 8, 16, 16 if dilated else 32]
    usual = ([3] if dilated else [2]) if single else [0, 1, 2, 3]
    chosen = chosen_maps(features, usual, strides, name, single)
    stages, widths = {STAGES[n]: str(i) for i, n in enumerate(chosen)}, [channels[n] for n in chosen]
    return Maps(BackboneWithFPN(network, stages, widths, 1).body, widths, [strides[n] for n in chosen])


def _of_timm(name: str, single: bool, features: Sequence[int] | None, options: Options, pretrained: bool) -> Maps:
    arguments = {"features_only": True, "pretrained": pretrained, **options}
    try:
        with torch.device("meta"):
            trial: Any = timm.create_model(name, **{**arguments, "pretrained": False})
        strides = trial.feature_info.reduction()
        chosen = chosen_maps(features, usual_maps(strides, single), strides, name, single)
        body: Any = timm.create_model(name, **arguments, out_indices=tuple(chosen))
    except (TypeError, AssertionError, NotImplementedError, RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise no_maps(name, error) from error
    return Maps(body, body.feature_info.channels(), body.feature_info.reduction())


def _of_torchvision(
    name: str, single: bool, features: Sequence[int] | None, options: Options, pretrained: bool
) -> Maps:
    """A network of torchvision, taken apart after the last layer of each resolution."""
    try:
        network = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None, **options)
        last = last_of_each_stride(network)
        strides = list(last)
        chosen = chosen_maps(features, usual_maps(strides, single), strides, name, single)
        nodes = {last[strides[n]][0]: str(i) for i, n in enumerate(chosen)}
        body = create_feature_extractor(network, nodes)
    except Exception as error:  # of torch.fx, or because of the user's options
        if isinstance(error, UserError):
            raise
        raise no_maps(name, error) from error
    return Maps(body, [last[strides[n]][1] for n in chosen], [strides[n] for n in chosen])


def last_of_each_stride(network: nn.Module) -> dict[int, tuple[str, int]]:
    """Name and channels of the last part of a network that puts out maps of each stride.

    Parts are the children of the network and of its sequences.
    """
    seen: dict[int, tuple[str, int]] = {}
    parts = [(n, m) for n, m in network.named_modules() if n and all(_container(network, p) for p in _parents(n))]

    def hook(name: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and 1 < output.shape[-1] == output.shape[-2]:
                seen[PROBE // output.shape[-1]] = (name, output.shape[1])

        return note

    handles = [module.register_forward_hook(hook(name)) for name, module in parts if not _container(network, name)]
    training = network.training
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(2, 3, PROBE, PROBE))
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()
    strides = sorted(seen)
    if any(after != 2 * before for before, after in pairwise(strides)):
        raise ValueError(f"its maps have strides {strides}, which do not double from one to the next")
    return {stride: seen[stride] for stride in strides}


def _parents(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _container(network: nn.Module, name: str) -> bool:
    """Whether a module only calls its children one after the other."""
    return type(network.get_submodule(name)) in (nn.Sequential, nn.ModuleList)


def usual_maps(strides: Sequence[int], single: bool) -> list[int]:
    """Numbers of the maps that are usually taken: those of stride 4 and more, or the last of stride 16."""
    if single:
        return [max(n for n, stride in enumerate(strides) if stride <= SINGLE)]
    return [n for n, stride in enumerate(strides) if stride >= LEAST]


def chosen_maps(
    features: Sequence[int] | None, usual: list[int], strides: Sequence[int], name: str, single: bool
) -> list[int]:
    """Numbers of the maps to take."""
    chosen = usual if features is None else list(features)
    if not chosen or not all(0 <= n < len(strides) for n in chosen) or chosen != sorted(set(chosen)):
        raise UserError(
            f"features={chosen}: {name} has maps 0 to {len(strides) - 1}, of strides {list(strides)}; name some of "
            "them in order"
        )
    if single and len(chosen) != 1:
        raise UserError(f"features={chosen}: without a pyramid (fpn=false) one map is taken; name one")
    return chosen


def no_maps(name: str, error: Exception) -> UserError:
    """The error of a backbone that cannot be taken apart."""
    reason = " ".join(str(error).split())
    return UserError(f"backbone={name} cannot return feature maps ({reason}); use another one, such as resnet50")


def freeze_first(body: nn.Module, count: int, name: str) -> None:
    """Stop training the stem (1), the first stage (2) and so on of a network."""
    if not count:
        return
    parts: dict[str, list[nn.Parameter]] = {"stem": []}
    for parameter_name, parameter in body.named_parameters():
        first = parameter_name.split(".")[0]
        stage = first if first.rstrip("0123456789_").startswith(("layer", "stages", "blocks")) else "stem"
        parts.setdefault(stage, []).append(parameter)
    if not 0 <= count <= len(parts) or len(parts) == 1:
        raise UserError(f"frozen={count}: {name} has {len(parts)} parts that can be frozen ({', '.join(parts)})")
    for stage in list(parts)[:count]:
        for parameter in parts[stage]:
            parameter.requires_grad_(False)
