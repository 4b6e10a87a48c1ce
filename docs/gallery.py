"""Make the pictures of README.md and docs/index.md, all from embedded data.

    uv run python docs/gallery.py                # all of them; the first time it trains for about twenty minutes
    uv run python docs/gallery.py --only aw fan  # some of them

A function marked with ``@picture`` makes one picture, and its body is what docs/index.md shows of it: the command
writes docs/pictures and the code blocks of the page. Runs are kept in runs/gallery, and a finished one is not trained
again. The report's page is photographed by Chromium or Chrome; without either, its old picture stays.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import layout
import torch
from layout import folded, grid
from torchvision.transforms.functional import adjust_sharpness, normalize, to_pil_image
from torchvision.utils import make_grid

import foveal
from foveal import see
from foveal.data.embedded import companions, signals
from foveal.recipe import load
from foveal.runs import Run, read_run
from foveal.tasks import build_source, fit, load_model, predict

DOCS = Path(__file__).resolve().parent
PAGE, PICTURES = DOCS / "index.md", DOCS / "pictures"
MAKERS: dict[str, Callable[[], layout.Picture]] = {}
"""Name of each picture to the function that makes it."""


def picture(make: Callable[[], layout.Picture]) -> Callable[[], layout.Picture]:
    """Mark a function that makes the picture of its name."""
    MAKERS[make.__name__] = make
    return make


def trained(recipe: str, *changes: str) -> Run:
    """Train a recipe, unless that is done already, and read the run."""
    folder = "runs/gallery/" + "-".join((recipe, *changes))
    fit(load(recipe, changes), folder)
    return read_run(folder)


# The pictures -----------------------------------------------------------------


@picture
def questions() -> layout.Picture:
    """Six questions about two images, and where three models look for the answer."""
    source = build_source(load("demo/refer/soft"))
    batch = next(iter(source.loader("test", 200, device=torch.device("cpu"))))
    image, query, label = (batch[key][118:124] for key in ("image", "query", "label"))

    rows, answers = {"input": [to_pil_image(scene) for scene in image]}, {}
    for name in ("soft", "hard", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        model, about = load_model(run.folder)
        with torch.no_grad(), foveal.watch(model) as seen:
            answer = model(image / 255, query).argmax(1)
        maps = foveal.measure.attention_map(seen, (32, 32))
        title = f"{run.title}\n{run.result['metrics']['accuracy']:.0%} right"
        rows[title] = [see.attended(*pair) for pair in zip(image, maps, strict=True)]
        marks = ["✓" if right else "✗" for right in answer == label]
        answers[title] = [f"{mark} {about['answers'][k]}" for mark, k in zip(marks, answer, strict=True)]
    return grid(rows, above=[f"What colour\nis the {digit}?" for digit in query], below=answers)


@picture
def insert() -> layout.Picture:
    """The spatial maps of CBAM in the three blocks of a network that had no attention."""
    run = trained("icasc/confusion/baseline", "model.insert=cbam")
    model, about = load_model(run.folder)
    image = run.samples.tensors["image"][:6]
    with torch.no_grad(), foveal.watch(model, at="*.spatial") as seen:
        model(normalize(image / 255, about["view"]["mean"], about["view"]["std"]))

    rows = {"input": [to_pil_image(scene) for scene in image]}
    for site, record in seen.items():  # such as layer1.0.bn2.attached.cbam.spatial
        rows[site.split(".")[0]] = [see.heatmap(values) for values in record.values]
    return grid(rows)


@picture
def supervise() -> layout.Picture:
    """One model without a loss on its attention, and with one."""
    rows, answers = {}, {}
    for title, changes in {"SOFT": (), "SOFT\nwith mask loss": ("loss.attention.on_target.loss=mask",)}.items():
        run = trained("demo/refer/soft", *changes)
        title += f"\n{run.result['metrics']['accuracy']:.0%} right"
        samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
        rows[title] = [see.overlay(samples.image[k], samples.map[k]) for k in range(6)]
        marks = {"right": "✓", "wrong": "✗"}
        answers[title] = [f"{marks[samples.verdict(k)]} {samples.names(samples.guess(k))}" for k in range(6)]
    return grid(rows, above=[f"What colour\nis the {samples.asked(k)}?" for k in range(6)], below=answers)


@picture
def measure() -> layout.Picture:
    """Precision and recall of attention as a detector of the target's pixels."""
    curves = {}
    for name in ("soft", "hard", "hattnet", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        curve = run.result["curves"]["pixel_pr"]
        curves[run.title] = (curve["precision"], curve["recall"])
    return see.precision_recall(curves, even=run.result["metrics"]["target_area"])


@picture
def report() -> layout.Picture:
    """The report of four runs, its beginning."""
    runs = [trained(f"demo/refer/{name}") for name in ("soft", "hard", "hattnet", "hattnet-ctx")]
    return see.report([run.folder for run in runs], "runs/gallery/report.html")


@picture
def hattnet() -> layout.Picture:
    """The two gates of HAttNet-CTX, and what they leave of an image."""
    run = trained("demo/refer/hattnet-ctx")
    samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
    rows = {"input": [to_pil_image(scene) for scene in samples.image[:6]]}
    for title, maps in zip(("first gate", "last gate"), samples.gates, strict=True):
        rows[title] = [see.heatmap(values) for values in maps[:6]]
    rows["both gates"] = [see.attended(samples.image[k], samples.map[k]) for k in range(6)]
    return grid(rows, above=[f"What colour\nis the {samples.asked(k)}?" for k in range(6)])


@picture
def aw() -> layout.Picture:
    """Attention of the shape of sixteen kernels, another for every image."""
    run = trained("demo/classify")
    model, about = load_model(run.folder)
    image = run.samples.tensors["image"][run.samples.tensors["label"].argsort()][:8]
    with torch.no_grad(), foveal.watch(model, at="*.aw") as seen:
        model(normalize(image / 255, about["view"]["mean"], about["view"]["std"]))

    attention = seen["layer2.0.conv1.attached.aw"].values  # (8, 16, 1, 3, 3): the same for all input channels
    mosaics = [make_grid(kernels, nrow=4, padding=1)[0] for kernels in attention]
    return grid({"input": [*map(to_pil_image, image)], "attention": [*map(see.heatmap, mosaics)]})


@picture
def fan() -> layout.Picture:
    """Words and sentences of a docstring that counted, and the pairs of words that attend to each other."""
    run = trained("demo/document/sup")
    return predict(run.folder, adjust_sharpness.__doc__).picture


@picture
def icasc() -> layout.Picture:
    """The classes that two models think of first, and where they look for each."""
    runs = [trained(f"icasc/confusion/{name}") for name in ("baseline", "sharpened")]
    tops = {run.title: see.TopClasses.from_tensors(run.samples.tensors, "gradcam") for run in runs}
    image, label = (runs[0].samples.tensors[key] for key in ("image", "label"))
    return see.class_maps(tops, image, label, names=runs[0].samples.about["answers"], limit=2)


@picture
def relations() -> layout.Picture:
    """What two detectors find, and what the region of a digit attends to; one was told which shape it belongs to."""
    unsupervised, supervised = (trained(f"demo/detect/{name}").folder for name in ("fan-unsup", "fan-sup"))
    scene = companions.generate("test", 4)["image"][3, :, :80]
    to_pil_image(scene).save("runs/gallery/companions.png")
    found = predict(unsupervised, "runs/gallery/companions.png", beside=supervised, at="43,38").picture
    return folded(found, found.height)


@picture
def spatial() -> layout.Picture:
    """Cars that wait or drive, by two networks; and where one car looks in the second, by each of the four terms."""
    plain, attentive = (trained(f"demo/segment/{name}").folder for name in ("plain", "spatial"))
    scene = signals.generate("test", 10)[0][9]
    to_pil_image(scene).save("runs/gallery/cars.png")
    painted = predict(plain, "runs/gallery/cars.png", beside=attentive, at="12,30").picture
    return folded(painted, 242)


@picture
def translation() -> layout.Picture:
    """Which pieces of the sentence each piece of its translation attends to, by each of the four terms."""
    run = trained("demo/translate/all")
    whole = predict(run.folder, "three hundred and forty-two thousand and seventeen").picture
    return whole.crop((0, 0, 840, 790))  # below, the attention inside the sentence and inside the translation


# The page -----------------------------------------------------------------------

BLOCK = re.compile(r'^(```py title="docs/gallery\.py(?:, (\w+))?"\n).*?^```$', re.MULTILINE | re.DOTALL)


def rewritten(page: str) -> str:
    """The page with the lines of each picture in the code block of its name; one without a name is the beginning."""
    return BLOCK.sub(lambda match: match[1] + (lines(match[2]) if match[2] else beginning()) + "```", page)


def lines(name: str) -> str:
    """What makes a picture: the body of its function, without the docstring and the word ``return``."""
    source = textwrap.dedent(inspect.getsource(MAKERS[name]))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = "\n".join(source.splitlines()[function.body[1].lineno - 1 :])
    return re.sub(r"^return ", "", textwrap.dedent(body), flags=re.MULTILINE) + "\n"


def beginning() -> str:
    """What the lines of all pictures need: the imports that they use, and :func:`trained`."""
    shown = "".join(map(lines, MAKERS)) + inspect.getsource(trained)
    used = {node.id for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.Name)}
    imports = [
        ast.unparse(node)
        for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom) and used & {alias.asname or alias.name for alias in node.names}
    ]
    return "\n".join(imports) + "\n\n\n" + inspect.getsource(trained)


def main(arguments: Sequence[str] | None = None, *, out: Path = PICTURES, page: Path = PAGE) -> None:
    """Make the pictures that the command line asks for, and write their lines into the page."""
    parser = argparse.ArgumentParser(description="Make the pictures of README.md and docs/index.md.")
    parser.add_argument("--only", nargs="+", choices=MAKERS, metavar="NAME", help=", ".join(MAKERS))
    chosen = parser.parse_args(arguments).only or list(MAKERS)
    torch.set_num_threads(1)  # for models as small as these, more threads are slower on a busy machine
    out.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        file = layout.save(MAKERS[name](), out / name)
        size = "" if file is None else f"{file.stat().st_size / 1000:.0f} kB"
        print(f"{name}: {size or 'no browser to photograph the page; the old picture stays'}")
    page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
