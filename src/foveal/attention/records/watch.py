"""Record what the attention of a model does in its forward passes.

No hooks are used, so it also works on a model that is already compiled (it recompiles once).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from foveal.attention.records.record import Attends, AttentionRecord
from foveal.compat import plain_name
from foveal.errors import UserError, unknown


class watch(Mapping[str, AttentionRecord]):  # noqa: N801 (used like a function)
    """Record what the attention of ``model`` does, gradients intact.

    Use it as a context manager; it is a mapping from site name to :class:`AttentionRecord` that always shows the latest
    forward pass, during the ``with`` block and after it. Of a module that runs several times in a forward pass, it
    shows the last run.

    Args:
        model: any module; its attention modules are found by type.
        at: ``None`` for every site, or a glob on site names, or a list of globs.

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
        sites = {plain_name(name): module for name, module in model.named_modules() if isinstance(module, Attends)}
        if not sites:
            raise UserError(f"nothing to watch: {type(model).__name__} holds no attention module")
        patterns = ["*"] if at is None else [at] if isinstance(at, str) else list(at)
        for pattern in patterns:
            if not fnmatch.filter(sites, pattern):
                raise unknown("attention site", pattern, sites)
        self._modules = {
            site: module for site, module in sites.items() if any(fnmatch.fnmatchcase(site, p) for p in patterns)
        }
        self._kept: dict[str, AttentionRecord] | None = {}  # None while it is open: then modules hold the latest

    def _records(self) -> dict[str, AttentionRecord]:
        if self._kept is not None:
            return self._kept
        return {
            site: AttentionRecord(site, module.kind, module.noted, module.normalised, module.grid)
            for site, module in self._modules.items()
            if module.noted is not None
        }

    def __enter__(self) -> watch:
        self._kept = None
        for module in self._modules.values():
            module.watchers += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept = self._records()
        for module in self._modules.values():
            module.watchers -= 1
            if not module.watchers:
                module.noted = None

    def __getitem__(self, site: str) -> AttentionRecord:
        records = self._records()
        if site not in records:
            raise KeyError(str(unknown("attention site", site, records)))
        return records[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records())

    def __len__(self) -> int:
        return len(self._records())

    def __repr__(self) -> str:
        rows = (f"{site}: {record.kind} {tuple(record.shape)}" for site, record in self._records().items())
        return f"watch({', '.join(rows)})"
