"""The gallery: every picture is there and light, and the page shows the lines that made it."""

from __future__ import annotations

import ast
import builtins
import io
import re
from pathlib import Path

import gallery
import layout
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MOST, MOST_IN_ALL = 200_000, 2_000_000  # bytes
TINY = {
    "refer": ["data.triples=[120, 60, 150]", "train.batch=60"],
    "classify": ["train.batch=200"],
    "document": [],
    "detect": ["train.batch=8"],
    "segment": [],
    "translate": [],
}


def shown(page: str) -> dict[str, str]:
    """Files of the pictures of a page, by their names without ending; and their alternative texts."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {target: alt for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_pictures_exist_and_are_described(page: str) -> None:
    assert shown(page)
    for target, alt in shown(page).items():
        assert ((ROOT / page).parent / target).is_file(), target
        assert len(alt.split()) > 8, f"{target}: say what it shows"


def test_readme_opens_with_a_picture() -> None:
    title, sentence, picture = (ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[:3]
    assert title.startswith("# ")
    assert sentence.endswith(".")
    assert picture.startswith("![")


def test_pictures_are_light() -> None:
    sizes = {file.name: file.stat().st_size for file in gallery.PICTURES.iterdir()}
    assert {name: size for name, size in sizes.items() if size > MOST} == {}
    assert sum(sizes.values()) < MOST_IN_ALL


def test_every_picture_stands_in_the_page_with_its_lines() -> None:
    page = gallery.PAGE.read_text(encoding="utf-8")
    files = {f"pictures/{file.name}" for file in gallery.PICTURES.iterdir()}
    assert files == set(shown("docs/index.md"))
    assert {Path(file).stem for file in files} == set(gallery.MAKERS)
    assert [match[2] for match in gallery.BLOCK.finditer(page)] == [None, *gallery.MAKERS]
    assert gallery.rewritten(page) == page, "run: uv run python docs/gallery.py --only NAME"


def test_lines_need_only_what_stands_before_them() -> None:
    """The names that the shown lines use are imported or defined at their beginning."""
    namespace: dict[str, object] = {}
    exec(gallery.beginning(), namespace)
    for name in gallery.MAKERS:
        names = [node for node in ast.walk(ast.parse(gallery.lines(name))) if isinstance(node, ast.Name)]
        assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        assert {node.id for node in names} <= assigned | set(namespace) | set(vars(builtins)), name


def test_grid_places_and_marks_tiles() -> None:
    red, blue = (Image.new("RGB", (40, 40), colour) for colour in ("red", "blue"))
    card = layout.grid({"a": [red, blue], "b": [blue, red]}, below={"b": ["✓ yes", "✗ no"]}, width=400)
    plain = layout.grid({"a": [red, blue], "b": [blue, red]}, width=400)
    assert card.width == plain.width == 400
    assert card.height > plain.height
    colours = [name for _, name in sorted(card.getcolors(10_000), reverse=True)]
    assert {(255, 0, 0, 255), (0, 0, 255, 255)} <= set(colours[:4])
    frame = Image.new("RGB", (1, 1), layout.WRONG).getpixel((0, 0))
    assert (*frame, 255) in colours
    assert (*frame, 255) not in [name for _, name in plain.getcolors(10_000)]
    assert card.getpixel((0, 0))[3] == 0


def test_folded_puts_right_halves_below_left_ones() -> None:
    wide = Image.new("RGB", (80, 50))
    for n, colour in enumerate(("red", "lime", "blue", "yellow", "cyan")):
        wide.paste(Image.new("RGB", (40, 20), colour), (n % 2 * 40, n // 2 * 20))
    narrow = layout.folded(wide, 20)
    assert narrow.size == (40, 90)
    colours = [narrow.getpixel((20, y)) for y in (10, 30, 50, 70, 85)]
    assert colours == [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)]


def test_chart_stands_alone() -> None:
    from xml.etree import ElementTree

    from foveal import see

    text = layout.standalone(see.precision_recall({"SOFT": ([0.5, 0.2], [0.1, 0.9])}, even=0.1))
    root = ElementTree.fromstring(text)
    words = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"SOFT", "precision, %"} <= set(words)
    assert any("even" in word for word in words)
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text


def test_without_a_browser_the_old_picture_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout.shutil, "which", lambda _: None)
    assert layout.save(tmp_path / "report.html", tmp_path / "report") is None
    assert not list(tmp_path.iterdir())


def test_picture_is_saved_in_the_lighter_form(tmp_path: Path) -> None:
    file = layout.save(Image.new("RGB", (300, 200), "red"), tmp_path / "red")
    assert file == tmp_path / "red.webp"
    lossy = io.BytesIO()
    Image.new("RGB", (300, 200), "red").save(lossy, "webp", quality=90, method=6)
    assert file.stat().st_size <= len(lossy.getvalue())
    assert Image.open(file).size == (300, 200)


@pytest.mark.slow
def test_the_command_makes_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = gallery.load

    def tiny(recipe: str, changes: tuple[str, ...] = ()):
        return load(recipe, [*changes, "train.epochs=1", *TINY[load(recipe).task]])

    monkeypatch.setattr(gallery, "load", tiny)
    for dataset in (gallery.companions, gallery.signals):
        monkeypatch.setattr(dataset, "COUNTS", {"train": 20, "val": 4, "test": 10})
    monkeypatch.setattr(gallery.torch, "set_num_threads", lambda _: None)  # other tests of this process keep theirs
    monkeypatch.setenv("FOVEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "index.md"
    page.write_text('before\n\n```py title="docs/gallery.py, fan"\nold\n```\n\nafter\n', encoding="utf-8")
    gallery.main([], out=tmp_path / "pictures", page=page)
    made = {file.stem for file in (tmp_path / "pictures").iterdir()}
    assert set(gallery.MAKERS) - made <= {"report"}  # for which there may be no browser
    assert page.read_text(encoding="utf-8") == gallery.rewritten(page.read_text(encoding="utf-8"))
    assert "predict(run.folder" in page.read_text(encoding="utf-8")
