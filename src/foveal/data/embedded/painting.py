"""Paints scenes of coloured digits.

Whole batches of scenes are painted at once with tensor operations, on any device. Geometry and colours are exact
integer arithmetic and every random number is a function of (seed, image, purpose), so image ``i`` of a seed is the same
for every batch size, number of threads and device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from foveal.data._random import integers, normal, uniform
from foveal.data.embedded.scenes import COLOURS, Scenes, SceneSpec, Sources, digit_counts
from foveal.errors import UserError

TRIES = 32  # placements tried at once
FRAGMENT = 5  # side of a distractor's source
MAX_ROUNDS = 16  # of TRIES each, before the image is started again


def resize_weights(size: Tensor, offset: Tensor, source: int, canvas: int) -> Tensor:
    """Bilinear interpolation along one axis as a matrix, times 2·size so that it holds integers.

    Args:
        size: (B,) length on the canvas.
        offset: (B,) first canvas position.
        source: length of the source.
        canvas: length of the canvas.

    Returns:
        float64 (B, canvas, source); rows outside the object are zero, rows inside sum to 2·size.
    """
    j = torch.arange(canvas, device=size.device)[None] - offset[:, None]
    inside = (j >= 0) & (j < size[:, None])
    unit = 2 * size[:, None]
    position = ((2 * j + 1) * source - size[:, None]).clamp(min=0).minimum((source - 1) * unit)
    left = position // unit
    part = position - left * unit
    k = torch.arange(source, device=size.device)
    weights = (unit - part)[..., None] * (left[..., None] == k) + part[..., None] * (left[..., None] + 1 == k)
    return (weights * inside[..., None]).double()


def paste(patches: Tensor, size: Tensor, x: Tensor, y: Tensor, canvas: int) -> Tensor:
    """Resize square ``patches`` (B, s, s) to ``size`` (B,) and place them at (x, y) on empty canvases.

    Returns:
        int32 (B, canvas, canvas), rounded to whole intensities.
    """
    source = patches.shape[-1]
    rows, columns = resize_weights(size, y, source, canvas), resize_weights(size, x, source, canvas)
    scaled = rows @ patches.double() @ columns.transpose(1, 2)  # exact: far below 2**53
    unit = (4 * size * size)[:, None, None].int()
    return (2 * scaled.int() + unit) // (2 * unit)  # at most 2·255·unit, below 2**31 for any size under 1,000


def _noisy_colour(seed: int, stream: int, *counters: Tensor) -> tuple[Tensor, Tensor]:
    """Label (...,) and noisy RGB (..., 3): one normal shift of all three channels."""
    label = integers(0, len(COLOURS) - 1, uniform(seed, stream, *counters))
    table = torch.tensor(list(COLOURS.values()), device=label.device)
    shift = 10.0 * normal(uniform(seed, stream + 1, *counters), uniform(seed, stream + 2, *counters))
    return label, (table[label] + shift.round().long()[..., None]).clamp(0, 255)


class _Painter:
    """Paints the images ``index`` of ``seed``; ``attempt`` counts how often they were started again."""

    def __init__(self, spec: SceneSpec, sources: Sources, seed: int, index: Tensor, attempt: int) -> None:
        self.spec, self.sources, self.seed, self.index = spec, sources, seed, index
        self.attempt = torch.full_like(index, attempt)
        n, s = len(index), spec.canvas
        new: dict[str, Any] = {"device": index.device}
        self.alpha = torch.zeros(n, s, s, dtype=torch.int32, **new)
        self.owner = torch.zeros(n, s, s, dtype=torch.uint8, **new)
        self.failed = torch.zeros(n, dtype=torch.bool, **new)
        slots = spec.digits[1]
        self.used = torch.arange(slots, **new) < digit_counts(spec, seed, index)[:, None]
        order = uniform(seed, 1, index[:, None], self.attempt[:, None], torch.arange(10, **new)).argsort(
            dim=1, stable=True
        )
        self.digit = torch.where(self.used, order[:, :slots], -1)
        slot = torch.arange(slots, **new)
        self.colour, self.rgb = _noisy_colour(seed, 10, index[:, None], self.attempt[:, None], slot)
        self.scale = torch.zeros(n, slots, dtype=torch.float32, **new)
        self.box = torch.zeros(n, slots, 3, dtype=torch.int64, **new)

    def place(self, slot: int) -> None:
        """Find a free place for the digit of ``slot`` in every image, redrawing scale and position, and paint it."""
        s, device = self.spec.canvas, self.index.device
        painted = (self.owner > 0).to(torch.int32)
        integral = torch.zeros(len(painted), s + 1, s + 1, dtype=torch.int32, device=device)
        integral[:, 1:, 1:] = painted.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
        integral = integral.flatten(1)
        waiting = (self.used[:, slot] & ~self.failed).nonzero().squeeze(1)
        for round_ in range(MAX_ROUNDS):
            if not len(waiting):
                break
            tries = torch.arange(round_ * TRIES, (round_ + 1) * TRIES, device=device)
            name = (self.index[waiting, None], self.attempt[waiting, None], torch.full_like(tries, slot), tries)
            low, high = self.spec.scale
            scale = low + (high - low) * uniform(self.seed, 2, *name)
            size = torch.floor(28 * scale).long()
            x = integers(0, s - size, uniform(self.seed, 3, *name))
            y = integers(0, s - size, uniform(self.seed, 4, *name))
            table = integral[waiting]

            def at(row: Tensor, column: Tensor, table: Tensor = table) -> Tensor:
                return table.gather(1, row * (s + 1) + column)

            free = at(y + size, x + size) - at(y, x + size) - at(y + size, x) + at(y, x) == 0
            placed = free.any(1)
            first = free.int().argmax(1, keepdim=True)
            rows = waiting[placed]
            self.scale[rows, slot] = scale.gather(1, first)[placed, 0].float()
            self.box[rows, slot] = torch.cat([v.gather(1, first) for v in (x, y, size)], 1)[placed]
            waiting = waiting[~placed]
        self.failed[waiting] = True
        self._paint((self.used[:, slot] & ~self.failed).nonzero().squeeze(1), slot)

    def _paint(self, rows: Tensor, slot: int) -> None:
        starts, label = self.sources.starts, self.digit[rows, slot]
        u = uniform(self.seed, 5, self.index[rows], self.attempt[rows], torch.full_like(rows, slot))
        source = integers(starts[label], starts[label + 1] - 1, u)
        x, y, size = self.box[rows, slot].unbind(1)
        intensity = paste(self.sources.digits[source], size, x, y, self.spec.canvas)
        self.alpha[rows] += intensity
        self.owner[rows] = torch.where(intensity > 0, slot + 1, self.owner[rows]).to(torch.uint8)

    def background(self) -> Tensor:
        """(N, 3, S, S): black, or a window of a picture; then the distractors on it."""
        n, s = len(self.index), self.spec.canvas
        if self.spec.background:
            canvas = self._pictures().int()
        else:
            canvas = torch.zeros(n, 3, s, s, dtype=torch.int32, device=self.index.device)
        if self.spec.distractors:
            canvas = (canvas + self._distractors()).clamp(max=255)
        return canvas

    def _distractors(self) -> Tensor:
        """Random 5×5 fragments of random digits in random colours, scaled and added up: (N, 3, S, S)."""
        n, s, device, side = len(self.index), self.spec.canvas, self.index.device, self.sources.digits.shape[-1]
        name = (self.index[:, None], torch.arange(self.spec.distractors, device=device))

        def draw(stream: int, low: int | Tensor, high: int | Tensor) -> Tensor:
            return integers(low, high, uniform(self.seed, stream, *name)).flatten()

        source = draw(20, 0, len(self.sources.digits) - 1)
        k = torch.arange(FRAGMENT, device=device)
        rows, columns = draw(21, 0, side - FRAGMENT)[:, None] + k, draw(22, 0, side - FRAGMENT)[:, None] + k
        patches = self.sources.digits[source[:, None, None], rows[:, :, None], columns[:, None, :]]
        low, high = self.spec.scale
        size = torch.floor(FRAGMENT * (low + (high - low) * uniform(self.seed, 23, *name))).long().clamp(min=1)
        widest = max(1, int(FRAGMENT * high))
        x, y = (draw(stream, 0, s - size).view_as(size) for stream in (24, 25))
        origin = torch.zeros_like(size).flatten()
        intensity = paste(patches, size.flatten(), origin, origin, widest).view(n, -1, 1, widest, widest)
        _, rgb = _noisy_colour(self.seed, 30, *name)
        colours = (intensity * rgb[..., None, None] // 255).int()  # (N, D, 3, widest, widest)
        stride = s + widest  # space for the empty border of fragments at the edge
        j = torch.arange(widest, device=device)
        pixel = (y[..., None, None] + j[:, None]) * stride + x[..., None, None] + j
        pixel = pixel[:, :, None].expand_as(colours).transpose(1, 2).reshape(n, 3, -1)
        canvas = torch.zeros(n, 3, stride * stride, dtype=torch.int32, device=device)
        canvas.scatter_add_(2, pixel, colours.transpose(1, 2).reshape(n, 3, -1))
        return canvas.view(n, 3, stride, stride)[:, :, :s, :s]

    def _pictures(self) -> Tensor:
        """A random window of a random picture, mirrored half of the time."""
        pictures, s, i = self.sources.pictures, self.spec.canvas, self.index
        if pictures is None:
            raise UserError("these scenes need pictures for their background: set Sources.pictures")
        h, w = pictures.shape[-2:]
        picture = integers(0, len(pictures) - 1, uniform(self.seed, 40, i))
        y = integers(0, h - s, uniform(self.seed, 41, i))[:, None] + torch.arange(s, device=i.device)
        x = integers(0, w - s, uniform(self.seed, 42, i))[:, None] + torch.arange(s, device=i.device)
        x = torch.where((uniform(self.seed, 43, i) < 0.5)[:, None], x, x.flip(1))
        return pictures[picture[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)

    def finish(self) -> Scenes:
        """Composite colour × intensity over the background; digits never overlap, so one pass does."""
        nothing = torch.zeros_like(self.rgb[:, :1])
        palette = torch.cat([nothing, self.rgb], 1).transpose(1, 2).int()  # (N, 3, 1 + K) by owner
        owner = self.owner.flatten(1).long()[:, None].expand(-1, 3, -1)
        rgb = palette.gather(2, owner).view(len(owner), 3, *self.alpha.shape[1:])
        alpha = self.alpha[:, None]
        images = (self.background() * (255 - alpha) + rgb * alpha + 127) // 255
        unused = ~self.used
        return Scenes(
            images.to(torch.uint8).contiguous(),
            self.owner,
            self.digit,
            self.colour.masked_fill(unused, -1),
            self.scale,
            self.box,
        )


def paint(spec: SceneSpec, sources: Sources, seed: int, index: Tensor) -> Scenes:
    """Paint the images numbered ``index`` (N,) of ``seed``, on the device of ``index``.

    Images in which some digit finds no free place are started again with other random numbers until all are done.
    """
    done: Scenes | None = None
    todo, attempt = torch.arange(len(index), device=index.device), 0
    while True:
        painter = _Painter(spec, sources, seed, index[todo], attempt)
        for slot in range(spec.digits[1]):
            painter.place(slot)
        part = painter.finish()
        if done is None:
            done = part
        else:
            for f in fields(Scenes):
                getattr(done, f.name)[todo] = getattr(part, f.name)
        todo, attempt = todo[painter.failed], attempt + 1
        if not len(todo):
            return done
        if attempt > 100:
            raise UserError(
                f"no room for {spec.digits} digits of scale {spec.scale} on {spec.canvas} pixels; lower data.count or "
                "data.scale, or raise data.canvas"
            )


def generate(
    spec: SceneSpec,
    sources: Sources,
    seed: int,
    images: int,
    *,
    start: int = 0,
    batch: int = 128,
    device: torch.device | str = "cpu",
    progress: Callable[[Iterator[int], int], Iterator[int]] | None = None,
) -> Scenes:
    """Images ``start`` … ``start + images`` of ``seed``.

    Args:
        spec: how scenes are drawn.
        sources: digits and pictures to draw with.
        seed: which dataset.
        images: how many.
        start: number of the first.
        batch: images painted at once; changes speed and memory, never the result.
        device: where to paint.
        progress: wraps the iteration over batches, given it and its length, for a progress bar.
    """
    if images < 1:
        raise UserError(f"images={images}: expected at least one")
    sources = sources.to(device)
    begins: Iterator[int] = iter(range(start, start + images, batch))
    if progress is not None:
        begins = progress(begins, -(-images // batch))
    stop = start + images
    return Scenes.cat(
        [paint(spec, sources, seed, torch.arange(b, min(b + batch, stop), device=device)) for b in begins]
    )
