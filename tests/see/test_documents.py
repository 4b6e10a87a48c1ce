"""Documents as models read them: pictures, cards, strange documents."""

import re
import shutil

import numpy as np
import pytest
import torch

from foveal.errors import UserError
from foveal.see._type import STRONG
from foveal.see.documents import (
    DocumentSamples,
    document,
    documents_html,
    holds_documents,
    main_sentence,
    readable_words,
    shared_documents,
)


def samples(texts, *, focus=True, label=(0,), seed=0, sentences=4, words=6):
    g = torch.Generator().manual_seed(seed)
    count = len(texts)
    mask = torch.zeros(count, sentences, words, dtype=torch.bool)
    for k, text in enumerate(texts):
        for s, sentence in enumerate(text):
            mask[k, s, : len(sentence)] = True
    scores = torch.randn(count, sentences, words, generator=g).masked_fill(~mask, -1e9)
    pairs = torch.randn(count, sentences, words, words, generator=g).masked_fill(~mask[:, :, None], -1e9)
    real = mask.any(2)
    return DocumentSamples(
        texts=tuple(texts),
        word_attention=scores.softmax(2) * mask,
        sentence_attention=torch.randn(count, sentences, generator=g).masked_fill(~real, -1e9).softmax(1) * real,
        prediction=torch.zeros(count, dtype=torch.int64),
        probability=torch.tensor([[0.8, 0.2]]).expand(count, 2),
        label=torch.tensor(list(label) * count)[:count],
        pairs=pairs.softmax(3) * mask[..., None] if focus else None,
        answers=("cats & <dogs>", "b"),
    )


TEXT = [["the", "old", "cat"], ["sleeps"], ["it", "never", "hunts", "mice"]]


def test_importance_is_one_on_average():
    for focus in (True, False):
        seen = samples([TEXT], focus=focus)
        for s, sentence in enumerate(TEXT):
            assert sum(seen.importance(0, s)) == pytest.approx(len(sentence), rel=1e-5)


def test_the_main_sentence_is_the_one_most_attended_to_by_all():
    seen = samples([TEXT])
    shares = torch.tensor([[0.1, 0.6, 0.3, 0.0]])
    object.__setattr__(seen, "sentence_attention", shares)
    assert main_sentence({"a": seen}, {"a": 0}) == 2  # the second has one word, which makes no ring
    other = samples([TEXT])
    object.__setattr__(other, "sentence_attention", torch.tensor([[0.9, 0.1, 0.0, 0.0]]))
    assert main_sentence({"a": seen, "b": other}, {"a": 0, "b": 0}) == 0
    assert main_sentence({"a": samples([[["one"]]])}, {"a": 0}) is None


def test_even_attention_is_pale_and_a_peak_is_strong():
    seen = samples([TEXT])
    even = torch.zeros(1, 4, 6)
    even[0, 0, :3] = 1 / 3
    even[0, 2, :4] = torch.tensor([0.97, 0.01, 0.01, 0.01])
    object.__setattr__(seen, "word_attention", even)
    object.__setattr__(seen, "sentence_attention", torch.tensor([[0.5, 0.0, 0.5, 0.0]]))
    sentences, words = seen.strengths(0)
    assert sentences == [1.0, 0.0, 1.0]
    assert words[0] == pytest.approx([1 / 3] * 3)
    assert words[1] == [0.0]
    assert words[2][0] == 1.0
    assert max(words[2][1:]) < 0.05


@pytest.mark.parametrize("focus", [True, False])
def test_the_picture(focus):
    seen = samples([TEXT], focus=focus)
    picture = document(seen, title="Hatt", size=700)
    assert picture.size[0] == 700
    pixels = np.asarray(picture).astype(int)
    strong = np.abs(pixels - np.array(STRONG)).max(2) < 30
    assert strong[:, :330].any()  # the text
    assert strong[:, 360:].any()  # the ring
    with pytest.raises(UserError, match="no document 5"):
        document(seen, 5)


@pytest.mark.parametrize("text", [[], [["one"]], [["x" * 300, "y"]], [["a"] * 6] * 4])
def test_pictures_of_strange_documents(text):
    assert np.asarray(document(samples([text]))).std() > 1


def test_attention_of_a_diverged_model_is_still_a_page():
    seen = samples([TEXT])
    object.__setattr__(seen, "sentence_attention", torch.zeros(1, 4))
    object.__setattr__(seen, "word_attention", torch.zeros(1, 4, 6))
    assert "cats" in documents_html({"x": seen})


def test_cards_side_by_side():
    models = {"Hatt": samples([TEXT, [["other"]]], focus=False), "FAN": samples([TEXT])}
    rows = shared_documents(models)
    assert rows == [{"Hatt": 0, "FAN": 0}, {"Hatt": 1}]
    page = documents_html(models)
    assert page.count("<article") == 2
    assert page.count('<svg class="ring"') == 2
    assert "cats &amp; &lt;dogs&gt;" in page
    assert "<dogs>" not in page
    assert "not recorded for this document" in page
    assert "80 %" in page
    assert page.count('aria-label="right:"') == 3
    assert documents_html(models, limit=1).count("<article") == 1
    wrong = documents_html({"x": samples([TEXT], label=(1,))})
    assert 'aria-label="wrong:"' in wrong
    with pytest.raises(UserError, match="no models"):
        documents_html({})


def test_documents_without_words_are_not_shown():
    assert documents_html({"x": samples([[], TEXT])}).count("<article") == 1


def test_words_without_padding():
    vocabulary = ["", "<unknown>", "a", "b"]
    assert readable_words(torch.tensor([[2, 3, 0], [0, 0, 0], [1, 0, 0]]), vocabulary) == [["a", "b"], ["<unknown>"]]


def test_what_holds_documents(tmp_path):
    (tmp_path / "x").write_bytes(b"no")
    assert not holds_documents(tmp_path / "x")
    assert not holds_documents(tmp_path / "none")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, to look at the page as a reader would")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_cards_fit_a_phone_and_a_desk(tmp_path, width):
    import html
    import subprocess
    from importlib import resources

    long = [["antidisestablishmentarianism"] * 6] * 4
    models = {title: samples([TEXT, long]) for title in ("Hatt", "FAN-hatt-unsup", "FAN-hatt-sup")}
    template = (resources.files("foveal.see") / "template.html").read_text(encoding="utf-8")
    style = re.search(r"<style>.*</style>", template, re.DOTALL)[0]
    page = f"<!doctype html><head>{style}</head><body>{documents_html(models)}</body>"
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe style="border:0;width:{width}px;height:2000px" '
        f'srcdoc="{html.escape(page)}" onload="let e = this.contentDocument.documentElement; '
        "document.body.dataset.seen = e.scrollWidth + ' ' + [...e.querySelectorAll('.ring')].map(r => "
        "Math.round(r.getBoundingClientRect().width)).join(',')\"></iframe>",
        encoding="utf-8",
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'home'}"]
    command = [shutil.which("chromium"), *flags, "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    scroll, rings = re.search(r'data-seen="(\d+) ([\d,]+)"', dom).groups()
    assert int(scroll) <= width
    sizes = [int(size) for size in rings.split(",")]
    assert len(sizes) == 6
    assert all(200 < size <= 360 for size in sizes)
