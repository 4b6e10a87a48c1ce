"""Asking about a text or a text file."""

import math

import pytest
from PIL import Image
from small_texts import recipe, write_texts
from typer.testing import CliRunner

from foveal.cli import app
from foveal.errors import UserError
from foveal.recipe import load
from foveal.tasks import fit, predict
from foveal.tasks.prediction import text_file

LONGER = {"train.epochs": 12, "train.select": "last", "optim.lr": 0.03}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    plan = load("demo/document/sup", recipe(**LONGER))
    fit(plan, folder / "run", data=write_texts(folder / "data"), progress=False)
    return folder / "run"


def test_asking_about_a_text(run):
    prediction = predict(run, "The old animals often chase small mice. They love milk!")
    assert prediction.answers[0][0] == "cats"
    assert sum(p for _, p in prediction.answers) == pytest.approx(1, rel=1e-4)
    assert prediction.picture.size[0] == 900


@pytest.mark.parametrize(
    "text", ["", " \n ", "...", "Hm", "日本語", "\ufffd\x00", "word " * 5000, "Xyzzy plugh. Qwerty!"]
)
def test_asking_about_strange_texts(run, text):
    prediction = predict(run, text)
    assert len(prediction.answers) == 2
    assert all(math.isfinite(p) for _, p in prediction.answers)
    assert prediction.picture is not None
    assert (prediction.remark == "There is no word in this text.") == (not any(c.isalnum() for c in text))


def test_a_binary_file_is_refused(run, tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "photo.png")
    with pytest.raises(UserError, match=r"photo\.png is no text.*this model reads texts and text files"):
        predict(run, tmp_path / "photo.png")


def test_asking_about_a_file(run, tmp_path):
    file = tmp_path / "letter.txt"
    file.write_bytes(b"The old animals often chase small \xff bones. They love gardens!")
    assert predict(run, file).answers[0][0] == "dogs"
    assert text_file(str(file)) == file
    assert text_file("a\x00b") is None
    assert text_file("Read or write letter.txt or a/b") is None
    assert text_file("letters") is None
    assert text_file("") is None
    for missing in ("letter2.txt", "notes.MD", str(tmp_path / "none"), "letters/one"):
        with pytest.raises(UserError, match=f"no file {missing}; give a text file"):
            predict(run, missing)
    with pytest.raises(UserError, match=f"{tmp_path} is a folder; give a text"):
        predict(run, tmp_path)
    with pytest.raises(UserError, match="put quotes around it"):
        predict(run, "The", "old")


def test_a_file_is_read_like_the_corpus(tmp_path):
    """Latin-1, and without what was stripped in training."""
    for split in ("train", "test"):
        for kind, word in (("cats", "caf\xe9"), ("dogs", "bones")):
            folder = tmp_path / f"20news-bydate/20news-bydate-{split}/{kind}"
            folder.mkdir(parents=True)
            for i in range(20):
                (folder / str(i)).write_bytes(f"Subject: nothing\n\nThey love {word}.\n".encode("latin-1"))
    data = "{name: 20news, strip: headers, tagger: none, min_count: 1, sentences: 4, words: 8}"
    plan = load("demo/document/hatt", recipe(**LONGER, data=data))
    fit(plan, tmp_path / "run", data=tmp_path, progress=False)
    file = tmp_path / "message"
    file.write_bytes("Subject: bones bones bones\n\nThey love caf\xe9.\n".encode("latin-1"))
    as_typed = predict(tmp_path / "run", "They love café.")
    assert as_typed.answers[0][0] == "cats"
    assert predict(tmp_path / "run", file).answers == as_typed.answers


def test_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["predict", str(run), "They love bones! http://a.b//c"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("dogs")
    assert (tmp_path / "text-seen.png").is_file()
    assert "no word" not in done.output
    done = CliRunner().invoke(app, ["predict", str(run), ""])
    assert done.exit_code == 0, done.output
    assert "There is no word in this text." in done.output
