"""What lies between two places of an autograd graph, and what it cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

NO_DOUBLE = re.compile(r"ScaledDotProduct|CompiledFunction|torchvision_|vision::ops|CudnnRnn")
RAISES = re.compile(r"::(NotImplemented|\w*Error)$")


def below(starts: Iterable[Node | None]) -> Iterator[Node]:
    """All nodes of the graph that lead to ``starts``, and these."""
    todo, seen = list(starts), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [each for each, _ in node.next_functions]


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


def not_again(gradients: Sequence[Tensor]) -> str | None:
    """Name of an operation whose gradient, a part of ``gradients``, PyTorch cannot differentiate, if there is one."""
    for node in below(each.grad_fn for each in gradients):
        if RAISES.search(node.name()):
            try:
                node(torch.zeros(()))  # type: ignore[operator]  # its message names it
            except RuntimeError as error:
                known = re.search(r"derivative for (?:\w+::)?(\w+?)(?:_backward)? is not", str(error))
                return known[1] if known else str(error)
    return None


def runs_once(nodes: Sequence[Node]) -> bool:
    """Whether a compiled part among ``nodes`` gives its buffers away in its first backward."""
    made = (getattr(getattr(node, "_forward_cls", None), "metadata", None) for node in nodes)
    return any(getattr(each, "bw_donated_idxs", None) for each in made)
