import base64
import html.parser
import io
import json
import re

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from foveal.errors import RunError
from foveal.see import TopClasses, report
from foveal.see.runs import grouped, read_runs
from foveal.see.table import best

TITLES = ["STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"]


class Page(html.parser.HTMLParser):
    """The text of a page, the addresses it refers to, and its table rows."""

    VOID = ("meta", "link", "img", "br", "path", "circle")

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tags, self.rows, self.words = [], [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if self.rows and ("td" in self.open or "th" in self.open):
            self.rows[-1][-1] += data + " "

    def row(self, title):
        return next(" ".join(" ".join(row).split()) for row in self.rows if row[0].split()[0] == title)


def read(path):
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []  # every tag is closed
    return page


def test_one_finished_run(tmp_path, write_run):
    path = report(write_run(tmp_path / "run", "HAttNet-CTX"))
    assert path == tmp_path / "run" / "report.html"
    page = read(path)
    assert "Where HAttNet-CTX looks" in page.text
    assert "asked for the colour of one digit among many" in page.text
    assert "answered 97.7 % of 10,000 questions right" in page.text
    assert page.tags.count("img") == 6 * (1 + 1 + 4)
    assert page.tags.count("figure") == 4
    assert "embedded data" not in page.text
    assert "comes with foveal" not in page.text
    assert "unfinished" not in page.text
    assert "paper 98.5 (−0.8)" in page.row("HAttNet-CTX")
    assert "59,273" in page.row("HAttNet-CTX")


def test_several_models_and_seeds(tmp_path, write_run):
    for title in reversed(TITLES):
        for seed in range(3):
            write_run(tmp_path / f"{title}-{seed}", title, seed=seed, samples=seed == 0)
    path = report(tmp_path)
    page = read(path)
    assert path.stat().st_size < 3_000_000
    assert [row[0].split()[0] for row in page.rows[1:]] == TITLES
    assert "3 seeds" in page.row("SOFT")
    assert "80.0 ± 0.4" in page.row("SOFT")
    assert "paper 82.9 (−2.9)" in page.row("SOFT")
    assert page.text.count("What colour is the") == 6
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"<strong><span[^>]*>([^<]+)", text) == ["98.1 ± 0.4", "24.9 ± 0.2", "22.2 ± 0.0"]
    assert 'class="look wrong"' in text
    assert "Attention spread evenly would reach 2.3" in page.text


def test_datasets_have_their_own_sections(tmp_path, write_run):
    write_run(tmp_path / "a", dataset="MDIST", embedded=True)
    write_run(tmp_path / "b", dataset="MREF")
    page = read(report([tmp_path / "a", tmp_path / "b"]))
    assert [address for address in page.addresses if address.startswith("#")] == ["#data-0", "#data-1"]
    assert page.text.count("published numbers do not compare directly") == 1
    assert (tmp_path / "report.html").is_file()


def test_embedded_data_without_published_numbers(tmp_path, write_run):
    page = read(report(write_run(tmp_path / "a", embedded=True, published=None)))
    assert "embedded data" in page.text
    assert "The data comes with foveal: no published number compares." in page.text
    assert "paper" not in page.row("SOFT")


def test_an_unfinished_run_shows_what_there_is(tmp_path, write_run):
    folder = write_run(tmp_path / "a", finished=False, epochs=7, truncated=True)
    page = read(report(folder))
    assert "The run is unfinished" in page.text
    assert "6 so far, validation" in page.row("SOFT")
    assert page.tags.count("figure") == 2
    for name in ("metrics.jsonl", "environment.json"):
        (folder / name).unlink()
    assert "No run has finished yet." in read(report(folder)).text


def test_one_of_several_is_unfinished_or_damaged(tmp_path, write_run):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "HARD", finished=False)
    damaged = write_run(tmp_path / "c", seed=1)
    (damaged / "samples.safetensors").write_bytes(b"")
    page = read(report(tmp_path))
    assert "One of 3 runs is unfinished" in page.text
    assert "samples.safetensors cannot be read" in page.text
    assert "±" in page.row("SOFT")


def test_unknown_metrics_and_missing_values(tmp_path, write_run):
    metrics = {"weighted_average_precision": 0.2704, "mean_rank": 12.5, "accuracy": None, "note": "text"}
    write_run(tmp_path / "a", metrics=metrics, published={"weighted_average_precision": 0.2704}, scale_accuracy=None)
    page = read(report(tmp_path))
    assert "reached 27.0 % weighted average precision" not in page.text  # accuracy comes first, and is missing
    assert "27.0 paper 27.0 (0.0)" in page.row("SOFT")
    assert "12.5" in page.row("SOFT")
    assert "Mean rank" in page.text


def test_nothing_but_a_recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text("- not\n- a mapping\n")
    page = read(report(tmp_path))
    assert "No run has finished yet." in page.text
    assert "not - a mapping" in page.text


def test_hostile_text_is_only_text(tmp_path, write_run):
    evil = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>$title"
    write_run(tmp_path / "a", title=evil, samples=False)
    write_run(tmp_path / "b", dataset=evil.replace("/", ""), data=evil, settings={"title": evil})
    (tmp_path / "a" / "result.json").write_text(
        json.dumps({"title": evil, "dataset": evil, "seed": evil, "data": evil, "metrics": {evil: 0.5}, "recipe": evil})
    )
    (tmp_path / "b" / "environment.json").write_text(json.dumps({evil: evil}))
    page = read(report(tmp_path))
    assert "script" not in page.tags
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "alert(1)" in page.text


def test_the_file_needs_nothing_else(tmp_path, write_run):
    for title in TITLES:
        write_run(tmp_path / title, title)
    path = report(tmp_path)
    text = path.read_text(encoding="utf-8")
    page = read(path)
    assert not re.search(r"https?://|//[a-z]", re.sub(r"base64,[^\"]+", "", text))
    assert not re.search(r"url\(|@import|@font-face|<script|<iframe|<object", text)
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert str(tmp_path) not in text


def test_where_the_report_goes(tmp_path, write_run):
    run = write_run(tmp_path / "runs" / "a", samples=False)
    assert report(run, tmp_path / "new" / "mine.html") == tmp_path / "new" / "mine.html"
    assert report(run, tmp_path) == tmp_path / "report.html"
    assert report([run]) == run / "report.html"
    assert report(str(run)) == run / "report.html"
    assert [p.name for p in tmp_path.glob("*.html")] == ["report.html"]  # no temporary file stays


def test_a_report_that_cannot_be_written(tmp_path, write_run, monkeypatch):
    run = write_run(tmp_path / "a", samples=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        report(run, tmp_path / "file" / "report.html")
    old = report(run).read_text(encoding="utf-8")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RunError, match="No space left"):
        report(run)
    assert (run / "report.html").read_text(encoding="utf-8") == old
    assert len(list(run.glob("*.html"))) == 1


def test_lower_is_better_for_errors(tmp_path, write_run):
    write_run(tmp_path / "a", "SOFT", metrics={"error": 0.1, "overlap_last": 0.2, "accuracy": 0.9}, samples=False)
    write_run(tmp_path / "b", "HARD", metrics={"error": 0.2, "overlap_last": 0.3, "accuracy": 0.9}, samples=False)
    groups = grouped(read_runs(tmp_path))["MREF", False]
    for key in ("error", "overlap_last"):
        assert [group.name for group in best(groups, key)] == ["SOFT"]
    assert [group.name for group in best(groups, "accuracy")] == ["SOFT", "HARD"]


# Class maps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def write_sharpened(write_run):
    """Write a run whose maps of classes are of a kind, and which measured them."""

    def write(folder, title, kind="channel", overlap=0.25):
        split = {"all": overlap, "right": overlap - 0.125, "wrong": overlap + 0.125}
        measures = ("overlap_inner", "overlap_last", "inner_in_last", "pointing_game", "energy_in_box")
        run = write_run(
            folder,
            title,
            settings={"loss": {"sharpen": {"kind": kind}}},
            metrics={"accuracy": 0.5, **dict.fromkeys(measures, overlap)},
            class_attention=dict.fromkeys(measures, split),
        )
        path, draw = run / "samples.safetensors", torch.Generator().manual_seed(len(title))
        maps, rank = torch.rand(6, 5, 4, 4, generator=draw), torch.rand(6, 5, generator=draw).argsort(1)
        top = TopClasses(rank.argsort(1), torch.full((6, 5), 0.2), maps, rank)
        with safe_open(path, "pt") as file:
            kept, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        save_file(kept | top.tensors(), path, about)
        return run

    return write


@pytest.mark.parametrize(("models", "images", "pictures"), [(2, 6, 1), (16, 2, 2)])
def test_every_picture_of_class_maps_is_readable(tmp_path, write_sharpened, models, images, pictures):
    for i in range(models):
        write_sharpened(tmp_path / str(i), f"model {i:02}")
    path = report(tmp_path)
    text = path.read_text(encoding="utf-8")
    shown = re.findall(r'<img src="data:image/\w+;base64,([^"]+)" width="(\d+)" height="(\d+)" alt="class att', text)
    assert len(shown) == images * pictures
    for data, width, height in shown:
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (int(width), int(height))
        assert int(width) == 914
        assert int(height) < 2000
    assert path.stat().st_size < 4_000_000


def test_measures_of_class_maps_are_explained_and_split(tmp_path, write_sharpened):
    write_sharpened(tmp_path / "a", "baseline", overlap=0.5)
    write_sharpened(tmp_path / "b", "sharpened")
    page = read(report(tmp_path))
    for said in ("Overlap last is", "Overlap inner is", "Inner in last is", "Pointing game is", "Energy in box is"):
        assert page.text.count(said) == 1
    assert "Of images answered right, and of those answered wrong" in page.text
    baseline = [row for row in page.rows if row[0].split()[0] == "baseline"]
    assert len(baseline) == 2
    assert [float(cell) for cell in baseline[1][1:]] == [37.5, 62.5] * 5
    assert "maps: A_ch" in page.row("sharpened")
    assert "do not compare in these measures" not in page.text
    assert [g.name for g in best(grouped(read_runs(tmp_path))["MREF", False], "overlap_last")] == ["sharpened"]


def test_maps_of_different_kinds_are_told_apart(tmp_path, write_sharpened):
    write_sharpened(tmp_path / "a", "baseline", overlap=0.5)
    write_sharpened(tmp_path / "b", "sharpened", kind="gradcam")
    page = read(report(tmp_path))
    assert "maps: A_ch" in page.row("baseline")
    assert "maps: Grad-CAM" in page.row("sharpened")
    assert "models with different maps do not compare in these measures" in page.text
    assert best(grouped(read_runs(tmp_path))["MREF", False], "overlap_last") == []


def test_without_a_split_there_is_no_second_table(tmp_path, write_run):
    page = read(report(write_run(tmp_path / "a", metrics={"accuracy": 0.5, "overlap_last": 0.2})))
    assert "Of images answered right" not in page.text
    assert "Overlap last is" in page.text
