"""Weights that are split over processes: FSDP2, through Lightning's ModelParallelStrategy."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from foveal.recipe import Train


def split_weights(train: Train) -> ModelParallelStrategy:
    """The strategy ``fsdp2``: weights, gradients and optimiser split over all processes; checkpoints are whole."""
    return ModelParallelStrategy(train.devices * train.nodes, 1, save_distributed_checkpoint=False)


def split(model: nn.Module, strategy: Any) -> None:
    """Split the weights of each child of ``model`` over the processes of ``strategy``, if that is what it does."""
    if not isinstance(strategy, ModelParallelStrategy) or isinstance(model, FSDPModule):
        return
    model.to(memory_format=torch.contiguous_format)  # FSDP2 takes no other
    mesh = strategy.device_mesh["data_parallel"]
    for child in model.children():
        if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def load_whole(model: nn.Module, weights: dict[str, Any]) -> None:
    """Load whole weights into a model whose own may be split."""
    if isinstance(model, FSDPModule):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict  # slow to import

        set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
    else:
        model.load_state_dict(weights)
