"""What was inserted into a model, as plain values, and the same insertion again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from foveal.attention.insertion.attached import attached_modules
from foveal.attention.insertion.insert import insert
from foveal.attention.insertion.registry import Mechanism


def inserted(model: nn.Module) -> list[dict[str, Any]]:
    """What :func:`foveal.insert` put into ``model``: mechanism, exact sites, start and options.

    >>> import timm, foveal
    >>> model = timm.create_model("resnet18")
    >>> done = foveal.insert(model, "aw", at="layer4.*.conv2", reduction=8)
    >>> inserted(model)
    [{'mechanism': 'aw', 'start': 'identity', 'reduction': 8, 'at': ['layer4.0.conv2', 'layer4.1.conv2']}]
    """
    groups: dict[str, dict[str, Any]] = {}
    for site, layer in model.named_modules():
        for key, module in attached_modules(layer).items():
            if isinstance(module, Mechanism):
                description = {"mechanism": re.sub(r"-\d+$", "", key), **module.settings}
                name = (
                    f"{key} {json.dumps(description, sort_keys=True, default=str)}"  # a second one of a layer follows
                )
                groups.setdefault(name, {**description, "at": []})["at"].append(site)
    return list(groups.values())


def reinsert(model: nn.Module, descriptions: Iterable[Mapping[str, Any]]) -> None:
    """Insert again what :func:`inserted` described."""
    for description in descriptions:
        insert(model, **{"stack": True, **description})
