"""20 Newsgroups: folders, archive, and parts that are cut."""

import io
import tarfile

import pytest
from sklearn.datasets import _twenty_newsgroups as scikit
from small_files import MESSAGE, write_newsgroups

from foveal.data.formats.newsgroups import read_newsgroups
from foveal.data.text.documents import TextOptions, text_format
from foveal.errors import DataError, UserError


def archive(folder, files):
    path = folder / "20news-bydate.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return path


def test_newsgroups_in_folders_and_in_an_archive(tmp_path):
    write_newsgroups(tmp_path)
    plain = read_newsgroups(tmp_path)
    files = {str(f.relative_to(tmp_path)): f.read_bytes() for f in sorted(tmp_path.rglob("*")) if f.is_file()}
    packed = read_newsgroups(archive(tmp_path, files))
    for corpus in (plain, packed):
        assert corpus.answers == ["rec.autos", "sci.space"]
        assert [label for _, label in corpus.splits["train"]()] == [0, 1]
        assert [text for text, _ in corpus.splits["test"]()] == ["Subject: sun\n\nThe sun.\n"]
    assert sorted(packed.splits["train"]()) == sorted(plain.splits["train"]())
    assert "café" in next(plain.splits["train"]())[0]  # Latin-1


@pytest.mark.parametrize("strip", [(), ("headers",), ("footers",), ("quotes",), ("headers", "footers", "quotes")])
def test_stripping_is_that_of_scikit_learn(tmp_path, strip):
    write_newsgroups(tmp_path)
    options = TextOptions(strip=" ".join(strip))
    text, _ = next(text_format("20news").corpus(tmp_path, options).splits["train"]())
    expected = MESSAGE
    if "headers" in strip:
        expected = scikit.strip_newsgroup_header(expected)
    if "footers" in strip:
        expected = scikit.strip_newsgroup_footer(expected)
    if "quotes" in strip:
        expected = scikit.strip_newsgroup_quoting(expected)
    assert text == expected
    assert ("Subject" in text) == ("headers" not in strip)
    assert ("What engine" in text) == ("quotes" not in strip)
    assert ("host university" in text) == ("footers" not in strip)


def test_real_newsgroups(real_data):
    place = real_data / "20news-bydate.tar.gz"
    if not place.is_file():
        pytest.skip("real data: 20news-bydate.tar.gz")
    corpus = read_newsgroups(place)
    assert len(corpus.answers) == 20
    assert [sum(1 for _ in corpus.splits[split]()) for split in ("train", "test")] == [11_314, 7_532]


def test_newsgroups_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="20news-bydate-train is missing"):
        read_newsgroups(tmp_path)
    damaged = tmp_path / "20news-bydate.tar.gz"
    damaged.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read"):
        read_newsgroups(damaged)
    with pytest.raises(DataError, match="get the by-date archive"):
        read_newsgroups(archive(tmp_path, {"other/file": b"x"}))
    with pytest.raises(DataError, match="has no 20news-bydate-test/"):
        read_newsgroups(archive(tmp_path, {"20news-bydate-train/a.b/1": b"x"}))
    unseen = {"20news-bydate-train/a.b/1": b"x", "20news-bydate-test/c.d/2": b"y"}
    with pytest.raises(DataError, match=r"unknown class 'c.d'.*training has no texts of it"):
        read_newsgroups(archive(tmp_path, unseen))
    with pytest.raises(UserError, match="did you mean 'headers'"):
        TextOptions(strip="header")
