"""Class attention of compiled models and of several processes."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pytest
import torch
from forked import side_by_side
from small_net import SmallNet, images, randomise, tree
from torch import nn

import foveal
from foveal.errors import UserError

LAYERS = ["pointwise", "last"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return randomise(SmallNet()).eval()


def steps(model: nn.Module, times: int = 2) -> list[torch.Tensor]:
    """Maps of a few batches and the gradient of a loss on them."""
    actual = []
    for i in range(times):
        model.zero_grad()
        x, target = images(3, seed=i), torch.tensor([[0, 1], [2, 3], [4, 0]])
        maps = foveal.cam(model, x, target, LAYERS)
        sum(item.square().sum() for item in maps.values()).backward()
        actual += [item.detach() for item in maps.values()]
        actual.append(
            model.get_parameter(next(n for n, _ in model.named_parameters() if n.endswith("stem.weight"))).grad
        )
    return actual


def whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager")


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def one_layer(model: nn.Module) -> nn.Module:
    model.last = torch.compile(model.last, backend="aot_eager")
    return model


@pytest.mark.parametrize(
    "used", [pytest.param(False, id="fresh", marks=pytest.mark.slow), pytest.param(True, id="used")]
)
@pytest.mark.parametrize(
    "wrap", [*(pytest.param(wrap, marks=pytest.mark.slow) for wrap in (whole, in_place)), one_layer]
)
def test_compiled_equals_eager(wrap, used: bool) -> None:
    torch.compiler.reset()
    expected = steps(net())
    inner = net()
    before = tree(inner)
    model = wrap(inner)
    if used:  # a hook alone would never run after this
        model(images(3, seed=9)).sum().backward()
    for a, b in zip(steps(model), expected, strict=True):
        torch.testing.assert_close(a, b)
    after = [(n.replace("._orig_mod", ""), t) for n, t in tree(inner) if t.__name__ != "OptimizedModule"]
    assert after == before
    torch.testing.assert_close(model(images(3)), net()(images(3)))
    for a, b in zip(steps(model), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_parts_are_differentiated_once() -> None:
    torch.compiler.reset()
    model, x = whole(net()), images(2)
    with pytest.warns(UserWarning, match="order=2 is not possible here: CompiledFunction"):
        actual = foveal.cam(model, x, 1, "pointwise", order=2)
    torch.testing.assert_close(actual, foveal.cam(net(), x, 1, "pointwise"))
    actual.sum().backward()


@pytest.mark.slow
def test_the_compiler_that_users_have() -> None:
    """Inductor frees buffers in the first backward unless it is told that there will be more."""
    torch.compiler.reset()

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.b(self.a(x).sin()).sin().mean((2, 3)))

    torch.manual_seed(0)
    plain, x, target = Tiny(), images(2), torch.tensor([[0, 1], [2, 0]])
    model = torch.compile(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(x).sum().backward()
        actual = foveal.cam(model, x, target, ["a", "b"])
    expected = foveal.cam(plain, x, target, ["a", "b"])
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name])
    plain.zero_grad()
    sum(item.sum() for item in actual.values()).backward()
    inputs = [p.grad for p in plain.parameters()]
    plain.zero_grad()
    sum(item.sum() for item in expected.values()).backward()
    for a, b in zip(inputs, [p.grad for p in plain.parameters()], strict=True):
        torch.testing.assert_close(a, b)


class Function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)
        self.act = torch.compile(
            lambda x: torch.mm(torch.mm(x.flatten(1), x.flatten(1).T).sin(), x.flatten(1)), backend="aot_eager"
        )

    def forward(self, x):
        return self.head(self.act(self.b(self.a(x))).view(len(x), 4, -1).mean(2))


@pytest.mark.parametrize("more", [False, True])
def test_a_compiled_function_cannot_be_made_to_keep_its_buffers(more: bool) -> None:
    torch.compiler.reset()
    model, x = Function(), images(2)
    if more:
        model.b = torch.compile(model.b, backend="aot_eager")
    model(x).sum().backward()
    with pytest.raises(UserError, match=r"compiled function .* set torch._functorch.config.donated_buffer = False"):
        foveal.cam(model, x, 1, "a")


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    worker = importlib.import_module("cam_worker")
    side_by_side(worker.work, str(tmp_path))
    for order, static in worker.SETTINGS:
        model = worker.start()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(worker.STEPS):
            optimiser.zero_grad()
            for rank in range(2):
                x, target = worker.batch(step, rank)
                (worker.loss_of(model, x, target, order) / 2).backward()
            optimiser.step()
        ranks = [torch.load(tmp_path / f"{order}{static}{rank}.pt", weights_only=True) for rank in range(2)]
        for name, p in model.named_parameters():
            torch.testing.assert_close(ranks[0][name], ranks[1][name], rtol=0, atol=0)
            torch.testing.assert_close(ranks[0][name], p.detach(), rtol=1e-4, atol=1e-6)
