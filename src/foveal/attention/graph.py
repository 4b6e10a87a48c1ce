"""What lies between two places of an autograd graph, and what it cannot do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

NO_DOUBLE = re.compile(r"ScaledDotProduct|CompiledFunction|deform_conv2d|DeformConv|NotImplemented|CudnnRnn|Checkpoint")


def between(outputs: Tensor, ends: Sequence[Node]) -> list[Node]:
    """Nodes of the graph on a way from ``outputs`` back to any of ``ends``, without the furthest of these."""
    above: dict[Any, list[Any]] = {}
    todo: list[Any] = [outputs.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for below, _ in node.next_functions:
            if below is not None:
                above.setdefault(below, []).append(node)
                if below not in seen:
                    seen.add(below)
                    todo.append(below)
    found: set[Any] = set()
    todo = list(ends)
    while todo:
        for node in above.get(todo.pop(), ()):
            if node not in found:
                found.add(node)
                todo.append(node)
    return list(found)


def once_only(nodes: Sequence[Node]) -> str | None:
    """Name of an operation among ``nodes`` that cannot be differentiated twice, if there is one."""
    for node in nodes:
        backward = getattr(getattr(node, "_forward_cls", None), "backward", None)
        where = getattr(getattr(backward, "__code__", None), "co_filename", "")
        if NO_DOUBLE.search(node.name()) or where == once_differentiable.__code__.co_filename:
            return re.sub(r"^torch::autograd::|Backward\d*$", "", node.name())
    return None


def runs_once(nodes: Sequence[Node]) -> bool:
    """Whether a compiled part among ``nodes`` gives its buffers away in its first backward."""
    made = (getattr(getattr(node, "_forward_cls", None), "metadata", None) for node in nodes)
    return any(getattr(each, "bw_donated_idxs", None) for each in made)
