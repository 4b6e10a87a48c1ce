"""Classification through whole runs: one label an image, several labels, several processes, stopped and resumed."""

import signal
from functools import partial

import pytest
import torch
from forked import run_command, start
from PIL import Image
from readhtml import read
from safetensors.torch import save_file
from small_voc import write_voc
from tiny import DIGITS, tiny_recipe, wait_for_epochs, write_recipe

import foveal
from foveal.errors import DivergedError, UserError
from foveal.measure import attention_map, label_map
from foveal.recipe import load
from foveal.reproduce import Cell, summarise
from foveal.reproduce.jobs import summary
from foveal.runs import RunFolder
from foveal.see import Samples, TopClasses, report
from foveal.see.page.phrases import step_time
from foveal.tasks import evaluate, fit, load_model, predict
from foveal.tasks.base import synchronised
from foveal.tasks.classify import Classify
from foveal.tasks.train import build_source

CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path):
    return partial(load, write_recipe(tmp_path, DIGITS))


class Run:
    """A finished run."""

    def __init__(self, folder, *changes):
        self.out = folder / "run"
        self.recipe = tiny_recipe(folder, *changes, text=DIGITS)
        self.result = fit(self.recipe, self.out, progress=False)
        self.source = build_source(self.recipe)
        self.model, self.about = load_model(self.out)

    @torch.no_grad()
    def asked(self):
        """Logits and labels of the test images, by a plain loop."""
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (self.source.mean, self.source.std))
        batches = [
            (self.model((batch["image"] / 255 - mean) / std), batch["label"])
            for batch in self.source.loader("test", 33, device=CPU)
        ]
        return (torch.cat(values) for values in zip(*batches, strict=True))


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
    losses = [row["train/loss"] for row in RunFolder(run.out).epochs()]
    assert losses[-1] < losses[0] - 0.1


def test_parameters_and_step_time_are_in_the_result(run):
    assert run.result["parameters"] == sum(p.numel() for p in run.model.parameters())
    steps = [row["train/step_seconds"] for row in RunFolder(run.out).epochs()]
    assert min(steps) <= run.result["step_seconds"] <= max(steps)
    assert 0 < run.result["step_seconds"] < run.result["seconds"]


def test_testing_again_says_the_same(run):
    (run.out / "result.json").unlink()
    assert evaluate(run.out)["metrics"] == pytest.approx(run.result["metrics"])


def kept(out):
    stored = RunFolder(out).tensors("samples.safetensors")
    return Samples.from_tensors(stored.tensors, stored.about)


def test_samples_with_the_maps_of_the_gates(run):
    samples = kept(run.out)
    assert (len(samples), samples.query, samples.queries) == (12, None, ())
    assert samples.sites == tuple(f"layer{stage}.0.bn2 cbam.spatial" for stage in (1, 2, 3))
    assert [tuple(gate.shape) for gate in samples.gates] == [(12, 8, 8), (12, 4, 4), (12, 2, 2)]
    torch.testing.assert_close(samples.map, attention_map(list(samples.gates), (8, 8)))
    assert samples.answers == tuple("0123456789")
    logits, label = run.asked()
    batches = torch.arange(len(label)).split(100)
    spread = torch.cat([places[torch.linspace(0, len(places) - 1, 12 // len(batches)).long()] for places in batches])
    torch.testing.assert_close(samples.probability, logits.softmax(1)[spread], rtol=1e-4, atol=1e-6)
    assert torch.equal(samples.label, label[spread])


def test_samples_are_of_all_classes(recipe, tmp_path):
    """Images of a folder come sorted by class: the first batch has one class only, and so have the first samples."""
    for split in ("train", "test"):
        for shade, name in ((40, "dark"), (220, "light")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for n in range(8):
                image = Image.new("RGB", (16, 16), (shade, shade + n, shade))
                image.save(tmp_path / "data" / split / name / f"{n}.png")
    data = f"data={{name: imagefolder, folder: {tmp_path / 'data'}, size: 16, augment: none, workers: 0}}"
    fit(recipe([data, "train.batch=4", "train.eval_batch=4", "train.epochs=1"]), tmp_path / "run", progress=False)
    assert kept(tmp_path / "run").label.tolist() == [0] * 6 + [1] * 6
    html = report(tmp_path / "run").read_text()
    assert html.count("What does this show?<span>dark") == html.count("What does this show?<span>light") == 3


def test_a_model_without_attention_over_positions(plain):
    samples = kept(plain.out)
    assert (samples.gates, samples.map, samples.sites) == ((), None, ())
    assert TopClasses.from_tensors(RunFolder(plain.out).tensors("samples.safetensors").tensors) is None


def test_the_report(run, plain):
    both = read(report([run.out, plain.out], run.out / "both.html").read_text()).text
    assert "Where two models look" in both
    assert "asked for what they show (10 classes)" in both
    assert "What does this show?" in both
    assert "Top-5 accuracy" in both
    assert step_time(run.result["step_seconds"]) in both
    assert "layer1.0.bn2 cbam.spatial, 8×8" in (run.out / "both.html").read_text()
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
    task.model(task.inputs({"image": torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)}))
    torch.testing.assert_close(seen[0][0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))


def test_bf16(recipe, tmp_path):
    result = fit(recipe(["train.precision=bf16", "train.epochs=1"]), tmp_path / "run", progress=False)
    assert 0 <= result["metrics"]["accuracy"] <= 1


@pytest.mark.slow
def test_the_step_can_be_compiled_as_one_graph(recipe, tmp_path, monkeypatch):
    """What the compiler would see; its own work is left out, for it takes long."""
    fit(recipe(["train.epochs=1"]), tmp_path / "plain", progress=False)
    traced = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", lambda function, mode: traced(function))
    torch.compiler.reset()
    fit(recipe(["train.epochs=1", "train.compile=true"]), tmp_path / "compiled", progress=False)
    one, other = (RunFolder(tmp_path / name).epochs()[0] for name in ("plain", "compiled"))
    assert one["val/loss"] == pytest.approx(other["val/loss"], rel=1e-3)


def test_a_diverged_run_says_so(recipe, tmp_path):
    with pytest.raises(DivergedError, match=r"Try a lower optim\.lr"):
        fit(recipe(["optim.lr=1e30", "optim.schedule=constant"]), tmp_path / "run", progress=False)


# Stopped, resumed, in several processes -------------------------------------------------------------------------------


def last(out):
    return torch.load(out / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """SIGKILL, then resume: the same weights and losses as a run that was never disturbed."""
    path, changes = write_recipe(tmp_path, DIGITS), ["train.epochs=8", "train.batch=126"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(load(path, changes), whole, progress=False)
    child = start("train", path, *changes, "--out", cut)
    wait_for_epochs(child, cut, 2)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(RunFolder(cut).epochs()) < 8, "the run was over before it was killed; nothing was tested"
    fit(load(path, changes), cut, progress=False)
    a, b = last(cut), last(whole)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    rows, reference = (RunFolder(out).epochs() for out in (cut, whole))
    assert [(r["epoch"], r["val/loss"]) for r in rows] == [(r["epoch"], r["val/loss"]) for r in reference]


@pytest.mark.slow
def test_two_processes(tmp_path):
    """DDP over gloo: every parameter is used, and the scores are those of the whole test set."""
    out = tmp_path / "run"
    flags = ["train.batch=100", "train.devices=2", "train.strategy=ddp", "train.epochs=1"]
    ran = run_command("train", write_recipe(tmp_path, DIGITS), *flags, "--out", out)
    assert ran.returncode == 0, ran.stderr
    (row,) = RunFolder(out).epochs()
    assert row["step"] == 1260 // 200
    logits, label = Asked(out).asked()
    accuracy = float((logits.argmax(1) == label).float().mean())
    assert accuracy == pytest.approx(RunFolder(out).result()["metrics"]["accuracy"])


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
    return write_voc(tmp_path_factory.mktemp("voc"))


VOC = ["data.name=voc2012", "data.size=16", "data.workers=0", "data.val_fraction=0.25", "train.batch=6"]


def test_several_labels(voc, recipe, tmp_path):
    chosen = recipe([*VOC, "train.eval_batch=5"])
    result = fit(chosen, tmp_path / "run", data=voc, progress=False)
    assert result["metrics"].keys() == {"label_map"}
    model, about = load_model(tmp_path / "run")
    source = build_source(chosen, voc)
    task = Classify(chosen, source, model)
    with torch.no_grad():
        parts = [
            (task.model(task.inputs(batch)), batch["label"], batch["valid"])
            for batch in source.loader("test", 4, device=CPU)
        ]
    logits, label, valid = (torch.cat(values) for values in zip(*parts, strict=True))
    assert about["multilabel"]
    assert not valid.all()
    expected = float(label_map(logits, label, valid))
    assert result["metrics"]["label_map"] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(float(label_map(logits, label)), abs=1e-3)
    assert all("val/label_map" in row for row in RunFolder(tmp_path / "run").epochs())
    rows = {row["metric"]: row["mean"] for row in summarise([Cell(load("icasc/voc2012/baseline"), tmp_path / "run")])}
    assert rows.pop("label_map") == pytest.approx(expected, abs=1e-4)
    by_class = result["parts"]["average_precision"]
    assert len(by_class) == 20
    assert rows == {f"average_precision/{k}": round(v, 4) for k, v in by_class.items() if v is not None}
    image = next((voc / "VOCdevkit/VOC2012/JPEGImages").iterdir())
    answers = predict(tmp_path / "run", image).answers
    assert len(answers) == 20
    assert answers[0][1] >= answers[-1][1]


def test_the_loss_leaves_out_labels_that_do_not_count(voc, recipe):
    source = build_source(recipe(VOC), voc)
    task = Classify(recipe(VOC), source)
    batch = next(iter(source.loader("test", 12, device=CPU)))
    logits = torch.randn(12, 20)
    task.model.forward = lambda x: logits
    each = [
        torch.nn.functional.binary_cross_entropy_with_logits(logits[n, k], batch["label"][n, k])
        for n in range(12)
        for k in range(20)
        if batch["valid"][n, k]
    ]
    assert len(each) < 12 * 20
    torch.testing.assert_close(task.losses(batch), {"classification": torch.stack(each).mean()})


# Mistakes -------------------------------------------------------------------------------------------------------------


MISTAKES = {
    "model.insert=sse": "model.insert[0]: unknown mechanism 'sse'; did you mean 'se'?",
    "model.num_classes=3": "model.num_classes comes from the data",
    "model.name=resnet81": "unknown model 'resnet81'; did you mean",
    "model={name: resnet18, nonsense: 3}": "model resnet18: ",
    "model={name: hattnet}": "model hattnet",
    "model={name: vit_tiny_patch16_224}": "model vit_tiny_patch16_224 cannot take images of 8×8: ",
    "model={name: resnet18, features_only: true}": "expected logits (N, 10), it returns list",
    "model.checkpoint=gone.safetensors": "model.checkpoint: there is no file gone.safetensors",
    "data={name: mref, digits: embedded}": "needs labelled images, such as data.name=digits; data.name=mref has none",
    "task=refer": "for data.name=digits use another task, such as task=classify",
    "task=clasify": "did you mean 'classify'",
    "loss.relation={r: 1}": "loss.relation is for task document",
    "measure.class_attention={layers: [layer9]}": "measure.class_attention: unknown layer 'layer9'",
}


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes_stop_before_training(recipe, tmp_path, change):
    with pytest.raises(UserError) as caught:
        fit(recipe([change]), tmp_path / "run", progress=False)
    assert MISTAKES[change] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_one_class_is_nothing_to_tell_apart(recipe, tmp_path):
    for i in range(20):
        (tmp_path / "photos/cats").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (12 * i, 0, 0)).save(tmp_path / f"photos/cats/{i}.png")
    data = f"data={{name: imagefolder, folder: {tmp_path / 'photos'}, size: 8}}"
    with pytest.raises(UserError, match="'cats'; at least two are needed"):
        fit(recipe([data]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_several_outputs_in_training(recipe):
    """Known only when it trains: evaluated, such a model has one output."""
    task = Classify(recipe(), build_source(recipe()))
    task.model.forward = lambda image: (image, image)
    batch = next(iter(task.source.loader("train", 4, device=CPU)))
    with pytest.raises(UserError, match=r"try model\.aux_logits=false"):
        task.losses(batch)


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


# Asking ---------------------------------------------------------------------------------------------------------------


def test_predict(run, plain, tmp_path):
    digit = run.source.held_on("test", CPU).images[5]
    Image.fromarray(digit.permute(1, 2, 0).numpy()).save(tmp_path / "digit.png")
    prediction = predict(run.out, tmp_path / "digit.png")
    logits, _ = run.asked()
    probability = logits[5].softmax(0)
    assert [name for name, _ in prediction.answers] == [str(i) for i in probability.argsort(descending=True).tolist()]
    assert [p for _, p in prediction.answers] == pytest.approx(
        probability.sort(descending=True).values.tolist(), rel=1e-3
    )
    assert prediction.picture.size[0] > 5 * 180
    assert predict(plain.out, tmp_path / "digit.png").picture is None
    with pytest.raises(UserError, match="leave '7' out"):
        predict(run.out, tmp_path / "digit.png", "7")


# Rows of a table ------------------------------------------------------------------------------------------------------


def test_rows_without_a_published_number(run):
    chosen = load("aw/cifar10/aw-resnet20")
    rows = {row["metric"]: row for row in summarise([Cell(chosen, run.out)])}
    assert rows.keys() == {"accuracy", "top5_accuracy"}
    row = rows["accuracy"]
    assert (row["table"], row["model"], row["published"], row["difference"]) == ("aw/cifar10", "AW-ResNet-20", "", "")
    assert row["step_seconds"] == pytest.approx(run.result["step_seconds"], abs=1e-6)
    assert row["parameters"] == run.result["parameters"]
    accuracy, top5 = (100 * run.result["metrics"][name] for name in ("accuracy", "top5_accuracy"))
    assert f"accuracy {accuracy:.2f} % · top-5 accuracy {top5:.2f} %" in summary(run.result)
