"""Documents as models read them: strengths, pictures, strange documents."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from foveal.errors import RunError, UserError
from foveal.see import DocumentSamples, document
from foveal.see.draw._type import STRONG
from foveal.see.draw.document import main_sentence, readable_words, shared_documents

TEXT = [["the", "old", "cat"], ["sleeps"], ["it", "never", "hunts", "mice"]]


def test_importance_is_one_on_average(documents_of):
    for focus in (True, False):
        seen = documents_of([TEXT], focus=focus)
        for s, sentence in enumerate(TEXT):
            assert sum(seen.importance(0, s)) == pytest.approx(len(sentence), rel=1e-5)


def test_the_main_sentence_is_the_one_most_attended_to_by_all(documents_of):
    seen = documents_of([TEXT])
    shares = torch.tensor([[0.1, 0.6, 0.3, 0.0]])
    object.__setattr__(seen, "sentence_attention", shares)
    assert main_sentence({"a": seen}, {"a": 0}) == 2  # the second has one word, which makes no ring
    other = documents_of([TEXT])
    object.__setattr__(other, "sentence_attention", torch.tensor([[0.9, 0.1, 0.0, 0.0]]))
    assert main_sentence({"a": seen, "b": other}, {"a": 0, "b": 0}) == 0
    assert main_sentence({"a": documents_of([[["one"]]])}, {"a": 0}) is None


def test_even_attention_is_pale_and_a_peak_is_strong(documents_of):
    seen = documents_of([TEXT])
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
def test_the_picture(focus, documents_of):
    seen = documents_of([TEXT], focus=focus)
    picture = document(seen, title="Hatt", size=700)
    assert picture.size[0] == 700
    pixels = np.asarray(picture).astype(int)
    strong = np.abs(pixels - np.array(STRONG)).max(2) < 30
    assert strong[:, :330].any()  # the text
    assert strong[:, 360:].any()  # the ring
    with pytest.raises(UserError, match="no document 5"):
        document(seen, 5)


@pytest.mark.parametrize("text", [[], [["one"]], [["x" * 300, "y"]], [["a"] * 6] * 4])
def test_pictures_of_strange_documents(text, documents_of):
    assert np.asarray(document(documents_of([text]))).std() > 1


def test_attention_of_a_diverged_model_is_still_drawn(documents_of):
    seen = documents_of()
    for value in (0.0, float("nan")):
        diverged = replace(
            seen,
            sentence_attention=torch.full_like(seen.sentence_attention, value),
            word_attention=torch.full_like(seen.word_attention, value),
            pairs=torch.full_like(seen.pairs, value),
        )
        assert document(diverged).width == 900


def test_documents_are_matched_by_their_words(documents_of):
    models = {"Hatt": documents_of([TEXT, [["other"]]], focus=False), "FAN": documents_of([TEXT])}
    assert shared_documents(models) == [{"Hatt": 0, "FAN": 0}, {"Hatt": 1}]
    with pytest.raises(UserError, match="at least one title"):
        shared_documents({})


def test_words_without_padding():
    vocabulary = ["", "<unknown>", "a", "b"]
    assert readable_words(torch.tensor([[2, 3, 0], [0, 0, 0], [1, 0, 0]]), vocabulary) == [["a", "b"], ["<unknown>"]]


def test_samples_from_what_a_run_keeps(documents_of):
    seen = documents_of([[["a", "b"], ["b"]]])
    names = ("word_attention", "sentence_attention", "prediction", "probability", "label", "pairs")
    tensors = {name: getattr(seen, name) for name in names} | {"words": torch.tensor([[[1, 2], [2, 0]]])}
    about = {"vocabulary": ["", "a", "b"], "answers": ["x", "y"]}
    again = DocumentSamples.from_tensors(tensors, about)
    assert again.texts == seen.texts
    assert (again.answers, again.answer(0)) == (("x", "y"), "x")
    assert all(getattr(again, name) is tensors[name] for name in names)
    del tensors["label"], tensors["pairs"]
    again = DocumentSamples.from_tensors(tensors, about)
    assert (again.label, again.pairs, again.verdict(0)) == (None, None, None)
    with pytest.raises(RunError, match=r"'vocabulary'.*foveal test"):
        DocumentSamples.from_tensors(tensors, {"answers": []})
    with pytest.raises(RunError, match="foveal test"):
        DocumentSamples.from_tensors(tensors, about | {"vocabulary": ["", "a"]})
