"""Names of whole networks. Whatever is registered here can be had from timm by the same name."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import timm
from torch import nn

from foveal.errors import UserError, unknown

_MODELS: dict[str, Callable[..., nn.Module]] = {}


def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Register the network that ``build(**options)`` makes, under the function's name.

    The first line of its docstring is what ``foveal list models`` shows.
    """
    name = build.__name__

    def entrypoint(pretrained: bool = False, **options: Any) -> nn.Module:
        if pretrained:
            raise UserError(f"no pretrained weights are published for {name}; train it with `foveal train`")
        # timm passes its own bookkeeping along with the user's options.
        return build(
            **{k: v for k, v in options.items() if k not in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")}
        )

    entrypoint.__name__, entrypoint.__module__, entrypoint.__doc__ = name, build.__module__, build.__doc__
    timm.models.register_model(entrypoint)
    _MODELS[name] = build
    return build


def create_model(name: str, **options: Any) -> nn.Module:
    """Build the network called ``name``.

    >>> sum(p.numel() for p in create_model("hattnet_ctx").parameters())
    59273
    """
    if name not in _MODELS:
        raise unknown("model", name, _MODELS)
    try:
        return _MODELS[name](**options)
    except TypeError as error:
        raise UserError(f"model {name!r}: {error}") from error


def list_models(pattern: str = "*") -> list[str]:
    """Names of all networks that match a glob.

    >>> list_models("hattnet*")
    ['hattnet', 'hattnet_ctx', 'hattnet_ctx_vgg16', 'hattnet_vgg16']
    """
    return sorted(fnmatch.filter(_MODELS, pattern))


def summary(name: str) -> str:
    """One line on the network called ``name``."""
    return (_MODELS[name].__doc__ or "").strip().split("\n")[0]
