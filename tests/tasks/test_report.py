"""The report of one run or many, read as a reader and a link checker do."""

import base64
import io
import json
import re
from types import SimpleNamespace

import pytest
from fake_runs import write_classifier, write_run
from PIL import Image
from readhtml import read
from tiny import tiny_recipe

from foveal.errors import DamagedRunWarning, RunError
from foveal.runs import grouped, read_runs
from foveal.see import report
from foveal.tasks import fit
from foveal.tasks.report import _lede

TITLES = ["STN", "SOFT", "HARD", "HAttNet", "HAttNet-CTX"]


def page_of(path):
    return read(path.read_text(encoding="utf-8"))


def row(page, title):
    return " ".join(page.row(title))


def marked(path):
    """What a table marks as best."""
    return re.findall(r"<strong><span[^>]*>([^<]+)", path.read_text(encoding="utf-8"))


def test_one_finished_run(tmp_path):
    path = report(write_run(tmp_path / "run", "HAttNet-CTX"))
    assert path == tmp_path / "run" / "report.html"
    page = page_of(path)
    assert "Where HAttNet-CTX looks" in page.text
    assert "asked for the colour of one digit among many" in page.text
    assert "answered 97.7 % of 10,000 questions right" in page.text
    assert page.tags.count("img") == 6 * (1 + 1 + 4)
    assert page.tags.count("figure") == 4
    assert "embedded data" not in page.text
    assert "comes with foveal" not in page.text
    assert "unfinished" not in page.text
    assert "paper 98.5 (−0.8)" in row(page, "HAttNet-CTX")
    assert "59,273" in row(page, "HAttNet-CTX")


def test_a_trained_run(tmp_path):
    """Not written by the tests: what a run really leaves is what the report reads."""
    fit(tiny_recipe(tmp_path, "train.epochs=1"), tmp_path / "run", progress=False)
    page = page_of(report(tmp_path / "run"))
    assert "What colour is the" in page.text
    assert "Attention and scale" in page.text
    assert "In curves" in page.text
    assert page.tags.count("img") == 6 * (1 + 1 + 2)
    assert "The data comes with foveal: no published number compares." in page.text


def test_several_models_and_seeds(tmp_path):
    for place, title in reversed(list(enumerate(TITLES))):
        for seed in range(3):
            write_run(tmp_path / f"{title}-{seed}", title, seed=seed, kept=seed == 0, place=(place, 0))
    path = report(tmp_path)
    page = page_of(path)
    assert path.stat().st_size < 3_000_000
    assert [cells[0].split()[0] for cells in page.table()[1:]] == TITLES
    assert "3 seeds" in row(page, "SOFT")
    assert "80.0 ± 0.4" in row(page, "SOFT")
    assert "paper 82.9 (−2.9)" in row(page, "SOFT")
    assert page.text.count("What colour is the") == 6
    assert marked(path) == ["98.1 ± 0.4", "24.9 ± 0.2", "22.2 ± 0.0"]
    assert 'class="look wrong"' in path.read_text(encoding="utf-8")
    assert "± is the standard deviation over seeds" in page.text
    assert "Attention spread evenly would reach 2.3" in page.text


def test_datasets_have_their_own_sections(tmp_path):
    write_run(tmp_path / "a", dataset="MDIST", embedded=True)
    write_run(tmp_path / "b", dataset="MREF")
    page = page_of(report([tmp_path / "a", tmp_path / "b"]))
    assert [address for address in page.addresses if address.startswith("#")] == ["#data-0", "#data-1"]
    assert page.text.count("numbers do not compare directly") == 1
    assert (tmp_path / "report.html").is_file()


def test_tasks_have_their_own_sections(tmp_path):
    write_run(tmp_path / "a", "SOFT")
    write_classifier(tmp_path / "b", "sharpened")
    page = page_of(report(tmp_path))
    assert "asked for the colour of one digit among many" in page.text
    assert "asked for what they show (5 classes)" in page.text
    assert page.text.count("Accuracy, %") >= 2


def test_only_bars_have_ticks(tmp_path):
    """BLEU is no share, so nothing is drawn below it."""
    bleu = {"title": "BLEU", "unit": "", "better": "higher", "about": ""}
    with_bar = page_of(report(write_run(tmp_path / "a", "HAttNet-CTX")))
    changes = {"metrics": {"bleu": 40.5}, "infos": {"bleu": bleu}, "published": {"bleu": 41.02}, "kept": False}
    without = page_of(report(write_run(tmp_path / "b", **changes)))
    assert "upright tick" in with_bar.text
    assert "paper 41.0 (−0.5)" in without.text
    assert "upright tick" not in without.text
    assert "In brackets is our number minus the published one." in without.text


def test_embedded_data_without_published_numbers(tmp_path):
    page = page_of(report(write_run(tmp_path / "a", embedded=True, published={})))
    assert "embedded data" in page.text
    assert "The data comes with foveal: no published number compares." in page.text
    assert "paper" not in row(page, "SOFT")


def test_an_unfinished_run_shows_what_there_is(tmp_path):
    folder = write_run(tmp_path / "a", finished=False, count=7, truncated=True)
    page = page_of(report(folder))
    assert "The run is unfinished" in page.text
    assert "6 so far, validation" in row(page, "SOFT")
    assert page.tags.count("figure") == 2
    for name in ("metrics.jsonl", "environment.json"):
        (folder / name).unlink()
    assert "No run has finished yet." in page_of(report(folder)).text


def test_one_of_several_is_unfinished_or_damaged(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "HARD", finished=False)
    damaged = write_run(tmp_path / "c", seed=1)
    (damaged / "samples.safetensors").write_bytes(b"")
    page = page_of(report(tmp_path))
    assert "One of 3 runs is unfinished" in page.text
    assert "samples.safetensors is damaged" in page.text
    assert "±" in row(page, "SOFT")


def test_samples_of_another_kind_are_named(tmp_path):
    """The tables are there all the same."""
    from foveal.runs import RunFolder, Stored

    folder = write_run(tmp_path / "a")
    RunFolder(folder).write_tensors("samples.safetensors", Stored({}, {"answers": ["red"]}))
    with pytest.warns(DamagedRunWarning, match="pictures are missing"):
        page = page_of(report(folder))
    assert "pictures are missing" in page.text
    assert "79.6" in row(page, "SOFT")


def test_unknown_metrics_and_missing_values(tmp_path):
    rank = {"title": "Mean rank", "unit": "", "better": "lower", "about": "The lower the rank the better."}
    write_run(
        tmp_path / "a",
        metrics={"weighted_average_precision": 0.2704, "mean_rank": 12.5, "accuracy": None, "note": "text"},
        infos={"mean_rank": rank},
        published={"weighted_average_precision": 0.2704},
        curves={"scale_accuracy": None},
    )
    page = page_of(report(tmp_path))
    assert "reached 27.0 % weighted average precision" in page.text
    assert "27.0 paper 27.0 (0.0)" in row(page, "SOFT")
    assert "12.5" in row(page, "SOFT")
    assert "Mean rank" in page.text
    assert "The lower the rank the better." in page.text


def test_nothing_but_a_recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text("- not\n- a mapping\n")
    page = page_of(report(tmp_path))
    assert "No run has finished yet." in page.text
    assert "not - a mapping" in page.text


def test_hostile_text_is_only_text(tmp_path):
    evil = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>$title{{ 7 * 7 }}"
    write_run(tmp_path / "a", title=evil, kept=False)
    write_run(tmp_path / "b", dataset=evil.replace("/", ""), data=evil, settings={"title": evil})
    infos = {evil: {"title": evil, "unit": evil, "better": "higher", "about": evil}}
    result = {"format": 2, "title": evil, "dataset": evil, "seed": evil, "data": evil, "recipe": evil, "infos": infos}
    result |= {"metrics": {evil: 0.5}, "parts": {evil: {evil: 0.5}}, "published": {evil: 0.5}, "curves": {}}
    result |= {"embedded": True, "parameters": evil, "epochs": evil, "seconds": evil}
    (tmp_path / "a" / "result.json").write_text(json.dumps(result))
    (tmp_path / "b" / "environment.json").write_text(json.dumps({evil: evil}))
    page = page_of(report(tmp_path))
    assert "script" not in page.tags
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "alert(1)" in page.text
    assert "{{ 7 * 7 }}" in page.text


def test_the_file_needs_nothing_else(tmp_path):
    for title in TITLES:
        write_run(tmp_path / title, title)
    path = report(tmp_path)
    text = path.read_text(encoding="utf-8")
    page = page_of(path)
    assert not re.search(r"https?://|//[a-z]", re.sub(r"base64,[^\"]+", "", text))
    assert not re.search(r"url\(|@import|@font-face|<script|<iframe|<object", text)
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert str(tmp_path) not in text


def test_where_the_report_goes(tmp_path):
    run = write_run(tmp_path / "runs" / "a", kept=False)
    assert report(run, tmp_path / "new" / "mine.html") == tmp_path / "new" / "mine.html"
    assert report(run, tmp_path) == tmp_path / "report.html"
    assert report([run]) == run / "report.html"
    assert report(str(run)) == run / "report.html"
    assert [p.name for p in tmp_path.glob("*.html")] == ["report.html"]  # no temporary file stays


def test_a_report_that_cannot_be_written(tmp_path, monkeypatch):
    run = write_run(tmp_path / "a", kept=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        report(run, tmp_path / "file" / "report.html")
    old = report(run).read_text(encoding="utf-8")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RunError, match=r"No space left.*another place"):
        report(run)
    assert (run / "report.html").read_text(encoding="utf-8") == old
    assert len(list(run.glob("*.html"))) == 1


def test_lower_is_better_for_errors(tmp_path):
    lower = {"title": "Error", "unit": "%", "better": "lower", "about": ""}
    infos = {"error": lower, "overlap_last": {**lower, "title": "Overlap"}}
    for title, (error, overlap) in {"SOFT": (0.1, 0.2), "HARD": (0.2, 0.3)}.items():
        metrics = {"error": error, "overlap_last": overlap, "accuracy": 0.9}
        write_run(tmp_path / title, title, metrics=metrics, infos=infos, published={}, kept=False)
    path = report(tmp_path)
    assert marked(path) == ["10.0", "20.0"]  # and no accuracy: both have the same


# Class maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("models", "images"), [(2, 6), (16, 2)])
def test_every_picture_of_class_maps_is_readable(tmp_path, models, images):
    """Of many models fewer images are shown."""
    for i in range(models):
        write_classifier(tmp_path / str(i), f"model {i:02}")
    path = report(tmp_path)
    picture = r'<img src="data:image/\w+;base64,([^"]+)" width="(\d+)" height="(\d+)" alt="where it looks for '
    shown = re.findall(picture, path.read_text(encoding="utf-8"))
    assert len(shown) == models * images * 5
    for data, width, height in shown:
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (int(width), int(height))
    assert path.stat().st_size < 4_000_000


def test_measures_of_class_maps_are_explained_and_split(tmp_path):
    write_classifier(tmp_path / "a", "baseline", overlap=0.5)
    write_classifier(tmp_path / "b", "sharpened")
    path = report(tmp_path)
    page = page_of(path)
    for words in ("Overlap last is", "Overlap inner is", "Inner in last is", "Pointing game is", "Energy in box is"):
        assert page.text.count(words) == 1
    parts = {cells[0]: cells[1:] for cells in page.table()}
    assert parts["Overlap last, right"] == ["37.5", "12.5"]
    assert parts["Overlap last, wrong"] == ["62.5", "37.5"]
    assert sum(name.endswith((", right", ", wrong")) for name in parts) == 10
    assert "maps: A_ch" in row(page, "sharpened")
    assert "do not compare in these measures" not in page.text
    assert marked(path) == ["50.0"] * 3 + ["25.0"] * 2  # most inside, pointed at and in boxes; least overlap


def test_maps_of_different_kinds_are_told_apart(tmp_path):
    write_classifier(tmp_path / "a", "baseline", overlap=0.5)
    write_classifier(tmp_path / "b", "sharpened", kind="gradcam")
    path = report(tmp_path)
    page = page_of(path)
    assert "maps: A_ch" in row(page, "baseline")
    assert "maps: Grad-CAM" in row(page, "sharpened")
    assert "models with different maps do not compare in these measures" in page.text
    assert marked(path) == []


def test_a_run_without_parts_is_not_in_the_table_of_parts(tmp_path):
    write_classifier(tmp_path / "a", "with maps", overlap=0.5)
    write_run(tmp_path / "b", title="without", task="classify", metrics={"accuracy": 0.5}, infos={}, curves={})
    page = page_of(report(tmp_path))
    table = page.text.partition("In parts")[2].partition("What they saw")[0]
    assert "with maps" in table
    assert "without" not in table


def test_without_a_split_there_is_no_second_table(tmp_path):
    metrics = {"accuracy": 0.5, "overlap_last": 0.2}
    page = page_of(report(write_run(tmp_path / "a", task="classify", metrics=metrics, infos={}, curves={})))
    assert "In parts" not in page.text
    assert "Overlap last is" in page.text


def test_runs_are_grouped_as_everywhere(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, kept=False)
    ((_, groups),) = grouped(read_runs(tmp_path)).items()
    page = page_of(report(tmp_path))
    assert [group.name for group in groups] == ["SOFT"]
    assert "2 seeds" in row(page, "SOFT")


def test_the_same_on_other_data_is_said_once():
    def part(classes, *titles):
        words = SimpleNamespace(doing=f"were shown pictures and asked for what they show ({classes})", looks=False)
        return SimpleNamespace(words=words, groups=[SimpleNamespace(runs=[run]) for run in map(finished, titles)])

    def finished(title):
        return SimpleNamespace(title=title, finished=True)

    parts = [part("3 classes", "a", "b"), part("10 classes", "b", "c"), part("3 classes", "a")]
    runs = [run for part in parts for group in part.groups for run in group.runs]
    said = "Three models were shown pictures and asked for what they show (3 classes; 10 classes). Below"
    assert _lede(runs, parts).startswith(said)


@pytest.mark.parametrize("where", [None, []])
def test_no_folder_at_all(where):
    with pytest.raises(RunError, match="run folder"):
        report(where)
