"""Record what the attention of a model does in its forward passes.

foveal's own modules note their attention, compiled or not. That of all other modules is seen in the calls of PyTorch's
functions (:mod:`~.calls`), which needs eager mode: compiled modules are run so while they are watched.
"""

from __future__ import annotations

import contextlib
import fnmatch
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from foveal.attention.records.calls import AttentionCalls, may_call
from foveal.attention.records.record import Attends, AttentionRecord
from foveal.compat import compiled_original, is_compiled_in_place, plain_name
from foveal.errors import UserError, unknown

SEEN = (
    "watch sees foveal's mechanisms, nn.MultiheadAttention, scaled_dot_product_attention, and a softmax over the last "
    "dimension that is multiplied with values, in eager code on the thread of the with block"
)


class watch(Mapping[str, AttentionRecord]):  # noqa: N801 (used like a function)
    """Record what the attention of ``model`` does, gradients intact.

    Use it as a context manager; it is a mapping from site name to :class:`AttentionRecord` that always shows the latest
    forward pass, during the ``with`` block and after it. Of a module that runs several times in a forward pass, it
    shows the last run.

    A site is the innermost module that computes the attention, under its name in ``model.named_modules()``. If a module
    computes attention several times in one run, the second time is ``name#2``, and so on.

    Args:
        model: any module. It need not know foveal: its attention may be ``nn.MultiheadAttention``, or any code that
            calls ``scaled_dot_product_attention`` or multiplies a softmax with values.
        at: ``None`` for every site, or a glob on names of modules, or a list of globs.

    >>> import torch, foveal
    >>> model = foveal.create_model("hattnet")
    >>> with foveal.watch(model) as seen:
    ...     _ = model(torch.rand(2, 3, 100, 100), torch.tensor([3, 8]))
    >>> [(site, tuple(record.values.shape)) for site, record in seen.items()]
    [('gates.0', (2, 49, 49)), ('gates.1', (2, 23, 23)), ('gates.2', (2, 10, 10)), ('gates.3', (2, 4, 4))]
    """

    def __init__(self, model: nn.Module, at: str | Sequence[str] | None = None) -> None:
        if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
            raise UserError(f"watch needs a torch.nn.Module, not scripted or traced, got {type(model).__name__}")
        sites = {
            plain_name(name): module
            for name, module in model.named_modules()
            if isinstance(module, Attends) or may_call(module)
        }
        if not sites:
            raise UserError(f"nothing to watch: {type(model).__name__} holds no attention module")
        patterns = ["*"] if at is None else [at] if isinstance(at, str) else list(at)
        for pattern in patterns:
            if not fnmatch.filter(sites, pattern):
                raise unknown("attention site", pattern, sites)
        self._model, self._sites = model, sites
        self._chosen = [site for site in sites if any(fnmatch.fnmatchcase(site, p) for p in patterns)]
        self._modules = {site: m for site in self._chosen if isinstance(m := sites[site], Attends)}
        self._calls: AttentionCalls | None = None  # of the latest with block
        self._kept: dict[str, AttentionRecord] | None = {}  # None while it is open: then modules hold the latest
        self._open = contextlib.ExitStack()

    def _records(self) -> dict[str, AttentionRecord]:
        if self._kept is not None:
            return self._kept
        records = {}
        for site in self._chosen:
            module = self._modules.get(site)
            if module is not None and module.noted is not None:
                records[site] = AttentionRecord(site, module.kind, module.noted, module.normalised, module.grid)
            elif self._calls is not None:
                records |= {record.site: record for record in self._calls.records.get(site, [])}
        return records

    def __enter__(self) -> watch:
        if self._kept is None:
            raise UserError("this watch is open already; make another one with foveal.watch(model)")
        self._kept = None
        for module in self._modules.values():
            module.watchers += 1
        # foveal's own modules are recorded in compiled code: then it stays compiled.
        if len(self._modules) < len(self._chosen) and not (self._modules and _compiled(self._model)):
            if not self._modules and "torch._dynamo" in sys.modules:  # else nothing can have been compiled
                self._open.enter_context(torch.compiler.set_stance("force_eager"))
            self._calls = self._open.enter_context(AttentionCalls(self._sites, self._chosen))
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._open.close()
        self._kept = self._records()
        for module in self._modules.values():
            module.watchers -= 1
            if not module.watchers:
                module.noted = None
        if kind is None and not self._kept and self._calls is not None and self._calls.ran:
            warnings.warn(self._why_nothing(), stacklevel=2)

    def _why_nothing(self) -> str:
        """Why no attention was recorded, though the model ran."""
        assert self._calls is not None
        reasons = [f"{site}: {reason}" for site, reason in self._calls.reasons.items() if site in self._chosen]
        if self._calls.others and not reasons:
            return f"nothing was recorded at the sites chosen; attention was computed at {_some(self._calls.others)}"
        return f"nothing to watch: {type(self._model).__name__} computed no attention that can be recorded. " + (
            _some(reasons, "; ") or SEEN
        )

    def __getitem__(self, site: str) -> AttentionRecord:
        records = self._records()
        if site in records:
            return records[site]
        if self._calls is not None and site in self._calls.reasons:
            raise KeyError(f"{site} was not recorded: {self._calls.reasons[site]}")
        if self._calls is not None and self._calls.ran and not records:
            raise KeyError(self._why_nothing())
        raise KeyError(str(unknown("attention site", site, records)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._records())

    def __len__(self) -> int:
        return len(self._records())

    def __repr__(self) -> str:
        rows = (f"{site}: {record.kind} {tuple(record.shape)}" for site, record in self._records().items())
        return f"watch({', '.join(rows)})"


def _compiled(model: nn.Module) -> bool:
    """Whether some part of a model was compiled."""
    return any(compiled_original(m) is not None or is_compiled_in_place(m) for m in model.modules())


def _some(items: Iterable[str], separator: str = ", ") -> str:
    """The first items."""
    listed = list(items)
    return separator.join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
