"""The optim section: which keys each optimiser, schedule and average takes, and what the messages say."""

from dataclasses import asdict, dataclass

import pytest
import yaml

from foveal.errors import UserError
from foveal.recipe.choice import Choice, Options, fixed, number
from foveal.recipe.optim import EMA, SGD, SWA, Adam, AdamW, Last, RMSprop, averages, optimisers, parse_optim
from foveal.recipe.schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    MultiStep,
    OneCycle,
    Poly,
    Stairs,
    Step,
    schedules,
)
from foveal.recipe.schema import plain


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, AdamW(lr=1e-3, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8)),
        ({"name": "sgd"}, SGD(momentum=0.9, nesterov=False)),
        ({"name": "rmsprop", "lr": "3e-3"}, RMSprop(lr=0.003, alpha=0.9, eps=1e-8, momentum=0.0)),
        ({"name": "adam", "betas": [0.9, 0.98], "eps": 1e-9}, Adam(betas=(0.9, 0.98), eps=1e-9)),
        ({"clip": 5, "decay": "all"}, AdamW(clip=5.0, decay="all")),
        ({"schedule": "cosine"}, AdamW(schedule=Cosine())),
        ({"schedule": {"name": "cosine", "warmup": 5, "floor": 0.1}}, AdamW(schedule=Cosine(warmup=5.0, floor=0.1))),
        ({"schedule": {"name": "multistep", "epochs": [8, 11]}}, AdamW(schedule=MultiStep(epochs=(8, 11)))),
        ({"schedule": None, "average": None, "clip": None}, AdamW()),
        ({"average": {"kind": "ema", "decay": 0.9}}, AdamW(average=EMA(decay=0.9))),
        ({"average": {"kind": "swa", "epochs": 3}}, AdamW(average=SWA(epochs=3))),
        ({"average": "last"}, AdamW(average=Last(epochs=5))),
    ],
)
def test_a_section_becomes_its_dataclass(raw, expected):
    assert parse_optim(raw) == expected


def test_defaults_of_the_schedules():
    assert parse_optim({}).schedule == Constant(warmup=0.0, warmup_steps=0)
    assert parse_optim({"schedule": "stairs"}).schedule == Stairs(after=30, every=11, factor=1.5)
    assert parse_optim({"schedule": "poly"}).schedule == Poly(power=0.9)
    assert parse_optim({"schedule": "step"}).schedule == Step(every=30, factor=10.0)
    assert parse_optim({"schedule": "inverse_sqrt"}).schedule == InverseSqrt(warmup_steps=4000, start=1e-4)
    assert parse_optim({"schedule": {"name": "inverse_sqrt", "warmup": 2}}).schedule.warmup_steps == 0


@pytest.mark.parametrize("name", ["rmsprop", "adam", "adamw", "sgd"])
@pytest.mark.parametrize("schedule", [*schedules.kinds])
@pytest.mark.parametrize("average", [None, *averages.kinds])
def test_what_is_dumped_is_read_back(name, schedule, average):
    options = {"epochs": [3, 4]} if schedule == "multistep" else {}
    optim = parse_optim({"name": name, "lr": 0.3, "schedule": {"name": schedule, **options}, "average": average})
    dumped = asdict(optim)
    assert (dumped["name"], dumped["schedule"]["name"]) == (name, schedule)
    assert parse_optim(dumped) == optim
    assert parse_optim(yaml.safe_load(yaml.safe_dump(plain(dumped)))) == optim


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"momentum": 0.9}, r"^optim\.momentum is not an option of adamw; rmsprop and sgd have it$"),
        ({"name": "adam", "nesterov": True}, r"optim\.nesterov is not an option of adam; sgd has it"),
        ({"name": "sgd", "eps": 1e-3}, r"optim\.eps is not an option of sgd; rmsprop, adam and adamw have it"),
        ({"name": "sgd", "betas": [0.9, 0.9]}, r"optim\.betas is not an option of sgd; adam and adamw have it"),
        ({"schedul": "cosine"}, r"optim: unknown key 'schedul'; did you mean 'schedule'"),
        ({"learning": 3}, r"optim: unknown key 'learning'; known: "),
        ({"after": 3}, r"optim\.after is an option of the schedule; write optim\.schedule\.after \(for stairs\)"),
        ({"name": "lion"}, r"optim\.name: unknown optimiser 'lion'; known: adam, adamw, rmsprop, sgd"),
        ({"name": "sdg"}, r"optim\.name: unknown optimiser 'sdg'; did you mean 'sgd'"),
        ({"name": ["sgd"]}, r"optim\.name: expected one of .*, got \['sgd'\]"),
        ({"name": None}, r"optim\.name: expected one of .*, got None"),
        ({"lr": "fast"}, r"optim\.lr: expected a number, got 'fast'"),
        ({"lr": None}, r"optim\.lr: expected a number, got None"),
        ({"lr": -1}, r"^optim\.lr: expected at least 0, got -1"),
        ({"lr": float("nan")}, r"optim\.lr: expected at least 0, got nan"),
        ({"clip": 0}, r"^optim\.clip: expected a number above 0, got 0"),
        ({"decay": "some"}, r"optim\.decay: expected one of weights, all"),
        ({"betas": [0.9]}, r"optim\.betas: expected a list of 2 values"),
        ({"betas": [0.9, 1]}, r"optim\.betas\[1\]: expected a number below 1, got 1"),
        ({"betas": [-0.1, 0.9]}, r"optim\.betas\[0\]: expected at least 0, got -0\.1"),
        ({"name": "sgd", "nesterov": True, "momentum": 0}, r"optim\.nesterov=true needs a momentum above 0"),
        (3, r"optim: expected a section with keys, got 3"),
        ({"schedule": "cosin"}, r"optim\.schedule\.name: unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"schedule": {"warmup": 3}}, r"optim\.schedule\.name: expected one of"),
        ({"schedule": 3}, r"optim\.schedule: expected a section with keys, got 3"),
        (
            {"schedule": {"name": "cosine", "after": 3}},
            r"optim\.schedule\.after is not an option of cosine; stairs has",
        ),
        ({"schedule": {"name": "stairs", "every": 0}}, r"optim\.schedule\.every: expected at least 1, got 0"),
        ({"schedule": {"name": "stairs", "factor": 0}}, r"optim\.schedule\.factor: expected a number above 0, got 0"),
        (
            {"schedule": {"name": "stairs", "warmup": 1}},
            r"optim\.schedule\.warmup is not an option of stairs; constant,",
        ),
        ({"schedule": {"name": "step", "warmup": -1}}, r"optim\.schedule\.warmup: expected at least 0"),
        (
            {"schedule": {"name": "poly", "warmup": 1, "warmup_steps": 9}},
            r"optim\.schedule\.warmup: .* give one of them",
        ),
        ({"schedule": {"name": "poly", "start": 0}}, r"optim\.schedule\.start: expected a number above 0"),
        ({"schedule": {"name": "cosine", "floor": 2}}, r"optim\.schedule\.floor: expected at most 1, got 2"),
        ({"schedule": "multistep"}, r"optim\.schedule\.epochs: expected a list of rising numbers such as \[8, 11\]"),
        ({"schedule": {"name": "multistep", "epochs": [11, 8]}}, r"optim\.schedule\.epochs: .*got \[11, 8\]"),
        ({"schedule": {"name": "multistep", "epochs": [0, 8]}}, r"optim\.schedule\.epochs\[0\]: expected at least 1"),
        ({"average": {"decay": 0.9}}, r"optim\.average\.kind: expected one of ema, swa, last, got None"),
        ({"average": {"kind": "ema", "decay": 1}}, r"optim\.average\.decay: expected a number below 1, got 1"),
        (
            {"average": {"kind": "ema", "epochs": 3}},
            r"optim\.average\.epochs is not an option of ema; swa and last have",
        ),
        ({"average": {"kind": "swa", "epochs": 0}}, r"optim\.average\.epochs: expected at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_named(raw, message):
    with pytest.raises(UserError, match=message):
        parse_optim(raw)


def test_messages_name_the_section_they_were_given():
    with pytest.raises(UserError, match=r"^optim\.head\.lr: expected at least 0"):
        parse_optim({"lr": -1}, "optim.head")
    with pytest.raises(UserError, match=r"^optim\.head\.schedule\.every: expected at least 1"):
        parse_optim({"schedule": {"name": "step", "every": 0}}, "optim.head")


def test_null_takes_away_an_option_of_another_optimiser():
    """A recipe that extends one with rmsprop and asks for sgd."""
    assert parse_optim({"name": "sgd", "alpha": None, "schedule": {"name": "cosine", "after": None}}) == SGD(
        schedule=Cosine()
    )


def test_the_mapping_is_left_as_it_is():
    raw = {"name": "sgd", "schedule": {"name": "cosine"}, "average": "ema"}
    parse_optim(raw)
    assert raw == {"name": "sgd", "schedule": {"name": "cosine"}, "average": "ema"}


def test_the_name_cannot_be_changed():
    with pytest.raises(TypeError):
        SGD(name="adam")
    assert (SGD().name, OneCycle().name, EMA().kind) == ("sgd", "onecycle", "ema")


def test_arguments_are_those_of_the_optimiser_alone():
    assert SGD(lr=0.1, momentum=0.5, clip=1.0).arguments() == {"momentum": 0.5, "nesterov": False}
    assert {name for name, kind in optimisers.kinds.items() if not kind.builds} == set()


def test_a_choice_takes_another_dataclass():
    choice: Choice[Options] = Choice("number", "name")

    @choice.register
    @dataclass(kw_only=True)
    class Mine(Options):
        name: str = fixed("mine")
        strength: float = number(1.0, least=0, most=2)

    assert choice.parse({"name": "mine", "strength": 2}, "section") == Mine(strength=2.0)
    with pytest.raises(UserError, match=r"section\.strength: expected at most 2, got 3"):
        choice.parse({"name": "mine", "strength": 3}, "section")
