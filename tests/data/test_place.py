"""One answer to where a dataset lies: for training and for ``foveal data``."""

import pytest
from small_files import build, save, write, write_mnist

from foveal.data import Entry, Place, data_root, dataset, datasets
from foveal.data.place import Layout, status
from foveal.data.text.documents import TextOptions
from foveal.errors import DataError

NEED_FILES = sorted(name for name, entry in datasets().items() if entry.place is not None)


def an_entry(place):
    return Entry("some", "", dict, lambda options, root: None, place)


@pytest.mark.parametrize("name", NEED_FILES)
def test_what_is_missing_is_listed_with_how_to_get_it(name, tmp_path):
    entry = dataset(name)
    for root in (None, tmp_path):
        state = entry.status(root)
        assert not state.there
        assert state.missing == [str((root or tmp_path.__class__()) / path) for path in entry.place.expected]
        assert state.how
    with pytest.raises(DataError, match="FOVEAL_DATA"):
        entry.build(entry.options(), None)


def test_embedded_datasets_need_nothing():
    for name in ("digits", "confusion", "docstrings"):
        assert dataset(name).status(None).there
        assert dataset(name).status(None).folder is None


def test_class_folders_under_another_name_are_there_and_are_what_training_takes(tmp_path):
    for split in ("train", "test"):
        for name in ("001.Albatross", "002.Pelican"):
            for n in range(4):
                save(tmp_path / "cub200" / split / name / f"{n}.jpg")
    state = dataset("cub200").status(tmp_path)
    assert (state.there, state.layout, state.folder) == (True, "class folders", tmp_path / "cub200")
    assert build("cub200", tmp_path, size=8, val_fraction=0.0).folder == state.folder


def test_a_complete_folder_is_preferred_to_an_incomplete_one(tmp_path):
    write(tmp_path / "cifar-10-batches-bin" / "batches.meta.txt", "cat\n")
    assert dataset("cifar10").status(tmp_path).folder == tmp_path / "cifar-10-batches-bin"
    assert len(dataset("cifar10").status(tmp_path).missing) == 6
    for name in ("cat", "dog"):
        for n in range(5):
            save(tmp_path / "cifar10" / "train" / name / f"{n}.png", size=(32, 32))
    state = dataset("cifar10").status(tmp_path)
    assert (state.there, state.folder) == (True, tmp_path / "cifar10")
    assert build("cifar10", tmp_path, val_fraction=0.0).folder == state.folder


def test_an_archive_is_there_without_unpacking(tmp_path):
    (tmp_path / "20news-bydate.tar.gz").write_bytes(b"")
    state = dataset("20news").status(tmp_path)
    assert (state.there, state.layout, state.folder) == (True, "single file", tmp_path / "20news-bydate.tar.gz")
    (tmp_path / "textcsv").write_bytes(b"")  # a file by the name of a folder
    with pytest.raises(DataError, match="no column"):
        dataset("textcsv").build(TextOptions(), tmp_path)
    (tmp_path / "imagefolder").write_bytes(b"")
    assert not dataset("imagefolder").status(tmp_path).there
    with pytest.raises(DataError, match=r"imagefolder: no folder"):
        build("imagefolder", tmp_path)


def test_gzipped_or_plain_files_are_both_there_and_others_are_not(tmp_path):
    write_mnist(tmp_path)
    assert dataset("mref").status(tmp_path).there
    file = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    file.rename(file.with_suffix(".zip"))
    assert dataset("mref").status(tmp_path).missing == [str(file.with_suffix("")) + "[.gz]"]
    file.with_suffix("").write_bytes(b"")
    assert dataset("mref").status(tmp_path).there


def test_other_places_are_needed_too(tmp_path):
    write_mnist(tmp_path)
    assert dataset("mbg").status(tmp_path).missing == [str(tmp_path / "backgrounds" / "*")]
    save(tmp_path / "backgrounds" / "1.jpg")
    assert dataset("mbg").status(tmp_path).there


def test_layouts():
    place = Place(("a", "b"), ("x", "y"), "ask someone", layouts=(Layout("other", ("z*/1",)),))
    assert place.expected == ("a/x", "a/y")
    assert Place(("a",)).expected == ("a",)


def test_the_most_complete_layout_is_reported(tmp_path):
    place = Place(("a",), ("x", "y"), "ask someone", layouts=(Layout("other", ("z*/1", "z*/2")),))
    assert status(place, tmp_path).files == {str(tmp_path / "a" / n): False for n in ("x", "y")}
    write(tmp_path / "a" / "zz" / "2", "")
    assert status(place, tmp_path).layout == "other"
    assert not status(place, tmp_path).there
    write(tmp_path / "a" / "zz" / "1", "")
    assert status(place, tmp_path).there


@pytest.mark.parametrize("given", ["mine", "absolute", "~"])
def test_a_folder_of_the_recipe(tmp_path, monkeypatch, given):
    place = Place(("a",), ("x",), "ask someone")
    (tmp_path / "root").mkdir()
    (tmp_path / "work" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    folder = {"mine": "mine", "absolute": str(tmp_path / "work" / "mine"), "~": "~/mine"}[given]
    for root in (None, tmp_path / "root"):
        assert place.find(root, folder).resolve() == tmp_path / "work" / "mine"
    if given == "mine":  # below the data folder comes first
        (tmp_path / "root" / "mine").mkdir()
        assert place.find(tmp_path / "root", folder) == tmp_path / "root" / "mine"


def test_messages_say_what_to_do(tmp_path):
    place = Place(("a", "b"), ("x",), "get a.zip from somewhere", instead="use data.digits=embedded")
    with pytest.raises(DataError, match=r"^some: set FOVEAL_DATA .*holds a, or data\.folder to its full path, or use "):
        place.find(None, name="some")
    with pytest.raises(DataError, match=r"^some: no folder .*a or .*b, or use data\.digits=embedded; get a\.zip"):
        place.find(tmp_path, name="some")
    with pytest.raises(DataError, match=r"no folder .*mine.*get a\.zip"):
        place.find(tmp_path, "mine")


def test_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    assert data_root() is None
    monkeypatch.setenv("FOVEAL_DATA", str(tmp_path))
    assert data_root() == tmp_path
    (tmp_path / "given").mkdir()
    assert data_root(tmp_path / "given") == tmp_path / "given"
    with pytest.raises(DataError, match=r"nowhere does not exist; set FOVEAL_DATA or --data"):
        data_root(str(tmp_path / "nowhere"))
    monkeypatch.setenv("FOVEAL_DATA", "")
    assert data_root() is None
