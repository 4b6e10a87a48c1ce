"""The recipes of the papers whose task is classification: settings, models, published numbers, and maps."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

from foveal.attention.class_maps.taps import Taps
from foveal.data.images.classification import ImageData
from foveal.models.build import build_model
from foveal.models.registry import any_model
from foveal.recipe import available, load
from foveal.recipe.grids import grids
from foveal.tasks.classify import Classify
from foveal.tasks.classify.sharpening import SharpenLosses
from foveal.tasks.train import build_source


def names(table: str) -> list[str]:
    grid = grids()[table]
    return [grid.full_name(cell) for cell in grid.cells()]


# Attentional weights --------------------------------------------------------------------------------------------------

PARAMETERS = {
    "ResNet50": 25_557_032,
    "AW-ResNet50": 25_722_240,
    "SE-ResNet50": 28_088_024,
    "AW-SE-ResNet50": 28_253_232,
    "AW-CBAM-ResNet50 (MaxPool)": 28_253_232,
    "AW-CBAM-ResNet50 (Spatial)": 28_254_832,
    "ResNet101": 44_549_160,
    "AW-ResNet101": 44_862_880,
    "SE-ResNet101": 49_326_872,
    "AW-SE-ResNet101": 49_640_592,
    "AW-CBAM-ResNet101 (MaxPool)": 49_640_592,
    "AW-CBAM-ResNet101 (Spatial)": 49_643_892,
    "MobileNet": 4_231_976,
    "SE-MobileNet": 5_072_114,
    "AW-SE-MobileNet": 5_520_858,
    "CBAM-MobileNet": 5_072_114 + 26 * 100,
    "AW-CBAM-MobileNet (Spatial)": 5_520_858 + 26 * 100,
}
ERRORS = {  # top-1 and top-5 in percent, as printed
    "ResNet50": (24.56, 7.50),
    "AW-ResNet50": (23.38, 6.79),
    "SE-ResNet50": (23.14, 6.70),
    "AW-SE-ResNet50": (22.72, 6.47),
    "AW-CBAM-ResNet50 (MaxPool)": (22.82, 6.41),
    "AW-CBAM-ResNet50 (Spatial)": (23.20, 6.58),
    "ResNet101": (23.38, 6.88),
    "AW-ResNet101": (22.38, 6.21),
    "SE-ResNet101": (22.35, 6.19),
    "AW-SE-ResNet101": (21.78, 5.74),
    "AW-CBAM-ResNet101 (MaxPool)": (21.64, 5.76),
    "AW-CBAM-ResNet101 (Spatial)": (22.32, 6.18),
    "MobileNet": (31.39, 11.51),
    "SE-MobileNet": (29.97, 10.63),
    "AW-SE-MobileNet": (29.41, 10.59),
    "CBAM-MobileNet": (29.01, 9.99),
    "AW-CBAM-MobileNet (Spatial)": (28.82, 9.98),
}


def test_table1_is_complete():
    recipes = [load(name) for name in names("aw/table1")]
    errors = {r.cell.row: [100 - 100 * r.published[key] for key in ("accuracy", "top5_accuracy")] for r in recipes}
    assert errors.keys() == ERRORS.keys()
    for row, expected in ERRORS.items():
        assert errors[row] == pytest.approx(expected), row


@pytest.mark.parametrize("name", names("aw/table1"))
def test_models_of_table1_have_the_counted_parameters(name):
    recipe = load(name)
    with torch.device("meta"):
        model = build_model(recipe.model, {"num_classes": 1000})
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[recipe.title]
    assert recipe.title == recipe.cell.row
    assert recipe.train.epochs == (100 if "50" in recipe.title else 90)
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.optim.decay) == (0.1, 1e-4, "all")


def test_the_small_table_differs_by_mechanism_alone():
    recipes = [load(name) for name in names("aw/cifar10")]
    assert [r.title for r in sorted(recipes, key=lambda r: r.model["name"])] == [
        "AW-CBAM-ResNet-20",
        "AW-ResNet-20",
        "AW-SE-ResNet-20",
        "CBAM-ResNet-20",
        "ResNet-20",
        "SE-ResNet-20",
    ]
    for recipe in recipes:
        assert (recipe.data, recipe.optim, recipe.train) == (recipes[0].data, recipes[0].optim, recipes[0].train)
        assert recipe.model.keys() == {"name"}
        assert (recipe.published, recipe.cell.column) == ({}, "CIFAR-10")


def test_the_small_table_reads_class_folders(tmp_path):
    for split, count in (("train", 20), ("test", 2)):
        for k in range(10):
            folder = tmp_path / "CIFAR-10-images" / split / f"class{k}"
            folder.mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (32, 32), (20 * k, n, 7)).save(folder / f"{n:04}.jpg")
    source = build_source(load("aw/cifar10/aw-se-resnet20", ["data.workers=0"]), tmp_path)
    assert isinstance(source, ImageData)
    assert source.held
    assert [len(source.splits[s]) for s in ("train", "val", "test")] == [180, 20, 20]
    other = build_source(load("aw/cifar10/resnet20", [f"data.folder={tmp_path}/CIFAR-10-images", "data.workers=0"]))
    assert torch.equal(other.splits["train"].images, source.splits["train"].images)


# Sharpen focus --------------------------------------------------------------------------------------------------------

ICASC = [name for name in available() if name.startswith("icasc/")]


def test_every_dataset_has_its_three_rows():
    networks = {"cifar100": 1, "caltech256": 2, "imagenet": 1, "cub200": 2, "voc2012": 1}
    for dataset, count in networks.items():
        recipes = [Classify.complete(load(name)) for name in names(f"icasc/{dataset}")]
        assert len(recipes) == 3 * count
        assert sum(r.loss.sharpen is None for r in recipes) == count
        assert sum(r.measure.class_attention.kind == "gradcam" for r in recipes) == count
    assert len(names("icasc/ablation")) >= 12
    published = [load(f"icasc/voc2012/{row}").published for row in ("baseline", "gradcam", "ach")]
    assert published == [{"label_map": 0.7744}, {"label_map": 0.8212}, {"label_map": 0.8317}]


def test_the_supplements_settings():
    settings = {  # batch, weight decay, rate, epochs, size
        "cifar100/ach": (128, 5e-4, 0.1, 160, None),
        "caltech256/vgg19-ach": (16, 1e-3, 0.01, 20, 299),
        "imagenet/ach": (256, 1e-4, 0.1, 90, 224),
        "cub200/resnet50-ach": (10, 1e-4, 1e-3, 90, 448),
        "voc2012/ach": (16, 1e-3, 0.01, 20, 299),
    }
    for name, expected in settings.items():
        r = load(f"icasc/{name}")
        assert (r.train.batch, r.optim.weight_decay, r.optim.lr, r.train.epochs, r.data.get("size")) == expected
        assert (r.optim.name, r.optim.momentum, r.optim.decay, r.train.select) == ("sgd", 0.9, "all", "last")


def test_rows_of_a_dataset_differ_in_the_attention_alone():
    baselines = [name for name in ICASC if name.endswith("baseline")]
    assert len(baselines) >= 8
    for name in baselines:
        rows = [load(name.removesuffix("baseline") + row) for row in ("baseline", "gradcam", "ach")]
        for row in rows:
            row.loss = row.measure = row.cell = row.published = None
            row.title = row.name = ""
        assert rows[0] == rows[1] == rows[2]


SIZES = {  # of the inner and the last map, as in the paper's tables
    "icasc/imagenet/ach": ((14, 256), (7, 512)),
    "icasc/voc2012/ach": ((19, 256), (10, 512)),
    "icasc/cub200/resnet50-ach": ((28, 1024), (14, 2048)),
    "icasc/cub200/resnet101-ach": ((28, 1024), (14, 2048)),
    "icasc/caltech256/vgg19-ach": ((37, 512), (18, 512)),
    "icasc/cifar100/ach": ((16, 32), (8, 64)),
    "icasc/voc2012-lite/ach": ((12, 672), (6, 1280)),
}


@pytest.mark.parametrize("name", SIZES)
def test_maps_of_the_recipes_have_the_papers_sizes(name):
    recipe = Classify.complete(load(name))
    options, size = recipe.loss.sharpen, recipe.data.get("size") or 32
    with torch.device("meta"):
        model: nn.Module = any_model(recipe.model["name"], num_classes=20)
        x = torch.empty(1, 3, size, size)
    taps = Taps(model.eval(), options.layers)
    with taps:
        model(x)
    shapes = [taps.to_maps(layer)(tapped.values).shape for layer, tapped in taps.tapped().items()]
    assert [(shape[2], shape[1]) for shape in shapes] == list(SIZES[name])


@pytest.mark.parametrize("name", sorted({load(n).model["name"] for n in ICASC}))
def test_layers_of_every_recipe_exist(name):
    with torch.device("meta"):
        model = any_model(name, num_classes=20)
    modules = dict(model.named_modules())
    for recipe in (Classify.complete(load(n)) for n in ICASC):
        if recipe.model["name"] == name:
            assert all(layer in modules for layer in recipe.measure.class_attention.layers)
            if recipe.loss.sharpen is not None:
                weights = recipe.loss.weights
                assert SharpenLosses(model, recipe.loss.sharpen, weights).layers == recipe.loss.sharpen.layers
