from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import timm

from foveal.data import dataset
from foveal.data.embedded.reference import ReferenceOptions
from foveal.errors import UnknownNameError, UserError
from foveal.models import create_model, registry
from foveal.recipe import VERSION, Loss, Optim, Published, Recipe, Train, available, load
from foveal.typed import check_options, convert, parse

MINIMAL = "data: {name: mref}\nmodel: {name: soft}\n"


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


# The recipes that come with foveal --------------------------------------------------------------------------


def test_available_names():
    names = available()
    assert names == sorted(names)
    assert {"hattnet/mref-soft", "hattnet/mbg-hattnet-ctx", "hattnet/mdist-stn-ours"} <= set(names)
    assert not any(name.rpartition("/")[2].startswith("_") for name in names)


@pytest.mark.parametrize("name", available())
def test_every_shipped_recipe_is_valid(name):
    recipe = load(name)
    assert recipe.name == name
    assert recipe.title
    data = {k: v for k, v in recipe.data.items() if k != "name"}
    options = parse(dataset(recipe.data["name"]).options, data, "data")
    assert {k: getattr(options, k) for k in data} == {
        k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
    }
    model = {k: v for k, v in recipe.model.items() if k not in ("name", "checkpoint")}
    if recipe.model["name"] not in registry.list_models():
        assert timm.is_model(recipe.model["name"])
        assert not model
        return
    assert check_options(registry._MODELS[recipe.model["name"]].options, model, "model") == model


def test_the_recipe_of_the_paper():
    """As in the authors' code."""
    recipe = load("hattnet/mref-hattnet-ctx")
    assert recipe.optim == Optim(
        "rmsprop", 0.003, alpha=0.9, eps=1e-3, schedule="stairs", after=30, every=11, factor=1.5, clip=5.0
    )
    assert recipe.train == Train(epochs=300, patience=50, batch=200)
    assert recipe.loss == Loss(floor=1e-5)
    assert recipe.data == {"digits": "mnist", "sources": "pooled", "triples": [30000, 10000, 10000], "name": "mref"}
    assert recipe.published == Published("hattnet/table1", "HAttNet-CTX", "MREF", 0.9851, 0.2259)


ACCURACY = {  # fractions of a hundred, as printed
    "STN": (39.10, 38.32, 32.27),
    "SOFT": (82.94, 75.73, 53.77),
    "HARD": (81.84, 78.49, 55.84),
    "HAttNet": (95.92, 91.65, 69.46),
    "HAttNet-CTX": (98.51, 96.02, 81.01),
}
STRENGTH = {
    "SOFT": (13.61, 12.56, 6.73),
    "HARD": (13.95, 13.81, 7.64),
    "HAttNet": (17.39, 13.10, 8.62),
    "HAttNet-CTX": (22.59, 22.80, 11.01),
}


@pytest.mark.parametrize("ending", ["", "-ours"])
@pytest.mark.parametrize("row", ACCURACY)
def test_published_numbers(row, ending):
    for i, column in enumerate(("MREF", "MDIST", "MBG")):
        published = load(f"hattnet/{column.lower()}-{row.lower()}{ending}").published
        assert (published.row, published.column) == (row, column)
        assert published.accuracy == pytest.approx(ACCURACY[row][i] / 100)
        strength = published.true_positive_strength
        assert strength is None if row == "STN" else strength == pytest.approx(STRENGTH[row][i] / 100)


# What is wrong is named -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 3", "recipe: unknown key 'sed'; did you mean 'seed'"),
        ("optim: {learning: 3}", "optim: unknown key 'learning'; known: "),
        ("optim: {schedul: cosine}", "optim: unknown key 'schedul'; did you mean 'schedule'"),
        ("train: {epoch: 3}", "train: unknown key 'epoch'; did you mean 'epochs'"),
        ("published: {tabel: x}", "published: unknown key 'tabel'; did you mean 'table'"),
        ("3: 4", "recipe: unknown key '3'"),
        ("seed: many", "seed: expected a whole number, got 'many'"),
        ("seed: 1.5", "seed: expected a whole number, got 1.5"),
        ("seed: true", "seed: expected a whole number, got True"),
        ("title: 3", "title: expected a text, got 3"),
        ("task: deliver", "task: expected one of refer.*, got 'deliver'"),
        ("train: 3", "train: expected a section with keys, got 3"),
        ("train: [3]", r"train: expected a section with keys, got \[3\]"),
        ("train: {compile: 1}", r"train\.compile: expected true or false, got 1"),
        ("train: {precision: 64}", r"train\.precision: expected one of 32, bf16, 16, got 64"),
        ("train: {patience: soon}", r"train\.patience: expected a whole number, got 'soon'"),
        ("optim: {lr: fast}", r"optim\.lr: expected a number, got 'fast'"),
        ("optim: {lr: true}", r"optim\.lr: expected a number, got True"),
        ("optim: {lr: null}", r"optim\.lr: expected a number, got None"),
        ("optim: {name: lion}", r"optim\.name: expected one of rmsprop, adam, adamw, sgd, got 'lion'"),
        ("data: 3", "data: expected a section with keys, got 3"),
        ("version: '1'", "version: expected a whole number, got '1'"),
        ("seed: -1", "seed: expected at least 0, got -1"),
        ("train: {epochs: 0}", r"train\.epochs: expected at least 1, got 0"),
        ("train: {epochs: -1}", r"train\.epochs: expected at least 1, got -1"),
        ("train: {batch: 0}", r"train\.batch: expected at least 1, got 0"),
        ("train: {eval_batch: 0}", r"train\.eval_batch: expected at least 1, got 0"),
        ("train: {patience: -1}", r"train\.patience: expected at least 0, got -1"),
        ("optim: {lr: -1}", r"optim\.lr: expected at least 0, got -1"),
        ("optim: {lr: .nan}", r"optim\.lr: expected at least 0, got nan"),
        ("optim: {every: 0}", r"optim\.every: expected at least 1, got 0"),
        ("optim: {factor: 0}", r"optim\.factor: expected a number above 0, got 0"),
        ("optim: {clip: -1}", r"optim\.clip: expected a number above 0, got -1"),
        ("loss: {floor: -1}", r"loss\.floor: expected at least 0, got -1"),
        ("loss: {floor: 0.1, label_smoothing: 0.1}", "loss.label_smoothing and loss.floor exclude each other"),
    ],
)
def test_wrong_keys_and_values(text, message, write):
    # YAML takes the last of two equal keys, so the line under test comes last.
    with pytest.raises(UserError, match=message):
        load(write(MINIMAL + text))


def test_unknown_data_options():
    recipe = load("hattnet/mref-soft", ["data.digit=mnist"])
    options = {k: v for k, v in recipe.data.items() if k != "name"}
    with pytest.raises(UserError, match="data: unknown key 'digit'; did you mean 'digits'"):
        parse(ReferenceOptions, options, "data")


def test_unknown_model_options():
    recipe = load("hattnet/mref-soft", ["model.chanels=3"])
    with pytest.raises(UserError, match="model soft: unknown key 'chanels'; did you mean 'channels'"):
        create_model("soft", **{k: v for k, v in recipe.model.items() if k != "name"})


@pytest.mark.parametrize("section", ["data", "model"])
def test_data_and_model_must_be_named(section, write):
    sections = {"data": "{name: mref}", "model": "{name: soft}"} | {section: "{seed: 3}"}
    path = write("".join(f"{k}: {v}\n" for k, v in sections.items()))
    with pytest.raises(UserError, match=rf"{section}\.name is missing"):
        load(path)


def test_an_unknown_recipe():
    with pytest.raises(UnknownNameError, match="unknown recipe 'hattnet/mref-sotf'; did you mean 'hattnet/mref-soft'"):
        load("hattnet/mref-sotf")


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


def test_what_is_not_text(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(UserError, match=r"x\.yaml cannot be read as YAML"):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize(("text", "kind"), [("- a\n- b\n", "list"), ("hello", "str"), ("", "NoneType")])
def test_a_recipe_is_a_mapping(text, kind, write):
    with pytest.raises(UserError, match=f"expected a mapping of sections, found {kind}"):
        load(write(text))


def test_a_recipe_of_the_future(write):
    with pytest.raises(
        UserError, match=f"has format version {VERSION + 1}, this foveal reads up to {VERSION}; upgrade"
    ):
        load(write(MINIMAL + f"version: {VERSION + 1}\nunheard_of: 3\n"))


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
        ("optim.schedule=cosine", "optim.schedule", "cosine"),
        ("data.digits=embedded", "data.digits", "embedded"),
        ("data.triples=[60, 20, 20]", "data.triples", [60, 20, 20]),
        ("data.new={a: 1}", "data.new", {"a": 1}),
        ("model.dropout=0.25", "model.dropout", 0.25),
        ("published.accuracy=0.5", "published.accuracy", 0.5),
        ("published=null", "published", None),
        ("loss={floor: 0.1}", "loss.floor", 0.1),
    ],
)
def test_overrides(override, path, value):
    found: Any = load("hattnet/mref-soft", [override])
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_an_override_changes_nothing_else():
    plain, changed = asdict(load("hattnet/mref-soft")), asdict(load("hattnet/mref-soft", ["optim.lr=0.5"]))
    assert changed["optim"].pop("lr") == 0.5
    assert plain["optim"].pop("lr") == 0.003
    assert changed == plain


def test_overrides_come_last_and_in_order():
    assert load("hattnet/mref-soft", ["seed=1", "seed=2"]).seed == 2


def test_an_override_makes_a_section(write):
    assert load(write(MINIMAL), ["published.row=SOFT"]).published.row == "SOFT"


def test_an_override_can_name_the_model(write):
    recipe = load(write(MINIMAL), ["model.name=hard"])
    assert recipe.title == recipe.model["name"] == "hard"


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
        load("hattnet/mref-soft", ["seed=1", override])


# Extending --------------------------------------------------------------------------------------------------


def test_a_chain_of_recipes(write):
    write("seed: 1\ntitle: base\noptim: {lr: 0.1, clip: 3.0}\ndata: {name: mref, triples: [1, 2, 3]}\n", "a.yaml")
    write("extends: a.yaml\nseed: 2\noptim: {lr: 0.2}\nmodel: {name: soft}\n", "b.yaml")
    recipe = load(write("extends: b.yaml\noptim: {name: sgd}\ndata: {triples: [4, 5, 6]}\n", "c.yaml"), ["seed=3"])
    assert (recipe.seed, recipe.title) == (3, "base")
    assert (recipe.optim.name, recipe.optim.lr, recipe.optim.clip) == ("sgd", 0.2, 3.0)
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
    path = write("extends: hattnet/mref-hattnet\nseed: 9\n")
    recipe = load(as_path(path))
    assert recipe.seed == 9
    assert recipe.model["name"] == "hattnet"
    assert recipe.optim == load("hattnet/mref-hattnet").optim


def test_null_in_an_extension_takes_away(write):
    write(MINIMAL + "train: {patience: 50}\npublished: {row: SOFT}\n", "a.yaml")
    recipe = load(write("extends: a.yaml\ntrain: {patience: null}\npublished: null\n"))
    assert recipe.train.patience is None
    assert recipe.published is None


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("nothing.yaml", r"nothing\.yaml: no such recipe file"),
        ("hattnet/mref-sotf", "did you mean 'hattnet/mref-soft'"),
        ("[a.yaml, b.yaml]", "extends names one recipe"),
        ("3", "extends names one recipe"),
        ("mine.yaml", r"mine\.yaml extends itself"),
        ("other.yaml", r"mine\.yaml extends itself"),
    ],
)
def test_wrong_extensions(extends, message, write):
    write("extends: mine.yaml\n", "other.yaml")
    with pytest.raises(UserError, match=message):
        load(write(f"extends: {extends}\n"))


# Round trip -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hattnet/mref-soft", "hattnet/mbg-stn-ours"])
def test_a_dumped_recipe_loads_as_the_same(name, write):
    overrides = ["title='HAttNet – größer: x'", "train.precision=16", "train.patience=null", "data.scale=[0.5, 2]"]
    overrides += ["optim.lr=1e-5", "model.dropout=0.0", "train.accelerator='123'"]
    recipe = load(name, overrides)
    again = load(write(recipe.dump(), "saved.yaml"))
    assert again == recipe
    assert again.name == name
    assert again.dump() == recipe.dump()


def test_an_option_that_was_taken_away_stays_away(write):
    recipe = load("hattnet/vg-soft", ["model.checkpoint=null", "data.sizes=null"])
    assert "checkpoint" not in recipe.model
    assert load(write(recipe.dump(), "saved.yaml")) == recipe


def test_a_dump_is_plain_yaml():
    recipe = Recipe(data={"name": "mref", "triples": (1, 2, 3)}, model={"name": "soft"})
    text = recipe.dump()
    assert "!!" not in text
    assert "null" not in text


def test_sections_are_not_shared_between_recipes():
    one, other = load("hattnet/mref-soft"), load("hattnet/mref-soft")
    one.data["seed"] = 3
    one.optim.lr = 9.0
    assert "seed" not in other.data
    assert other.optim.lr == 0.003


# Types ------------------------------------------------------------------------------------------------------


@dataclass
class Kinds:
    whole: int = 0
    pair: tuple[int, float] = (0, 0.0)
    maybe: tuple[int, int] | None = None
    path: Path = Path()
    anything: Any = None
    choice: Literal["a", "b"] = "a"
    section: Loss | None = None
    either: int | str = 0


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("pair", [1, 2], (1, 2.0)),
        ("pair", (1, "1e-3"), (1, 0.001)),
        ("maybe", [3, 4], (3, 4)),
        ("maybe", None, None),
        ("path", "a/b", Path("a/b")),
        ("anything", {"x": [1]}, {"x": [1]}),
        ("section", {"floor": 1}, Loss(floor=1.0)),
        ("section", Loss(0.1), Loss(0.1)),
        ("either", "x", "x"),
        ("either", 3, 3),
    ],
)
def test_conversion(key, given, value):
    found = getattr(parse(Kinds, {key: given}, "kinds"), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("pair", [1], r"kinds\.pair: expected a list of 2 values, got \[1\]"),
        ("pair", "12", r"kinds\.pair: expected a list of 2 values, got '12'"),
        ("pair", [1, "x"], r"kinds\.pair\[1\]: expected a number, got 'x'"),
        ("maybe", [1, 2.5], r"kinds\.maybe\[1\]: expected a whole number, got 2\.5"),
        ("choice", "c", r"kinds\.choice: expected one of a, b, got 'c'"),
        ("choice", ["a"], r"kinds\.choice: expected one of a, b, got \['a'\]"),
        ("section", {"flor": 1}, r"kinds\.section: unknown key 'flor'; did you mean 'floor'"),
        ("path", 3, r"kinds\.path: expected"),
        ("either", 1.5, r"kinds\.either: expected a whole number, got 1\.5"),
        ("whole", "1e3", r"kinds\.whole: expected a whole number, got '1e3'"),
    ],
)
def test_conversion_errors(key, given, message):
    with pytest.raises(UserError, match=message):
        parse(Kinds, {key: given}, "kinds")


def test_convert_keeps_whole_numbers_apart_from_truth():
    assert convert(bool, True, "x") is True
    with pytest.raises(UserError, match="x: expected true or false, got 1"):
        convert(bool, 1, "x")


def test_check_options_reads_a_signature():
    def build(channels: int, *, rate: float = 0.1, **rest: Any) -> None:
        """Never called."""

    assert check_options(build, {"channels": 3, "rate": 1}, "model x") == {"channels": 3, "rate": 1.0}
    with pytest.raises(UserError, match="model x: unknown key 'rest'"):
        check_options(build, {"rest": 1}, "model x")


def test_null_takes_away_what_lies_deeper_too(tmp_path):
    """Else a run whose recipe was written and read back would be one of another recipe."""
    recipe = load("demo/classify", ["model.insert=[{mechanism: se, at: null, reduction: 4}]"])
    assert recipe.model["insert"] == [{"mechanism": "se", "reduction": 4}]
    (tmp_path / "again.yaml").write_text(recipe.dump())
    assert load(tmp_path / "again.yaml") == recipe
