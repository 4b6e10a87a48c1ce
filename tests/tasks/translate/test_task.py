"""Task translate: its loss, a whole run, its report, predictions, and what cannot be used."""

import gzip
import json
import random
import re
import warnings

import lightning as L
import pytest
import torch
from PIL import Image
from readhtml import read
from typer.testing import CliRunner

import foveal
from foveal.cli import app
from foveal.errors import UserError
from foveal.models.beam_search import beam_search
from foveal.models.transformer import Transformer
from foveal.recipe import load
from foveal.tasks import evaluate, fit, load_model, predict
from foveal.tasks.base import make_task
from foveal.tasks.train import build_source
from foveal.tasks.translate import Translate
from foveal.tasks.translate.looking import look

WORDS = {"red": "rot", "green": "grün", "big": "groß", "small": "klein", "dog": "Hund", "cat": "Katze", "and": "und"}
TINY = (
    "data={name: parallel, folder: words, vocabulary: 60, longest: 100}",
    "model={name: transformer, channels: 32, layers: 1, heads: 2, hidden: 32, dropout: 0.0, pre_norm: true}",
    "loss.label_smoothing=0.05",
    "measure={beams: 2, tokenize: 13a}",
    "optim.lr=0.01",
    "train.epochs=16",
    "train.batch=256",
    "train.select=last",
)


def write_words(folder, letters):
    """Sentences that are translated word by word, backwards, with some letters in place of others."""
    folder.mkdir()
    draw = random.Random(0)
    for split, count in (("train", 900), ("val", 30), ("test", 40)):
        sentences = [[draw.choice(list(WORDS)) for _ in range(draw.randint(2, 5))] for _ in range(count)]
        english = "".join(f"{' '.join(s)}\n" for s in sentences)
        german = "".join(f"{' '.join(WORDS[w] for w in s[::-1])}\n" for s in sentences)
        (folder / f"{split}.en").write_text(english.translate(letters))
        (folder / f"{split}.de").write_text(german.translate(letters))
    return folder.parent


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_words(tmp_path_factory.mktemp("data") / "words", {})


@pytest.fixture(scope="module")
def other_root(tmp_path_factory):
    """As many other subwords."""
    return write_words(tmp_path_factory.mktemp("other") / "words", str.maketrans("dt", "td"))


def plan(*changes):
    return load("demo/translate/all", [*TINY, *changes])


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "all"
    return out, fit(plan(), out, data=root, progress=False)


def task(root, *changes):
    recipe = plan(*changes)
    torch.manual_seed(0)
    return Translate(recipe, build_source(recipe, root))


def test_the_loss_is_that_of_the_next_token(root):
    made = task(root, "loss.label_smoothing=0.2")
    batch = next(iter(made.source.loader("train", 100, device=torch.device("cpu"))))
    logits = made.model(batch["source"], batch["target"][:, :-1])
    total, count = 0.0, 0
    for row, following in zip(logits, batch["target"][:, 1:], strict=True):
        for one, token in zip(row.log_softmax(-1), following, strict=True):
            if token != 0:
                total -= 0.8 * one[token].item() + 0.2 * one.mean().item()
                count += 1
    assert made.losses(batch)["translation"].item() == pytest.approx(total / count, rel=1e-5)


def test_a_run(run, root):
    out, result = run
    metrics = result["metrics"]
    assert list(metrics) == ["bleu", "chrf", "exact_match", "perplexity"]
    assert metrics["exact_match"] > 0.9
    assert metrics["bleu"] > 80
    assert 1 < metrics["perplexity"] < 1.3
    assert "tok:13a" in result["infos"]["bleu"]["about"]
    assert result["infos"]["perplexity"]["better"] == "lower"
    assert evaluate(out, data=root)["metrics"] == pytest.approx(metrics)


def test_the_cache_changes_nothing_in_a_trained_model(run, root):
    model, _ = load_model(run[0])
    source = next(iter(build_source(plan(), root).loader("test", 400, device=torch.device("cpu"))))["source"]
    for beams in (1, 4):
        best = beam_search(model, source, beams=beams)
        assert (best == 3).any(1).all()
        assert torch.equal(best, beam_search(model, source, beams=beams, cached=False))


def test_attention_of_a_sentence(run):
    model, _ = load_model(run[0])
    matrices = look(model, torch.tensor([10, 11, 12, 3]), torch.tensor([14, 15, 3]))
    assert matrices["cross"].shape == (3, 4)
    assert matrices["encoder/E4"].shape == (4, 4)
    assert not matrices["decoder"].triu(1).any()
    assert set(matrices) == {f + t for f in ("cross", "encoder", "decoder") for t in ("", "/E1", "/E2", "/E3", "/E4")}


def test_only_what_is_drawn_is_kept_of_long_sentences(run):
    model, _ = load_model(run[0])
    source, translation = torch.arange(120) % 9 + 4, torch.arange(40) % 7 + 4
    with foveal.watch(model) as seen:
        model(source[None], torch.cat([torch.tensor([2]), translation[:-1]])[None])
    matrices = look(model, source, translation)
    assert matrices["encoder"].shape == (100, 100)
    assert matrices["cross"].shape == (40, 100)
    whole = seen["decoder.0.cross"].values[0].float().mean(0)
    torch.testing.assert_close(matrices["cross"], whole[:, :100])
    assert {name.split("/")[0] for name in matrices if "/" in name} == {"decoder"}  # the only short one


def test_the_report(run):
    page = read(foveal.see.report(run[0]).read_text())
    for words in ("What they translate", "Term by term", "test sentence 1", "sacrebleu: nrefs:1", "BLEU"):
        assert words in page.text


# Predictions ------------------------------------------------------------------------------------------------


def test_a_text(run):
    prediction = predict(run[0], "big red dog")
    assert prediction.lines == {"1111": ["Hund rot groß"]}
    assert prediction.data == {"source": "big red dog", "translation": "Hund rot groß"}
    assert isinstance(prediction.picture, Image.Image)
    assert prediction.remark == ""
    assert predict(run[0], "big red dog", beams=1, penalty=0).lines == prediction.lines


@pytest.mark.parametrize("text", ["日本 dog", "dog </s> cat", "x" * 300, "\x01", "dog " * 150, "dog cat " * 15])
def test_strange_texts(run, text):
    prediction = predict(run[0], text)
    assert len(prediction.lines["1111"]) == 1
    assert prediction.picture is not None
    assert ("never seen" in prediction.remark) == any(c not in "dogcat " for c in text)
    longest = load_model(run[0])[1]["longest"]
    assert 5 <= longest < 30  # five words
    assert (f"more than any the model was trained on ({longest})" in prediction.remark) == (len(text) >= 100)


def test_no_text(run):
    prediction = predict(run[0], "  ")
    assert prediction.lines == {"1111": [""]}
    assert "no word" in prediction.remark
    with pytest.raises(UserError, match="put quotes"):
        predict(run[0], "big", "dog")
    with pytest.raises(UserError, match="beams"):
        predict(run[0], "dog", beams=0)


@pytest.mark.parametrize("name", ["news.en", "news.en.gz", "news.txt"])
def test_a_mistyped_file_is_no_text(run, name):
    with pytest.raises(UserError, match=f"there is no file {name}"):
        predict(run[0], name)
    assert predict(run[0], f"red {name}").lines["1111"] != [""]


def test_a_file(run, tmp_path, monkeypatch):
    """With a byte order mark, Windows line ends, empty lines, and more lines than are translated at the same time."""
    monkeypatch.chdir(tmp_path)
    sentences = ["\ufeffbig dog", "", "cat and dog"] + ["red cat"] * 70
    (tmp_path / "news.en").write_bytes("".join(f"{s}\r\n" for s in sentences).encode())
    done = CliRunner().invoke(app, ["predict", str(run[0]), "news.en"])
    assert done.exit_code == 0, done.output
    assert "73 lines; the first translation: Hund groß" in done.output
    lines = (tmp_path / "news-translated.txt").read_text().split("\n")
    assert lines[:4] == ["Hund groß", "", "Hund und Katze", "Katze rot"]
    assert len(lines) == 74
    assert "Lines" not in done.output
    (tmp_path / "odd.txt").write_text("dog 日\ncat\n" + "dog " * 30)
    assert re.findall(r"Lines (\w+) .*?: (\d)\.", predict(run[0], tmp_path / "odd.txt").remark) == [
        ("with", "1"),
        ("longer", "1"),
    ]
    (tmp_path / "news.gz").write_bytes(gzip.compress(b"red cat\n"))
    assert predict(run[0], tmp_path / "news.gz").text == "Katze rot\n"
    assert predict(run[0], tmp_path / "news.gz").lines == {"1111": ["1 line; the first translation: Katze rot"]}
    (tmp_path / "blank.txt").write_text("\n\n")
    assert predict(run[0], tmp_path / "blank.txt").lines == {"1111": ["2 lines, without a word"]}
    (tmp_path / "latin.txt").write_bytes("grün".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.txt: not valid utf-8; save it as UTF-8$"):  # no recipe to change
        predict(run[0], tmp_path / "latin.txt")
    (tmp_path / "empty.txt").write_text("")
    assert predict(run[0], tmp_path / "empty.txt").text == ""
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\x00\xff")
    with pytest.raises(UserError, match=r"photo\.png"):
        predict(run[0], tmp_path / "photo.png")


def test_long_lines_of_a_file_are_not_searched_all_at_the_same_time(run, tmp_path, monkeypatch):
    sizes = []

    def search(model, source, **options):
        sizes.append(source.shape)
        return source

    monkeypatch.setattr("foveal.tasks.translate.prediction.beam_search", search)
    (tmp_path / "long.txt").write_text("cat\n" + ("dog " * 400 + "\n") * 20)
    predict(run[0], tmp_path / "long.txt")
    assert sum(rows for rows, _ in sizes) == 21
    assert max(rows * length for rows, length in sizes) <= 2048


def test_a_long_text_is_announced(run, tmp_path, monkeypatch):
    monkeypatch.setattr("foveal.tasks.translate.prediction.SLOW", 20)
    with pytest.warns(UserWarning, match=r"^22 tokens are translated as one sentence.*a line of its own"):
        predict(run[0], "dog cat " * 11)
    (tmp_path / "long.txt").write_text("dog\n" + "dog cat " * 11)
    with pytest.warns(UserWarning, match=r"^22 tokens"):
        predict(run[0], tmp_path / "long.txt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(run[0], "dog cat " * 10)


def test_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["predict", str(run[0]), "small cat", "--beams", "3"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Katze klein")
    assert json.loads((tmp_path / "text-translated.json").read_text())["translation"] == "Katze klein"
    CliRunner().invoke(app, ["predict", str(run[0]), "green cat"])
    assert "Katze grün" in (tmp_path / "text-translated-2.json").read_text(encoding="utf-8")
    assert Image.open(tmp_path / "text-translated.png").width > 100


# What cannot be used ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data={name: digits}"], "needs parallel text"),
        (["model.name=hatt"], "does not take subwords.*use transformer"),
        (["model={name: transformer, subwords: 9}"], r"model\.subwords comes from the data"),
        (["loss.weights={translation: 0}"], "every loss has weight 0"),
        (["measure.beams=0"], "beams"),
        (["loss.label_smoothing=1"], "less than 1"),
        (["model.encoder=dynamics"], "four digits"),
        (["measure.tokenize=klingon"], "tokenize"),
    ],
)
def test_wrong_recipes(root, changes, message):
    with pytest.raises(UserError, match=message):
        task(root, *changes)


def test_a_vocabulary_that_does_not_fit(run, root):
    recipe = plan("data.vocabulary=30")
    source = build_source(recipe, root)
    with pytest.raises(UserError, match=r"the model knows .* subwords and the data has 30"):
        Translate(recipe, source, Transformer(50, channels=8, layers=1, heads=2, hidden=8))
    with pytest.raises(UserError, match=r"model\.checkpoint"):
        Translate(plan("data.vocabulary=30", f"model.checkpoint={run[0]}/weights.safetensors"), source)
    with pytest.raises(UserError, match="needs a translator"):
        Translate(recipe, source, torch.nn.Linear(2, 2))


def test_the_test_of_a_run_needs_its_subwords(run, root, other_root):
    sizes = [len(build_source(plan(), folder).subwords) for folder in (root, other_root)]
    assert sizes[0] == sizes[1]
    before = (run[0] / "result.json").read_bytes()
    with pytest.raises(UserError, match=r"all was trained with other subwords than those of the data; put the files"):
        evaluate(run[0], data=other_root)
    assert (run[0] / "result.json").read_bytes() == before


def test_a_checkpoint_needs_its_subwords(run, root, other_root, tmp_path):
    recipe = plan(f"model.checkpoint={run[0]}/weights.safetensors")
    model = make_task(recipe, build_source(recipe, root)).model
    assert torch.equal(model.embedding.weight, load_model(run[0])[0].embedding.weight)
    with pytest.raises(UserError, match=r"model\.checkpoint: .*weights\.safetensors was trained with other subwords"):
        make_task(recipe, build_source(recipe, other_root))
    torch.save(model.state_dict(), tmp_path / "weights.pth")  # says nothing about its subwords
    make_task(plan(f"model.checkpoint={tmp_path}/weights.pth"), build_source(recipe, other_root))


class Stop(L.Callback):
    """Stops a run in its second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            raise RuntimeError("stopped")


def test_an_interrupted_run_needs_its_subwords(root, other_root, tmp_path):
    recipe = plan("train.epochs=2", "data.lowercase=true")
    with pytest.raises(RuntimeError, match="stopped"):
        fit(recipe, tmp_path, data=root, progress=False, callbacks=[Stop()])
    with pytest.raises(UserError, match="this run was trained with other subwords"):
        fit(recipe, tmp_path, data=other_root, progress=False)
    fit(recipe, tmp_path, data=root, progress=False)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(UserError, match="this run was trained with other subwords"):
        fit(recipe, tmp_path, data=other_root, progress=False)
    assert not (tmp_path / "weights.safetensors").exists()
    fit(recipe, tmp_path, data=root, progress=False)
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize("changes", [["model.encoder=dynamic", "model.decoder=dynamic"], ["model.deform=true"]])
def test_convolutions_learn(root, changes):
    made = task(root, *changes)
    optimiser = torch.optim.Adam(made.parameters(), 0.01)
    losses = []
    for batch in made.source.loader("train", 256, device=torch.device("cpu"), seed=1):
        loss = made.weighed(batch)[0]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.6 * losses[0]
    made.eval().test_step(batch | {"index": torch.arange(len(batch["index"])) % 40}, 0)
    assert any(key.endswith("/cross") for key in made.samples)
