"""What each process of the distributed test runs; a module of its own, so that a spawned process can import it."""

from __future__ import annotations

from pathlib import Path

import torch
from small_net import MECHANISMS, SmallNet, images
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import foveal


def attended() -> nn.Module:
    torch.manual_seed(0)
    model = SmallNet()
    for mechanism in MECHANISMS:
        if mechanism == "deform":  # computes the convolutions that aw has
            continue
        foveal.insert(model, mechanism)
    return model


def work(rank: int, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=processes)
    model = DistributedDataParallel(attended())
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):  # a parameter left out of one step is an error in the next
        optimiser.zero_grad()
        model(images(seed=10 * step + rank)).square().mean().backward()
        optimiser.step()
    torch.save({name: p.detach() for name, p in model.module.named_parameters()}, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
