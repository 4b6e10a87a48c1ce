"""Classification through whole runs: one label an image, several labels, several processes, stopped and resumed."""

import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from foveal.see.table import step_time
from foveal.tasks.predict import predict
from foveal.tasks.reproduce import Cell, _line, summarise, tables
from foveal.tasks.run import build_source, load_model
from foveal.tasks.task import synchronised
from PIL import Image
from safetensors.torch import save_file

import foveal
from foveal.data.formats.voc import VOC_CLASSES
from foveal.data.images.classification import ImageData
from foveal.errors import DivergedError, UserError
from foveal.measure import attention_map, label_map
from foveal.models.registry import any_model
from foveal.recipe import load
from foveal.see import Samples, report
from foveal.tasks import Classify, evaluate, fit
from foveal.tasks.callbacks import read_journal
from foveal.tasks.classify import build_classifier, insert_all, looking, maps

RECIPE = """
version: 1
task: classify
title: tiny
data: {name: digits, size: 8}
model: {name: aw_cbam_cifar_resnet20, depth: 8, width: 4}
optim: {name: sgd, lr: 0.1, nesterov: true, weight_decay: 5.0e-4, schedule: onecycle}
train: {epochs: 2, batch: 42, eval_batch: 100, accelerator: cpu}
"""


@pytest.fixture
def recipe(tmp_path):
    return partial(load, write(tmp_path))


def write(folder):
    path = folder / "tiny.yaml"
    path.write_text(RECIPE)
    return path


class Run:
    """A finished run."""

    def __init__(self, folder, *changes):
        self.out = folder / "run"
        self.recipe = load(write(folder), changes)
        self.result = fit(self.recipe, self.out, progress=False)
        self.source = build_source(self.recipe)
        self.model, self.about = load_model(self.out)

    @torch.no_grad()
    def asked(self):
        """Logits and labels of the test images, by a plain loop."""
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (self.source.mean, self.source.std))
        found = [
            (self.model((batch["image"] / 255 - mean) / std), batch["label"])
            for batch in self.source.loader("test", 33, device=torch.device("cpu"))
        ]
        return (torch.cat(values) for values in zip(*found, strict=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("classify"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return Run(folder, "model.name=se_cifar_resnet20", "train.epochs=1", "title=SE")


# One run --------------------------------------------------------------------------------------------------------------


def test_the_scores_are_those_of_the_saved_weights(run):
    logits, label = run.asked()
    top5 = logits.topk(5, 1).indices
    assert len(label) == 397
    assert run.result["metrics"] == pytest.approx(
        {
            "accuracy": float((logits.argmax(1) == label).float().mean()),
            "top5_accuracy": float((top5 == label[:, None]).any(1).float().mean()),
        }
    )


def test_it_learns(run):
    losses = [row["train/loss"] for row in read_journal(run.out / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 0.1


def test_parameters_and_step_time_are_in_the_result(run):
    assert run.result["parameters"] == sum(p.numel() for p in run.model.parameters())
    steps = [row["train/step_seconds"] for row in read_journal(run.out / "metrics.jsonl")]
    assert min(steps) <= run.result["step_seconds"] <= max(steps)
    assert 0 < run.result["step_seconds"] < run.result["seconds"]


def test_testing_again_says_the_same(run):
    (run.out / "result.json").rename(run.out / "before.json")
    assert evaluate(run.out)["metrics"] == pytest.approx(run.result["metrics"])


def test_samples_with_the_maps_of_the_gates(run):
    samples = Samples.load(run.out / "samples.safetensors")
    assert (len(samples), samples.query, samples.queries) == (12, None, ())
    assert samples.sites == tuple(f"layer{stage}.0.bn2 cbam.spatial" for stage in (1, 2, 3))
    assert [tuple(gate.shape) for gate in samples.gates] == [(12, 8, 8), (12, 4, 4), (12, 2, 2)]
    torch.testing.assert_close(samples.map, attention_map(list(samples.gates), (8, 8)))
    assert samples.answers == tuple("0123456789")
    logits, label = run.asked()
    first = torch.linspace(0, 99, 12).long()
    torch.testing.assert_close(samples.probability, logits.softmax(1)[first], rtol=1e-4, atol=1e-6)
    assert torch.equal(samples.label, label[first])


def test_a_model_without_attention_over_positions(plain):
    samples = Samples.load(plain.out / "samples.safetensors")
    assert (samples.gates, samples.map, samples.sites) == ((), None, ())


def test_the_report(run, plain):
    both = report([run.out, plain.out], run.out / "both.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "Where two models look" in both
    assert "asked for what they show (10 classes)" in both
    assert "What does this show?" in both
    assert "Top-5 accuracy" in both
    assert step_time(run.result["step_seconds"]) in both
    assert "layer1.0.bn2 cbam.spatial, gate 1 of 3" in both
    alone = report(plain.out).read_text()
    assert "What SE says" in alone
    assert "darkened where attention is low" not in alone


def test_weights_are_channels_last(recipe):
    task = Classify(recipe(), build_source(recipe()))
    assert task.model.layer2[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_images_are_normalised_as_the_data_says(recipe):
    changed = recipe(["data.mean=[0.1, 0.2, 0.3]", "data.std=[1, 2, 4]"])
    task = Classify(changed, build_source(changed))
    seen = []
    task.model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    task.logits({"image": torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)})
    torch.testing.assert_close(seen[0][0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))


def test_bf16(recipe, tmp_path):
    result = fit(recipe(["train.precision=bf16", "train.epochs=1"]), tmp_path / "run", progress=False)
    assert 0 <= result["metrics"]["accuracy"] <= 1


def test_the_step_can_be_compiled_as_one_graph(recipe, tmp_path, monkeypatch):
    """What the compiler would see; its own work is left out, for it takes long."""
    fit(recipe(["train.epochs=1"]), tmp_path / "plain", progress=False)
    traced = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, mode: traced(function))
    fit(recipe(["train.epochs=1", "train.compile=true"]), tmp_path / "compiled", progress=False)
    one, other = (read_journal(tmp_path / name / "metrics.jsonl")[0] for name in ("plain", "compiled"))
    assert one["val/loss"] == pytest.approx(other["val/loss"], rel=1e-3)


def test_a_diverged_run_says_so(recipe, tmp_path):
    with pytest.raises(DivergedError, match=r"Try a lower optim\.lr"):
        fit(recipe(["optim.lr=1e30", "optim.schedule=constant"]), tmp_path / "run", progress=False)


# Stopped, resumed, in several processes -------------------------------------------------------------------------------


def command(*words):
    return [sys.executable, "-m", "foveal", *map(str, words)]


def last(out):
    return torch.load(out / "last.ckpt", weights_only=True)["state_dict"]


def test_killed_and_resumed(tmp_path):
    """SIGKILL, then resume: the same weights and losses as a run that was never disturbed."""
    path, changes = write(tmp_path), ["train.epochs=8", "train.batch=126"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(load(path, changes), whole, progress=False)
    child = subprocess.Popen(command("train", path, *changes, "--out", cut), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(read_journal(cut / "metrics.jsonl")) < 2:
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(read_journal(cut / "metrics.jsonl")) < 8, "the run was over before it was killed; nothing was tested"
    fit(load(path, changes), cut, progress=False)
    a, b = last(cut), last(whole)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    rows, reference = (read_journal(out / "metrics.jsonl") for out in (cut, whole))
    assert [(r["epoch"], r["val/loss"]) for r in rows] == [(r["epoch"], r["val/loss"]) for r in reference]


def test_two_processes(tmp_path):
    """DDP over gloo: every parameter is used, and the scores are those of the whole test set."""
    out = tmp_path / "run"
    flags = ["train.batch=100", "train.devices=2", "train.strategy=ddp", "train.epochs=1"]
    ran = subprocess.run(
        command("train", write(tmp_path), *flags, "--out", out), capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    (row,) = read_journal(out / "metrics.jsonl")
    assert row["step"] == 1260 // 200
    logits, label = Asked(out).asked()
    found = float((logits.argmax(1) == label).float().mean())
    assert found == pytest.approx(foveal.tasks.run.read_result(out)["metrics"]["accuracy"])


class Asked(Run):
    """A run that is there already."""

    def __init__(self, out):
        self.source = build_source(load(out / "recipe.yaml"))
        self.model, self.about = load_model(out)


def test_batch_norms_over_all_processes_keep_their_attention():
    """torch's conversion alone would leave SE and CBAM behind; timm's norms would lose their activation."""
    for name in ("aw_cbam_mobilenet", "se_cifar_resnet20"):
        model = foveal.create_model(name, num_classes=3).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, std=0.3)
        images, keys = torch.rand(2, 3, 32, 32), list(model.state_dict())
        before = model(images)
        made = synchronised(model)
        assert any(isinstance(module, torch.nn.SyncBatchNorm) for module in made.modules())
        assert torch.equal(made(images), before)
        assert list(made.state_dict()) == keys


# Several labels -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    """VOC's layout: the classes of an image are what it is coloured like; some labels are difficult."""
    root = tmp_path_factory.mktemp("voc")
    main, pictures = root / "VOCdevkit/VOC2012/ImageSets/Main", root / "VOCdevkit/VOC2012/JPEGImages"
    main.mkdir(parents=True)
    pictures.mkdir()
    draw = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("val", 12)):
        names = [f"2008_{split}{n}" for n in range(count)]
        marks = torch.randint(0, 4, (count, len(VOC_CLASSES)), generator=draw)  # 0: difficult, 1: there, others: not
        for name, mark in zip(names, marks, strict=True):
            noise = torch.randint(0, 100, (30, 40, 3), generator=draw) + 60 * (mark[:3] == 1)
            Image.fromarray(noise.byte().numpy()).save(pictures / f"{name}.jpg")
        (main / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for k, label in enumerate(VOC_CLASSES):
            rows = (f"{n} {int(m) if m < 2 else -1}\n" for n, m in zip(names, marks[:, k], strict=True))
            (main / f"{label}_{split}.txt").write_text("".join(rows))
    return root


VOC = ["data.name=voc2012", "data.size=16", "data.workers=0", "data.val_fraction=0.25", "train.batch=6"]


def test_several_labels(voc, recipe, tmp_path):
    chosen = recipe([*VOC, "train.eval_batch=5"])
    result = fit(chosen, tmp_path / "run", data=voc, progress=False)
    assert result["metrics"].keys() == {"label_map"}
    model, about = load_model(tmp_path / "run")
    source = build_source(chosen, voc)
    task = Classify(chosen, source, model)
    parts = [
        (task.logits(batch).detach(), batch["label"], batch["valid"])
        for batch in source.loader("test", 4, device=torch.device("cpu"))
    ]
    logits, label, valid = (torch.cat(values) for values in zip(*parts, strict=True))
    assert about["multilabel"]
    assert not valid.all()
    expected = float(label_map(logits, label, valid))
    assert result["metrics"]["label_map"] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(float(label_map(logits, label)), abs=1e-3)
    assert all("val/label_map" in row for row in read_journal(tmp_path / "run" / "metrics.jsonl"))
    rows = {row["metric"]: row["mean"] for row in summarise([Cell(load("icasc/voc2012-baseline"), tmp_path / "run")])}
    assert rows.pop("label_map") == pytest.approx(expected, abs=1e-4)
    assert rows == {
        f"average_precision/{k}": round(v, 4) for k, v in result["average_precision"].items() if v is not None
    }
    image = next((voc / "VOCdevkit/VOC2012/JPEGImages").iterdir())
    said = predict(tmp_path / "run", image).answers
    assert len(said) == 20
    assert said[0][1] >= said[-1][1]


def test_the_loss_leaves_out_labels_that_do_not_count(voc, recipe):
    source = build_source(recipe(VOC), voc)
    task = Classify(recipe(VOC), source)
    batch = next(iter(source.loader("test", 12, device=torch.device("cpu"))))
    logits = torch.randn(12, 20)
    each = [
        torch.nn.functional.binary_cross_entropy_with_logits(logits[n, k], batch["label"][n, k])
        for n in range(12)
        for k in range(20)
        if batch["valid"][n, k]
    ]
    assert len(each) < 12 * 20
    torch.testing.assert_close(task.loss(batch, logits), torch.stack(each).mean())


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "sites"),
    [
        ({"name": "resnet18", "insert": "aw"}, 16),  # of timm; the convolutions of the shortcuts are 1×1
        ({"name": "squeezenet1_0", "insert": ["se"]}, 25),  # of torchvision
        ({"name": "cifar_resnet20", "depth": 8, "insert": [{"mechanism": "aw", "at": "layer3.*.conv*"}, "cbam"]}, 5),
        ({"name": "resnet18"}, 0),
    ],
)
def test_attention_in_any_model(recipe, model, sites):
    chosen = recipe()
    chosen.model = model
    made = build_classifier(chosen, 7, 32)
    found = [name for name, _ in made.named_modules() if re.search(r"\.attached\.\w+$", name)]
    assert made(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert len(found) == sites


def test_options_reach_the_mechanism():
    model = any_model("cifar_resnet20")
    insert_all(model, [{"mechanism": "se", "at": ["layer1.*.bn2"], "start": "paper", "reduction": 2}])
    assert model.layer1[2].bn2.attached["se"].squeeze.out_features == 8
    assert model.layer1[2].bn2.attached["se"].blend.amount is None
    assert not hasattr(model.layer2[0].bn2, "attached")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.insert=sse", "model.insert[0]: unknown mechanism 'sse'; did you mean 'se'?"),
        (
            "model.insert=[{at: layer1.*}]",
            "model.insert[0]: expected the name of a mechanism or {mechanism: NAME, ...}",
        ),
        ("model.insert=3", "model.insert[0]: expected the name of a mechanism"),
        ("model.insert=[{mechanism: se, at: 3}]", "model.insert[0].at: expected a glob on layer names"),
        ("model.insert=[{mechanism: se, at: layer9.*.bn2}]", "model.insert[0]: unknown layer 'layer9.*.bn2'"),
        ("model.insert=[{mechanism: se, at: layer1.0.bn1, reductoin: 3}]", "did you mean 'reduction'"),
        ("model.insert=[{mechanism: se, model: 3}]", "model.insert[0]: "),
        ("model.insert=aw", "model.insert[0]: layer1.0.conv1 has 'aw' already"),
        ("model.num_classes=3", "model.num_classes comes from the data"),
        ("model.name=resnet81", "unknown model 'resnet81'; did you mean"),
        ("model={name: resnet18, nonsense: 3}", "model resnet18: "),
        ("model={name: hattnet}", "model hattnet: unknown key 'num_classes'"),
        ("model={name: vit_tiny_patch16_224}", "model vit_tiny_patch16_224 cannot take images of 8×8: "),
        (
            "model={name: resnet18, features_only: true}",
            "model resnet18 is no classifier: expected logits (N, 10), it puts out list",
        ),
        ("model.checkpoint=gone.safetensors", "model.checkpoint: there is no file gone.safetensors"),
        (
            "data={name: mref, digits: embedded}",
            "task classify needs labelled images; for data.name=mref use task=refer",
        ),
        ("task=refer", "for data.name=digits use task=classify"),
        ("task=clasify", "task: expected one of refer, classify"),
    ],
)
def test_mistakes_stop_before_training(recipe, tmp_path, change, said):
    with pytest.raises(UserError) as caught:
        fit(recipe([change]), tmp_path / "run", progress=False)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_one_class_is_nothing_to_tell_apart(recipe, tmp_path):
    for i in range(20):
        (tmp_path / "photos/cats").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (12 * i, 0, 0)).save(tmp_path / f"photos/cats/{i}.png")
    data = f"data={{name: imagefolder, folder: {tmp_path / 'photos'}, size: 8}}"
    with pytest.raises(UserError, match="=imagefolder has only the class 'cats'; at least two are needed"):
        fit(recipe([data]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_several_outputs_in_training(recipe):
    """Known only when it trains: evaluated, such a model has one output."""
    task = Classify(recipe(), build_source(recipe()))
    task.model.forward = lambda image: (image, image)
    batch = next(iter(task.source.loader("train", 4, device=torch.device("cpu"))))
    with pytest.raises(UserError, match=r"has several outputs in training; try model\.aux_logits=false"):
        task.loss(batch)


# Pretrained weights ---------------------------------------------------------------------------------------------------


def test_training_starts_from_a_checkpoint(recipe, tmp_path):
    """A plain network's weights for other classes, found in the data folder; testing does not need them."""
    given = foveal.create_model("cifar_resnet20", depth=8, width=4, num_classes=3).state_dict()
    save_file(given, tmp_path / "plain.safetensors")
    chosen = recipe(["model.checkpoint=plain.safetensors", "model.start=identity", "optim.lr=0", "train.epochs=1"])
    fit(chosen, tmp_path / "run", data=tmp_path, progress=False)
    (tmp_path / "plain.safetensors").unlink()
    model, _ = load_model(tmp_path / "run")
    own = model.state_dict()
    for name, value in given.items():
        if not name.startswith("fc.") and "running" not in name and "tracked" not in name:
            assert torch.equal(own[name], value), name
    assert own["fc.weight"].shape[0] == 10
    evaluate(tmp_path / "run", data=tmp_path)


def test_a_checkpoint_that_does_not_fit(recipe, tmp_path):
    save_file(foveal.create_model("cifar_resnet20", depth=8, width=8).state_dict(), tmp_path / "wide.safetensors")
    message = r"model\.checkpoint: the checkpoint .*wide\.safetensors does not fit the model \(of another shape: conv1"
    with pytest.raises(UserError, match=message):
        fit(recipe(["model.checkpoint=wide.safetensors"]), tmp_path / "run", data=tmp_path, progress=False)


# Where it looks -------------------------------------------------------------------------------------------------------


def test_only_spatial_attention_is_looked_at():
    model = foveal.create_model("aw_cbam_cifar_resnet20", depth=8).eval()
    with looking(model) as seen:
        model(torch.rand(2, 3, 16, 16))
    assert {record.kind for record in seen.values()} == {"spatial"}
    each, combined = maps(seen, (16, 16))
    assert list(each) == [f"layer{stage}.0.bn2 cbam.spatial" for stage in (1, 2, 3)]
    assert combined.shape == (2, 16, 16)
    for name in ("aw_se_cifar_resnet20", "cifar_resnet20"):
        with looking(foveal.create_model(name, depth=8)) as seen:
            assert maps(seen, (16, 16)) == ({}, None)


def test_of_many_gates_some_are_shown():
    model = foveal.create_model("cbam_cifar_resnet20", depth=32, width=4).eval()
    with looking(model) as seen:
        model(torch.rand(1, 3, 8, 8))
    each, combined = maps(seen, (8, 8))
    assert len(seen) == 15
    assert list(each)[-1] == "layer3.4.bn2 cbam.spatial"
    assert 5 <= len(each) <= 9
    torch.testing.assert_close(combined, attention_map(list(seen.values()), (8, 8)))


def test_predict(run, plain, tmp_path):
    digit = run.source.held_on("test", torch.device("cpu")).images[5]
    Image.fromarray(digit.permute(1, 2, 0).numpy()).save(tmp_path / "digit.png")
    found = predict(run.out, tmp_path / "digit.png")
    logits, _ = run.asked()
    probability = logits[5].softmax(0)
    assert [name for name, _ in found.answers] == [str(i) for i in probability.argsort(descending=True).tolist()]
    assert [p for _, p in found.answers] == pytest.approx(probability.sort(descending=True).values.tolist(), rel=1e-3)
    assert found.picture.size[0] > 5 * 180
    assert predict(plain.out, tmp_path / "digit.png").picture is None
    with pytest.raises(UserError, match="classifies whole images; leave '7' out"):
        predict(run.out, tmp_path / "digit.png", "7")


# Recipes --------------------------------------------------------------------------------------------------------------

PARAMETERS = {
    "ResNet50": 25_557_032,
    "AW-ResNet50": 25_722_240,
    "SE-ResNet50": 28_088_024,
    "AW-SE-ResNet50": 28_253_232,
    "AW-CBAM-ResNet50 (MaxPool)": 28_253_232,
    "AW-CBAM-ResNet50 (Spatial)": 28_254_832,
    "ResNet101": 44_549_160,
    "AW-ResNet101": 44_862_880,
    "SE-ResNet101": 49_326_872,
    "AW-SE-ResNet101": 49_640_592,
    "AW-CBAM-ResNet101 (MaxPool)": 49_640_592,
    "AW-CBAM-ResNet101 (Spatial)": 49_643_892,
    "MobileNet": 4_231_976,
    "SE-MobileNet": 5_072_114,
    "AW-SE-MobileNet": 5_520_858,
    "CBAM-MobileNet": 5_072_114 + 26 * 100,
    "AW-CBAM-MobileNet (Spatial)": 5_520_858 + 26 * 100,
}
ERRORS = {  # top-1 and top-5 in percent, as printed
    "ResNet50": (24.56, 7.50),
    "AW-ResNet50": (23.38, 6.79),
    "SE-ResNet50": (23.14, 6.70),
    "AW-SE-ResNet50": (22.72, 6.47),
    "AW-CBAM-ResNet50 (MaxPool)": (22.82, 6.41),
    "AW-CBAM-ResNet50 (Spatial)": (23.20, 6.58),
    "ResNet101": (23.38, 6.88),
    "AW-ResNet101": (22.38, 6.21),
    "SE-ResNet101": (22.35, 6.19),
    "AW-SE-ResNet101": (21.78, 5.74),
    "AW-CBAM-ResNet101 (MaxPool)": (21.64, 5.76),
    "AW-CBAM-ResNet101 (Spatial)": (22.32, 6.18),
    "MobileNet": (31.39, 11.51),
    "SE-MobileNet": (29.97, 10.63),
    "AW-SE-MobileNet": (29.41, 10.59),
    "CBAM-MobileNet": (29.01, 9.99),
    "AW-CBAM-MobileNet (Spatial)": (28.82, 9.98),
}


def test_table1_is_complete():
    published = {name: load(name).published for name in tables()["aw/table1"]}
    found = {p.row: (100 - 100 * p.accuracy, 100 - 100 * p.top5_accuracy) for p in published.values()}
    assert found.keys() == ERRORS.keys()
    for row, errors in ERRORS.items():
        assert found[row] == pytest.approx(errors), row


@pytest.mark.parametrize("name", tables()["aw/table1"])
def test_models_of_table1_have_the_counted_parameters(name, monkeypatch):
    monkeypatch.setattr("foveal.tasks.classify._try", lambda *given: None)  # nothing can be computed without memory
    chosen = load(name)
    with torch.device("meta"):
        model = build_classifier(chosen, 1000, 224)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[chosen.title]
    assert chosen.title == chosen.published.row
    assert chosen.train.epochs == (100 if "50" in chosen.title else 90)
    assert (chosen.optim.lr, chosen.optim.weight_decay, chosen.optim.decay) == (0.1, 1e-4, "all")


def test_the_small_table_differs_by_mechanism_alone():
    cells = [load(name) for name in tables()["aw/cifar10"]]
    assert [c.title for c in sorted(cells, key=lambda c: c.model["name"])] == [
        "AW-CBAM-ResNet-20",
        "AW-ResNet-20",
        "AW-SE-ResNet-20",
        "CBAM-ResNet-20",
        "ResNet-20",
        "SE-ResNet-20",
    ]
    for cell in cells:
        assert (cell.data, cell.optim, cell.train) == (cells[0].data, cells[0].optim, cells[0].train)
        assert cell.model.keys() == {"name"}
        assert (cell.published.accuracy, cell.published.column) == (None, "CIFAR-10")


def test_the_small_table_reads_class_folders(tmp_path, monkeypatch):
    for split, count in (("train", 20), ("test", 2)):
        for k in range(10):
            folder = tmp_path / "CIFAR-10-images" / split / f"class{k}"
            folder.mkdir(parents=True)
            for n in range(count):
                Image.new("RGB", (32, 32), (20 * k, n, 7)).save(folder / f"{n:04}.jpg")
    chosen = load("aw/cifar10-aw-se-resnet20", ["data.workers=0"])
    source = build_source(chosen, tmp_path)
    assert isinstance(source, ImageData)
    assert source.held
    assert [len(source.splits[s]) for s in ("train", "val", "test")] == [180, 20, 20]
    other = build_source(load("aw/cifar10-resnet20", [f"data.folder={tmp_path}/CIFAR-10-images", "data.workers=0"]))
    assert torch.equal(other.splits["train"].images, source.splits["train"].images)


def test_rows_without_a_published_number(run):
    chosen = load("aw/cifar10-aw-resnet20")
    rows = {row["metric"]: row for row in summarise([Cell(chosen, run.out)])}
    assert rows.keys() == {"accuracy", "top5_accuracy"}
    row = rows["accuracy"]
    assert (row["table"], row["model"], row["published"], row["difference"]) == ("aw/cifar10", "AW-ResNet-20", "", "")
    assert row["step_seconds"] == pytest.approx(run.result["step_seconds"], abs=1e-6)
    assert row["parameters"] == run.result["parameters"]
    accuracy, top5 = (run.result["metrics"][name] for name in ("accuracy", "top5_accuracy"))
    assert f"accuracy {accuracy:.2%} · top5 accuracy {top5:.2%}" in _line(1, 1, Cell(chosen, run.out), run.result)
