"""What attention did in a forward pass, seen from outside.

Every attention module of foveal derives from :class:`Attends` and calls :meth:`Attends.note` in its forward. That is
all :func:`watch` needs: no hooks, so it also works on a model that is compiled already (it recompiles once).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from foveal.errors import UserError, unknown

Kind = Literal["spatial", "channel", "weight", "pairwise"]


@dataclass(frozen=True)
class AttentionRecord:
    """What one attention module computed in one forward pass.

    Attributes:
        site: name of the module inside the watched model.
        kind: ``spatial`` (N, H, W), ``channel`` (N, C), ``weight`` (N, ...kernel) or ``pairwise`` (N, ..., N_q, N_k).
        values: the attention itself, attached to the graph it came from.
        normalised: whether each sample's values sum to one (a softmax) or are independent (a sigmoid).
        grid: for spatial attention, where in the model's input its values belong: the pixel at the centre of the first
            one's receptive field, and the distance in pixels from one to the next. None if they span the whole input.
    """

    site: str
    kind: Kind
    values: Tensor
    normalised: bool
    grid: tuple[float, float] | None = None


class Attends(nn.Module):
    """Base of every module whose attention can be watched."""

    kind: Kind = "spatial"
    normalised: bool = False
    grid: tuple[float, float] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.watchers = 0
        self.noted: Tensor | None = None

    def note(self, values: Tensor) -> None:
        """Keep ``values`` for whoever watches; free when nobody does."""
        if self.watchers:
            self.noted = values

    def __getstate__(self) -> dict[str, object]:
        # A copy or a pickle of a watched module is not watched, and carries no graph.
        return self.__dict__ | {"watchers": 0, "noted": None}


class watch(Mapping[str, AttentionRecord]):  # noqa: N801 (used like a function)
    """Record what the attention of ``model`` does, gradients intact.

    Use it as a context manager; it is a mapping from site name to :class:`AttentionRecord` that always shows the latest
    forward pass, during the ``with`` block and after it. A module that runs several times in a forward keeps its last.

    Args:
        model: any module; the attention in it is found by type.
        at: ``None`` for every site, or a glob on site names, or a list of globs.

    >>> import torch, foveal
    >>> model = foveal.create_model("hattnet")
    >>> with foveal.watch(model) as seen:
    ...     _ = model(torch.rand(2, 3, 100, 100), torch.tensor([3, 8]))
    >>> [(site, tuple(record.values.shape)) for site, record in seen.items()]
    [('gates.0', (2, 49, 49)), ('gates.1', (2, 23, 23)), ('gates.2', (2, 10, 10)), ('gates.3', (2, 4, 4))]
    """

    def __init__(self, model: nn.Module, at: str | Sequence[str] | None = None) -> None:
        found = {name.replace("_orig_mod.", ""): m for name, m in model.named_modules() if isinstance(m, Attends)}
        if not found:
            raise UserError(f"nothing to watch: {type(model).__name__} holds no attention module")
        patterns = ["*"] if at is None else [at] if isinstance(at, str) else list(at)
        for pattern in patterns:
            if not fnmatch.filter(found, pattern):
                raise unknown("attention site", pattern, found)
        self._modules = {n: m for n, m in found.items() if any(fnmatch.fnmatchcase(n, p) for p in patterns)}
        self._kept: dict[str, AttentionRecord] | None = None

    def _records(self) -> dict[str, AttentionRecord]:
        if self._kept is not None:
            return self._kept
        return {
            name: AttentionRecord(name, module.kind, module.noted, module.normalised, module.grid)
            for name, module in self._modules.items()
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
        rows = (f"{name}: {r.kind} {tuple(r.values.shape)}" for name, r in self._records().items())
        return f"watch({', '.join(rows)})"
