"""Relation recall beside a plain loop over pairs and relations.

    foveal bench relation_recall                # this machine
    python benchmarks/relation_recall.py --csv results/bench-relation-recall.csv

Recall at 1k to 10k of images with 300 proposals and 30 relations between 15 objects. ``loop`` is straight from the
definition: rank all pairs; for each K and relation, look for the first of the K pairs that matches. ``one_pass`` is a
more careful loop: it passes over the pairs once and computes all overlaps beforehand. Both get plain lists, whose
making does not count, and must agree with ``vectorised`` on the first images, which they are timed on.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from foveal.bench import hardware, write_rows
from foveal.measure.relation_recall import K, RelationRecall

Box = Sequence[float]


def iou(a: Box, b: Box) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = (max(0.0, x[2] - x[0]) * max(0.0, x[3] - x[1]) for x in (a, b))
    union = sum(areas) - width * height
    return width * height / union if union > 0 else 0.0


def ranked_pairs(scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    pairs = [(m, n) for m in range(len(scores)) for n in range(len(scores)) if m != n]
    return sorted(pairs, key=lambda pair: -scores[pair[0]][pair[1]])  # stable: equal ones stay in order


def loop(
    scores: Sequence[Sequence[float]],
    proposals: Sequence[Box],
    boxes: Sequence[Box],
    relations: Sequence[Sequence[int]],
    k: Sequence[int] = K,
    ordered: bool = True,
) -> list[float]:
    """R@K of one image for every K, straight from its definition."""
    wanted = {tuple(relation) if ordered else tuple(sorted(relation)) for relation in relations}
    pairs = ranked_pairs(scores)

    def matches(pair: Sequence[int], relation: Sequence[int]) -> bool:
        return all(iou(proposals[p], boxes[b]) > 0.5 for p, b in zip(pair, relation, strict=True))

    def found(relation: Sequence[int], most: int) -> bool:
        orders = (relation,) if ordered else (relation, relation[::-1])
        return any(matches(pair, order) for pair in pairs[:most] for order in orders)

    return [sum(found(relation, most) for relation in wanted) / len(wanted) if wanted else math.nan for most in k]


def one_pass(
    scores: Sequence[Sequence[float]],
    proposals: Sequence[Box],
    boxes: Sequence[Box],
    relations: Sequence[Sequence[int]],
    k: Sequence[int] = K,
) -> list[float]:
    """The same in one pass over the pairs, with all overlaps computed beforehand."""
    shows = [[iou(proposal, box) > 0.5 for box in boxes] for proposal in proposals]
    wanted = {tuple(relation) for relation in relations}
    missing, pairs, recalls, done = set(wanted), ranked_pairs(scores), [], 0
    for most in sorted(k):
        for m, n in pairs[done:most]:
            missing -= {(s, o) for s, o in missing if shows[m][s] and shows[n][o]}
        done = most
        recalls.append(1 - len(missing) / len(wanted))
    return recalls


def image(draw: torch.Generator, proposals: int, relations: int, objects: int) -> tuple[Tensor, ...]:
    """Scores, proposals, boxes and relations of an image of 600×600; a third of the proposals are near objects."""
    corners = 400 * torch.rand(objects, 2, generator=draw)
    boxes = torch.cat((corners, corners + 30 + 170 * torch.rand(objects, 2, generator=draw)), 1)
    near = boxes[torch.randint(objects, (proposals,), generator=draw)]
    spread = torch.where(torch.rand(proposals, 1, generator=draw) < 1 / 3, 8.0, 80.0)
    near = near + spread * torch.randn(proposals, 4, generator=draw)
    first, second = torch.triu_indices(objects, objects, 1)
    chosen = torch.randperm(len(first), generator=draw)[:relations]
    related = torch.stack((first[chosen], second[chosen]), 1)
    return torch.randn(proposals, proposals, generator=draw), near, boxes, related


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--proposals", type=int, default=300)
    parser.add_argument("--relations", type=int, default=30)
    parser.add_argument("--objects", type=int, default=15)
    parser.add_argument("--loop-images", type=int, default=5, help="images that the loops are timed on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    shape = options.proposals, options.relations, options.objects
    images = [image(draw, *shape) for _ in range(options.images)]
    device = torch.device(options.device)
    there = [[value.to(device) for value in one] for one in images]

    def vectorised(chosen: Sequence[Sequence[Tensor]]) -> Tensor:
        metric = RelationRecall().to(device)
        metric.update(*map(list, zip(*chosen, strict=True)))
        return metric.compute().cpu()

    vectorised(there[:1])
    start = time.perf_counter()
    vectorised(there)
    milliseconds = {"vectorised": 1e3 * (time.perf_counter() - start) / len(there)}
    few = min(options.loop_images, len(images))
    expected = vectorised(there[:few])
    lists = [[value.tolist() for value in one] for one in images[:few]]
    for name, function in (("loop", loop), ("one_pass", one_pass)):
        start = time.perf_counter()
        recalls = torch.tensor([function(*one) for one in lists])
        milliseconds[name] = 1e3 * (time.perf_counter() - start) / few
        torch.testing.assert_close(recalls.mean(0), expected)
    rows = []
    for form, taken in milliseconds.items():
        row: dict[str, object] = {"form": form, "proposals": options.proposals, "relations": options.relations}
        row |= {"images": len(images) if form == "vectorised" else few, "ms_per_image": round(taken, 3)}
        row |= {"times_vectorised": round(taken / milliseconds["vectorised"], 1)}
        row |= {"hardware": hardware(device), "torch": torch.__version__}
        rows.append(row)
        print(f"{form:12} {taken:10.3f} ms an image, {taken / milliseconds['vectorised']:8.1f} times")
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
