"""Keep the outputs of named layers in a forward pass, as tensors of its graph, and find the image positions in them.

A tapped layer passes on a copy of its output and the original is kept, so that later in-place operations (``ReLU`` with
``inplace=True``, ``out += identity``) do not change it. In a compiled model the tap is a graph break, because there are
no gradients with respect to a tensor inside a compiled part. A hook added to a model that is already compiled would not
run, so the layer also changes its class while it is tapped, which triggers a recompilation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode

from foveal.attention.class_maps.graph import below
from foveal.attention.class_maps.layout import Reshape, is_nhwc, layout, prefix_tokens, rerolled
from foveal.compat import (
    compiled_original,
    function_modes,
    is_compiled_in_place,
    keep_backward_buffers,
    plain_name,
)
from foveal.errors import UnknownNameError, UserError, unknown


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile`` and DistributedDataParallel."""
    while True:
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            raise UserError("nn.DataParallel runs copies of the model in threads; use DistributedDataParallel")
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif (original := compiled_original(model)) is not None:
            model = original
        else:
            return model


def find_layers(model: nn.Module, at: str | Sequence[str]) -> dict[str, nn.Module]:
    """The layers called ``at``, by name; names as in the plain model, even if it or parts of it are wrapped."""
    names = [at] if isinstance(at, str) else list(at) if isinstance(at, Sequence) else []
    if isinstance(at, nn.Module) or not isinstance(at, Sequence) or not all(isinstance(name, str) for name in names):
        given = next((name for name, module in model.named_modules() if module is at), "layer4")
        raise UserError(f"at must be the name of a layer or a list of names, such as at={given!r}; got {_kind(at)}")
    if not names:
        raise UserError("at: the list is empty; name at least one layer")
    # A compiled layer and its wrapper get the same name; the layer itself comes later and stays.
    layers = {plain_name(name): module for name, module in model.named_modules(remove_duplicate=False) if name}
    for name in names:
        if name not in layers:
            raise _unknown_layer(name, layers)
    return {name: layers[name] for name in names}


def _kind(at: object) -> str:
    return f"the module {type(at).__name__}" if isinstance(at, nn.Module) else repr(at)


def _unknown_layer(name: str, layers: dict[str, nn.Module]) -> UserError:
    """The error, with close names or else the last blocks of the last sequence of blocks."""
    sequence, blocks = "?", list[str]()
    for parent, module in layers.items():
        inner = [f"{parent}.{n}" for n, child in module.named_children() if any(True for _ in child.children())]
        if isinstance(module, nn.Sequential | nn.ModuleList) and inner and not parent.startswith(sequence + "."):
            sequence, blocks = parent, inner
    error = unknown("layer", name, layers)
    if "did you mean" in str(error) or not blocks:
        return error
    return UnknownNameError(f"unknown layer {name!r}; the model has {len(layers)}, among them {', '.join(blocks[-3:])}")


def compiled_modules(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Those of ``modules`` that ``torch.compile`` or ``compile()`` was called on."""
    wrapped = [original for m in modules if (original := compiled_original(m)) is not None]
    return wrapped + [m for m in modules if is_compiled_in_place(m)]


def keep_buffers(compiled: bool) -> AbstractContextManager[Any]:
    """Compile inside with a backward that can run several times; such a backward must also run inside."""
    return keep_backward_buffers() if compiled else nullcontext()


_CLASSES: dict[type, type] = {}


def _marked(plain: type) -> type:
    """A subclass that changes nothing; the compiler sees another class."""
    if plain not in _CLASSES:
        attributes = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "_plain_class": plain}
        _CLASSES[plain] = type(plain.__name__, (plain,), attributes)
    return _CLASSES[plain]


def _mark(layer: nn.Module, stack: ExitStack) -> None:
    plain: Any = type(layer)
    if not hasattr(plain, "_plain_class"):
        layer.__class__ = _marked(plain)
        stack.callback(setattr, layer, "__class__", plain)


@dataclass(frozen=True)
class Tapped:
    """The output of a layer.

    Attributes:
        values: the output, in the graph of the forward pass.
        handed_on: node of the graph at which the rest of the network begins.
    """

    values: Tensor
    handed_on: torch.autograd.graph.Node


class Taps:
    """Context manager: inside it, a forward pass of ``model`` keeps the outputs of the layers ``at``.

    Args:
        model: any module, compiled and wrapped in DistributedDataParallel or not.
        at: name of a layer, or several.
        reshape: brings the output of a layer to (N, C, H, W), for layouts that are not recognised.
        score: makes class scores (N, K) of what the model returns, if that is something else.

    Attributes:
        outputs: name of the layer to its output.
        logits: the output of the model, (N, K).
        after_first: a ``TorchFunctionMode`` to enter when the first of the layers has run, and to leave at the end. It
            is not entered in another thread, nor inside a mode that was entered after the taps.
        twice: whether what follows the layers can be differentiated twice; None until it has been tested, which takes
            longer than a step of a small model.
        checked: names of the layers of tokens whose first gradients have been looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        at: str | Sequence[str],
        reshape: Reshape | None = None,
        score: Callable[[Any], Tensor] | None = None,
    ) -> None:
        self.model, self.core = model, unwrapped(model)
        self.layers = find_layers(self.core, at)
        self._modules = list(model.modules())  # kept, because collecting them is slow
        self.compiled: list[nn.Module] = []
        self.reshape, self.score = reshape, score
        self.after_first: TorchFunctionMode | None = None
        self.twice: bool | None = None
        self.checked: set[str] = set()
        self._open = ExitStack()
        self.clear()

    def clear(self) -> None:
        """Forget the last forward pass."""
        self.outputs: dict[str, Tapped] = {}
        self.returned: Any = None
        self.size: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self.clear()
        self._modes = _thread_and_modes()
        self.compiled = compiled_modules(self._modules)
        with ExitStack() as stack:
            for name, layer in self.layers.items():
                stack.callback(layer.register_forward_hook(self._eager(self._keeper(name))).remove)
            stack.callback(self.core.register_forward_hook(self._eager(self._keep_result), with_kwargs=True).remove)
            for layer in (*self.layers.values(), self.core, *self.compiled) if self.compiled else ():
                _mark(layer, stack)
            stack.enter_context(keep_buffers(bool(self.compiled)))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.after_first = None
        self._open.close()

    def _eager(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compiler.disable(hook) if self.compiled else hook

    def _keeper(self, name: str) -> Callable[..., Any]:
        def keep(layer: nn.Module, args: Any, output: Any) -> Any:
            first, rest = (output, None) if isinstance(output, Tensor) else _first(name, layer, output)
            with torch.enable_grad():
                # If nothing before this layer is trained, the graph begins here.
                values = first if first.requires_grad else first.detach().requires_grad_()
                if any(values is argument for argument in args):  # an identity: a shortcut around it must not count
                    values = values.clone()
                handed_on = values.clone()
            assert handed_on.grad_fn is not None
            if self.after_first is not None and self._modes == _thread_and_modes():
                self._open.enter_context(self.after_first)
                self.after_first = None
            self.outputs[name] = Tapped(values, handed_on.grad_fn)
            return handed_on if rest is None else type(output)((handed_on, *rest))

        return keep

    def _keep_result(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        image = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.ndim == 4), None)
        self.size = None if image is None else (image.shape[2], image.shape[3])
        self.returned = output

    @property
    def logits(self) -> Tensor:
        """Class scores (N, K) of the last forward pass."""
        out = self.returned
        if out is None:
            raise UserError("the model did not run inside the taps, so there are no maps")
        if self.score is not None:
            out = self.score(out)
            if not isinstance(out, Tensor) or out.ndim != 2:
                got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
                raise UserError(f"score must make class scores (N, classes) of the model's output, it made {got}")
            return out
        if isinstance(out, dict) or hasattr(out, "logits"):
            out = out["logits"] if isinstance(out, dict) and "logits" in out else getattr(out, "logits", out)
        if isinstance(out, (tuple, list)) and out:
            out = out[0]
        if not isinstance(out, Tensor) or out.ndim != 2:
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise UserError(
                f"the model must return class scores (N, classes), got {got}; say how to read them with score="
            )
        return out

    def tapped(self) -> dict[str, Tapped]:
        """Output of each layer, in the order they were named."""
        for name in self.layers:
            if name not in self.outputs:
                raise UserError(
                    f"layer {name} did not run in the forward pass; name one that does (with gradient checkpointing a "
                    "block inside it), and if the model was compiled, give the compiled one"
                )
        return {name: self.outputs[name] for name in self.layers}

    def trained(self) -> bool:
        """Whether some parameter learns from a loss on the outputs of the layers."""
        values = [tapped.values for tapped in self.tapped().values()]
        leaves = {id(value) for value in values if value.is_leaf}  # nothing before these is trained
        if not leaves:
            return True
        nodes = below(value.grad_fn for value in values)
        return any(hasattr(node, "variable") and id(node.variable) not in leaves for node in nodes)

    def to_maps(self, name: str) -> Reshape:
        """The function that brings the output of layer ``name`` to (N, C, H, W)."""
        shape = tuple(self.outputs[name].values.shape)
        if self.reshape is not None:
            maps = self.reshape(self.outputs[name].values.detach())
            if maps.ndim != 4:
                raise UserError(f"reshape must give (N, C, H, W), it gave {tuple(maps.shape)} for {shape} at {name}")
            return self.reshape
        if len(shape) == 3 and hasattr(self.core, "reroll"):  # timm's Hiera
            return rerolled(self.core, name)
        nhwc = is_nhwc(self.core) and not isinstance(self.layers[name], nn.Conv2d)  # as the patch embedding is
        to_maps = layout(shape, len(self.logits), self.size, prefix_tokens(self.core), nhwc)
        if to_maps is None:
            if len(shape) == 4 and shape[2:] == (1, 1):
                hint = "name an earlier layer, one before pooling, or use larger images"
            else:
                hint = _suggestion(self.core, name)
            raise UserError(
                f"layer {name} returns {shape}, which is not a feature map of an image; {hint}, or say how to read "
                "it with reshape="
            )
        return to_maps


def _thread_and_modes() -> tuple[int, int]:
    """This thread, and the number of ``TorchFunctionMode`` that are active in it."""
    return threading.get_ident(), function_modes()


def _first(name: str, layer: nn.Module, output: Any) -> tuple[Tensor, tuple[Any, ...]]:
    if type(output) in (tuple, list) and output and isinstance(output[0], Tensor):
        return output[0], tuple(output[1:])
    raise UserError(
        f"the output of layer {name} ({type(layer).__name__}) is a {type(output).__name__}, not a tensor of features"
    )


def _suggestion(model: nn.Module, name: str) -> str:
    convolutions = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and n != name]
    return "choose one before pooling" + (f", such as {plain_name(convolutions[-1])}" if convolutions else "")
