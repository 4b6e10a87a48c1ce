"""A detector with focused attention between its regions beside the plain one: whole steps.

    foveal bench focused                        # this machine
    python benchmarks/focused.py --csv results/bench-focused.csv

Faster R-CNN of torchvision (ResNet-50 with a feature pyramid, random weights) with 300 proposals in training and test,
and boxes of three to ten objects. ``plain`` is the detector; ``focused`` has the attention; in training, ``supervised``
adds the loss on it (mat-focal, different categories). In test, ``relationships`` ranks 100 pairs of regions of each
image as well, and ``measured`` computes relation recall and center-mass. A training step is forward, backward and SGD.
Forms are timed in turns. On a GPU: bf16; on a CPU: small images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import foveal
from foveal.attention import region_graphs, relationship_proposals
from foveal.bench import clock_beside, hardware, peak, write_rows
from foveal.supervise import relation_loss
from foveal.tasks.relations import RelationMetrics

SITE = "roi_heads.box_head.attached.focused"


def detector(size: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    options: dict[str, Any] = {"rpn_post_nms_top_n_train": 300, "rpn_post_nms_top_n_test": 300}
    options |= {"box_batch_size_per_image": 300, "min_size": size, "max_size": 2 * size}
    model = torchvision.models.get_model("fasterrcnn_resnet50_fpn", weights=None, weights_backbone=None, **options)
    return model.to(device)


def inputs(batch: int, size: int, device: torch.device) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    draw = torch.Generator().manual_seed(0)
    images, targets = [], []
    for n in range(batch):
        width, objects = size + size // 4 * (n % 3), 3 + n % 8
        images.append(torch.rand(3, size, width, generator=draw).to(device))
        corners = 0.6 * size * torch.rand(objects, 2, generator=draw)
        boxes = torch.cat((corners, corners + size * (0.1 + 0.3 * torch.rand(objects, 2, generator=draw))), 1)
        labels = torch.randint(1, 91, (objects,), generator=draw)
        targets.append({"boxes": boxes.to(device), "labels": labels.to(device)})
    return images, targets


def training(model: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]], supervised: bool) -> None:
    optimiser = torch.optim.SGD(model.parameters(), 1e-6)
    sizes = [image.shape[-2:] for image in images]
    with torch.autocast(images[0].device.type, torch.bfloat16, enabled=images[0].is_cuda):
        if supervised:
            with foveal.watch(model) as seen:
                losses = model(images, targets)
            losses["relation"] = 0.01 * relation_loss(seen[SITE], targets, sizes)
        else:
            losses = model(images, targets)
    torch.stack([loss.float() for loss in losses.values()]).sum().backward()
    optimiser.step()
    optimiser.zero_grad()


@torch.no_grad()
def testing(model: nn.Module, images: list[Tensor], targets: list[dict[str, Tensor]], form: str) -> None:
    with torch.autocast(images[0].device.type, torch.bfloat16, enabled=images[0].is_cuda):
        if form in ("plain", "focused"):
            model(images)
            return
        with foveal.watch(model) as seen:
            model(images)
    sizes = [image.shape[-2:] for image in images]
    if form == "measured":
        RelationMetrics().to(images[0].device).update(seen[SITE], targets, sizes)
        return
    ranked = [relationship_proposals(*graph, k=100) for graph in region_graphs(seen[SITE], sizes)]
    torch.stack([pairs.subjects.mean() + pairs.objects.mean() for pairs in ranked]).sum().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int, help="short side of the images")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    batch, size = options.batch or (8 if gpu else 1), options.size or (600 if gpu else 96)
    images, targets = inputs(batch, size, device)
    plain, focused = detector(size, device), detector(size, device)
    foveal.insert(focused, "focused", start="paper")
    steps: dict[str, dict[str, Callable[[], None]]] = {"training": {}, "test": {}}
    for form, model in (("plain", plain), ("focused", focused), ("supervised", focused)):
        steps["training"][form] = partial(training, model, images, targets, form == "supervised")
    for form in ("plain", "focused", "relationships", "measured"):
        steps["test"][form] = partial(testing, plain if form == "plain" else focused, images, targets, form)
    rows = []
    for phase, runs in steps.items():
        for model in (plain, focused):
            model.train(phase == "training")
        for run in runs.values():
            run()
            run()
        times = clock_beside(runs, device, options.seconds)
        for form, taken in times.items():
            ratio = taken / times["plain"]
            row: dict[str, object] = {"phase": phase, "form": form, "batch": batch, "size": size}
            row |= {"step_ms": round(taken, 3), "ratio_to_plain": round(ratio, 4)}
            row |= {"peak_mib": round(peak(runs[form]), 1) if gpu else "", "dtype": "bfloat16" if gpu else "float32"}
            rows.append(row | {"hardware": hardware(device), "torch": torch.__version__})
            print(f"{phase:9} {form:14} {taken:10.2f} ms {ratio:7.3f} times")
    if options.csv:
        write_rows(options.csv, rows)


if __name__ == "__main__":
    main()
