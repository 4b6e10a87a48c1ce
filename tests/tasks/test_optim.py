"""Optimisers and learning-rate schedules, each schedule against its formula at every step, also when resumed."""

import io
import math

import pytest
import torch
from torch import nn

from foveal.errors import UserError
from foveal.recipe.optim import SGD, Adam, AdamW, Optim, RMSprop
from foveal.recipe.schedules import Constant, Cosine, InverseSqrt, MultiStep, OneCycle, Poly, Schedule, Stairs, Step
from foveal.tasks.optim import fused_step, optimiser, schedule


class Follower:
    """An optimiser with its schedule, stepped as in training."""

    def __init__(self, options: Schedule, steps_per_epoch: int, total: int) -> None:
        optim = SGD(lr=0.3, momentum=0.0, schedule=options)
        self.optimizer = optimiser(optim, nn.Linear(2, 2).parameters())
        self.schedule = schedule(optim, self.optimizer, steps_per_epoch, total)

    def rates(self, steps: int) -> list[float]:
        """The rates of the next steps, as multiples of ``lr``."""
        seen = []
        for _ in range(steps):
            first, second = (group["lr"] for group in self.optimizer.param_groups)
            assert first == second
            seen.append(first)
            self.optimizer.step()
            self.schedule.step()
        return seen

    def state(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save({"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}, file)
        file.seek(0)
        return file

    def resume(self, file: io.BytesIO) -> None:
        state = torch.load(file, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


EPOCH, TOTAL = 7, 7 * 12  # steps


def linear(step: int, warmup: int, start: float) -> float:
    return start + (1 - start) * step / warmup


def old_stairs(step, after, every, factor):
    """A literal loop of the authors' rule."""
    rate, last = 1.0, -1000
    for epoch in range(step // EPOCH + 1):
        if epoch > after and epoch - last > every - 1:
            rate, last = rate / factor, epoch
    return rate


def old_onecycle(step):
    done = min(step / TOTAL, 1.0)
    return 0.04 + 0.96 * done / 0.25 if done < 0.25 else 0.5 * (1 + math.cos(math.pi * (done - 0.25) / 0.75))


def old_cosine(step):
    return 0.5 * (1 + math.cos(math.pi * min(step / TOTAL, 1.0)))


def warm_cosine(step):
    if step < 14:
        return linear(step, 14, 0.001)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min((step - 14) / (TOTAL - 14), 1.0)))


def warm_step(step):
    return (linear(step, 10, 0.25) if step < 10 else 1.0) * 0.5 ** (step // (3 * EPOCH))


def warm_multistep(step):
    epoch = step // EPOCH
    return (linear(step, 5, 1 / 3) if step < 5 else 1.0) * 0.1 ** ((epoch >= 8) + (epoch >= 11))


CASES = {
    "constant": (Constant(), lambda step: 1.0),
    "constant, warm-up": (Constant(warmup=1.5, start=0.5), lambda s: linear(s, 10, 0.5) if s < 10 else 1.0),
    "stairs": (Stairs(after=3, every=2, factor=1.5), lambda step: old_stairs(step, 3, 2, 1.5)),
    "onecycle": (OneCycle(), old_onecycle),
    "cosine": (Cosine(), old_cosine),
    "cosine, warm-up, floor": (Cosine(warmup=2, floor=0.1), warm_cosine),
    "poly": (Poly(), lambda step: max(0.0, 1 - step / TOTAL) ** 0.9),
    "poly, warm-up": (
        Poly(power=2, warmup_steps=4, start=0.1),
        lambda s: linear(s, 4, 0.1) if s < 4 else max(0.0, 1 - (s - 4) / (TOTAL - 4)) ** 2,
    ),
    "inverse_sqrt": (
        InverseSqrt(warmup_steps=20),
        lambda step: linear(step, 20, 1e-4) if step < 20 else math.sqrt(20 / step),
    ),
    "inverse_sqrt, epochs": (
        InverseSqrt(warmup=1),
        lambda step: linear(step, 7, 1e-4) if step < 7 else (step / 7) ** -0.5,
    ),
    "step": (Step(every=3, factor=2), lambda step: 0.5 ** (step // (3 * EPOCH))),
    "step, warm-up": (Step(every=3, factor=2, warmup_steps=10, start=0.25), warm_step),
    "multistep": (MultiStep(epochs=(8, 11)), lambda s: 0.1 ** ((s >= 56) + (s >= 77))),
    "multistep, warm-up": (MultiStep(epochs=(8, 11), warmup_steps=5, start=1 / 3), warm_multistep),
}


@pytest.mark.parametrize("case", CASES)
def test_rates_at_every_step(case):
    options, formula = CASES[case]
    expected = [0.3 * formula(step) for step in range(TOTAL)]
    assert Follower(options, EPOCH, TOTAL).rates(TOTAL) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("case", "formula"), [("onecycle", old_onecycle), ("cosine", old_cosine)])
def test_rates_are_the_same_to_the_last_bit(case, formula):
    assert Follower(CASES[case][0], EPOCH, TOTAL).rates(TOTAL) == [0.3 * formula(step) for step in range(TOTAL)]


def test_stairs_are_the_same_to_the_last_bit():
    def rate(epoch):
        return 1.5 ** -(max(0, epoch - 31) // 11 + (epoch > 30))

    assert Follower(Stairs(), 1, 300).rates(300) == [0.3 * rate(epoch) for epoch in range(300)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop", [0, 3, 10, 40])
def test_a_resumed_run_has_the_same_rates(case, stop):
    options = CASES[case][0]
    whole, first, second = (Follower(options, EPOCH, TOTAL) for _ in range(3))
    before = first.rates(stop)
    second.resume(first.state())
    assert before + second.rates(TOTAL - stop) == whole.rates(TOTAL)


@pytest.mark.parametrize(
    ("epoch", "decays"), [(0, 0), (29, 0), (30, 0), (31, 1), (41, 1), (42, 2), (52, 2), (53, 3), (299, 25)]
)
def test_stairs_as_the_authors_count_epochs(epoch, decays):
    rates = Follower(Stairs(after=30, every=11, factor=1.5), 2, 600).rates(600)
    assert rates[2 * epoch] == rates[2 * epoch + 1] == pytest.approx(0.3 * 1.5**-decays)


def test_stairs_of_ten_every_thirty_epochs_are_the_step_schedule():
    stairs = Follower(Stairs(after=29, every=30, factor=10), 2, 180).rates(180)
    assert Follower(Step(every=30, factor=10), 2, 180).rates(180) == pytest.approx(stairs)


@pytest.mark.parametrize("options", [Cosine(), OneCycle(), Poly(), Cosine(warmup=1), Poly(warmup=1)])
def test_steps_after_the_last_stay_at_zero(options):
    assert Follower(options, 10, 100).rates(150)[100:] == pytest.approx([0.0] * 50, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "first"), [(Cosine(), 1), (OneCycle(), 0.04), (Poly(), 1), (Step(), 1), (Cosine(warmup=2), 0.001)]
)
@pytest.mark.parametrize("total", [0, 1])
def test_runs_of_no_or_one_step(options, first, total):
    assert Follower(options, 0, total).rates(1) == pytest.approx([0.3 * first])


def test_a_division_within_the_warmup_is_not_lost():
    rates = Follower(MultiStep(epochs=(1,), factor=2, warmup=2), 5, 50).rates(20)
    assert rates[10:] == pytest.approx([0.15] * 10)


@pytest.mark.parametrize(
    ("optim", "kind", "expected"),
    [
        (RMSprop(lr=0.3, alpha=0.7, eps=1e-4), torch.optim.RMSprop, {"alpha": 0.7, "eps": 1e-4, "momentum": 0}),
        (RMSprop(lr=0.3, momentum=0.2), torch.optim.RMSprop, {"momentum": 0.2}),
        (Adam(lr=0.3, eps=1e-4, betas=(0.8, 0.98)), torch.optim.Adam, {"eps": 1e-4, "betas": (0.8, 0.98)}),
        (AdamW(lr=0.3), torch.optim.AdamW, {"eps": 1e-8, "betas": (0.9, 0.999)}),
        (SGD(lr=0.3, momentum=0.6), torch.optim.SGD, {"momentum": 0.6, "nesterov": False}),
        (SGD(lr=0.3, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ],
)
def test_optimisers_take_their_options(optim, kind, expected):
    built = optimiser(optim, nn.Linear(3, 2).parameters())
    assert type(built) is kind
    for group in built.param_groups:
        assert {key: group[key] for key in expected} == expected
        assert group["lr"] == 0.3


def test_weight_decay_spares_biases_and_norms():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 4), nn.Linear(4, 2))
    model[3].bias.requires_grad_(False)
    decayed, spared = optimiser(AdamW(weight_decay=0.1), model.parameters()).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    assert [names[id(p)] for p in decayed["params"]] == ["0.weight", "2.weight", "3.weight"]
    assert [names[id(p)] for p in spared["params"]] == ["0.bias", "1.weight", "1.bias"]
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)


def test_weight_decay_on_everything():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    decayed, spared = optimiser(SGD(weight_decay=0.1, decay="all"), model.parameters()).param_groups
    assert [id(p) for p in decayed["params"]] == [id(p) for p in model.parameters()]
    assert spared["params"] == []
    optimiser(SGD(weight_decay=0.1, decay="all"), model.parameters()).step()


def test_decay_is_applied_to_weights_alone():
    model = nn.Linear(2, 2)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    built = optimiser(SGD(lr=0.5, weight_decay=0.1), model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    built.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), 0.95))
    torch.testing.assert_close(model.bias.detach(), torch.ones(2))


@pytest.mark.parametrize("kind", [RMSprop, Adam, AdamW, SGD])
def test_every_optimiser_moves_only_what_is_trained(kind: type[Optim]):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    built = optimiser(kind(lr=0.1), model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    built.step()
    assert (model.weight < before[0]).all()
    assert torch.equal(model.bias, before[1])


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "32", True), ("cuda", "bf16", True), ("cuda", "16", None), ("cpu", "32", None), ("mps", "bf16", None)],
)
def test_steps_are_fused_on_a_gpu_unless_gradients_are_scaled(device, precision, expected):
    assert fused_step(torch.device(device), precision) is expected


@pytest.mark.parametrize("kind", [RMSprop, Adam, AdamW, SGD])
def test_a_fused_step_is_the_same_step(kind: type[Optim]):
    weights = []
    for fused in (None, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        built = optimiser(kind(lr=0.1, weight_decay=0.1), model.parameters(), fused=fused)
        assert built.defaults.get("fused") is (None if kind is RMSprop else fused)  # torch's RMSprop has no fused step
        for _ in range(3):
            built.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            built.step()
        weights.append(model.weight.detach())
    torch.testing.assert_close(*weights)


def test_rates_of_some_parameters():
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 3)})
    optim = SGD(lr=0.1, weight_decay=0.5, rates={"head.bias": 20, "head.*": 10})
    built = optimiser(optim, model.named_parameters())
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    assert [rates[id(p)] for p in model.parameters()] == pytest.approx([0.1, 0.1, 1.0, 2.0])
    decays = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
    assert [decays[id(p)] for p in model.parameters()] == [0.5, 0, 0.5, 0]
    scheduler = schedule(SGD(lr=0.1, schedule=Poly(power=1)), built, 5, 10)
    built.step()
    scheduler.step()
    assert {round(group["lr"], 6) for group in built.param_groups} == {0.09, 0.9, 1.8}


def test_bad_rates():
    with pytest.raises(UserError, match=r"did you mean 'head\.weight'"):
        optimiser(SGD(rates={"heda.weight": 2}), nn.ModuleDict({"head": nn.Linear(2, 3)}).named_parameters())
    with pytest.raises(UserError, match=r"rates\.head: expected at least 0"):
        SGD(rates={"head": -1})
