"""Attribute prediction through whole runs: one without a prior, one with each kind."""

import shutil

import pytest
import torch
from readhtml import read
from safetensors.torch import load_file, save_file
from small_genome import write

from foveal.attention import watch
from foveal.data.formats.visual_genome.source import VisualGenomeData, VisualGenomeOptions
from foveal.errors import UserError
from foveal.measure import weighted_average_precision
from foveal.models.attribute import vgg16_features
from foveal.recipe import load
from foveal.recipe.grids import grids
from foveal.reproduce import Cell, summarise
from foveal.reproduce.jobs import summary
from foveal.runs import RunFolder
from foveal.see import Samples, report
from foveal.tasks import evaluate, fit, load_model
from foveal.tasks.refer import Refer
from foveal.tasks.train import build_source

DATA = {"image_size": 64, "min_count": 3, "sizes": (4, 2, 2), "workers": 0}
SETTINGS = [
    *(f"data.{key}={list(value) if isinstance(value, tuple) else value}" for key, value in DATA.items()),
    "model.hidden=16",
    "model.checkpoint=vgg16.safetensors",
    "optim.lr=0.01",
    "train.epochs=2",
    "train.batch=4",
    "train.eval_batch=4",
    "train.accelerator=cpu",
]
PRIORS = ("null", "fixed", "trainable")


def recipe(prior="null", *overrides):
    return load("hattnet/table2/attention-soft", [*SETTINGS, f"model.prior={prior}", *overrides])


class Runs:
    """Three finished runs whose data and pretrained weights are gone."""

    def __init__(self, folder):
        data = folder / "data"
        write(data / "visual_genome")
        torch.manual_seed(0)
        save_file(vgg16_features().state_dict(prefix="features."), data / "vgg16.safetensors")
        source = VisualGenomeData(VisualGenomeOptions(**DATA), data)
        self.prior, self.queries, self.answers = source.prior(), source.queries, source.answers
        self.batches = list(source.loader("test", 4, device=torch.device("cpu")))
        self.out = {prior: folder / "runs" / prior for prior in PRIORS}
        self.results = {prior: fit(recipe(prior), out, data=data, progress=False) for prior, out in self.out.items()}
        (data / "vgg16.safetensors").unlink()
        self.again = evaluate(self.out["trainable"], data=data)
        shutil.rmtree(data)
        self.models = {prior: load_model(out)[0] for prior, out in self.out.items()}
        self.labels = torch.cat([batch["label"] for batch in self.batches])
        self.logits = {prior: self.ask(model) for prior, model in self.models.items()}

    @torch.no_grad()
    def ask(self, model):
        return torch.cat([model(batch["image"] / 255, batch["query"]) for batch in self.batches])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("multilabel"))


# One run --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_result_names_the_metric(runs):
    result = runs.results["null"]
    assert result["metrics"].keys() == {
        "weighted_average_precision",
        "true_positive_strength",
        "true_positive_strength_last",
        "true_positive_strength_resized",
        "target_area",
    }
    assert 0 < result["metrics"]["weighted_average_precision"] <= 1
    assert result["dataset"] == "Visual Genome"
    assert not result["embedded"]
    assert "4 + 2 + 2 images" in result["data"]
    assert result["published"] == {"weighted_average_precision": 0.2484}
    assert result["curves"].keys() == {"pixel_pr"}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.slow
def test_the_score_is_that_of_the_saved_weights(runs, prior):
    found = float(weighted_average_precision(runs.logits[prior], runs.labels))
    assert found == pytest.approx(runs.results[prior]["metrics"]["weighted_average_precision"], abs=1e-4)


@pytest.mark.slow
def test_the_journal_and_the_best_epoch(runs):
    rows = RunFolder(runs.out["null"]).epochs()
    scores = [row["val/weighted_average_precision"] for row in rows]
    assert len(rows) == runs.results["null"]["epochs"] == 2
    assert runs.results["null"]["best_epoch"] == scores.index(max(scores))
    assert all("val/accuracy" not in row for row in rows)
    assert all(0 < row["val/loss"] < 10 for row in rows)


@pytest.mark.slow
def test_testing_again_needs_no_pretrained_weights_and_says_the_same(runs):
    assert runs.again["metrics"] == pytest.approx(runs.results["trainable"]["metrics"])


@pytest.mark.slow
def test_samples(runs):
    stored = RunFolder(runs.out["null"]).tensors("samples.safetensors")
    samples = Samples.from_tensors(stored.tensors, stored.about)
    batch = runs.batches[0]
    assert len(samples) == 4
    assert torch.equal(samples.image, batch["image"])
    assert torch.equal(samples.label, batch["label"])
    assert torch.equal(samples.mask, batch["mask"])
    assert torch.equal(samples.prediction, (samples.probability > 0.5).long())
    assert samples.queries == tuple(runs.queries)
    assert samples.truth(0) == batch["label"][0].nonzero().flatten().tolist()
    torch.testing.assert_close(samples.probability, runs.logits["null"][:4].sigmoid(), atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_the_report(runs):
    page = read(report([*runs.out.values()], out=runs.out["null"].parent / "report.html").read_text())
    best = 100 * max(result["metrics"]["weighted_average_precision"] for result in runs.results.values())
    assert f"reached {best:.1f} % weighted average precision" in page.text
    assert "Weighted average precision in validation" in page.text
    assert "How would you describe the" in page.text
    assert "paper 24.8" in page.text


@pytest.mark.slow
def test_summary_beside_the_published_number(runs):
    cell = Cell(recipe(), runs.out["null"])
    rows = {row["metric"]: row for row in summarise([cell])}
    row = rows["weighted_average_precision"]
    assert "accuracy" not in rows
    assert (row["table"], row["model"], row["dataset"]) == ("hattnet/table2", "SOFT", "attention only")
    assert row["published"] == 0.2484
    assert row["difference"] == pytest.approx(row["mean"] - 0.2484, abs=1e-4)
    found = runs.results["null"]["metrics"]["weighted_average_precision"]
    line = summary(runs.results["null"])
    assert line.startswith(f"weighted average precision {100 * found:.2f} % · true-positive strength ")


# The prior ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_prior_changes_the_answers(runs):
    logits = runs.logits
    assert (logits["fixed"] - logits["null"]).abs().max() > 0.1
    assert (logits["trainable"] - logits["null"]).abs().max() > 0.1
    assert (logits["trainable"] - logits["fixed"]).abs().max() > 1e-4
    scores = {prior: runs.results[prior]["metrics"]["weighted_average_precision"] for prior in PRIORS}
    assert scores["fixed"] != scores["null"] != scores["trainable"]


@pytest.mark.slow
def test_the_prior_survives_in_the_weights(runs):
    """Without the data: a fixed prior as it was, a trainable one as training left it, and none where none was asked."""
    models = runs.models
    assert models["null"].prior is None
    assert torch.equal(models["fixed"].prior, runs.prior)
    assert not models["fixed"].prior.requires_grad
    moved = (models["trainable"].prior - runs.prior).abs()
    assert 1e-5 < moved.max() < 0.5
    stored = load_file(runs.out["trainable"] / "weights.safetensors")
    assert torch.equal(models["trainable"].prior, stored["prior"])
    assert "prior" not in load_file(runs.out["null"] / "weights.safetensors")


class Source:
    """Just what a task asks of a dataset."""

    name, title, queries, answers, multilabel, embedded = "some", "some", ["a", "b"], ["x", "y", "z"], True, True

    def about(self):
        return {"queries": self.queries, "answers": self.answers, "multilabel": self.multilabel, "size": 64}

    def describe(self):
        return "nothing"

    def loader(self, split, batch, **options):
        return []


class WithPrior(Source):
    def prior(self):
        return torch.arange(6.0).view(2, 3)


def plain(prior):
    return recipe(prior, "model.checkpoint=null", "model.name=hard_vgg16", "model.hidden=4")


def test_a_prior_is_set_where_model_and_data_have_one():
    assert torch.equal(Refer(plain("fixed"), WithPrior()).model.prior, WithPrior().prior())
    assert Refer(plain("null"), WithPrior()).model.prior is None
    assert torch.equal(Refer(plain("trainable"), Source()).model.prior, torch.zeros(2, 3))
    trained = Refer(plain("trainable"), Source()).model
    assert torch.equal(Refer(plain("trainable"), WithPrior(), trained).model.prior, torch.zeros(2, 3))


def test_the_score_is_named_for_what_it_is():
    task = Refer(plain("null"), Source())
    assert (task.val_key, task.mode) == ("val/weighted_average_precision", "max")
    single = type("Single", (Source,), {"multilabel": False})()
    assert Refer(plain("null"), single).val_key == "val/accuracy"


# Recipes --------------------------------------------------------------------------------------------------------------


TABLE_2 = [grids()["hattnet/table2"].full_name(cell) for cell in grids()["hattnet/table2"].cells()]


def test_table_2_is_complete():
    recipes = [load(name) for name in TABLE_2]
    assert {(r.cell.row, r.cell.column): r.published["weighted_average_precision"] for r in recipes} == {
        ("SOFT", "attention only"): 0.2484,
        ("SOFT", "w/ prior"): 0.2888,
        ("HARD", "attention only"): 0.2381,
        ("HARD", "w/ prior"): 0.2804,
        ("HAttNet-CTX", "attention only"): 0.2704,
        ("HAttNet-CTX", "w/ prior"): 0.3038,
    }


@pytest.mark.parametrize("name", TABLE_2)
def test_recipes_build(name):
    chosen = load(name, ["data.source=embedded", "data.sizes=[20, 5, 5]", "data.workers=0", "model.checkpoint=null"])
    assert (chosen.optim.name, chosen.optim.lr, chosen.optim.momentum, chosen.optim.weight_decay) == (
        "sgd",
        1e-3,
        0.9,
        5e-4,
    )
    assert chosen.train.batch == 32
    source = build_source(chosen)
    task = Refer(chosen, source)
    assert source.options.image_size == 224
    assert (task.model.prior is not None) == ("/prior-" in name)
    assert set(task.model.gates) == ({"pool3", "pool4", "pool5"} if "ctx" in name else {"pool5"})
    with torch.no_grad(), watch(task.model) as seen:
        assert task.model(torch.rand(1, 3, 64, 64), torch.tensor([2])).shape == (1, 6)
    assert list(seen) == [f"gates.{pool}" for pool in task.model.gates]


def test_pretrained_weights_that_are_not_there(tmp_path):
    embedded = ["data.source=embedded", "data.sizes=[20, 5, 5]", "data.min_count=100"]
    message = rf"model\.checkpoint: there is no file .* or {tmp_path}.*vgg16\.safetensors; .*model\.checkpoint=null"
    with pytest.raises(UserError, match=message):
        fit(recipe("null", *embedded), tmp_path / "run", data=tmp_path, progress=False)
    assert not (tmp_path / "run").exists()


def test_pretrained_weights_are_found_in_the_data_folder(tmp_path):
    given = vgg16_features().state_dict(prefix="features.")
    save_file(given, tmp_path / "vgg16.safetensors")
    source = WithPrior()
    source.root = tmp_path
    model = Refer(recipe("null"), source).model
    assert all(torch.equal(model.state_dict()[key], value) for key, value in given.items())
