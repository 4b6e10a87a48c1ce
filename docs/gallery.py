"""Make the pictures of README.md and docs/index.md, all from embedded data.

    uv run python docs/gallery.py                # all of them; the first time it trains for about a quarter of an hour
    uv run python docs/gallery.py --only aw fan  # some of them

A function marked with ``@picture`` makes one picture, and its body is what docs/index.md shows below that picture: the
command writes docs/pictures and the code blocks of the page. Runs are kept in runs/gallery, and a finished one is not
trained again. The page of a report is photographed by Chromium or Chrome; without one, its old picture stays.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.transforms.functional import adjust_sharpness, normalize
from torchvision.utils import make_grid

import foveal
from foveal import see
from foveal.recipe import load
from foveal.runs import read_run
from foveal.tasks import fit, load_model, predict
from foveal.tasks.train import build_source

DOCS = Path(__file__).resolve().parent
PAGE, PICTURES = DOCS / "index.md", DOCS / "pictures"

Picture = Image.Image | str | Path  # pixels, a chart as an HTML figure, or an HTML page
PICTURE_MAKERS: dict[str, Callable[[], Picture]] = {}


def picture(make: Callable[[], Picture]) -> Callable[[], Picture]:
    """Mark a function that makes the picture of its name."""
    PICTURE_MAKERS[make.__name__] = make
    return make


def trained(recipe, *changes):
    """Train a recipe, unless that is done already, and read the run."""
    folder = "runs/gallery/" + "-".join((recipe, *changes))
    fit(load(recipe, changes), folder)
    return read_run(folder)


# The pictures -----------------------------------------------------------------


@picture
def questions() -> Picture:
    """Six questions about two images, and where three models look for the answer."""
    source = build_source(load("demo/refer/soft"))
    batch = next(iter(source.loader("test", 44, device=torch.device("cpu"))))
    image, query, label = (batch[key][-6:] for key in ("image", "query", "label"))

    rows, answers = {"input": [see.attended(scene, torch.ones(1, 1)) for scene in image]}, {}
    for name in ("soft", "hard", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        model, about = load_model(run.folder)
        with torch.no_grad(), foveal.watch(model) as seen:
            answer = model(image / 255, query).argmax(1)
        maps = foveal.measure.attention_map(seen, (32, 32))
        rows[run.title] = [see.attended(*pair) for pair in zip(image, maps, strict=True)]
        marks = ["✓" if right else "✗" for right in answer == label]
        answers[run.title] = [f"{mark} {about['answers'][a]}" for mark, a in zip(marks, answer, strict=True)]
    return grid(rows, above=[f"What colour\nis the {digit}?" for digit in query], below=answers)


@picture
def insert() -> Picture:
    """What an inserted mechanism does in a network."""
    run = trained("icasc/confusion/baseline", "model.insert=cbam")
    samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
    return see.gates({"ResNet-8 with CBAM": samples}, limit=3, size=180)


@picture
def supervise() -> Picture:
    """Attention without a loss on it, and with one."""
    rows = {}
    for title, changes in {"SOFT": [], "SOFT with\nmask loss": ["loss.attention.on_target.loss=mask"]}.items():
        run = trained("demo/refer/soft", *changes)
        samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
        rows[title] = [see.overlay(*pair) for pair in zip(samples.image[:6], samples.map[:6])]
    return grid(rows, above=[f"What colour\nis the {samples.asked(k)}?" for k in range(6)])


@picture
def measure() -> Picture:
    """Precision and recall of attention as a detector of the target's pixels."""
    curves = {}
    for name in ("soft", "hard", "hattnet", "hattnet-ctx"):
        run = trained(f"demo/refer/{name}")
        curve = run.result["curves"]["pixel_pr"]
        curves[run.title] = (curve["precision"], curve["recall"])
    return see.precision_recall(curves, even=run.result["metrics"]["target_area"])


@picture
def report() -> Picture:
    """The report of four runs, its beginning."""
    runs = [trained(f"demo/refer/{name}") for name in ("soft", "hard", "hattnet", "hattnet-ctx")]
    return see.report([run.folder for run in runs], "runs/gallery/report.html")


@picture
def hattnet() -> Picture:
    """The gates of HAttNet-CTX, the first and the last."""
    run = trained("demo/refer/hattnet-ctx")
    samples = see.Samples.from_tensors(run.samples.tensors, run.samples.about)
    return see.gates({run.title: samples}, limit=3, size=180)


@picture
def aw() -> Picture:
    """Attention of the shape of sixteen kernels, another for every image."""
    run = trained("demo/classify")
    model, about = load_model(run.folder)
    image = run.samples.tensors["image"][run.samples.tensors["label"].argsort()][:8]
    with torch.no_grad(), foveal.watch(model, at="*.aw") as seen:
        model(normalize(image / 255, about["view"]["mean"], about["view"]["std"]))

    attention = seen["layer2.0.conv1.attached.aw"].values  # (8, 16, 1, 3, 3): the same for all input channels
    mosaics = [make_grid(kernels, nrow=4, padding=1)[0] for kernels in attention]
    digits = [see.attended(digit, torch.ones(1, 1)) for digit in image]
    return grid({"input": digits, "attention": [see.heatmap(mosaic) for mosaic in mosaics]})


@picture
def fan() -> Picture:
    """Words and sentences of a docstring that counted, and the pairs of words that attend to each other."""
    run = trained("demo/document/sup")
    return predict(run.folder, adjust_sharpness.__doc__).picture


@picture
def icasc() -> Picture:
    """The classes that two models think of first, and where they look for each."""
    runs = [trained(f"icasc/confusion/{name}") for name in ("baseline", "sharpened")]
    tops = {run.title: see.TopClasses.from_tensors(run.samples.tensors, "gradcam") for run in runs}
    image, label = (runs[0].samples.tensors[key] for key in ("image", "label"))
    return see.class_maps(tops, image, label, names=runs[0].samples.about["answers"], limit=2)


# Layout of the composed pictures ------------------------------------------------

CARD, INK, PALE, RIGHT, WRONG = "#12161c", "#f4f6f8", "#a7b0bd", "#4cc38a", "#ff6b57"
GAP, LINE, LETTERS = 20, 36, 27  # pixels; the page shows half of them


def grid(
    rows: Mapping[str, Sequence[Image.Image]],
    *,
    above: Sequence[str] = (),
    below: Mapping[str, Sequence[str]] | None = None,
    width: int = 1640,
) -> Image.Image:
    """Lay tiles out on a dark card, which looks the same on light and dark pages.

    Args:
        rows: title of each row, and its tiles from left to right.
        above: a text above each column.
        below: title of a row to a text below each of its tiles; one that starts with ✓ or ✗ is marked as right or wrong.
        width: of the picture in pixels.
    """
    below = below or {}
    left = round(max(font(bold=True).getlength(line) for title in rows for line in title.split("\n"))) + 2 * GAP
    side = (width - left) // max(map(len, rows.values())) - GAP
    head = LINE * max((text.count("\n") + 1 for text in above), default=0)
    tops, y = {}, GAP + head + GAP // 2 * bool(head)
    for title in rows:
        tops[title], y = y, y + side + GAP + (LINE + GAP // 2 if title in below else 0)
    card = Image.new("RGBA", (width, y), (0, 0, 0, 0))
    draw = ImageDraw.Draw(card)
    draw.rounded_rectangle([0, 0, width - 1, y - 1], 24, CARD)
    for k, text in enumerate(above):
        middle = left + k * (side + GAP) + side / 2
        draw.multiline_text((middle, GAP), text, INK, font(), "ma", spacing=8, align="center")
    for title, tiles in rows.items():
        top = tops[title]
        draw.multiline_text((GAP, top + side / 2), title, INK, font(bold=True), "lm", spacing=8)
        for k, tile in enumerate(tiles):
            x = left + k * (side + GAP)
            text = below[title][k] if title in below else ""
            if text.startswith("✗"):
                draw.rectangle([x - 5, top - 5, x + side + 4, top + side + 4], WRONG)
            small = tile.width < 24  # a map shows its own positions
            card.paste(tile.resize((side, side), Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC), (x, top))
            caption(draw, (x + side / 2, top + side + GAP // 2), text)
    return card


def caption(draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str) -> None:
    """One line in the middle of a tile; a mark at its beginning is coloured."""
    mark = text[:1] if text[:1] in ("✓", "✗") else ""
    x = place[0] - font().getlength(text) / 2
    draw.text((x, place[1]), mark, RIGHT if mark == "✓" else WRONG, font())
    draw.text((x + font().getlength(mark), place[1]), text[len(mark) :], PALE, font())


def font(*, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold" if bold else "DejaVuSans"
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{name}.ttf", LETTERS)


# Files ------------------------------------------------------------------------


def save(made: Picture, stem: Path) -> Path | None:
    """Write a picture as ``stem``.png or .svg; returns the file, or None if there is no browser for an HTML page."""
    if isinstance(made, str):
        file = stem.with_suffix(".svg")
        file.write_text(standalone(made), encoding="utf-8")
        return file
    file = stem.with_suffix(".png")
    if isinstance(made, Path):
        screenshot = photograph(made)
        if screenshot is None:
            return None
        made = screenshot
    made.save(file, optimize=True)
    return file


STYLE = """
svg { color: #1c1b1a; font-family: system-ui, sans-serif; }
.card { fill: #ffffff; stroke: #d9d4cb; }
@media (prefers-color-scheme: dark) {
  svg { color: #ece9e4; --m0: #4da6e0; --m1: #ff8340; --m2: #2fc79a; --m3: #e39cc4; }
  .card { fill: #12161c; stroke: #2c333d; }
}
"""


def standalone(figure: str) -> str:
    """A chart of ``foveal.see``, an HTML figure, as an SVG on a card of its own, its title above and its legend below."""
    parts = ElementTree.fromstring(figure)
    chart, entries = parts.find("svg"), parts.findall("ul/li")
    assert chart is not None
    across, down = (float(size) for size in chart.attrib["viewBox"].split()[2:])
    height = down + 50 + 22 * len(entries)
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "fill": "currentColor", "font-size": "12"})
    root.attrib |= {"viewBox": f"0 0 {across + 20:g} {height:g}", "width": f"{across + 20:g}", "height": f"{height:g}"}
    add = ElementTree.SubElement
    add(root, "style").text = STYLE
    card = {"x": ".5", "y": ".5", "width": f"{across + 19:g}", "height": f"{height - 1:g}", "rx": "8"}
    add(root, "rect", {"class": "card"} | card)
    add(root, "text", {"x": "16", "y": "27", "font-size": "14", "font-weight": "600"}).text = parts.findtext("figcaption")
    add(root, "g", {"transform": "translate(6 38)"}).extend(chart)
    for i, entry in enumerate(entries):
        line = add(root, "g", {"transform": f"translate(52 {down + 46 + 22 * i:g})"})
        line.extend(entry.findall("svg/path"))
        add(line, "text", {"x": "36", "y": "8"}).text = entry.findtext("span")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def photograph(page: Path, width: int = 1000, height: int = 1480) -> Image.Image | None:
    """The top of an HTML page as a browser shows it; None if none is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "page.png")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        address = page.resolve().as_uri()
        subprocess.run([browser, *options, f"--screenshot={shot}", address], check=True, capture_output=True)
        return Image.open(shot).convert("RGB").quantize(128)


# The page -----------------------------------------------------------------------

BLOCK = re.compile(r"(?:^!\[[^\]]*\]\(pictures/(\w+)\.\w+\)\n\n)?^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rewritten(page: str) -> str:
    """The page with the lines of every picture in the code block after it; a block without a picture is the beginning."""

    def filled(match: re.Match[str]) -> str:
        text = lines(match[1]) if match[1] else beginning()
        return match[0][: match.start(2) - match.start()] + text + "```"

    return BLOCK.sub(filled, page)


def lines(name: str) -> str:
    """What makes a picture: the body of its function, without the docstring and the word ``return``."""
    source = textwrap.dedent(inspect.getsource(PICTURE_MAKERS[name]))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    body = "\n".join(source.splitlines()[function.body[1].lineno - 1 :])
    return re.sub(r"^return ", "", textwrap.dedent(body), flags=re.MULTILINE) + "\n"


def beginning() -> str:
    """What the lines of all pictures need: the imports that they use, and :func:`trained`."""
    shown = "".join(map(lines, PICTURE_MAKERS)) + inspect.getsource(trained)
    imports = [
        ast.unparse(node)
        for node in ast.parse(inspect.getsource(inspect.getmodule(trained))).body  # type: ignore[arg-type]
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(re.search(rf"(?<![\w.\"]){name.asname or name.name}\b", shown) for name in node.names)
    ]
    return "\n".join(imports) + "\n\n\n" + inspect.getsource(trained)


def main(arguments: Sequence[str] | None = None, out: Path = PICTURES, page: Path = PAGE) -> None:
    """Make the pictures that the command line asks for, and write their lines into the page."""
    parser = argparse.ArgumentParser(description="Make the pictures of README.md and docs/index.md.")
    parser.add_argument("--only", nargs="+", choices=PICTURE_MAKERS, metavar="NAME", help=", ".join(PICTURE_MAKERS))
    chosen = parser.parse_args(arguments).only or list(PICTURE_MAKERS)
    torch.set_num_threads(1)  # the models are so small that threads mostly wait for each other
    out.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        file = save(PICTURE_MAKERS[name](), out / name)
        print(f"{name}: no browser, the picture stays" if file is None else f"{file}: {file.stat().st_size / 1e3:.0f} kB")
    page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
