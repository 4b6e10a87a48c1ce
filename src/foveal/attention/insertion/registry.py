"""The mechanisms that can be inserted into a live model, by name.

A mechanism is a module class with a ``serves`` rule. There are two kinds. A *gate* takes the output of the layer it is
put on and returns it attended: ``forward(x)``. A *kernel* mechanism replaces the arithmetic of a convolution:
``convolve(conv, x)``. Both are built for one layer by ``for_layer(layer, start=..., **options)``.

Register your own with a decorator. An installed package can offer it through the entry point group
``foveal.mechanisms`` (each entry point names the decorated class, or a module with some):

>>> from torch import nn
>>> @register_mechanism("halve")
... class Halve(Gate):
...     '''Multiply by a learned number that starts at one.'''
...     def __init__(self, channels, *, start="identity"):
...         super().__init__()
...         self.scale = nn.Parameter(torch.ones(()))
...     def forward(self, x):
...         return x * self.scale
>>> "halve" in mechanisms()
True
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from foveal.attention.insertion.layers import block_ends, channels_of
from foveal.attention.records.record import Attends
from foveal.errors import UserError, unknown
from foveal.kernels.gates import plain
from foveal.plugins import load_plugins

Start = Literal["identity", "paper"]
GROUP = "foveal.mechanisms"


NO_MAPS = (
    *(nn.Linear, nn.LayerNorm, nn.MultiheadAttention, nn.Embedding),
    *(nn.Conv1d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm3d),
)
"""Layers of tokens, sequences and volumes."""


class Tap(nn.Module):
    """Sees the arguments of the layer it is attached to, for a mechanism on another layer; without parameters.

    Attributes:
        site: name of the layer.
    """

    site: str = ""

    def take(self, *args: Any, **kwargs: Any) -> None:
        """Called with the layer's arguments before the layer runs."""
        raise TypeError(f"{type(self).__name__} does not define take(...)")


class Mechanism(Attends):
    """Base of everything that :func:`foveal.insert` can put on a layer.

    Attributes:
        site: name of the layer it was put on.
        before: whether it attends to the layer's input instead of its output.
        settings: start and options that it was inserted with.
        filled: arguments that ``for_layer`` takes from the layer; they are not options of :func:`foveal.insert`.
        in_backbone: whether its default site in a detector or segmenter is the backbone.
        stages: number of last stages inside whose blocks it usually goes; 0 if it goes elsewhere.
    """

    site: str = ""
    before: bool = False
    settings: Mapping[str, Any] = MappingProxyType({})
    filled: tuple[str, ...] = ()
    in_backbone: bool = True
    stages: int = 0

    @classmethod
    def serves(cls, layer: nn.Module) -> str | None:
        """Why this mechanism cannot be put on ``layer``, or None if it can."""
        return None

    @classmethod
    def usual(cls, model: nn.Module) -> list[str]:
        """Names of the layers it is usually put on."""
        return block_ends(model)

    @classmethod
    def usual_before(cls, model: nn.Module) -> list[str]:
        """Those of :meth:`usual` whose input it attends to, not their output."""
        return []

    @classmethod
    def for_layer(cls, layer: nn.Module, *, start: Start, **options: Any) -> Self:
        """Build it for ``layer``."""
        raise TypeError(f"{cls.__name__} does not define for_layer(layer, start=..., **options)")

    def beside(self, model: nn.Module, site: str) -> dict[str, Tap]:
        """What must be attached to other layers of ``model``, by their names, when this is put on ``site``."""
        return {}


class Gate(Mechanism):
    """A mechanism that attends to the output of a layer; built as ``cls(channels, start=..., **options)``."""

    @classmethod
    def serves(cls, layer: nn.Module) -> str | None:
        """Any layer whose number of output channels is known."""
        if isinstance(layer, NO_MAPS) and channels_of(layer) is None:
            return (
                "it does not put out 2-D feature maps (N, C, H, W), the only ones that are served; choose nn.Conv2d or "
                "its norm, or write a mechanism for such layers (foveal.register_mechanism)"
            )
        if channels_of(layer) is None:
            return "its number of output channels is not known; choose a convolution or norm"
        return None

    @classmethod
    def for_layer(cls, layer: nn.Module, *, start: Start, before: bool = False, **options: Any) -> Self:
        """Build it for the layer's output channels, or for the input channels of a convolution."""
        channels = getattr(layer, "in_channels", None) if before else channels_of(layer)
        if channels is None:
            raise UserError("its number of input channels is not known; before=True is for convolutions")
        return cls(channels, start=start, **options)  # type: ignore[call-arg]


TORCHSCRIPT = (
    "attention does not work in TorchScript (torch.jit, torch.onnx.export(dynamo=False)): use torch.export, or "
    "torch.onnx.export(..., dynamo=True)"
)


def refuse_tracing() -> None:
    """Raise inside ``torch.jit.trace``: what is chosen by the shape of one batch would be wrong for another."""
    if torch.jit.is_tracing():
        raise UserError(TORCHSCRIPT)


class Kernel(Mechanism):
    """A mechanism that replaces the arithmetic of a convolution."""

    filled: tuple[str, ...] = ("in_channels", "out_channels", "kernel_size", "groups")

    def convolve(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """The result that replaces ``conv(x)``."""
        raise TypeError(f"{type(self).__name__} does not define convolve(conv, x)")


def bottleneck(width: int, reduction: int) -> int:
    """Width of a mechanism's bottleneck: ``width`` divided by ``reduction``, at least 1.

    >>> bottleneck(64, 16), bottleneck(8, 16)
    (4, 1)
    """
    if width < 1:
        raise UserError(f"{width} channels: expected at least 1")
    if reduction < 1:
        raise UserError(f"reduction={reduction}: expected at least 1")
    if reduction > max(width, 16):  # 16 is usual, also for narrow layers
        warnings.warn(f"reduction={reduction} is more than the {width} channels: the bottleneck has 1", stacklevel=2)
    return max(1, width // reduction)


def check_start(start: str) -> None:
    """Raise unless ``start`` is one of the two initialisations."""
    if start not in ("identity", "paper"):
        raise unknown("start", str(start), ("identity", "paper"))


class Blend(nn.Module):
    """x + s·(attended − x) with a learned s that starts at zero: at first the identity, but with a gradient.

    With ``start="paper"`` it returns the attended tensor itself and has no parameter.

    Attributes:
        amount: s, (), or None.
    """

    def __init__(self, start: Start) -> None:
        super().__init__()
        check_start(start)
        self.amount = nn.Parameter(torch.zeros(())) if start == "identity" else None

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Blend ``x`` (N, C, H, W) and its product with ``gate`` (N, C), in one multiplication."""
        return plain.multiply(x, gate, self.amount)


_MECHANISMS: dict[str, type[Mechanism]] = {}
_loaded = False
M = TypeVar("M", bound=type[Mechanism])


def register_mechanism(name: str) -> Callable[[M], M]:
    """Make the decorated class available as ``name`` to insert, sites, recipes and the command line."""

    def decorate(cls: M) -> M:
        if not (inspect.isclass(cls) and issubclass(cls, Gate | Kernel)):
            raise UserError(
                f"mechanism {name!r}: expected a class derived from foveal.attention.Gate or Kernel, got {cls!r}"
            )
        if not name or "." in name or hasattr(nn.ModuleDict(), name):
            raise UserError(
                f"the name of a mechanism is part of state-dict keys: it must have no dots and not be an attribute "
                f"of a module, got {name!r}"
            )
        old = _MECHANISMS.get(name, cls)
        if (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):  # not a reload
            raise UserError(
                f"there is a mechanism {name!r} already, {old.__module__}.{old.__qualname__}; choose another name"
            )
        _MECHANISMS[name] = cls
        return cls

    return decorate


def _load_installed() -> None:
    """Mechanisms of installed packages and of the user's own modules."""
    global _loaded
    load_plugins()
    if not _loaded:
        _loaded = True
        for entry in entry_points(group=GROUP):
            try:
                loaded = entry.load()
            except Exception as error:  # a third-party package; the other mechanisms work without it
                warnings.warn(
                    f"the mechanism {entry.name!r} of an installed package cannot be loaded: {error}", stacklevel=3
                )
                continue
            if not any(_offers(loaded, cls) for cls in _MECHANISMS.values()):
                warnings.warn(
                    f"the entry point {entry.name!r} of an installed package registers nothing: {entry.value} is not "
                    f"decorated with foveal.register_mechanism({entry.name!r})",
                    stacklevel=3,
                )


def _offers(loaded: Any, mechanism: type[Mechanism]) -> bool:
    """Whether an entry point names ``mechanism``, or a module that has it or defines it."""
    if not inspect.ismodule(loaded):
        return loaded is mechanism
    inside = any(value is mechanism for value in vars(loaded).values())
    return inside or f"{mechanism.__module__}.".startswith(f"{loaded.__name__}.")


def mechanisms() -> dict[str, str]:
    """Every mechanism by name, with the first line of its documentation."""
    _load_installed()
    return {name: (cls.__doc__ or "").strip().split("\n")[0] for name, cls in sorted(_MECHANISMS.items())}


def mechanism(name: str) -> type[Mechanism]:
    """The mechanism called ``name``."""
    _load_installed()
    if not isinstance(name, str):
        raise UserError(f"mechanism must be a name, one of {', '.join(sorted(_MECHANISMS))}, got {name!r}")
    if name not in _MECHANISMS:
        raise unknown("mechanism", name, _MECHANISMS)
    return _MECHANISMS[name]
