"""Datasets by name, and what every source offers."""

import json

import pytest
import torch
from small_files import build, save, write_all

from foveal.data import Entry, dataset, datasets, register_data
from foveal.data.embedded.confusion import COUNTS
from foveal.data.embedded.reference import ReferenceOptions
from foveal.data.embedded.scenes import COLOURS
from foveal.data.formats.visual_genome import VisualGenomeOptions
from foveal.data.text.documents import TextOptions
from foveal.errors import DataError, UnknownNameError, UserError

CPU = torch.device("cpu")
SMALL = ReferenceOptions(digits="embedded", triples=(20, 10, 10), canvas=36, count=(2, 3), scale=(0.4, 0.6))
SHAPES = VisualGenomeOptions(source="embedded", sizes=(10, 4, 4), image_size=32, workers=0)


def few_confusions():
    with pytest.MonkeyPatch.context() as patch:
        for split in COUNTS:
            patch.setitem(COUNTS, split, 50)
        return build("confusion")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """One source of every kind."""
    root = tmp_path_factory.mktemp("data")
    for name in ("ant", "bee"):
        for n in range(10):
            save(root / "insects" / name / f"{n}.png")
        write_all(root / "letters", {f"{name}/{n}.txt": f"The {name} number {n} flies." for n in range(20)})
    options = TextOptions(folder="letters", tagger="none", sentences=3, words=5)
    return {
        "mref": dataset("mref").build(SMALL, None),
        "visual-genome": dataset("visual-genome").build(SHAPES, None),
        "confusion": few_confusions(),
        "imagefolder": build("imagefolder", root, folder="insects", size=16),
        "textfolder": dataset("textfolder").build(options, root),
    }


def test_all_datasets_register_themselves():
    assert set(datasets()) >= {
        "20news", "ag-news", "caltech256", "cifar10", "cifar100", "confusion", "cub200", "digits", "docstrings",
        "imagefolder", "imagenet", "imdb", "mbg", "mdist", "mref", "textcsv", "textfolder", "tiny-imagenet",
        "visual-genome", "voc2007", "voc2012", "yahoo-answers",
    }  # fmt: skip
    assert all(entry.name == name and entry.summary for name, entry in datasets().items())


@pytest.mark.parametrize("name", [name for name, entry in datasets().items() if entry.place and entry.place.needs])
def test_data_that_is_not_there_says_how_to_get_it(name, tmp_path):
    entry = dataset(name)
    status = entry.status(tmp_path)
    assert not status.there
    assert status.missing
    assert status.how
    with pytest.raises(DataError, match="FOVEAL_DATA"):
        entry.build(entry.options(), None)


def test_a_dataset_of_your_own(monkeypatch):
    from foveal import registry

    monkeypatch.setattr(registry.datasets, "_things", dict(registry.datasets.items()))
    entry = Entry("of-my-own", "numbers", dict, lambda options, root: None)
    assert register_data(entry) is entry
    assert dataset("of-my-own") is entry


def test_an_unknown_dataset():
    with pytest.raises(UnknownNameError, match="unknown dataset 'mreff'; did you mean 'mref'"):
        dataset("mreff")


def test_titles(sources):
    titles = {name: source.title for name, source in sources.items()}
    assert titles == {
        "mref": "MREF",
        "visual-genome": "Visual Genome",
        "confusion": "two-object confusion",
        "imagefolder": "insects",
        "textfolder": "letters",
    }


def test_what_is_said_of_the_data_is_plain(sources):
    for source in sources.values():
        about = source.about()
        assert json.loads(json.dumps(about)) == about
        assert about["answers"] == source.answers
        assert about["multilabel"] == source.multilabel


def test_questions(sources):
    about = {name: source.about() for name, source in sources.items()}
    assert about["mref"]["question"].format(query="7") == "What colour is the 7?"
    assert about["mref"]["asked"] == "the colour of one digit among many"
    assert about["visual-genome"]["question"].format(query="dog") == "How would you describe the dog?"
    assert about["visual-genome"]["asked"] == "an attribute (one of 6) of one object (one of 4 kinds)"
    assert about["imagefolder"]["question"] == "What does this show?"
    assert about["imagefolder"]["asked"] == "what they show (2 classes)"
    assert about["textfolder"]["asked"] == "their class (one of 2)"
    assert about["mref"]["queries"] == list("0123456789")
    assert "queries" not in about["imagefolder"]


def test_colours_of_answers_that_are_colours(sources):
    colours = sources["mref"].about()["colours"]
    assert list(colours) == sources["mref"].answers
    assert {name: tuple(bytes.fromhex(code[1:])) for name, code in colours.items()} == COLOURS
    assert not any("colours" in sources[name].about() for name in sources if name != "mref")


def test_sizes_are_those_of_the_batches(sources):
    for name in ("mref", "visual-genome", "confusion", "imagefolder"):
        batch = next(iter(sources[name].loader("test", 2, device=CPU)))
        side = sources[name].about()["size"]
        assert batch["image"].shape[-2:] == (side, side)
    view = sources["imagefolder"].about()["view"]
    assert view == {"size": 16, "augment": "large", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    form = sources["textfolder"].about()["form"]
    assert form == {"sentences": 3, "words": 5, "tagger": "none", "language": "en"}
    assert sources["textfolder"].about()["vocabulary"] == sources["textfolder"].vocabulary


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("name", ["mref", "visual-genome", "confusion"])
def test_masks_where_there_are_such(sources, name, split):
    batch = next(iter(sources[name].loader(split, 2, device=CPU, masks=True)))
    assert batch["mask"].shape == batch["image"][:, 0].shape
    assert batch["mask"].dtype == torch.bool
    assert batch["mask"].any((1, 2)).all()
    assert not batch["mask"].all((1, 2)).any()


@pytest.mark.parametrize("name", ["imagefolder", "textfolder"])
def test_datasets_without_masks_say_so(sources, name):
    with pytest.raises(UserError, match=f"data.name={name}"):
        sources[name].loader("train", 2, device=CPU, masks=True)


def test_the_order_is_the_same_with_masks(sources):
    for name in ("mref", "confusion"):
        plain, masked = (next(iter(sources[name].loader("train", 8, device=CPU, masks=m))) for m in (False, True))
        assert "mask" not in plain
        assert all(torch.equal(plain[key], masked[key]) for key in plain)
