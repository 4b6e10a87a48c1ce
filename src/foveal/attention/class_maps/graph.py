"""The nodes between two points of an autograd graph, and which of them cannot be differentiated twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

from foveal.compat import frees_its_buffers, python_function

NO_DOUBLE = re.compile(r"ScaledDotProduct|CompiledFunction|torchvision_|vision::ops|CudnnRnn")
RAISES = re.compile(r"::(NotImplemented|\w*Error)$")


def below(starts: Iterable[Node | None]) -> Iterator[Node]:
    """``starts`` and all nodes of the graph that they depend on."""
    todo, seen = list(starts), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [inner for inner, _ in node.next_functions]


def between(outputs: Tensor, ends: Sequence[Node]) -> list[Node]:
    """Nodes on a path from ``outputs`` back to any of ``ends``, without the last of these."""
    above: dict[Any, list[Any]] = {}
    todo: list[Any] = [outputs.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for inner, _ in node.next_functions:
            if inner is not None:
                above.setdefault(inner, []).append(node)
                if inner not in seen:
                    seen.add(inner)
                    todo.append(inner)
    nodes: set[Any] = set()
    todo = list(ends)
    while todo:
        for node in above.get(todo.pop(), ()):
            if node not in nodes:
                nodes.add(node)
                todo.append(node)
    return list(nodes)


def without_second_order(nodes: Sequence[Node]) -> str | None:
    """Name of an operation among ``nodes`` that cannot be differentiated twice, if there is one."""
    for node in nodes:
        backward = getattr(python_function(node), "backward", None)
        filename = getattr(getattr(backward, "__code__", None), "co_filename", "")
        if NO_DOUBLE.search(node.name()) or filename == once_differentiable.__code__.co_filename:
            return re.sub(r"^torch::autograd::|Backward\d*$", "", node.name())
    return None


def missing_derivative(gradients: Sequence[Tensor]) -> str | None:
    """Name of an operation in the graph of ``gradients`` that PyTorch cannot differentiate again, if there is one."""
    for node in below(gradient.grad_fn for gradient in gradients):
        if RAISES.search(node.name()):
            try:
                node(torch.zeros(()))  # type: ignore[operator]  # its message names it
            except RuntimeError as error:
                known = re.search(r"derivative for (?:\w+::)?(\w+?)(?:_backward)? is not", str(error))
                return known[1] if known else str(error)
    return None


def frees_buffers(nodes: Sequence[Node]) -> bool:
    """Whether a compiled part among ``nodes`` frees its buffers in its first backward."""
    return any(frees_its_buffers(node) for node in nodes)
