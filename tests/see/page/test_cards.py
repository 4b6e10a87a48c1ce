import base64
import io
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from readhtml import read

from foveal.errors import UserError
from foveal.see.draw.overlay import heatmap
from foveal.see.page import (
    charts,
    class_map_cards,
    class_maps_section,
    curves_section,
    document_cards,
    documents_section,
    picture,
    sample_cards,
    samples_section,
    training_charts,
)

TEXT = [["the", "old", "cat"], ["sleeps"], ["it", "never", "hunts", "mice"]]


# Samples ----------------------------------------------------------------------


def test_a_card_a_sample_with_all_pictures(samples_of):
    models = {title: samples_of(title) for title in ("SOFT", "HAttNet")}
    html = sample_cards(models, limit=3)
    page = read(html)
    assert page.tags.count("article") == 3
    assert page.tags.count("img") == 3 * (1 + 2 + 5)
    assert page.text.count("What colour is the") == 3
    assert html.count('class="box"') == 3
    seen = models["SOFT"]
    assert f"background:{seen.colour(seen.truth(0))}" in html
    assert "gates.0, 49×49, highest" in html


def test_answers_are_marked(samples_of):
    seen = samples_of("SOFT", 1)
    right, wrong = replace(seen, prediction=seen.label), replace(seen, prediction=(seen.label + 1) % 5)
    assert 'class="look right"' in sample_cards({"m": right})
    assert 'aria-label="right:"' in sample_cards({"m": right})
    assert 'class="look wrong"' in sample_cards({"m": wrong})
    unknown = sample_cards({"m": replace(seen, label=None)})
    assert "look unknown" in unknown
    assert "aria-label" not in unknown


def test_models_without_attention_share_a_cell(samples_of):
    seen = samples_of("SOFT", 1)
    bare = replace(seen, map=None, gates=(), sites=())
    html = sample_cards({"with": seen, "one": bare, "other": bare})
    assert html.count('class="shot"') == 2  # the input and one attended image
    assert html.count('class="plain below"') == 1
    assert html.count('class="answer"') == 3
    alone = sample_cards({"one": bare})
    assert 'class="plain"' in alone
    assert alone.count("<img") == 1


def test_a_sample_that_a_model_did_not_record(samples_of):
    first = samples_of("SOFT", 2)
    names = ("image", "query", "label", "prediction", "probability", "mask", "map")
    second = replace(first, **{n: getattr(first, n)[:1] for n in names}, gates=(first.gates[0][:1],))
    html = sample_cards({"a": first, "b": second})
    assert html.count("not recorded for this sample") == 1
    assert html.count('class="shot"') == 2 + 3


def test_the_card_says_how_many_gates_it_shows(samples_of):
    seen = samples_of("HAttNet", 1)
    assert "gates shown" not in sample_cards({"m": seen})
    assert "4 of 12 gates shown" in sample_cards({"m": replace(seen, total_gates=12)})
    assert "3 of 4 gates shown" in sample_cards({"m": seen}, most_gates=3)


def test_a_diverged_model_has_no_pictures(samples_of):
    seen = samples_of("SOFT", 1)
    diverged = replace(seen, map=seen.map * float("nan"), gates=(seen.gates[0] * float("nan"),))
    html = sample_cards({"m": diverged})
    assert html.count("<img") == 1  # the input
    assert "the model diverged" in html


def test_names_are_escaped(samples_of):
    seen = replace(samples_of("SOFT", 1), answers=("<b>x",) * 5, queries=('"><script>',) * 10, sites=("<i>",))
    html = sample_cards({"<script>alert(1)</script>": seen})
    assert "<script" not in html
    assert "<b>x" not in html
    assert "<i>" not in html


def test_a_sample_without_question_and_truth_has_no_heading(samples_of):
    seen = replace(samples_of("SOFT", 1), query=None, question="", label=None)
    assert 'class="ask"' not in sample_cards({"m": seen})


def test_the_section_explains_only_what_it_shows(samples_of):
    seen = samples_of("SOFT", 1)
    section = samples_section({"a": seen, "b": seen})
    assert section.title == "What they saw"
    assert "white frame" in section.intro
    assert "maps of the gates" in section.intro
    bare = samples_section({"a": replace(seen, map=None, gates=(), mask=None)})
    assert bare.title == "What it saw"
    assert "frame" not in bare.intro
    assert "gates" not in bare.intro


# Documents --------------------------------------------------------------------


def test_documents_side_by_side(documents_of):
    models = {"Hatt": documents_of([TEXT, [["other"]]], focus=False), "FAN": documents_of([TEXT])}
    html = document_cards(models)
    page = read(html)
    assert page.tags.count("article") == 2
    assert html.count('class="ring"') == 2
    assert "cats & <dogs>" in page.text
    assert "<dogs>" not in html
    assert "not recorded for this document" in page.text
    assert "80 %" in page.text
    assert html.count('aria-label="right:"') == 3
    assert document_cards(models, limit=1).count("<article") == 1
    assert 'aria-label="wrong:"' in document_cards({"x": documents_of([TEXT], label=(1,))})
    with pytest.raises(UserError, match="no models"):
        document_cards({})


def test_words_are_as_strong_as_their_attention(documents_of):
    seen = documents_of([TEXT])
    strengths = [value for sentence in seen.strengths(0)[1] for value in sentence]
    words = re.findall(r'<span class="w" style="--s:(\d+)%">([^<]+)</span>', document_cards({"x": seen}))
    assert [word for _, word in words] == [word for sentence in TEXT for word in sentence]
    assert [int(s) for s, _ in words] == [round(100 * value) for value in strengths]


def test_documents_without_words_are_not_shown(documents_of):
    assert document_cards({"x": documents_of([[], TEXT])}).count("<article") == 1


def test_attention_of_a_diverged_model_is_still_a_page(documents_of):
    seen = documents_of([TEXT])
    nan = replace(seen, word_attention=seen.word_attention * float("nan"), pairs=seen.pairs * float("nan"))
    assert "cats" in document_cards({"x": nan})


def test_the_section_of_documents(documents_of):
    assert documents_section({"x": documents_of([TEXT])}).title == "What it read"


# Class maps -------------------------------------------------------------------


def test_a_card_an_image_with_the_true_class_framed(samples_of, top_of):
    seen = samples_of("SOFT", 3)
    top = top_of(seen)
    html = class_map_cards({"one": top, "two": top}, seen.image, seen.label, names=seen.answers)
    page = read(html)
    assert page.tags.count("article") == 3
    assert page.tags.count("img") == 3 * (1 + 2 * 5)
    assert html.count('class="true"') == 3 * 2
    assert "overlap by" in page.text
    true = re.findall(r'class="true".*?<figcaption>\d\. (\w+)', html, re.DOTALL)
    assert true == [seen.answers[label] for label in seen.label for _ in "ab"]


def test_the_more_models_the_fewer_images(samples_of, top_of):
    seen = samples_of("SOFT", 6)
    top = top_of(seen)
    one = replace(top, classes=top.classes[:, :1], maps=top.maps[:, :1])
    html = class_map_cards({f"model {i}": one for i in range(18)}, seen.image, seen.label)
    assert (html.count("<article"), html.count('class="tiles"')) == (2, 2 * 18)


def test_models_with_other_images_are_left_out_and_named(samples_of, top_of):
    seen, other = samples_of("SOFT", 2), samples_of("SOFT", 3)
    models = {"a": (seen, top_of(seen)), "b": (other, top_of(other)), "c": (seen, top_of(seen, kind="gradcam"))}
    section = class_maps_section(models)
    assert "other images were recorded: b." in section.intro
    text = read(section.body).text
    assert "A_ch" in text
    assert "Grad-CAM" in text
    assert section.body.count('class="tiles"') == 2 * 2


# Charts and pictures ----------------------------------------------------------


def test_charts(epochs_of):
    html = training_charts({"SOFT": [epochs_of("SOFT")]})
    assert html.count("<figure") == 2
    assert training_charts({}).strip() == charts(["", ""]).strip() == ""
    assert curves_section([""]) is None
    assert curves_section(["<figure></figure>"]).body.count("<figure") == 1


@pytest.mark.parametrize(("size", "kind", "shown"), [((400, 300), "webp", (192, 256)), ((4, 4), "png", (4, 4))])
def test_pictures_hold_themselves(size, kind, shown):
    html = picture(heatmap(torch.rand(size)), 'of "noise"')
    (found, data, width, height) = re.match(
        r'<img src="data:image/(\w+);base64,([^"]+)" width="(\d+)" height="(\d+)"', html
    ).groups()
    assert found == kind
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (int(width), int(height)) == shown
    assert len(data) < 80_000
    assert 'alt="of &#34;noise&#34;"' in html
