"""Beam search for many sentences at once, on the device.

All translations of a batch grow by one token at a time. The only synchronisation with the device is to ask, every few
tokens, whether all sentences are finished. On a GPU a step, from the embeddings to the choice of the next tokens, is
captured as a CUDA graph after the first two and then replayed, so that Python launches one graph a step.

The result is the translation with the best score by length penalty (Wu et al., https://arxiv.org/abs/1609.08144,
equation 14, without coverage). A sentence is finished when no unfinished translation can reach the best finished one,
however long it becomes. With one beam it is finished at the first end, which is greedy search.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from foveal.models.transformer import Transformer

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3  # the first tokens of every vocabulary
ASK = 8  # steps between two looks at whether all is finished
WARM = 2  # steps before a CUDA graph is captured


def longest_for(source: int) -> int:
    """Most tokens of a translation of a sentence of so many."""
    return 2 * source + 10


@torch.no_grad()
def beam_search(
    model: Transformer,
    source: Tensor,
    *,
    beams: int = 4,
    penalty: float = 0.6,
    longest: int | None = None,
    stop: bool = True,
    cached: bool = True,
    graph: bool | None = None,
) -> Tensor:
    """The best translations.

    Args:
        model: in eval mode.
        source: tokens, int64 (B, S), each sentence with its end and then padding.
        beams: translations of each sentence that are followed, K.
        penalty: exponent of the length penalty; 0 for none.
        longest: most tokens of a translation, with its end; twice the source and ten more if None.
        stop: whether the search ends when all sentences are finished; otherwise it goes on, for measurements.
        cached: whether keys and values of earlier tokens are kept; otherwise everything is computed anew for each.
        graph: whether steps are replayed as a CUDA graph; by default on a GPU.

    Returns:
        int64 (B, L): tokens with their end, then padding.
    """
    memory, mask = model.encode(source)
    length = longest_for(source.shape[1]) if longest is None else longest
    search = Beams(len(source), beams, length, penalty, source.device)
    if not cached:
        _without_cache(model, memory, mask, search, stop)
        return search.result()
    state = model.begin(memory, mask, beams, length)

    def step() -> None:
        search.advance(model.step(search.last, state), state.position)
        if beams > 1:
            state.reorder(search.rows)
        state.position.add_(1)

    graph = source.is_cuda if graph is None else graph
    replay = step
    for t in range(length):
        if graph and t == WARM:
            replay = captured(step)
        replay()
        if stop and t % ASK == ASK - 1 and search.finished:
            break
    best = search.result()
    if graph:
        torch.cuda.current_stream().synchronize()  # before the graph and its memory are freed
    return best


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A function that replays ``step`` as a CUDA graph; capturing runs nothing."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    stream = capture_stream(current.device)
    half = torch.is_autocast_enabled("cuda")
    # Casts that autocast keeps would be freed before the graph is replayed.
    cast = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False) if half else nullcontext()
    stream.wait_stream(current)
    # Not torch.cuda.graph, which frees all cached memory first: that takes longer than many steps.
    with cast, torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
    current.wait_stream(stream)
    return graph.replay


@lru_cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures: cuBLAS keeps memory for every stream that it has seen."""
    return torch.cuda.Stream(device)


def _without_cache(model: Transformer, memory: Tensor, mask: Tensor, search: Beams, stop: bool) -> None:
    beams = search.tokens.shape[1]
    memory, mask = memory.repeat_interleave(beams, 0), mask.repeat_interleave(beams, 0)
    position = torch.zeros(1, dtype=torch.int64, device=memory.device)
    for t in range(search.tokens.shape[2] - 1):
        x = model.decode(search.tokens[:, :, : t + 1].flatten(0, 1), memory, mask)[:, -1]
        search.advance(model.logits(x).unflatten(0, (-1, beams)), position)
        position.add_(1)
        if stop and t % ASK == ASK - 1 and search.finished:
            break


class Beams:
    """The translations of a batch as far as they are; all tensors are changed in place.

    Args:
        batch: number of sentences, B.
        beams: K.
        length: most tokens of a translation.
        penalty: exponent of the length penalty.
        device: where.

    Attributes:
        tokens: of translations that go on, int64 (B, K, length + 1), from the beginning.
        last: the last of them, (B, K).
        rows: which row of the batch each goes on from, int64 (B · K,).
    """

    def __init__(self, batch: int, beams: int, length: int, penalty: float, device: torch.device) -> None:
        self.penalty, self.most = penalty, ((5 + length) / 6) ** penalty  # norm of the longest translation
        whole: dict[str, Any] = {"dtype": torch.int64, "device": device}
        self.tokens = torch.full((batch, beams, length + 1), PAD, **whole)
        self.tokens[:, :, 0] = BEGIN
        self.last = torch.full((batch, beams), BEGIN, **whole)
        self.rows = torch.zeros(batch * beams, **whole)
        self.scores = torch.full((batch, beams), -torch.inf, device=device)
        self.scores[:, 0] = 0  # all beams are the same at first
        self.done = torch.zeros(batch, dtype=torch.bool, device=device)
        self.best = torch.full((batch, length + 1), PAD, **whole)
        self.best_score = torch.full((batch,), -torch.inf, device=device)
        self.first_row = torch.arange(batch, device=device)[:, None] * beams
        self.rank = torch.arange(2 * beams, device=device)

    def advance(self, logits: Tensor, position: Tensor) -> None:
        """Add a token to every translation.

        Args:
            logits: (B, K, V).
            position: of the tokens that they follow, int64 (1,).
        """
        beams = logits.shape[1]
        chances = logits.log_softmax(-1, dtype=torch.float32)[..., END:]  # no padding, unknown word or beginning
        count = min(2 * beams, chances.shape[-1])  # enough of each beam, because one at most is an end
        chances, token = chances.topk(count)
        values, index = (self.scores[..., None] + chances).flatten(1).topk(2 * beams)
        parent, token = index // count, (token + END).flatten(1).gather(1, index)
        ends = token == END
        self._finish(values, parent, ends & (self.rank < beams), position)
        scores, chosen = values.masked_fill(ends, -torch.inf).topk(beams)
        parent, token = parent.gather(1, chosen), token.gather(1, chosen)
        tokens = self.tokens.gather(1, parent[..., None].expand_as(self.tokens))
        self.tokens.copy_(tokens.index_copy_(2, position + 1, token[..., None]))
        self.last.copy_(token)
        self.scores.copy_(scores)
        self.rows.copy_((self.first_row + parent).flatten())
        ended = self.best_score > -torch.inf
        self.done.copy_(ended if beams == 1 else ended & (self.best_score >= scores[:, 0] / self.most))

    def _finish(self, values: Tensor, parent: Tensor, ends: Tensor, position: Tensor) -> None:
        """Keep the best of the translations that end here, where ``ends``, bool (B, 2K)."""
        ends = ends & ~self.done[:, None]
        norm = ((6 + position) / 6) ** self.penalty  # of position + 1 tokens
        score, which = (values / norm).masked_fill(~ends, -torch.inf).max(1)
        better = score > self.best_score
        row = parent.gather(1, which[:, None])[..., None].expand(-1, 1, self.tokens.shape[2])
        end = torch.full_like(self.last[:, :1], END)
        candidate = self.tokens.gather(1, row)[:, 0].index_copy_(1, position + 1, end)
        self.best.copy_(torch.where(better[:, None], candidate, self.best))
        self.best_score.copy_(torch.where(better, score, self.best_score))

    @property
    def finished(self) -> bool:
        """Whether all sentences are; waits for the device."""
        return bool(self.done.all())

    def result(self) -> Tensor:
        """The best translation of each sentence without its beginning; one that never ended as far as it is."""
        ended = self.best_score > -torch.inf
        return torch.where(ended[:, None], self.best, self.tokens[:, 0])[:, 1:]
