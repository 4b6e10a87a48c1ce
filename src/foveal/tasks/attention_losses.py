"""Losses on attention that a recipe names (``loss.attention``), a function of the record and the batch each."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foveal import registry
from foveal.attention import AttentionRecord, watch
from foveal.errors import UserError
from foveal.plugins import own_module
from foveal.recipe import AttentionLoss
from foveal.typed import check_names

ClassMaps = Callable[[Mapping[str, Tensor], str, Any], AttentionRecord]


class AttentionLosses:
    """The losses of ``loss.attention`` by name; false if there are none to compute.

    Args:
        options: of the recipe.
        model: whose attention is watched.
        weight: of a loss by its name; those of weight 0 are checked and not computed.
    """

    def __init__(
        self, options: Mapping[str, AttentionLoss], model: nn.Module, weight: Callable[[str], float] = lambda name: 1.0
    ) -> None:
        self.options, self.model = dict(options), model
        self.computed = [name for name in self.options if weight(name)]
        self.functions = {name: find_loss(option.loss, name) for name, option in self.options.items()}
        self.watches: dict[str, watch] = {}
        for name, option in self.options.items():
            _check_options(self.functions[name], option.options, f"loss.attention.{name}.options")
            if option.on == "records":
                try:
                    self.watches[name] = watch(model, option.at)
                except UserError as error:
                    raise UserError(f"loss.attention.{name}: {error}") from error
            elif not isinstance(option.at, str):
                raise UserError(f"loss.attention.{name}.at: expected the name of the layer of the class maps")

    def __bool__(self) -> bool:
        return bool(self.computed)

    @property
    def names(self) -> list[str]:
        """Names of the losses."""
        return list(self.options)

    @property
    def need_masks(self) -> bool:
        """Whether some loss cannot do without masks."""
        return any(getattr(self.functions[name], "needs_mask", False) for name in self.computed)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Mapping[str, watch]]:
        """Watch the model while it runs."""
        with contextlib.ExitStack() as stack:
            for name, seen in self.watches.items():
                if name in self.computed:
                    stack.enter_context(seen)
            yield self.watches

    def __call__(
        self, seen: Mapping[str, watch], batch: Mapping[str, Tensor], class_maps: ClassMaps
    ) -> dict[str, Tensor]:
        """Each loss by name, its mean over the attention it looks at."""
        losses = {}
        for name in self.computed:
            option = self.options[name]
            if option.on == "records":
                records = list(seen[name].values())
                if not records:
                    raise UserError(f"loss.attention.{name}: the model has computed no attention at {option.at or '*'}")
            else:
                records = [class_maps(batch, str(option.at), option.kind)]
            values = [self.functions[name](record, batch, **option.options) for record in records]
            for value in values:
                if not isinstance(value, Tensor) or value.ndim:
                    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise UserError(f"loss.attention.{name}: {option.loss} must return a scalar tensor, got {shape}")
            losses[name] = torch.stack(values).mean()
        return losses


def _check_options(loss: Callable[..., Tensor], options: Mapping[str, Any], where: str) -> None:
    """Raise unless ``loss`` takes the options; the record and the batch come before them."""
    arguments = inspect.signature(loss).parameters
    if not any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values()):
        check_names(options, list(arguments)[2:], where)


def find_loss(name: str, key: str) -> Callable[..., Tensor]:
    """The registered loss called ``name``, or the function that ``module:function`` means."""
    module, colon, function = name.partition(":")
    if not colon:
        return registry.attention_losses.get(name)
    try:
        loss = getattr(own_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"loss.attention.{key}.loss={name} cannot be loaded: {error}; use module:function") from error
    if not callable(loss):
        raise UserError(f"loss.attention.{key}.loss={name} is not a function but {type(loss).__name__}")
    return loss
