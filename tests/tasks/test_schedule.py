import itertools
import math

import pytest
import torch
from torch import nn

from foveal.errors import UserError
from foveal.recipe import Optim
from foveal.tasks.schedule import fused_step, optimiser, rate


@pytest.mark.parametrize("step", [0, 7, 100, 10_000])
def test_constant(step):
    assert rate(Optim(), step, 10, 100) == 1.0


@pytest.mark.parametrize(
    ("epoch", "decays"), [(0, 0), (29, 0), (30, 0), (31, 1), (41, 1), (42, 2), (52, 2), (53, 3), (299, 25)]
)
@pytest.mark.parametrize("steps_per_epoch", [1, 150])
def test_stairs(epoch, decays, steps_per_epoch):
    """After epoch 30, divided by 1.5 whenever more than ten epochs have passed since the last time."""
    optim = Optim(schedule="stairs", after=30, every=11, factor=1.5)
    for step in (epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch - 1):
        assert rate(optim, step, steps_per_epoch, 300 * steps_per_epoch) == pytest.approx(1.5**-decays)


def test_stairs_as_the_authors_code_counts():
    """A literal loop of the rule."""
    factor, last, found = 1.0, -1000, []
    for epoch in range(120):
        if epoch > 30 and epoch - last > 10:
            factor, last = factor / 1.5, epoch
        found.append(factor)
    optim = Optim(schedule="stairs", after=30, every=11, factor=1.5)
    assert [rate(optim, epoch, 1, 300) for epoch in range(120)] == pytest.approx(found)


@pytest.mark.parametrize(
    ("step", "value"), [(0, 1.0), (25, (2 + math.sqrt(2)) / 4), (50, 0.5), (75, 0.1464466), (100, 0.0)]
)
def test_cosine(step, value):
    assert rate(Optim(schedule="cosine"), step, 10, 100) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("step", "value"),
    [(0, 0.04), (50, 0.232), (100, 0.424), (200, 0.808), (250, 1.0), (500, 0.75), (625, 0.5), (750, 0.25), (1000, 0.0)],
)
def test_onecycle(step, value):
    assert rate(Optim(schedule="onecycle"), step, 10, 1000) == pytest.approx(value, abs=1e-9)


def test_onecycle_has_no_jump():
    values = [rate(Optim(schedule="onecycle"), step, 10, 1000) for step in range(1001)]
    assert max(abs(a - b) for a, b in itertools.pairwise(values)) < 0.005
    assert max(values) == 1.0


@pytest.mark.parametrize("schedule", ["cosine", "onecycle"])
def test_steps_beyond_the_last_stay_at_zero(schedule):
    assert rate(Optim(schedule=schedule), 150, 10, 100) == pytest.approx(0, abs=1e-12)
    assert rate(Optim(schedule=schedule), 0, 1, 0) == pytest.approx(0.04 if schedule == "onecycle" else 1.0)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("rmsprop", torch.optim.RMSprop, {"lr": 0.3, "alpha": 0.7, "eps": 1e-4, "momentum": 0}),
        ("adam", torch.optim.Adam, {"lr": 0.3, "eps": 1e-4}),
        ("adamw", torch.optim.AdamW, {"lr": 0.3, "eps": 1e-4}),
        ("sgd", torch.optim.SGD, {"lr": 0.3, "momentum": 0.6}),
    ],
)
def test_optimisers_take_their_options(name, kind, expected):
    optim = Optim(name, 0.3, weight_decay=0.01, momentum=0.6, alpha=0.7, eps=1e-4)
    chosen = optimiser(optim, nn.Linear(3, 2).parameters())
    assert type(chosen) is kind
    for group in chosen.param_groups:
        assert {key: group[key] for key in expected} == expected


def test_weight_decay_spares_biases_and_norms():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 4), nn.Linear(4, 2))
    model[3].bias.requires_grad_(False)
    decayed, spared = optimiser(Optim("adamw", weight_decay=0.1), model.parameters()).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert [names[id(p)] for p in decayed["params"]] == ["0.weight", "2.weight", "3.weight"]
    assert [names[id(p)] for p in spared["params"]] == ["0.bias", "1.weight", "1.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_weight_decay_on_everything():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    decayed, spared = optimiser(Optim("sgd", weight_decay=0.1, decay="all"), model.parameters()).param_groups
    assert [id(p) for p in decayed["params"]] == [id(p) for p in model.parameters()]
    assert spared["params"] == []
    optimiser(Optim("sgd", weight_decay=0.1, decay="all"), model.parameters()).step()


def test_nesterov_momentum():
    assert optimiser(Optim("sgd", nesterov=True), nn.Linear(2, 2).parameters()).defaults["nesterov"]
    with pytest.raises(UserError, match=r"optim\.nesterov=true needs optim\.name=sgd"):
        Optim("adam", nesterov=True)
    with pytest.raises(UserError, match="momentum above 0"):
        Optim("sgd", nesterov=True, momentum=0.0)


def test_stairs_of_ten_every_thirty_epochs():
    """The usual schedule on ImageNet, as the recipes of aw/table1 write it."""
    stairs = Optim(schedule="stairs", after=29, every=30, factor=10)
    assert [rate(stairs, epoch, 1, 90) for epoch in (0, 29, 30, 59, 60, 89)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


@pytest.mark.parametrize("name", ["rmsprop", "adam", "adamw", "sgd"])
def test_every_optimiser_moves_only_what_is_trained(name):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    chosen = optimiser(Optim(name, 0.1), model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    chosen.step()
    assert (model.weight < before[0]).all()
    assert torch.equal(model.bias, before[1])


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "32", True), ("cuda", "bf16", True), ("cuda", "16", None), ("cpu", "32", None), ("mps", "bf16", None)],
)
def test_steps_are_fused_on_a_gpu_unless_gradients_are_scaled(device, precision, expected):
    assert fused_step(torch.device(device), precision) is expected


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_fused_step_is_the_same_step(name):
    weights = []
    for fused in (None, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        chosen = optimiser(Optim(name, 0.1, weight_decay=0.1), model.parameters(), fused=fused)
        for _ in range(3):
            chosen.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            chosen.step()
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights)


def test_decay_is_applied_to_weights_alone():
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    chosen = optimiser(Optim("sgd", 0.5, weight_decay=0.1), model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    chosen.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), 0.95))
    torch.testing.assert_close(model.bias.detach(), torch.ones(2))
