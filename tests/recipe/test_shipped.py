"""The recipes that come with foveal: all of them are valid, known by their former names, and what results name."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveal import registry
from foveal.recipe import available, load
from foveal.recipe.grids import find_cell, former_names, grids, plain_recipes, shipped
from foveal.recipe.optim import RMSprop
from foveal.recipe.schedules import Stairs
from foveal.typed import parse

RESULTS = sorted((Path(__file__).resolve().parents[2] / "results").glob("*.csv"))
TABLES = {  # rows and columns
    "aw/cifar10": (6, 1),
    "aw/cifar10-long": (6, 1),
    "aw/finetune-lite0": (7, 2),
    "aw/finetune-resnet50": (7, 2),
    "aw/table1": (17, 1),
    "aw/table2": (6, 1),
    "aw/table2-lite": (6, 1),
    "demo/detect": (5, 0),
    "demo/document": (3, 0),
    "demo/refer": (5, 0),
    "demo/scene": (4, 0),
    "demo/segment": (3, 0),
    "demo/translate": (3, 0),
    "detect/rate": (5, 0),
    "fan/ablations": (8, 1),
    "fan/controls": (2, 1),
    "fan/table1": (4, 1),
    "fan/table1-lite": (5, 1),
    "fan/table3": (7, 1),
    "fan/table3-lite": (7, 1),
    "fan/table4": (3, 2),
    "fan/table5": (5, 1),
    "fan/table5-lite": (5, 1),
    "fan/table6": (4, 1),
    "fan/table6-ours": (4, 1),
    "fan/table6-stripped": (4, 1),
    "fan/table6-yahoo": (3, 2),
    "fan/table7": (2, 1),
    "fan/table7-lite": (2, 1),
    "fan/table8": (4, 1),
    "fan/table9": (2, 1),
    "fan/table9-lite": (2, 1),
    "fan/vcoco-lite": (5, 1),
    "hattnet/baselines": (4, 3),
    "hattnet/paper-variants": (4, 3),
    "hattnet/soft-rate": (2, 2),
    "hattnet/table1": (5, 3),
    "hattnet/table1-ours": (5, 3),
    "hattnet/table2": (3, 2),
    "icasc/ablation": (16, 1),
    "icasc/caltech256": (6, 1),
    "icasc/cifar100": (3, 1),
    "icasc/confusion": (4, 1),
    "icasc/confusion-ablation": (8, 1),
    "icasc/cub100-lite": (4, 1),
    "icasc/cub200": (6, 1),
    "icasc/cub200-resnet50": (6, 1),
    "icasc/gentle": (11, 1),
    "icasc/imagenet": (3, 1),
    "icasc/voc2012": (3, 1),
    "icasc/voc2012-lite": (4, 1),
    "icasc/voc2012-resnet50": (6, 1),
    "spatial/atlas": (16, 3),
    "spatial/camvid": (11, 1),
    "spatial/cityscapes": (7, 1),
    "spatial/cityscapes-small": (11, 1),
    "spatial/detection": (6, 1),
    "spatial/detection-lite": (5, 1),
    "spatial/rate": (8, 0),
    "spatial/segmentation": (11, 1),
    "spatial/signals": (21, 1),
    "spatial/translation": (33, 1),
    "spatial/translation-lite": (9, 2),
    "zoo/digits": (1, 0),
}


def test_tables():
    assert {name: (len(grid.rows), len(grid.columns)) for name, grid in grids().items()} == TABLES
    assert plain_recipes() == ["demo/classify"]
    assert (
        len(available())
        == len(set(available()))
        == 1 + sum(rows * max(1, columns) for rows, columns in TABLES.values())
    )
    assert all(grid.about for grid in grids().values())


@pytest.mark.parametrize("table", [*TABLES, "demo/classify"])
def test_every_cell_is_valid(table):
    for name in [name for name in available() if name == table or name.rpartition("/")[0] == table]:
        recipe = load(name)
        assert recipe.name == name
        assert recipe.title
        if table in grids():
            grid, cell, hint = find_cell(name)
            assert hint is None
            assert (recipe.cell.table, recipe.cell.row, recipe.cell.column) == (table, *grid.titles(cell))
            assert (
                list(grid.cells()).index(cell)
                == recipe.cell.place[0] * max(1, len(grid.columns)) + recipe.cell.place[1]
            )
            assert recipe.published == grid.numbers(cell)
        options = {key: value for key, value in recipe.data.items() if key != "name"}
        parse(registry.datasets.get(recipe.data["name"]).options, options, "data")


def test_models_take_the_options_that_recipes_give():
    import timm

    from foveal.models import list_models
    from foveal.models.registry import accepts

    seen = {name: load(name).model for name in available()}
    for name, model in seen.items():
        options = [key for key in model if key not in ("name", "checkpoint", "insert")]
        if model["name"] in list_models():
            assert all(accepts(model["name"], key) for key in options), name
        else:
            assert timm.is_model(model["name"]), name
            assert not options, name


def test_mechanisms_that_segmentation_and_detection_insert():
    """Every insertion of these tables, into the shallowest ResNet with the same stages."""
    from foveal.attention import mechanisms
    from foveal.models.build import build_model

    sections = {}
    for name in available():
        if name.startswith(("demo/segment/", "demo/detect/", "spatial/", "aw/table2", "fan/")) and load(name).task in (
            "segment",
            "detect",
        ):
            section = {"options": {"layers": [1, 1, 1, 1]}, **load(name).model, "width": 8}
            section.pop("checkpoint", None)
            sections[str(section)] = section
    for section in sections.values():
        inserts = section.get("insert", [])
        wanted = [one["mechanism"] for one in (inserts if isinstance(inserts, list) else [inserts])]
        if any(one not in mechanisms() for one in wanted):
            continue
        with torch.device("meta"):
            keys = build_model(section, {"num_classes": 3}).state_dict()
        assert all(any(f".attached.{one}" in key for key in keys) for one in wanted), section


def test_the_atlas_has_every_setting_of_the_terms():
    seen = {}
    for cell in grids()["spatial/atlas"].cells():
        inserts = load(f"spatial/atlas/{cell}").model.get("insert", [])
        seen[cell] = tuple((one["mechanism"], one.get("terms", "")) for one in inserts)
    settings = [f"{n:04b}" for n in range(1, 16)]
    expected = {"none-none": (), "deform-none": (("deform", ""),), "dynamic-none": (("dynamic", ""),)}
    for terms in settings:
        spatial = ("spatial", terms)
        expected |= {f"none-{terms}": (spatial,), f"deform-{terms}": (("deform", ""), spatial)}
        expected[f"dynamic-{terms}"] = (("dynamic", ""), spatial)
    assert seen == expected


def test_translation_has_every_setting_in_self_and_in_cross_attention():
    cells = {cell: load(f"spatial/translation/{cell}").model for cell in grids()["spatial/translation"].cells()}
    chosen = {
        cell: (model.get("encoder", "1111"), model.get("decoder", "1111"), model.get("cross", "1111"))
        for cell, model in cells.items()
        if "positions" not in model and not model.get("deform")
    }
    settings = [f"{n:04b}" for n in range(1, 16)]
    expected = {(terms, terms, "1111") for terms in settings} | {("1111", "1111", terms) for terms in settings}
    assert set(chosen.values()) == expected | {("dynamic", "dynamic", "1111")}
    assert len(chosen) == 30


# Former names -----------------------------------------------------------------------------------------------

REFERRING = ("stn", "soft", "hard", "hattnet", "hattnet-ctx")
DOCUMENT = ("hatt", "fan-unsup", "fan-sup")
FORMER = (
    {f"demo/{row}": f"demo/refer/{row}" for row in REFERRING}
    | {
        f"demo/document{end}": f"demo/document/{row}"
        for end, row in (("", "sup"), ("-hatt", "hatt"), ("-unsup", "unsup"))
    }
    | {f"demo/confusion-{row}": f"icasc/confusion/{row}" for row in ("baseline", "gradcam", "ach", "sharpened")}
    | {
        f"hattnet/{data}-{row}{end}": f"hattnet/table1{end}/{data}-{row}"
        for data, row, end in itertools.product(("mref", "mdist", "mbg"), REFERRING, ("", "-ours"))
    }
    | {f"hattnet/vg-{row}": f"hattnet/table2/attention-{row}" for row in ("soft", "hard", "hattnet-ctx")}
    | {f"hattnet/vg-{row}-prior": f"hattnet/table2/prior-{row}" for row in ("soft", "hard", "hattnet-ctx")}
    | {
        f"fan/news-{row}{end}": f"fan/table6{end}/{row}"
        for row, end in itertools.product(DOCUMENT, ("", "-ours", "-stripped"))
    }
    | {f"fan/yahoo-{size}-{row}": f"fan/table6-yahoo/{size}-{row}" for size in ("mini", "half") for row in DOCUMENT}
    | {"fan/news-target-semantic": "fan/table8/semantic", "fan/news-loss-smooth-l1": "fan/ablations/smooth-l1"}
    | {"aw/resnet50": "aw/table1/resnet50", "aw/aw-cbam-mobilenet-spatial": "aw/table1/aw-cbam-mobilenet-spatial"}
    | {"aw/cifar10-resnet20": "aw/cifar10/resnet20", "aw/cifar10-aw-se-resnet20": "aw/cifar10/aw-se-resnet20"}
    | {
        "icasc/confusion-last-ach": "icasc/confusion-ablation/last-ach",
        "icasc/ablation-order2": "icasc/ablation/order2",
    }
    | {
        f"icasc/{data}-{row}": f"icasc/{data}/{row}"
        for data in ("voc2012", "voc2012-lite", "cub100-lite", "cifar100", "imagenet")
        for row in ("baseline", "gradcam", "ach")
    }
    | {"icasc/voc2012-lite-baseline-gradcam": "icasc/voc2012-lite/baseline-gradcam"}
    | {f"icasc/{n}-ach": f"icasc/{t}/{r}-ach" for n, t, r in [("caltech256-vgg19", "caltech256", "vgg19")]}
    | {"icasc/cub200-resnet101-baseline": "icasc/cub200/resnet101-baseline"}
)


def test_former_names():
    assert former_names().items() >= FORMER.items()


def test_every_cell_of_a_table_had_one_former_name():
    new = (
        "aw/cifar10-long/",
        "aw/finetune-",
        "aw/table2",
        "demo/detect/",
        "demo/scene/",
        "demo/segment/",
        "demo/translate/",
        "detect/",
        "fan/controls/",
        "fan/table1",
        "fan/table3",
        "fan/table4",
        "fan/table5",
        "fan/table7",
        "fan/table9",
        "fan/vcoco-lite",
        "hattnet/baselines/",
        "hattnet/paper-variants/",
        "hattnet/soft-rate/",
        "icasc/cub200-resnet50/",
        "icasc/gentle/",
        "icasc/voc2012-resnet50/",
        "spatial/",
        "zoo/",
    )
    cells = {name for name in available() if name != "demo/classify" and not name.startswith(new)}
    assert cells - set(former_names().values()) == set()
    assert len(set(former_names().values())) == len(former_names())
    assert not set(former_names()) & set(available())


# What recipes say -------------------------------------------------------------------------------------------


def test_the_recipe_of_the_paper():
    """As in the authors' code, in the precision that results were made with."""
    recipe = load("hattnet/table1/mref-hattnet-ctx")
    assert recipe.optim == RMSprop(
        lr=0.003, alpha=0.9, eps=1e-3, clip=5.0, schedule=Stairs(after=30, every=11, factor=1.5)
    )
    assert (recipe.train.epochs, recipe.train.patience, recipe.train.batch) == (300, 50, 200)
    assert recipe.train.precision == "bf16"
    assert recipe.loss.floor == 1e-5
    assert recipe.data == {"digits": "mnist", "sources": "pooled", "triples": [30000, 10000, 10000], "name": "mref"}
    assert recipe.published == {"accuracy": 0.9851, "true_positive_strength": 0.2259}


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


@pytest.mark.parametrize("table", ["hattnet/table1", "hattnet/table1-ours"])
@pytest.mark.parametrize("row", ACCURACY)
def test_published_numbers(row, table):
    for i, column in enumerate(("MREF", "MDIST", "MBG")):
        raw, _ = shipped(f"{table}/{column.lower()}-{row.lower()}")
        assert (raw["cell"]["row"], raw["cell"]["column"]) == (row, column)
        assert raw["published"]["accuracy"] == pytest.approx(ACCURACY[row][i] / 100)
        strength = raw["published"].get("true_positive_strength")
        assert strength is None if row == "STN" else strength == pytest.approx(STRENGTH[row][i] / 100)


def test_the_published_numbers_of_detection():
    cells = {row: load(f"aw/table2/{row}").published for row in grids()["aw/table2"].rows}
    assert cells["aw-se-fpn"] == {"box_ap": 0.3845, "box_ap50": 0.597, "box_ap75": 0.4186}
    assert all(set(numbers) == {"box_ap", "box_ap50", "box_ap75"} for numbers in cells.values())
    recipe = load("spatial/detection/deform-0010")
    assert recipe.published == {"box_ap": 0.408}
    assert (recipe.train.epochs, recipe.train.batch, recipe.optim.lr) == (12, 16, 0.02)


@pytest.mark.parametrize("table", ["hattnet/table1", "hattnet/table1-ours", "icasc/voc2012-resnet50", "fan/table6"])
def test_rows_of_a_table_have_the_same_budget(table):
    """A baseline is trained as long as the method, on as many samples and batches."""
    recipes = [load(f"{table}/{cell}") for cell in grids()[table].cells()]
    budgets = {(r.train.epochs, r.train.patience, r.train.batch, str(r.data.get("triples"))) for r in recipes}
    assert len(budgets) == 1


def test_baselines_measure_class_attention_without_training_on_it():
    baseline, gradcam = load("icasc/voc2012-lite/baseline"), load("icasc/voc2012-lite/gradcam")
    assert baseline.loss.sharpen is None
    assert baseline.measure.class_attention.layers == gradcam.measure.class_attention.layers
    assert baseline.measure.class_attention.kind == "channel"
    assert gradcam.loss.sharpen is not None
    assert gradcam.measure.class_attention.kind == "gradcam"


# Results ----------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


MEASURED = [path for path in RESULTS if "recipe" in rows(path)[0]]


def test_results_are_found():
    assert {path.name for path in MEASURED} >= {"aw.csv", "fan-documents.csv", "hattnet.csv", "icasc.csv"}
    assert all(path.name.startswith("bench-") for path in RESULTS if path not in MEASURED)


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_results_are_those_of_cells(path):
    """A row names a cell that exists, and its titles, published number and precision are the cell's."""
    precisions = {name: load(name).train.precision for name in {row["recipe"] for row in rows(path)}}
    for row in rows(path):
        grid, cell, hint = find_cell(row["recipe"])
        assert hint is None, row["recipe"]
        assert row["table"] == grid.name
        model, column = grid.titles(cell)
        assert (row["model"], row["dataset"]) == (model, column or row["dataset"])  # no column: that of the data
        published = grid.numbers(cell).get(row["metric"])
        assert row["published"] == ("" if published is None else f"{published:g}"), row
        assert row["precision"] == precisions[row["recipe"]], row["recipe"]


def test_detectors_of_fan_are_trained_as_in_the_paper():
    """The settings that the paper states, in every cell of its tables of detection."""
    tables = ("table1", "table3", "table4", "table7", "table9")
    cells = [f"fan/{table}/{cell}" for table in tables for cell in grids()[f"fan/{table}"].cells()]
    assert len(cells) == 4 + 7 + 6 + 2 + 2
    for name in cells:
        recipe = load(name)
        model, optim, train = recipe.model, recipe.optim, recipe.train
        assert (model["backbone"], model["fpn"]) == ("resnet101", False), name
        assert model["proposals_train"] == model["proposals_test"] == model["regions"] == 300, name
        assert (optim.name, optim.lr, optim.momentum, optim.schedule.epochs) == ("sgd", 5e-4, 0.9, (5,)), name
        assert (train.batch, train.epochs, train.select) == (2, 8, "last"), name
        supervised = not name.endswith(("plain", "unsup"))
        assert recipe.loss.weights.get("relation") == (0.01 if supervised else None), name
        assert ("insert" in model) == (not name.endswith("plain")), name
    assert load("fan/table1/mat-focal").published["relation_recall@5000"] == 0.699
    assert load("fan/table4/minicoco-sup").published == {"box_ap": 0.279, "box_ap50": 0.478}


def test_small_detectors_are_trained_alike():
    """All rows of the tables ending with -lite as the plain one, whose learning rate ``detect/rate`` chooses."""
    names = ("aw/table2-lite", "spatial/detection-lite", *(f"fan/{t}-lite" for t in ("table1", "table3", "table7")))
    names += ("fan/table9-lite", "fan/vcoco-lite")
    recipes = [load(f"{name}/{cell}") for name in names for cell in grids()[name].cells()]
    plain, rates = recipes[0], [load(f"detect/rate/{cell}") for cell in grids()["detect/rate"].cells()]
    assert all((r.optim, r.train) == (plain.optim, plain.train) for r in recipes)
    assert all((r.data, r.model, r.train) == (plain.data, plain.model, plain.train) for r in rates)
    assert [replace(r.optim, lr=0.01) for r in rates] == [replace(plain.optim, lr=0.01)] * 5
    assert plain.optim.lr in {r.optim.lr for r in rates}


def test_small_detectors_measure_the_center_mass_of_training_images():
    for table in ("table1", "table3", "table7", "table9", "vcoco"):
        cells = [load(f"fan/{table}-lite/{cell}") for cell in grids()[f"fan/{table}-lite"].cells()]
        assert {recipe.measure.training_images for recipe in cells} == {5000}, table


def test_scenes_of_fan_stand_on_its_detectors():
    """The folders that rows with scenes name are runs of cells that exist, with the attention that they ask for."""
    for table in ("fan/table5", "fan/table5-lite", "demo/scene"):
        for cell in grids()[table].cells():
            model = load(f"{table}/{cell}").model
            if (folder := model["detector"].get("folder")) is not None:
                detector = load(folder.removeprefix("runs/").removesuffix("/seed0"))
                assert detector.task == "detect"
                assert ("insert" in detector.model) == (model["regions"] == "focused"), cell
