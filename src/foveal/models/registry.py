"""Names of whole networks. Whatever is registered here can be had from timm by the same name."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import timm
from torch import nn

from foveal.errors import UserError, unknown
from foveal.plugins import load_plugins
from foveal.typed import check_options


@dataclass(frozen=True)
class _Model:
    build: Callable[..., nn.Module]
    options: Callable[..., Any]  # whose signature tells which options there are


_MODELS: dict[str, _Model] = {}
_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")  # what timm passes along with the user's options
Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def register(options: Callable[..., Any]) -> Callable[[Builder], Builder]:
    """Register the network that the decorated function makes, under the function's name.

    Args:
        options: the class or function that the function's keyword arguments end up in; they are checked against it. The
            first line of the decorated function's docstring is what ``foveal list models`` shows.
    """

    def decorate(build: Builder) -> Builder:
        name = build.__name__

        def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
            if pretrained:
                raise UserError(f"no pretrained weights are published for {name}; train it with `foveal train`")
            return create_model(name, **{k: v for k, v in kwargs.items() if k not in _TIMM})

        entrypoint.__name__, entrypoint.__module__, entrypoint.__doc__ = name, build.__module__, build.__doc__
        timm.models.register_model(entrypoint)
        _MODELS[name] = _Model(build, options)
        return build

    return decorate


def _known() -> dict[str, _Model]:
    load_plugins()
    return _MODELS


def create_model(name: str, **options: Any) -> nn.Module:
    """Build the network called ``name``.

    >>> sum(p.numel() for p in create_model("hattnet_ctx").parameters())
    59273
    """
    known = _known()
    if name not in known:
        raise unknown("model", name, known)
    model = known[name]
    checked = check_options(model.options, options, f"model {name}")
    try:
        return model.build(**checked)
    except UserError:
        raise
    except (TypeError, ValueError) as error:  # a value that torch or timm refuses, such as a dropout of 2
        raise UserError(f"model {name}: {error}") from error


def any_model(name: str, **options: Any) -> nn.Module:
    """The network called ``name``, of foveal, timm or torchvision (in this order), with random weights.

    >>> any_model("resnet18", num_classes=7).fc.out_features
    7
    """
    known = _known()
    if name in known:
        return create_model(name, **options)
    import torchvision

    others = torchvision.models.list_models()
    if not timm.is_model(name) and name not in others:
        raise unknown("model", name, {*known, *timm.list_models(), *others})
    build = partial(timm.create_model, name)
    if not timm.is_model(name):
        build = torchvision.models.get_model_builder(name)
        if "weights_backbone" in inspect.signature(build).parameters:  # detectors would fetch them
            build = partial(build, weights_backbone=None)
    try:
        return build(**options)
    except Exception as error:  # of someone else's code, over options that the user gave
        raise UserError(f"model {name}: {' '.join(str(error).split())}") from error


def accepts(name: str, option: str) -> bool:
    """Whether the network called ``name`` has this option."""
    known = _known()
    return name in known and option in inspect.signature(known[name].options).parameters


def list_models(pattern: str = "*") -> list[str]:
    """Names of all networks that match a glob.

    >>> list_models("hattnet*")
    ['hattnet', 'hattnet_ctx', 'hattnet_ctx_vgg16', 'hattnet_vgg16']
    """
    return sorted(fnmatch.filter(_known(), pattern))


def summary(name: str) -> str:
    """One line on the network called ``name``."""
    return (_known()[name].build.__doc__ or "").strip().split("\n")[0]
