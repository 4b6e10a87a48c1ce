"""Cells of shipped tables train at toy size: two steps and a test, on files in the official form."""

import pytest
import torch
from PIL import Image
from small_voc import write_voc

from foveal.recipe import load
from foveal.recipe.grids import grids
from foveal.tasks.train import fit

TOY = {  # what makes a table small
    "hattnet/paper-variants": ["data.digits=embedded", "data.canvas=48"],
    "hattnet/table1-ours": ["data.digits=embedded", "data.canvas=48"],
    "icasc/gentle": ["data.size=64"],
    "icasc/voc2012-resnet50": ["data.size=64", "model.base_width=8"],
    "icasc/cub200-resnet50": ["data.size=64", "model.base_width=8"],
    "aw/finetune-resnet50": ["data.size=64", "model.base_width=8"],
    "aw/finetune-lite0": ["data.size=64"],
    "aw/cifar10-long": ["model.depth=8", "train.compile=false", "train.check_every=1"],
}
REFER = ["data.triples=[16,8,8]", "data.count=[2,3]", "data.scale=[0.3,0.5]", "model.stages=3", "train.patience=null"]
CLASSIFY = ["model.checkpoint=null", "data.workers=0"]
OBJECT = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """VOC 2012 with a box of an object in each image, and four classes of CUB and CIFAR-10 as folders."""
    folder = write_voc(tmp_path_factory.mktemp("data"), train=16, val=8)
    voc = folder / "VOCdevkit/VOC2012"
    (voc / "Annotations").mkdir()
    size = "<size><width>40</width><height>30</height></size>"
    for image in (voc / "JPEGImages").iterdir():
        objects = "".join(OBJECT.format(name) for name in ("dog", "cow", "sofa"))
        (voc / "Annotations" / f"{image.stem}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    draw = torch.Generator().manual_seed(0)
    for name in ("cub200", "cifar10"):
        for split, kind, n in ((s, k, n) for s in ("train", "test") for k in "abcdef" for n in range(3)):
            (folder / name / split / kind).mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(0, 255, (32, 32, 3), generator=draw).byte().numpy()
            Image.fromarray(pixels).save(folder / name / split / kind / f"{n}.png")
    return folder


CELLS = [f"{table}/{cell}" for table in TOY for cell in grids()[table].cells()]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_trains_two_steps(cell, root, tmp_path):
    recipe = load(cell)
    changes = [*TOY[recipe.cell.table], *(REFER if recipe.task == "refer" else CLASSIFY)]
    if recipe.optim.schedule.name == "stairs":
        changes.append("optim.schedule=constant")
    changes += ["train.epochs=1", "train.batch=8", "train.eval_batch=8", "train.accelerator=cpu", "train.precision=32"]
    result = fit(load(cell, changes), tmp_path / "run", data=root, progress=False)
    assert all(torch.tensor(value).isfinite() for value in result["metrics"].values() if value is not None)
    assert (tmp_path / "run" / "result.json").is_file()
