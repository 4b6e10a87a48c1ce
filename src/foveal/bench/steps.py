"""A training step and an inference of a whole model, as people run them, and what one layer of it costs Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from foveal.bench import host_time, launches


def step_of(model: nn.Module, images: Tensor, part: str, mode: str | None) -> tuple[Callable[[], object], float]:
    """A function that does ``part``, and the MiB of what it keeps between calls on a CPU.

    On a GPU: bf16 autocast and fused SGD with momentum; on a CPU float32.

    Args:
        model: a classifier on the device of ``images``.
        images: (N, C, H, W).
        part: ``train`` or ``infer``.
        mode: that of torch.compile; None for the model as it is.
    """
    device, gpu = images.device, images.is_cuda
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=gpu)
    compiled: Any = model if mode is None else torch.compile(model, mode=mode, dynamic=False)
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) / 2**20
    if part == "infer":
        model.eval()

        def infer() -> object:
            with torch.inference_mode(), autocast:
                return compiled(images)

        return infer, size
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=gpu)
    labels = torch.arange(len(images), device=device) % 2

    def step() -> None:
        optimiser.zero_grad()
        with autocast:
            logits = compiled(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimiser.step()

    return step, 2 * size  # with momentum


def profile_site(models: Mapping[str, nn.Module], site: str, images: Tensor, console: Console) -> None:
    """Print what the layer ``site`` costs Python in each of ``models``, and how many kernels it launches.

    Its input is what it gets in the last of them, whose operators are listed as well.
    """
    device, inputs = images.device, list[Tensor]()
    *_, last = models.values()
    hook = last.get_submodule(site).register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=images.is_cuda)
    with torch.no_grad(), autocast:
        last(images)
    hook.remove()
    x = inputs[0].clone().requires_grad_()
    table = Table("", "forward µs", "with backward µs", "launches", "with backward", title=f"{site}, {tuple(x.shape)}")
    for name, model in models.items():
        layer = model.train().get_submodule(site)
        with autocast:
            gradient = torch.ones_like(layer(x))

            def forward(layer: nn.Module = layer) -> object:
                return layer(x)

            def both(layer: nn.Module = layer, gradient: Tensor = gradient) -> None:
                layer(x).backward(gradient)

            for _ in range(3):
                both()
            times = [f"{host_time(run, device):.0f}" for run in (forward, both)]
            counts = [str(launches(run)) if images.is_cuda else "" for run in (forward, both)]
        table.add_row(name, *times, *counts)
    console.print(table)
    with torch.profiler.profile() as profiler, autocast:
        both()
    console.print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15), soft_wrap=True)
