"""Networks by name; timm knows each of them by the same name."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import timm
from torch import nn

from foveal.errors import UnknownNameError, UserError, unknown
from foveal.plugins import load_plugins
from foveal.typed import check_options


@dataclass(frozen=True)
class _Model:
    build: Callable[..., nn.Module]
    options: Callable[..., Any]  # its signature has the options


_MODELS: dict[str, _Model] = {}
_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")  # arguments that timm adds to the user's options
Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


def register(options: Callable[..., Any]) -> Callable[[Builder], Builder]:
    """Register the network that the decorated function builds, under the function's name.

    ``foveal list models`` shows the first line of the function's docstring.

    Args:
        options: the class or function whose signature has the options; the function's keyword arguments are checked
            against it.
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
    except (TypeError, ValueError) as error:  # a value that torch or timm rejects, such as a dropout of 2
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

    of_torchvision = torchvision.models.list_models()
    if not timm.is_model(name) and name not in of_torchvision:
        error = unknown("model", name, {*known, *timm.list_models(), *of_torchvision})
        if str(error).endswith("?"):  # a close match
            raise error
        raise UnknownNameError(
            f"unknown model {name!r}; `foveal list models` has foveal's own, others are named as in timm or torchvision"
        )
    build = partial(timm.create_model, name)
    if not timm.is_model(name):
        build = torchvision.models.get_model_builder(name)
        if "weights_backbone" in inspect.signature(build).parameters:  # detectors download them by default
            build = partial(build, weights_backbone=None)
    try:
        return build(**options)
    except Exception as error:  # raised by timm or torchvision because of the user's options
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
