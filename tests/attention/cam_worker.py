"""What each process of the distributed test of class attention runs."""

from __future__ import annotations

from pathlib import Path

import torch
from small_net import SmallNet, images
from torch import distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import foveal
from foveal.attention.class_maps.cam import class_maps, trace_classes
from foveal.attention.class_maps.taps import Taps

STEPS = 3
SETTINGS = [(1, False), (2, True)]  # order of the maps, and whether the graph is said to be the same in every step
LAYERS = ["pointwise", "last"]


def loss_of(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor, order: int) -> torch.Tensor:
    maps = foveal.cam(model, x, target, LAYERS, order=order)
    return sum(item.square().mean() for item in maps.values()) + F.cross_entropy(model(x), target)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images(2, seed=10 * step + rank), torch.tensor([step, rank])


def start() -> SmallNet:
    torch.manual_seed(0)
    return SmallNet().eval()


def work(rank: int, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    for order, static in SETTINGS:
        model = DistributedDataParallel(start(), static_graph=static)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            optimiser.zero_grad()
            x, target = batch(step, rank)
            taps = Taps(model, LAYERS)
            with taps:  # one forward of the wrapper: its output and the maps come from the same graph
                logits = model(x)
            maps = class_maps(trace_classes(taps, target[:, None], order))
            loss = sum(item.square().mean() for item in maps.values()) + F.cross_entropy(logits, target)
            loss.backward()
            optimiser.step()
        weights = {name: p.detach() for name, p in model.module.named_parameters()}
        torch.save(weights, Path(folder) / f"{order}{static}{rank}.pt")
    distributed.destroy_process_group()
