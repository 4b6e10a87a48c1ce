"""Task document: its loss, training, testing, asking, and what cannot be used."""

import math
from pathlib import Path

import pytest
import torch
from readhtml import read
from small_texts import recipe, write_texts

import foveal
from foveal.errors import RunError, UserError
from foveal.recipe import load
from foveal.recipe.grids import grids
from foveal.reproduce import cells
from foveal.runs import RunFolder
from foveal.see import DocumentSamples
from foveal.tasks import evaluate, fit, load_model
from foveal.tasks.document import Document
from foveal.tasks.document.options import Relation
from foveal.tasks.train import build_source

LONGER = {"train.epochs": 12, "train.select": "last", "optim.lr": 0.03}
DEMO = {
    name: f"demo/document/{row}"
    for row, name in (("hatt", "hatt"), ("unsup", "fan_hatt_unsup"), ("sup", "fan_hatt_sup"))
}


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
    made = task(root, **{"loss.weights.relation": 0.3})
    batch = batch_of(made)
    reading = made.model.read(batch["words"])
    classes = torch.nn.functional.cross_entropy(reading.logits, batch["label"]).item()
    relation = slow_relation(reading.pairs.detach(), batch["tags"].flatten(0, 1)[reading.place])
    assert relation > 0.1
    assert made.weighed(batch)[0].item() == pytest.approx(classes + 0.3 * relation, rel=1e-5)


def test_without_weight_the_gradients_are_those_of_the_classes_alone(root):
    gradients = []
    for name, changes in (("fan_hatt_sup", {"loss.weights.relation": 0}), ("fan_hatt_unsup", {})):
        made = task(root, name, **changes)
        made.weighed(batch_of(made))[0].backward()
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
    loss, losses = made.weighed(batch)
    assert loss > losses["classification"]
    loss.backward()
    assert made.model.focus.key.weight.grad.abs().sum() > 0


def test_a_batch_of_empty_documents(root):
    made = task(root)
    batch = {name: torch.zeros_like(values) for name, values in batch_of(made).items()}
    loss, _ = made.weighed(batch)
    loss.backward()
    assert loss.isfinite()
    made.test_step(batch, 0)
    assert "center_mass" not in made.results().metrics


# Runs ------------------------------------------------------------------------


def test_a_run(run, root):
    out, result = run
    assert result["metrics"]["accuracy"] > 0.9
    assert 0 < result["metrics"]["center_mass"] < 1
    assert result["dataset"] == "textfolder"
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
    other = load(DEMO["fan_hatt_sup"], recipe(**short, **{"loss.weights.relation": 0.2}))
    with pytest.raises(RunError, match="choose another --out"):
        fit(other, tmp_path / "run", data=root, progress=False)


def test_filling_in_the_supervision_uses_up_no_random_numbers(root):
    plan, state = load(DEMO["fan_hatt_sup"], recipe()), torch.get_rng_state()
    assert Document.complete(plan).loss.relation == Relation()
    assert torch.equal(torch.get_rng_state(), state)


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
    stored = RunFolder(out).tensors("samples.safetensors")
    samples = DocumentSamples.from_tensors(stored.tensors, stored.about)
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
    html = page.read_text(encoding="utf-8")
    text = read(html).text
    assert "given texts and asked for their class (one of 2)" in text
    assert "of the texts into their class" in text
    assert "Center-mass is the share" in text
    cards = html.count('<article class="sample document">')
    assert cards == 4
    assert html.count('<svg class="ring"') == 3 * cards
    assert [row[0].split()[0] for row in read(html).table()[1:4]] == ["Hatt", "FAN-hatt-unsup", "FAN-hatt-sup"]


# Recipes ---------------------------------------------------------------------


def names(table):
    return [grids()[table].full_name(cell) for cell in grids()[table].cells()]


def test_the_tables_of_the_paper():
    recipes = {table: [load(name) for name in names(table)] for table in ("fan/table6", "fan/table8", "fan/ablations")}
    rows = {table: {r.cell.row: r.published.get("accuracy") for r in some} for table, some in recipes.items()}
    published = {"Hatt": 0.640, "FAN-hatt, mean": None, "FAN-hatt-unsup": 0.646, "FAN-hatt-sup": 0.656}
    assert rows["fan/table6"] == published
    assert rows["fan/table8"] == {
        "different word": 0.647,
        "same category": 0.649,
        "different category": 0.651,
        "semantic": 0.656,
    }
    assert set(rows["fan/ablations"]) == {
        "row", "mat (r = 0)", "r = 1", "mat-focal (r = 2)", "r = 3", "r = 4", "L2", "smooth L1",
    }  # fmt: skip
    relations = {r.cell.row: r.loss.relation for r in recipes["fan/ablations"]}
    assert (relations["row"].over, relations["row"].r) == ("row", 0)
    assert (relations["mat (r = 0)"].over, relations["mat (r = 0)"].r) == ("matrix", 0)
    assert relations["L2"].shape == "l2"
    assert Document.usual_weights["relation"] == 0.1
    for plan in (plan for some in recipes.values() for plan in some):
        assert (plan.optim.name, plan.optim.lr, plan.train.batch, plan.train.epochs) == ("adam", 0.001, 256, 15)
        assert (plan.data["sentences"], plan.data["words"], plan.train.select) == (15, 30, "last")
        assert plan.loss.weights.get("relation", 0.1) == 0.1
    assert len(cells("fan/table6-ours", 1, Path("x"))) == 4


# What cannot be used -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("fan_hatt_sup", {"data.tagger": "none"}, "loss.relation.target=semantic needs part-of-speech tags"),
        ("hatt", {"loss.relation.r": 1}, "loss.relation has no meaning for model hatt"),
        ("fan_hatt_unsup", {"loss.relation.r": 1}, "loss.relation has no meaning for model fan_hatt_unsup"),
        ("hatt", {"loss.weights.relation": 0.1}, "loss.weights: unknown key 'relation'"),
        ("hatt", {"model.vocabulary": 5}, "model.vocabulary comes from the data"),
        ("hatt", {"model.name": "soft"}, "model soft .* use .*hatt"),
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
        with pytest.raises(UserError, match=f"data.name={name} .*'cats'; at least two are needed"):
            task(tmp_path, "hatt", **{"data": f"{{name: {name}, folder: {folder}, tagger: none}}"})


def test_other_tasks_and_data(root):
    plan = load("demo/refer/hattnet", ["task=document"])
    with pytest.raises(UserError, match="task document needs labelled texts"):
        Document(plan, build_source(plan))
    different = task(root, **{"data.tagger": "none", "loss.relation.target": "different_word"})
    assert different.weighed(batch_of(different))[0].isfinite()
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
