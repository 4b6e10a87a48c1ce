"""Make the pictures of README.md and docs/index.md from embedded data.

    uv run python docs/gallery.py                # all of them; the first time it trains for about ten minutes
    uv run python docs/gallery.py --only aw fan  # some of them

Every function marked with ``@picture`` makes one picture and returns it, and its body is what docs/index.md shows beside
the picture. The command writes both: docs/pictures, and the code blocks of the page. Runs are kept in runs/gallery; a
finished one is not trained again.
"""

from __future__ import annotations

import argparse
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms.functional import normalize
from torchvision.utils import make_grid

import foveal
from foveal import see
from foveal.recipe import load
from foveal.runs import Run, read_run
from foveal.tasks import fit, load_model
from foveal.tasks.train import build_source

DOCS = Path(__file__).resolve().parent
PAGE, PICTURES = DOCS / "index.md", DOCS / "pictures"
MAKERS: dict[str, Callable[[], Image.Image | str]] = {}
"""Name of each picture to the function that makes it: a picture, or a chart as an HTML figure."""


def picture(make: Callable[[], Image.Image | str]) -> Callable[[], Image.Image | str]:
    """Mark a function that makes the picture of its name."""
    MAKERS[make.__name__] = make
    return make


def trained(recipe: str, *changes: str) -> Run:
    """Train a recipe, unless that is done already."""
    run = "runs/gallery/" + "-".join((recipe, *changes))
    fit(load(recipe, changes), run)
    return read_run(run)


# The pictures ---------------------------------------------------------------


@picture
def questions() -> Image.Image:
    """Six questions about two images, and where three models look for the answer."""
    source = build_source(load("demo/refer/soft"))
    batch = next(iter(source.loader("test", 44, device=torch.device("cpu"))))
    image, query, label = (batch[key][-6:] for key in ("image", "query", "label"))

    rows, answers = {"": [see.attended(scene, torch.ones(1, 1)) for scene in image]}, {}
    for name in ("soft", "hard", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        model, about = load_model(run.folder)
        with torch.no_grad(), foveal.watch(model) as seen:
            answer = model(image / 255, query).argmax(1)
        maps = foveal.measure.attention_map(seen, (32, 32))
        rows[run.title] = [see.attended(*pair) for pair in zip(image, maps, strict=True)]
        answers[run.title] = [f"{'✓' if a == l else '✗'} {about['answers'][a]}" for a, l in zip(answer, label)]
    return grid(rows, above=[f"What colour\nis the {digit}?" for digit in query], below=answers)


@picture
def insert() -> Image.Image:
    """What an inserted mechanism does."""
    run = trained("icasc/confusion/baseline", "model.insert=cbam")
    samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
    return see.gates({"ResNet-8 with CBAM": samples}, limit=4)


@picture
def supervise() -> Image.Image:
    """Where a classifier looks for the true class, without a loss on its attention and with one."""
    rows = {}
    for name in ("baseline", "sharpened"):
        run = trained(f"icasc/confusion/{name}")
        model, about = load_model(run.folder)
        image, label = (run.samples.tensors[key][:6] for key in ("image", "label"))
        x = normalize(image / 255, about["view"]["mean"], about["view"]["std"])
        maps = foveal.cam(model, x, label, at="layer3", kind="gradcam").detach()
        rows[name] = [see.overlay(*pair) for pair in zip(image, maps, strict=True)]
    return grid({"": [see.attended(scene, torch.ones(1, 1)) for scene in image], **rows})


@picture
def measure() -> str:
    """Attention on the target, pixel by pixel."""
    curves = {}
    for name in ("soft", "hard", "hattnet", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        curve = run.result["curves"]["pixel_pr"]
        curves[run.title] = (curve["precision"], curve["recall"])
    return see.precision_recall(curves, even=run.result["metrics"]["target_area"])


@picture
def hattnet() -> Image.Image:
    """The gates of HAttNet-CTX, one after the other."""
    run = trained("demo/refer/hattnet-ctx")
    samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
    return see.gates({run.title: samples}, limit=4)


@picture
def aw() -> Image.Image:
    """Attention with the shape of a kernel, another for every sample."""
    run = trained("demo/classify")
    model, about = load_model(run.folder)
    image = run.samples.tensors["image"][:8]
    site = "layer2.0.conv1.attached.aw"
    with torch.no_grad(), foveal.watch(model, at=site) as seen:
        model(normalize(image / 255, about["view"]["mean"], about["view"]["std"]))
    print(seen[site].values.shape, seen[site].values[:,:,0].flatten(1)[:, :20])
    kernels = [make_grid(sample[:16], nrow=4, padding=1)[0] for sample in seen[site].values]
    return grid({"": [see.attended(digit, torch.ones(1, 1)) for digit in image], "kernels": [see.heatmap(k) for k in kernels]})


@picture
def fan() -> Image.Image:
    """Words of a docstring."""
    run = trained("demo/document/sup")
    samples = see.DocumentSamples.from_tensors(run.samples.tensors, run.samples.about)
    return see.document(samples, 0, title=run.title)


@picture
def icasc() -> Image.Image:
    """The classes a model thinks of first, and where it looks for each."""
    runs = [trained(f"icasc/confusion/{name}") for name in ("baseline", "sharpened")]
    tops = {run.title: see.TopClasses.from_tensors(run.samples.tensors, "gradcam") for run in runs}
    shown = runs[0].samples
    return see.class_maps(tops, shown.tensors["image"], shown.tensors["label"], names=shown.about["answers"], limit=2)


# How they are laid out and written -----------------------------------------

CARD, INK, PALE = "#12161c", "#f2f4f7", "#9aa4b2"


def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib."""
    from matplotlib import get_data_path

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf", size)


def grid(
    rows: Mapping[str, Sequence[Image.Image]],
    *,
    above: Sequence[str] = (),
    below: Mapping[str, Sequence[str]] | None = None,
    width: int = 1640,
) -> Image.Image:
    """Tiles on a dark card."""
    below = below or {}
    columns = max(map(len, rows.values()))
    gap, line, face, bold = 20, 44, font(25), font(25, True)
    left = max(round(face.getlength(l)) for title in rows for l in title.split("\n")) + 2 * gap
    side = (width - left - gap) // columns - gap
    top = 34*max((t.count("\n")+1 for t in above), default=0)+ (10 if above else 0)
    height = 2*gap + top + sum(side + gap + (line if title in below else 0) for title in rows)
    card = Image.new("RGBA", (width, height), (0, 0, 0, 0))
    draw = ImageDraw.Draw(card)
    draw.rounded_rectangle([0, 0, width - 1, height - 1], 24, CARD)
    y = gap
    for k, text in enumerate(above):
        draw.multiline_text((left + k * (side + gap) + side / 2, y), text, INK, font(23), "ma", align="center", spacing=6)
    y += top
    for title, tiles in rows.items():
        draw.multiline_text((gap, y + side / 2), title, INK, bold, "lm", spacing=8)
        for k, tile in enumerate(tiles):
            x = left + k * (side + gap)
            card.paste(tile.resize((side, side), Image.Resampling.BICUBIC if tile.width > 20 else Image.Resampling.NEAREST), (x, y))
            if title in below:
                draw.text((x + side / 2, y + side + 8), below[title][k], PALE, face, "ma")
        y += side + gap + (line if title in below else 0)
    return card
