"""Recipes as they are read: what a file or a name becomes, what an override changes, and what is wrong."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foveal import registry
from foveal.data.embedded.reference import ReferenceOptions
from foveal.errors import RenamedWarning, UnknownNameError, UserError
from foveal.models import create_model
from foveal.recipe import Cell, LossOptions, MeasureOptions, Recipe, available, load
from foveal.recipe.optim import SGD
from foveal.recipe.schedules import Cosine, Stairs
from foveal.recipe.schema import VERSION
from foveal.registry import Registry
from foveal.typed import parse

SOFT = "hattnet/table1/mref-soft"
MINIMAL = "task: refer\ndata: {name: mref}\nmodel: {name: soft}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a recipe file and return its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


# Names ------------------------------------------------------------------------------------------------------


def test_available_names():
    names = available()
    assert len(set(names)) == len(names)
    assert {SOFT, "hattnet/table1-ours/mdist-stn", "demo/refer/hattnet-ctx", "demo/classify"} <= set(names)
    assert not any(name.rpartition("/")[2].startswith("_") for name in names)


def test_a_cell_of_a_table():
    recipe = load("hattnet/table1/mbg-stn")
    assert (recipe.name, recipe.title, recipe.task) == ("hattnet/table1/mbg-stn", "STN", "refer")
    assert recipe.cell == Cell("hattnet/table1", "STN", "MBG", (0, 2))
    assert recipe.published == {"accuracy": 0.3227}


def test_a_former_name_is_understood_with_a_hint():
    with pytest.warns(RenamedWarning, match=r"hattnet/mref-soft is now called hattnet/table1/mref-soft"):
        recipe = load("hattnet/mref-soft")
    assert recipe == load(SOFT)


def test_a_former_name_can_be_extended_with_a_hint(write):
    path = write("extends: demo/hattnet-ctx\nmodel: {channels: 64}\n")
    with pytest.warns(RenamedWarning, match="demo/refer/hattnet-ctx"):
        recipe = load(path)
    assert recipe.model == load("demo/refer/hattnet-ctx").model | {"channels": 64}


def test_names_of_today_give_no_hint():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(SOFT).name == SOFT


@pytest.mark.parametrize("name", ["hattnet/table1/mref-sotf", "hattnet/mref-sotf"])
def test_an_unknown_recipe(name):
    with pytest.raises(UnknownNameError, match=r"did you mean.*'hattnet/table1/mref-soft'"):
        load(name)


def test_a_table_in_place_of_a_cell():
    with pytest.raises(UserError, match=r"name one of its cells: demo/refer/\{.*soft.*\}"):
        load("demo/refer")


OWN_TABLE = """
settings: {extends: base.yaml, seed: 4}
columns: {near: {data: {name: mref}}, far: {data: {name: mbg}}}
rows: {soft: {title: SOFT, model: {name: soft}}, hard: {model: {name: hard}}}
published: {accuracy: {soft: [0.5, 0.25]}}
"""


def test_a_cell_of_a_table_of_ones_own(write):
    write(MINIMAL + "optim: {lr: 0.5}\n", "base.yaml")
    path = write(OWN_TABLE)
    for name in (path / "far-soft", "./mine.yaml/far-soft", "mine.yaml/far-soft"):
        recipe = load(name, ["train.epochs=3"])
        assert (recipe.title, recipe.data, recipe.model) == ("SOFT", {"name": "mbg"}, {"name": "soft"})
        assert (recipe.seed, recipe.optim.lr, recipe.train.epochs) == (4, 0.5, 3)
        assert recipe.published == {"accuracy": 0.25}
        assert (recipe.cell.row, recipe.cell.place) == ("SOFT", (0, 1))
    assert load("./mine.yaml/far-soft").name == "mine.yaml/far-soft"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.yaml", r"`foveal reproduce mine\.yaml` runs all of it, mine\.yaml/near-soft is a cell"),
        ("mine.yaml/near-sotf", r"did you mean 'mine\.yaml/near-soft'"),
        ("base.yaml/soft", r"base\.yaml is one recipe, not a table"),
        ("other.yaml/soft", r"other\.yaml: no such recipe file"),
    ],
)
def test_mistakes_with_a_table_of_ones_own(name, message, write):
    write(MINIMAL, "base.yaml")
    write(OWN_TABLE)
    with pytest.raises(UserError, match=message):
        load(name)


# What is wrong is named -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 3", "recipe: unknown key 'sed'; did you mean 'seed'"),
        ("optim: {learning: 3}", "optim: unknown key 'learning'; known: "),
        ("optim: {schedul: cosine}", "optim: unknown key 'schedul'; did you mean 'schedule'"),
        ("optim: {momentum: 0.9}", r"optim\.momentum is not an option of adamw; rmsprop and sgd have it"),
        ("train: {epoch: 3}", "train: unknown key 'epoch'; did you mean 'epochs'"),
        ("published: {accuracy: x}", r"published\.accuracy: expected a number, got 'x'"),
        ("cell: {tabel: x}", "cell: unknown key 'tabel'; did you mean 'table'"),
        ("3: 4", "recipe: unknown key '3'"),
        ("seed: many", "seed: expected a whole number, got 'many'"),
        ("seed: 1.5", "seed: expected a whole number, got 1.5"),
        ("seed: true", "seed: expected a whole number, got True"),
        ("title: 3", "title: expected a text, got 3"),
        ("train: 3", "train: expected a section with keys, got 3"),
        ("train: [3]", r"train: expected a section with keys, got \[3\]"),
        ("optim: []", r"optim: expected a section with keys, got \[\]"),
        ("train: {compile: 1}", r"train\.compile: expected true or false, got 1"),
        ("train: {precision: 64}", r"train\.precision: expected one of 32, bf16, 16, got 64"),
        ("train: {patience: soon}", r"train\.patience: expected a whole number, got 'soon'"),
        ("optim: {lr: fast}", r"optim\.lr: expected a number, got 'fast'"),
        ("optim: {lr: true}", r"optim\.lr: expected a number, got True"),
        ("optim: {lr: null}", r"optim\.lr: expected a number, got None"),
        ("optim: {name: adamv}", r"optim\.name: unknown optimiser 'adamv'; did you mean 'adam' or 'adamw'"),
        ("version: '1'", "version: expected a whole number, got '1'"),
        ("seed: -1", "seed: expected at least 0, got -1"),
        ("train: {epochs: 0}", r"train\.epochs: expected at least 1, got 0"),
        ("train: {epochs: -1}", r"train\.epochs: expected at least 1, got -1"),
        ("train: {batch: 0}", r"train\.batch: expected at least 1, got 0"),
        ("train: {eval_batch: 0}", r"train\.eval_batch: expected at least 1, got 0"),
        ("train: {accumulate: 0}", r"train\.accumulate: expected at least 1, got 0"),
        ("train: {epochs: 10, check_every: 3}", r"train\.check_every=3 does not divide train\.epochs=10"),
        ("train: {patience: -1}", r"train\.patience: expected at least 0, got -1"),
        ("optim: {lr: -1}", r"optim\.lr: expected at least 0, got -1"),
        ("optim: {lr: .nan}", r"optim\.lr: expected at least 0, got nan"),
        ("optim: {every: 0}", r"optim\.every is an option of the schedule; write optim\.schedule\.every"),
        ("optim: {schedule: {name: step, every: 0}}", r"optim\.schedule\.every: expected at least 1, got 0"),
        ("optim: {schedule: {name: step, factor: 0}}", r"optim\.schedule\.factor: expected a number above 0, got 0"),
        ("optim: {clip: -1}", r"optim\.clip: expected a number above 0, got -1"),
        ("loss: 3", "loss: expected a section with keys, got 3"),
        ("loss: {floor: -1}", r"loss\.floor: expected at least 0, got -1"),
        ("loss: {floor: 0.1, label_smoothing: 0.1}", "loss.label_smoothing and loss.floor exclude each other"),
        ("loss: {weights: {answer: -1}}", r"loss\.weights\.answer: expected at least 0, got -1"),
        ("loss: {weights: {answer: much}}", r"loss\.weights\.answer: expected a number, got 'much'"),
        ("loss: {attention: {look: {los: mask}}}", r"loss\.attention\.look: unknown key 'los'; did you mean 'loss'"),
        (
            "loss: {attention: {look: {loss: mask, on: maps}}}",
            r"loss\.attention\.look\.on: expected one of records, class_maps",
        ),
        ("measure: {boxes: true}", "measure: unknown key 'boxes'"),
    ],
)
def test_wrong_keys_and_values(text, message, write):
    with pytest.raises(UserError, match=message):
        load(write(MINIMAL + text))


@pytest.mark.parametrize("section", ["data", "model"])
def test_data_and_model_are_sections(section, write):
    with pytest.raises(UserError, match=f"{section}: expected a section with keys, got 3"):
        load(write(MINIMAL), [f"{section}=3"])


def test_unknown_data_options():
    recipe = load(SOFT, ["data.digit=mnist"])
    options = {k: v for k, v in recipe.data.items() if k != "name"}
    with pytest.raises(UserError, match="data: unknown key 'digit'; did you mean 'digits'"):
        parse(ReferenceOptions, options, "data")


def test_unknown_model_options():
    recipe = load(SOFT, ["model.chanels=3"])
    with pytest.raises(UserError, match="model soft: unknown key 'chanels'; did you mean 'channels'"):
        create_model("soft", **{k: v for k, v in recipe.model.items() if k != "name"})


@pytest.mark.parametrize("section", ["data", "model"])
@pytest.mark.parametrize("value", ["{seed: 3}", "{name: 3}", "null"])
def test_data_and_model_must_be_named(section, value, write):
    sections = {"task": "refer", "data": "{name: mref}", "model": "{name: soft}"} | {section: value}
    path = write("".join(f"{k}: {v}\n" for k, v in sections.items()))
    with pytest.raises(UserError, match=rf"{section}\.name is missing"):
        load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.yaml: no such recipe file"):
        load(tmp_path / "nothing.yaml")


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(UserError, match=r"x\.yaml cannot be read"):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize("text", ["data: {name: mref", "a: b: c", "\t- x", "data: !!python/object:os.system {}"])
def test_what_is_not_yaml(text, write):
    with pytest.raises(UserError, match=r"mine\.yaml cannot be read as YAML: ") as caught:
        load(write(text))
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_twice(write):
    with pytest.raises(UserError, match="line 4: the key 'data' is already in line 2"):
        load(write(MINIMAL + "data: {name: mbg}\n"))


def test_what_is_not_text(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match=r"x\.yaml cannot be read as YAML"):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "list"), ("hello", "str"), ("", "NoneType")])
def test_a_recipe_is_a_mapping(text, kind, write):
    with pytest.raises(UserError, match=f"expected a mapping of sections, found {kind}"):
        load(write(text))


def test_a_recipe_of_the_future(write):
    with pytest.raises(UserError, match=f"reads up to {VERSION}; upgrade foveal"):
        load(write(MINIMAL + f"version: {VERSION + 1}\nunheard_of: 3\n"))


# Tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("", "task is missing; known: classify, detect, document, refer"),
        ("task: ''", "task is missing"),
        ("task: null", "task is missing"),
        ("task: 3", "task is missing"),
        ("task: clasify", "unknown task 'clasify'; did you mean 'classify'"),
        ("task: deliver", "unknown task 'deliver'; known: classify, detect, document, refer"),
    ],
)
def test_the_task_must_be_a_known_one(task, message, write):
    with pytest.raises(UserError, match=message):
        load(write(f"{task}\ndata: {{name: mref}}\nmodel: {{name: soft}}\n"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.sharpen={}", r"loss\.sharpen is for task classify; leave it out with task refer"),
        ("loss.relation={}", r"loss\.relation is for task document; leave it out with task refer"),
        ("measure.class_attention={}", r"measure\.class_attention is for task classify; leave it out with task refer"),
    ],
)
def test_a_key_of_another_task_is_named_as_such(override, message):
    with pytest.raises(UserError, match=message):
        load("demo/refer/soft", [override])


@dataclass
class Beam:
    """A section within a section."""

    width: int = 4


@dataclass
class Decode:
    """A section that only one task has."""

    beam: Beam = field(default_factory=Beam)
    longest: int | None = None


@dataclass
class Smooth(LossOptions):
    """A loss of that task."""

    smoothing: float = 0.1


@pytest.fixture
def translate(monkeypatch):
    """Foveal's tasks and one more with a section of its own."""
    known = Registry("task")
    for name, task in registry.tasks.items().items():
        known.register(name, task)
    known.register("say", SimpleNamespace(sections={"loss": Smooth, "decode": Decode}))
    monkeypatch.setattr(registry, "tasks", known)


SAY = "task: say\ndata: {name: texts}\nmodel: {name: talker}\n"


def test_a_section_of_a_task_of_ones_own(translate, write):
    recipe = load(write(SAY + "loss: {smoothing: 0.2, weights: {x: 2}}\ndecode: {beam: {width: 2}}\n"))
    assert recipe.loss == Smooth(weights={"x": 2.0}, smoothing=0.2)
    assert recipe.measure == MeasureOptions()
    assert recipe.sections == {"decode": Decode(beam=Beam(2))}
    assert load(write(recipe.dump(), "again.yaml")) == recipe
    assert load(write(SAY)).sections == {"decode": Decode()}


def test_mistakes_in_a_section_of_a_task_of_ones_own(translate, write):
    with pytest.raises(UserError, match=r"decode\.beam\.width: expected a whole number, got 'wide'"):
        load(write(SAY), ["decode.beam.width=wide"])
    with pytest.raises(UserError, match=r"decode: unknown key 'beem'; did you mean 'beam'"):
        load(write(SAY), ["decode.beem=3"])
    with pytest.raises(UserError, match="decode is for task say; leave it out with task refer"):
        load(write(MINIMAL), ["decode.beam.width=3"])
    with pytest.raises(UserError, match=r"loss\.smoothing is for task say; leave it out with task refer"):
        load(write(MINIMAL), ["loss.smoothing=0.3"])


# Overrides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=7", "seed", 7),
        ("title=SOFT again", "title", "SOFT again"),
        ("title=a=b", "title", "a=b"),
        ("train.epochs=3", "train.epochs", 3),
        ("train.patience=null", "train.patience", None),
        ("train.patience=", "train.patience", None),
        ("train.compile=true", "train.compile", True),
        ("train.precision=bf16", "train.precision", "bf16"),
        ("train.precision=16", "train.precision", "16"),
        ("train.precision=32", "train.precision", "32"),
        ("optim.lr=1e-3", "optim.lr", 1e-3),
        ("optim.lr=2.5E-4", "optim.lr", 2.5e-4),
        ("optim.lr=1", "optim.lr", 1.0),
        ("optim.clip=2", "optim.clip", 2.0),
        ("optim.clip=null", "optim.clip", None),
        ("optim.schedule=cosine", "optim.schedule", Cosine()),
        ("optim.schedule={name: cosine, warmup: 2}", "optim.schedule", Cosine(warmup=2.0)),
        ("optim.schedule.after=3", "optim.schedule", Stairs(after=3)),
        ("data.digits=embedded", "data.digits", "embedded"),
        ("data.triples=[60, 20, 20]", "data.triples", [60, 20, 20]),
        ("data.new={a: 1}", "data.new", {"a": 1}),
        ("model.dropout=0.25", "model.dropout", 0.25),
        ("published.accuracy=0.5", "published.accuracy", 0.5),
        ("published.accuracy=null", "published", {"true_positive_strength": 0.1361}),
        ("published=null", "published", {}),
        ("cell=null", "cell", None),
        ("loss={floor: 0.1}", "loss.floor", 0.1),
        ("loss.weights.answer=2", "loss.weights", {"answer": 2.0}),
        ("loss=null", "loss.floor", 0.0),
        ("train=null", "train.epochs", 60),
    ],
)
def test_overrides(override, path, value):
    result: Any = load(SOFT, [override])
    for part in path.split("."):
        result = result[part] if isinstance(result, dict) else getattr(result, part)
    assert result == value
    assert type(result) is type(value)


def test_an_override_changes_nothing_else():
    plain, changed = asdict(load(SOFT)), asdict(load(SOFT, ["optim.lr=0.5"]))
    assert changed["optim"].pop("lr") == 0.5
    assert plain["optim"].pop("lr") == 0.003
    assert changed == plain


def test_overrides_come_last_and_in_order():
    assert load(SOFT, ["seed=1", "seed=2"]).seed == 2


def test_an_override_makes_a_section(write):
    assert load(write(MINIMAL), ["published.accuracy=0.5"]).published == {"accuracy": 0.5}
    assert load(write(MINIMAL), ["loss.attention.look.loss=mask"]).loss.attention["look"].loss == "mask"


def test_an_override_can_name_the_model(write):
    recipe = load(write(MINIMAL), ["model.name=hard"])
    assert recipe.title == recipe.model["name"] == "hard"


def test_a_key_of_a_schedule_or_average_that_is_only_named(write):
    path = write(MINIMAL + "optim: {schedule: step, average: ema}\n")
    optim = load(path, ["optim.schedule.every=7", "optim.average.decay=0.5"]).optim
    assert (optim.schedule.name, optim.schedule.every) == ("step", 7)
    assert (optim.average.kind, optim.average.decay) == ("ema", 0.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", r"override 'seed': expected key=value, for example train\.epochs=3"),
        ("=3", "expected key=value"),
        ("seed=[1", r"'\[1' is not a YAML value"),
        ("seed.x=3", "'seed' is a value, not a section"),
        ("data.name.x=3", "'name' is a value, not a section"),
        ("train.epoch=3", "train: unknown key 'epoch'; did you mean 'epochs'"),
        ("trian.epochs=3", "recipe: unknown key 'trian'; did you mean 'train'"),
        ("train=3", "train: expected a section with keys, got 3"),
        ("train.epochs=many", r"train\.epochs: expected a whole number, got 'many'"),
        ("version=99", "has format version 99"),
    ],
)
def test_wrong_overrides(override, message):
    with pytest.raises(UserError, match=message):
        load(SOFT, ["seed=1", override])


# Extending --------------------------------------------------------------------------------------------------


def test_a_chain_of_recipes(write):
    base = "task: refer\nseed: 1\ntitle: base\noptim: {lr: 0.1, clip: 3.0}\ndata: {name: mref, triples: [1, 2, 3]}\n"
    write(base, "a.yaml")
    write("extends: a.yaml\nseed: 2\noptim: {lr: 0.2}\nmodel: {name: soft}\n", "b.yaml")
    recipe = load(write("extends: b.yaml\noptim: {name: sgd}\ndata: {triples: [4, 5, 6]}\n", "c.yaml"), ["seed=3"])
    assert (recipe.seed, recipe.title) == (3, "base")
    assert recipe.optim == SGD(lr=0.2, clip=3.0)
    assert recipe.data == {"name": "mref", "triples": [4, 5, 6]}
    assert recipe.model == {"name": "soft"}


def test_a_file_is_looked_for_beside_the_one_that_extends_it(write, monkeypatch, tmp_path):
    write(MINIMAL + "seed: 5\n", "deep/shared/base.yaml")
    path = write("extends: shared/base.yaml\n", "deep/mine.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(path).seed == 5
    assert load("../deep/mine.yaml").seed == 5


@pytest.mark.parametrize("as_path", [str, lambda path: Path(path.name)])
def test_a_shipped_recipe_can_be_extended_from_anywhere(as_path, write):
    path = write("extends: hattnet/table1/mref-hattnet\nseed: 9\n")
    recipe = load(as_path(path))
    assert recipe.seed == 9
    assert recipe.model["name"] == "hattnet"
    assert recipe.optim == load("hattnet/table1/mref-hattnet").optim


def test_a_recipe_is_not_the_cell_that_it_extends(write):
    recipe = load(write(f"extends: {SOFT}\n"))
    assert recipe.name.endswith("mine.yaml")
    assert recipe.title == "SOFT"
    assert (recipe.cell, recipe.published) == (None, {})


def test_null_in_an_extension_takes_away(write):
    write(MINIMAL + "train: {patience: 50}\nloss: {weights: {answer: 2}}\n", "a.yaml")
    recipe = load(write("extends: a.yaml\ntrain: {patience: null}\nloss: {weights: {answer: null}}\n"))
    assert recipe.train.patience is None
    assert recipe.loss.weights == {}


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("nothing.yaml", r"nothing\.yaml: no such recipe file"),
        ("hattnet/table1/mref-sotf", "did you mean 'hattnet/table1/mref-soft'"),
        ("hattnet/table1", r"name one of its cells"),
        ("[a.yaml, b.yaml]", "extends names one recipe"),
        ("3", "extends names one recipe"),
        ("mine.yaml", r"mine\.yaml extends itself"),
        ("other.yaml", r"mine\.yaml extends itself"),
        ("./sub/../mine.yaml", r"mine\.yaml extends itself"),
    ],
)
def test_wrong_extensions(extends, message, write, tmp_path):
    (tmp_path / "sub").mkdir()
    write("extends: mine.yaml\n", "other.yaml")
    with pytest.raises(UserError, match=message):
        load(write(f"extends: {extends}\n"))


# Round trip -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SOFT, "hattnet/table1-ours/mbg-stn"])
def test_a_dumped_recipe_loads_as_the_same(name, write):
    overrides = ["title='HAttNet – größer: x'", "train.precision=16", "train.patience=null", "data.scale=[0.5, 2]"]
    overrides += ["optim.lr=1e-5", "model.dropout=0.0", "train.accelerator='123'", "optim.average=swa"]
    overrides += ["loss.attention.look={loss: mask, at: gate*, options: {gap: null, order: [1, 2]}}"]
    recipe = load(name, overrides)
    again = load(write(recipe.dump(), "saved.yaml"))
    assert again == recipe
    assert again.name == name
    assert again.dump() == recipe.dump()


@pytest.mark.parametrize("name", ["demo/classify", "demo/document/sup", "icasc/voc2012-lite/ach", "fan/table6/fan-sup"])
def test_recipes_of_every_task_load_as_they_were_dumped(name, write):
    recipe = load(name)
    assert load(write(recipe.dump(), "saved.yaml")) == recipe


def test_an_option_that_was_taken_away_stays_away(write):
    recipe = load("hattnet/table2/attention-soft", ["model.checkpoint=null", "data.sizes=null"])
    assert "checkpoint" not in recipe.model
    assert load(write(recipe.dump(), "saved.yaml")) == recipe


def test_a_dump_is_plain_yaml():
    recipe = Recipe(data={"name": "mref", "triples": (1, 2, 3)}, model={"name": "soft"})
    text = recipe.dump()
    assert "!!" not in text
    assert "null" not in text


def test_sections_are_not_shared_between_recipes():
    one, other = load(SOFT), load(SOFT)
    one.data["seed"] = 3
    one.optim.lr = 9.0
    one.data["triples"].append(4)
    assert "seed" not in other.data
    assert other.optim.lr == 0.003
    assert load(SOFT).data["triples"] == [30000, 10000, 10000]


def test_null_takes_away_what_lies_deeper_too(tmp_path):
    """Otherwise a run whose recipe was written and read back would be one of another recipe."""
    recipe = load("demo/classify", ["model.insert=[{mechanism: se, at: null, reduction: 4}]"])
    assert recipe.model["insert"] == [{"mechanism": "se", "reduction": 4}]
    (tmp_path / "again.yaml").write_text(recipe.dump())
    assert load(tmp_path / "again.yaml") == recipe


def test_another_optimiser_inherits_only_the_keys_that_it_has():
    recipe = load("hattnet/table1/mref-soft", ["optim.name=sgd", "optim.momentum=0.5"])  # a recipe of RMSprop
    assert (recipe.optim.name, recipe.optim.momentum, recipe.optim.clip) == ("sgd", 0.5, 5.0)
    with pytest.raises(UserError, match=r"optim\.alpha"):
        load("hattnet/table1/mref-soft", ["optim.alpha=0.5", "optim.name=sgd"])


@pytest.mark.parametrize("name", [None, {}, 3])
def test_what_names_no_recipe(name):
    with pytest.raises(UserError, match="name of a recipe or the path of a YAML file"):
        load(name)


def test_overrides_that_are_one_text():
    with pytest.raises(UserError, match=r"must be a list, such as \['train.epochs=1'\]"):
        load("demo/classify", "train.epochs=1")
