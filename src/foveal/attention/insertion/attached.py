"""Layers with attention attached: what they compute, how they are copied, and how attention is attached and removed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from foveal.attention.insertion.registry import TORCHSCRIPT, Gate, Kernel, Mechanism, Tap
from foveal.errors import UserError


class Attended:
    """Mixin of a layer with attention attached; the other base is the layer's own class."""

    _plain: type[nn.Module]
    attached: nn.ModuleDict

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The gates of the input; the layer's own forward, or that of a kernel mechanism; the gates of the output."""
        kernels: list[Kernel] = []
        before: list[Gate] = []
        after: list[Gate] = []
        for module in self.attached.values():
            if isinstance(module, Gate):
                (before if module.before else after).append(module)
            elif isinstance(module, Kernel):
                kernels.append(module)
            elif isinstance(module, Tap):
                module.take(*args, **kwargs)
        try:
            if kernels or before:
                (maps,) = [_check_batch(self, x) for x in (*args, *kwargs.values())]
                for gate in before:
                    maps = gate(maps)
                output = kernels[0].convolve(self, maps) if kernels else super().forward(maps)  # type: ignore
            else:
                output = _check_batch(self, super().forward(*args, **kwargs))  # type: ignore
            for gate in after:
                output = gate(output)
        except UserError as error:
            site = next((module.site for module in self.attached.values()), "")
            raise UserError(f"{site}: {error}") from error
        return output

    def __prepare_scriptable__(self) -> Any:
        """What ``torch.jit.script`` calls first."""
        raise UserError(TORCHSCRIPT)

    def __reduce__(self) -> Any:
        # The subclass is created at run time, so copies and pickles name the layer's own class and create it again.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return _rebuild, (self._plain,), state

    def _get_name(self) -> str:
        return f"{self._plain.__name__}+{'+'.join(self.attached)}"


def _check_batch(layer: Any, maps: Tensor) -> Tensor:
    """Raise if ``maps`` is a single sample: these layers accept it, attention does not."""
    if isinstance(layer, (nn.Conv2d, nn.InstanceNorm2d)) and maps.ndim == 3:
        raise UserError(f"attention needs a batch (N, C, H, W), got {tuple(maps.shape)}; add a dimension with x[None]")
    return maps


def plain_forward(layer: nn.Module, *args: Any) -> Any:
    """What ``layer`` computes without the attention that may be attached to it."""
    plain = getattr(type(layer), "_plain", None)
    return layer(*args) if plain is None else plain.forward(layer, *args)


_CLASSES: dict[type, type] = {}


def attended_class(plain: type) -> Any:
    """The subclass of ``plain`` with attention; always the same one."""
    if plain not in _CLASSES:
        attributes = {"_plain": plain, "__module__": plain.__module__}
        _CLASSES[plain] = type(f"Attended{plain.__name__}", (Attended, plain), attributes)
    return _CLASSES[plain]


def _rebuild(plain: type[nn.Module]) -> nn.Module:
    cls = attended_class(plain)
    return cls.__new__(cls)


def attached_modules(layer: nn.Module) -> dict[str, nn.Module]:
    """What is attached to a layer, whether it runs or not (see :func:`reattach`)."""
    attached = getattr(layer, "attached", None)
    return dict(attached) if isinstance(attached, nn.ModuleDict) else {}


def attach(layer: nn.Module, site: str, key: str, module: Mechanism | Tap) -> None:
    """Attach ``module`` under ``key`` to ``layer``, which is called ``site`` in its model."""
    module.site = site
    if isinstance(layer, Attended):
        layer.attached[key] = module
        return
    if hasattr(layer, "attached"):
        raise UserError(f"{site}: {type(layer).__name__} has an attribute 'attached' of its own, which insertion needs")
    attached = nn.ModuleDict({key: module})
    layer.__class__ = attended_class(type(layer))
    layer.attached = attached


def detach(layer: Any, modules: Collection[nn.Module]) -> None:
    """Remove ``modules`` from what is attached to ``layer``; without any left, it gets its own class back."""
    for key, module in attached_modules(layer).items():
        if module in modules:
            del layer.attached[key]
    if not len(layer.attached):
        del layer.attached
        layer.__class__ = getattr(layer, "_plain", type(layer))


def reattach(model: nn.Module) -> None:
    """Make attention run again on layers that another library has replaced by layers of another class.

    ``convert_sync_batchnorm`` of torch and timm creates a new norm for every norm and gives it the old one's children,
    but not its class; what was attached would never run.
    """
    for module in model.modules():
        if not isinstance(module, Attended) and isinstance(getattr(module, "attached", None), nn.ModuleDict):
            module.__class__ = attended_class(type(module))
