"""See the attention that a model computes with PyTorch's functions, whatever its modules are called.

A ``TorchFunctionMode`` sees the calls, and hooks tell which module makes them. Both are there only while a model is
watched. Code that is compiled has no such calls any more.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from foveal.attention.records.products import Product, of_multi_head, of_scaled_dot_product
from foveal.attention.records.record import Attends, AttentionRecord
from foveal.attention.records.softmaxes import SOFTMAXES, Softmaxes
from foveal.compat import backward_running, has_storage

WHOLE: dict[Callable[..., Any], Callable[..., Product]] = {
    F.scaled_dot_product_attention: of_scaled_dot_product,
    F.multi_head_attention_forward: of_multi_head,
}
"""Functions that are attention as a whole."""
STARTS = WHOLE.keys() | SOFTMAXES
"""Functions that attention begins with."""


def may_call(module: nn.Module) -> bool:
    """Whether the forward of ``module`` may compute attention that it does not note: not one of PyTorch or foveal.

    >>> may_call(nn.Linear(2, 2)), may_call(nn.MultiheadAttention(2, 1))
    (False, True)
    """
    if isinstance(module, (Attends, torch.jit.ScriptModule)):
        return False
    library = type(module).__module__
    return isinstance(module, nn.MultiheadAttention) or not library.startswith(("torch.nn.", "foveal."))


class Run:
    """One run of a module's forward.

    Args:
        site: name of the module; None for a module that notes its attention itself.
        inputs: tensors that it was given.
    """

    def __init__(self, site: str | None, inputs: list[Tensor]) -> None:
        self.site, self.inputs = site, inputs
        self.calls = 0


class AttentionCalls(TorchFunctionMode):
    """Records the attention calls of some modules while it is entered, on the thread that enters it.

    Args:
        modules: by name, all modules that calls may be made by.
        chosen: names of those whose calls are recorded.

    Attributes:
        records: by the name of the module, the calls of its last run that made any: the first has the name of the
            module, further ones ``name#2``, ``name#3``, ….
        others: names of modules that made calls but are not chosen.
        reasons: by name, why attention could not be recorded.
        ran: whether any module has run.
    """

    def __init__(self, modules: Mapping[str, nn.Module], chosen: Collection[str]) -> None:
        super().__init__()
        self.modules, self.chosen = modules, chosen
        self.records: dict[str, list[AttentionRecord]] = {}
        self.others: dict[str, None] = {}
        self.reasons: dict[str, str] = {}
        self.ran = False
        self._running: list[Run] = []
        self._softmaxes = Softmaxes()
        self._handles: list[RemovableHandle] = []
        self._thread = 0

    def __enter__(self) -> AttentionCalls:
        self._thread = threading.get_ident()
        for name, module in self.modules.items():
            site = None if isinstance(module, Attends) else name
            self._handles += [
                module.register_forward_pre_hook(_Hook(self._start, site), prepend=True, with_kwargs=True),
                module.register_forward_hook(_Hook(self._stop, site), always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for handle in self._handles:
            handle.remove()
        self._handles, self._running, self._softmaxes = [], [], Softmaxes()

    def _start(self, site: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == self._thread:
            self._running.append(Run(site, [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]))
            self.ran = True

    def _stop(self, site: str | None, *_: Any) -> None:
        if threading.get_ident() == self._thread and self._running:
            self._running.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, and note what it computes."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not (func in STARTS or self._softmaxes) or torch.compiler.is_compiling():  # most calls: be quick
            return result
        # A backward pass runs checkpointed modules again: they have been recorded.
        if self._running and self._running[-1].site is not None and not backward_running():
            self._look(self._running[-1].site, func, args, kwargs, result)
        return result

    def _look(self, site: str, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if func in STARTS:
            tensor = args[0] if args else next(iter(kwargs.values()))
            if tensor.is_nested or not has_storage(tensor):
                self.reasons[site] = "it is computed with nested tensors, or inside a transform of torch.func"
                return
        if func in WHOLE:
            product = WHOLE[func](*args, **kwargs)
        else:
            seen = self._softmaxes.see(func, args, kwargs, result)
            if isinstance(seen, str):
                self.reasons[site] = seen
            if not isinstance(seen, Product):
                return
            product = seen
        self._note(self._running[-1], product)

    def _note(self, run: Run, product: Product) -> None:
        attention, site = product.attention, run.site
        assert site is not None
        if between_channels(run.inputs, attention.shape, product.values):
            self.reasons[site] = f"it is attention between channels, {tuple(attention.shape)}, not between tokens"
        elif site not in self.chosen:
            self.others[site] = None
        else:
            run.calls += 1
            name = site if run.calls == 1 else f"{site}#{run.calls}"
            earlier = [] if run.calls == 1 else self.records[site]
            normalised = not isinstance(attention, Tensor)
            self.records[site] = [*earlier, AttentionRecord(name, "pairwise", attention, normalised)]


def between_channels(inputs: Iterable[Tensor], shape: torch.Size, values: Tensor | None) -> bool:
    """Whether a module attends between the channels of its input: then each value has as many entries as it has tokens.

    Args:
        inputs: of the module; (B, N, C), (B, C, h, w) and (B, h, w, C) are looked at.
        shape: of the weights, (..., [heads,] N_q, N_k).
        values: (..., N_k, d), or None if they are not known.
    """
    if values is None:
        return False
    rows = shape[-2] * (shape[-3] if len(shape) > 3 else 1)
    for x in inputs:
        layouts = [x.shape[1:]] if x.ndim == 3 else [x.shape[1:], x.shape[2:] + x.shape[1:2]] if x.ndim == 4 else []
        for *sides, channels in layouts:
            if rows == channels and math.prod(sides) == values.shape[-1] != shape[-2]:
                return True
    return False


class _Hook:
    """A hook that does nothing in a copy or a pickle of its module."""

    def __init__(self, function: Callable[..., None], site: str | None) -> None:
        self.function, self.site = function, site

    def __call__(self, module: nn.Module, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.function(self.site, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (_nothing, None)


def _nothing(*_: Any) -> None:
    """What a copied hook does."""
