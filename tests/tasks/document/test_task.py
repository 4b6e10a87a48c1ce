"""Task document: its loss, training, testing, asking, and what cannot be used."""

import json
import math
from pathlib import Path

import pytest
import torch
from small_texts import recipe, write_texts
from typer.testing import CliRunner

import foveal
from foveal.cli import app
from foveal.errors import RunError, UserError
from foveal.recipe import Relation, load
from foveal.see.documents import DocumentSamples
from foveal.tasks import evaluate, fit
from foveal.tasks.document import Document
from foveal.tasks.predict import predict, text_file
from foveal.tasks.reproduce import cells, tables
from foveal.tasks.run import build_source, load_model

LONGER = {"train.epochs": 12, "train.select": "last", "optim.lr": 0.03}
DEMO = {"hatt": "demo/document-hatt", "fan_hatt_unsup": "demo/document-unsup", "fan_hatt_sup": "demo/document"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("data"))


def task(root, name="fan_hatt_sup", **changes):
    plan = load(DEMO[name], recipe(**changes))
    torch.manual_seed(0)
    return Document(plan, build_source(plan, root))


def batch_of(made, split="train", size=8):
    return next(iter(made.source.loader(split, size, device=torch.device("cpu"))))


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "sup"
    result = fit(load(DEMO["fan_hatt_sup"], recipe(**LONGER)), out, data=root, progress=False)
    return out, result


# The loss --------------------------------------------------------------------


def slow_relation(pairs, tags, r=2.0):
    """Center-mass loss of all sentences by loops."""
    related = [{"1"}, {"1", "2"}, {"1", "3"}, {"2", "4"}, {"3", "4"}]
    losses = []
    for affinity, marks in zip(pairs, tags, strict=True):
        words = [i for i, mark in enumerate(marks.tolist()) if mark]
        total = labelled = 0.0
        for m in words:
            for n in words:
                weight = math.exp(float(affinity[m, n]))
                total += weight
                if m != n and {str(int(marks[m])), str(int(marks[n]))} in related:
                    labelled += weight
        if labelled:
            mass = labelled / total
            losses.append(-((1 - mass) ** r) * math.log(mass))
    return sum(losses) / len(losses)


def test_the_loss_is_that_of_the_classes_and_of_the_pairs(root):
    made = task(root, **{"loss.relation.weight": 0.3})
    batch = batch_of(made)
    reading = made.model.read(batch["words"])
    classes = torch.nn.functional.cross_entropy(reading.logits, batch["label"]).item()
    relation = slow_relation(reading.pairs.detach(), batch["tags"].flatten(0, 1)[reading.place])
    assert relation > 0.1
    assert made.loss(batch).item() == pytest.approx(classes + 0.3 * relation, rel=1e-5)


def test_without_weight_the_gradients_are_those_of_the_classes_alone(root):
    gradients = []
    for name, changes in (("fan_hatt_sup", {"loss.relation.weight": 0}), ("fan_hatt_unsup", {})):
        made = task(root, name, **changes)
        made.loss(batch_of(made)).backward()
        gradients.append({name: p.grad for name, p in made.model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=0, atol=0)


@pytest.mark.parametrize(
    "changes",
    [{"loss.relation.target": kind} for kind in ("semantic", "different_category", "same_category", "different_word")]
    + [{"loss.relation.over": "row"}, {"loss.relation.shape": "l2"}, {"loss.relation.shape": "smooth_l1"}]
    + [{"loss.relation.r": r} for r in (0, 1, 3, 4)],
)
def test_every_supervision_reaches_the_attention(root, changes):
    made = task(root, **changes)
    batch = batch_of(made)
    made.model.classifier.requires_grad_(False)
    loss = made.loss(batch)
    plain = task(root, **{"loss.relation.weight": 0}).loss(batch)
    assert loss > plain
    loss.backward()
    assert made.model.focus.key.weight.grad.abs().sum() > 0


def test_a_batch_of_empty_documents(root):
    made = task(root)
    batch = {name: torch.zeros_like(values) for name, values in batch_of(made).items()}
    loss = made.loss(batch)
    loss.backward()
    assert loss.isfinite()
    made.test_step(batch, 0)
    assert "center_mass" not in made.results()["metrics"]


# Runs ------------------------------------------------------------------------


def test_a_run(run, root):
    out, result = run
    assert result["metrics"]["accuracy"] > 0.9
    assert 0 < result["metrics"]["center_mass"] < 1
    assert result["dataset"] == "TEXTFOLDER"
    assert not result["embedded"]
    again = evaluate(out, data=root)
    assert again["metrics"] == pytest.approx(result["metrics"])
    model, about = load_model(out)
    assert about["answers"] == ["cats", "dogs"]
    assert about["vocabulary"][2:4] != about["vocabulary"][4:6]
    assert not model.training


@pytest.mark.parametrize("before", [False, True])
def test_the_saved_recipe_holds_the_supervision(root, tmp_path, before):
    """A run of the same command goes on, also one whose recipe was saved without it."""
    short = {"train.epochs": 1}
    fit(load(DEMO["fan_hatt_sup"], recipe(**short)), tmp_path / "run", data=root, progress=False)
    saved = tmp_path / "run/recipe.yaml"
    assert load(saved).loss.relation == Relation()
    assert "relation:" in saved.read_text()
    if before:
        saved.write_text(load(saved, ["loss.relation=null"]).dump())
        assert "relation:" not in saved.read_text()
    (tmp_path / "run/result.json").unlink()
    for plan in (load(DEMO["fan_hatt_sup"], recipe(**short)), load(saved)):
        assert fit(plan, tmp_path / "run", data=root, progress=False)["epochs"] == 1
    other = load(DEMO["fan_hatt_sup"], recipe(**short, **{"loss.relation.weight": 0.2}))
    with pytest.raises(RunError, match="a run of another recipe"):
        fit(other, tmp_path / "run", data=root, progress=False)


def test_only_supervised_models_save_a_supervision(root, tmp_path):
    fit(load(DEMO["hatt"], recipe(**{"train.epochs": 1})), tmp_path / "run", data=root, progress=False)
    assert load(tmp_path / "run/recipe.yaml").loss.relation is None


def test_supervision_raises_the_center_mass(root, tmp_path, run):
    plan = load(DEMO["fan_hatt_unsup"], recipe(**LONGER))
    without = fit(plan, tmp_path / "unsup", data=root, progress=False)
    assert run[1]["metrics"]["center_mass"] > without["metrics"]["center_mass"] + 0.1


def test_the_last_epoch_can_be_tested_instead_of_the_best(root, tmp_path):
    for select in ("best", "last"):
        plan = load(DEMO["hatt"], recipe(**{"train.select": select, "train.epochs": 2}))
        fit(plan, tmp_path / select, data=root, progress=False)
        kept = torch.load(tmp_path / select / f"{select}.ckpt", weights_only=True)["state_dict"]
        model, _ = load_model(tmp_path / select)
        torch.testing.assert_close(model.classifier.weight, kept["model.classifier.weight"])


def test_samples_are_spread_over_the_test_documents(run):
    out, _ = run
    samples = DocumentSamples.load(out / "samples.safetensors")
    assert len(samples) == 12
    assert set(samples.label.tolist()) == {0, 1}
    assert samples.texts[0][0][:3] == ["the", "old", "animals"]
    assert samples.pairs.shape == (12, 4, 8, 8)
    assert sum(samples.importance(0, 0)) == pytest.approx(len(samples.texts[0][0]), rel=1e-4)
    assert samples.sentence_attention.sum(1).tolist() == pytest.approx([1.0] * 12, rel=1e-4)


def test_the_report_shows_rings_of_three_models_side_by_side(run, root, tmp_path):
    out, _ = run
    for name in ("hatt", "fan_hatt_unsup"):
        fit(load(DEMO[name], recipe(**{"train.epochs": 1})), tmp_path / name, data=root, progress=False)
    page = foveal.see.report([out, *(tmp_path / name for name in ("hatt", "fan_hatt_unsup"))], tmp_path / "r.html")
    text = page.read_text(encoding="utf-8")
    assert "given texts and asked for their class (one of 2)" in text
    assert "of the texts into their class" in text
    assert "Center-mass is the share" in text
    cards = text.count('<article class="sample document">')
    assert cards == 4
    assert text.count('<svg class="ring"') == 3 * cards
    order = [text.index(f'title="{title}"') for title in ("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup")]
    assert order == sorted(order)


# Asking ----------------------------------------------------------------------


def test_asking_about_a_text(run):
    out, _ = run
    found = predict(out, "The old animals often chase small mice. They love milk!")
    assert found.answers[0][0] == "cats"
    assert sum(p for _, p in found.answers) == pytest.approx(1, rel=1e-4)
    assert found.picture.size[0] == 900


@pytest.mark.parametrize(
    "text", ["", " \n ", "...", "Hm", "日本語", "\ufffd\x00", "word " * 5000, "Xyzzy plugh. Qwerty!"]
)
def test_asking_about_strange_texts(run, text):
    out, _ = run
    found = predict(out, text)
    assert len(found.answers) == 2
    assert all(math.isfinite(p) for _, p in found.answers)
    assert found.picture is not None
    assert (found.remark == "There is no word in this text.") == (not any(c.isalnum() for c in text))


def test_asking_about_a_file(run, tmp_path):
    out, _ = run
    file = tmp_path / "letter.txt"
    file.write_bytes(b"The old animals often chase small \xff bones. They love gardens!")
    assert predict(out, file).answers[0][0] == "dogs"
    assert text_file(str(file)) == file
    assert text_file("a\x00b") is None
    assert text_file("Read or write letter.txt or a/b") is None
    assert text_file("letters") is None
    assert text_file("") is None
    for missing in ("letter2.txt", "notes.MD", str(tmp_path / "none"), "letters/one"):
        with pytest.raises(UserError, match=f"there is no file {missing}; give a text file"):
            predict(out, missing)
    with pytest.raises(UserError, match=f"{tmp_path} is a folder; give a text"):
        predict(out, tmp_path)
    with pytest.raises(UserError, match="put quotes around it"):
        predict(out, "The", "old")


def test_a_file_is_read_like_the_corpus(tmp_path):
    """Latin-1, and without what was stripped in training."""
    for split in ("train", "test"):
        for kind, word in (("cats", "caf\xe9"), ("dogs", "bones")):
            folder = tmp_path / f"20news-bydate/20news-bydate-{split}/{kind}"
            folder.mkdir(parents=True)
            for i in range(20):
                (folder / str(i)).write_bytes(f"Subject: nothing\n\nThey love {word}.\n".encode("latin-1"))
    data = "{name: 20news, strip: headers, tagger: none, min_count: 1, sentences: 4, words: 8}"
    plan = load(DEMO["hatt"], recipe(**LONGER, data=data))
    fit(plan, tmp_path / "run", data=tmp_path, progress=False)
    file = tmp_path / "message"
    file.write_bytes("Subject: bones bones bones\n\nThey love caf\xe9.\n".encode("latin-1"))
    as_typed = predict(tmp_path / "run", "They love café.")
    assert as_typed.answers[0][0] == "cats"
    assert predict(tmp_path / "run", file).answers == as_typed.answers


def test_the_command_line(run, tmp_path, monkeypatch):
    out, _ = run
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["predict", str(out), "They love bones! http://a.b//c"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("dogs")
    assert (tmp_path / "text-seen.png").is_file()
    assert "no word" not in done.output
    done = CliRunner().invoke(app, ["predict", str(out), ""])
    assert done.exit_code == 0, done.output
    assert "There is no word in this text." in done.output


# Recipes ---------------------------------------------------------------------


def test_the_tables_of_the_paper():
    found = tables()
    rows = {
        table: {load(name).published.row: load(name).published.accuracy for name in found[table]}
        for table in ("fan/table6", "fan/table8", "fan/ablations")
    }
    assert rows["fan/table6"] == {"Hatt": 0.640, "FAN-hatt-unsup": 0.646, "FAN-hatt-sup": 0.656}
    assert rows["fan/table8"] == {
        "different word": 0.647,
        "same category": 0.649,
        "different category": 0.651,
        "semantic": 0.656,
    }
    assert set(rows["fan/ablations"]) == {
        "row", "mat (r = 0)", "r = 1", "mat-focal (r = 2)", "r = 3", "r = 4", "L2", "smooth L1",
    }  # fmt: skip
    relations = {load(name).published.row: load(name).loss.relation for name in found["fan/ablations"]}
    assert (relations["row"].over, relations["row"].r) == ("row", 0)
    assert (relations["mat (r = 0)"].over, relations["mat (r = 0)"].r) == ("matrix", 0)
    assert relations["L2"].shape == "l2"
    for name in (name for table in ("fan/table6", "fan/table8", "fan/ablations") for name in found[table]):
        plan = load(name)
        assert (plan.optim.name, plan.optim.lr, plan.train.batch, plan.train.epochs) == ("adam", 0.001, 256, 15)
        assert (plan.data["sentences"], plan.data["words"], plan.train.select) == (15, 30, "last")
        assert plan.loss.relation is None or plan.loss.relation.weight == 0.1
    assert len(cells("fan/table6-ours", 1, Path("x"))) == 3


# What cannot be used -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("fan_hatt_sup", {"data.tagger": "none"}, "loss.relation.target=semantic needs part-of-speech tags"),
        ("hatt", {"loss.relation.weight": 0.1}, "loss.relation has no meaning for model hatt"),
        ("fan_hatt_unsup", {"loss.relation.weight": 0.1}, "loss.relation has no meaning for model fan_hatt_unsup"),
        ("hatt", {"model.vocabulary": 5}, "model.vocabulary comes from the data"),
        ("hatt", {"model.name": "soft"}, "model soft does not read documents"),
        ("hatt", {"model.name": "hat"}, "did you mean 'hatt'"),
        ("hatt", {"model.chanels": 5}, "did you mean 'channels'"),
        ("fan_hatt_sup", {"loss.relation.target": "nouns"}, "loss.relation.target: expected one of semantic"),
        ("fan_hatt_sup", {"loss.relation.r": -1}, "loss.relation.r: expected at least 0"),
        ("fan_hatt_sup", {"data.tagger": "pattern", "data.language": "de"}, "knows en and not 'de'"),
    ],
)
def test_recipes_that_cannot_be_used(root, name, changes, said):
    with pytest.raises(UserError, match=said):
        task(root, name, **changes)


def test_one_class_is_nothing_to_tell_apart(tmp_path):
    (tmp_path / "texts/cats").mkdir(parents=True)
    (tmp_path / "news").mkdir()
    for i in range(30):
        (tmp_path / f"texts/cats/{i}.txt").write_text("The old animals chase small mice.")
    for name in ("train.csv", "test.csv"):
        (tmp_path / "news" / name).write_text('"1","Mice","The old animals chase them."\n' * 30)
    (tmp_path / "news/classes.txt").write_text("cats\n")
    for name, folder in (("textfolder", "texts"), ("ag-news", "news")):
        with pytest.raises(UserError, match=f"data.name={name} has only the class 'cats'; at least two are needed"):
            task(tmp_path, "hatt", **{"data": f"{{name: {name}, folder: {folder}, tagger: none}}"})


def test_other_tasks_and_data(root):
    plan = load("demo/hattnet", ["task=document"])
    with pytest.raises(UserError, match="task document needs labelled texts"):
        Document(plan, build_source(plan))
    different = task(root, **{"data.tagger": "none", "loss.relation.target": "different_word"})
    assert different.loss(batch_of(different)).isfinite()
    unsupervised = task(root, "fan_hatt_unsup", **{"data.tagger": "none"})
    assert unsupervised.mass is None  # nothing to measure by


def test_vectors_from_a_file(root, tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("mice " + " ".join(["0.5"] * 8) + "\nbones " + " ".join(["-0.5"] * 8) + "\n")
    made = task(root, "hatt", **{"data.embeddings": file})
    place = made.source.vocabulary.index("mice")
    assert made.model.embedding.weight[place].tolist() == [0.5] * 8
    file.write_text("mice 1 2 3\nbones 1 2 4\n")
    with pytest.raises(UserError, match=r"set model\.embedding=3"):
        task(root, "hatt", **{"data.embeddings": file, "seed": 1, "data.min_count": 2})


def test_damaged_samples_are_named(run, tmp_path):
    from safetensors.torch import save_file

    save_file({"words": torch.zeros(1, 1, 1)}, tmp_path / "samples.safetensors", {"answers": json.dumps(["a"])})
    with pytest.raises(RunError, match="holds no 'vocabulary'"):
        DocumentSamples.load(tmp_path / "samples.safetensors")
    with pytest.raises(RunError, match="cannot be read"):
        DocumentSamples.load(tmp_path / "none.safetensors")
