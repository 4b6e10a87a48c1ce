"""Texts sorted into class folders."""

import pytest
from small_files import write_all

from foveal.data.formats.text_folders import read_textfolder
from foveal.data.text.reading import decoded
from foveal.errors import DataError


def test_text_folders(tmp_path):
    write_all(tmp_path, {"b/1.txt": "one", "a/deep/2.txt": "two", "a/.hidden.txt": "no", "a/image.png": "no"})
    corpus = read_textfolder(tmp_path)
    assert corpus.answers == ["a", "b"]
    assert list(corpus.splits["train"]()) == [("two", 0), ("one", 1)]
    write_all(tmp_path / "split", {"train/a/1.txt": "x", "train/b/1.txt": "x", "test/a/1.txt": "y"})
    assert list(read_textfolder(tmp_path / "split").splits["test"]()) == [("y", 0)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no class folders"),
        ({"test/a/1.txt": "x"}, "no train folder"),
        ({"train/a/1.txt": "x", "train/b/1.png": "x"}, "b holds no text files"),
        ({"train/a/1.txt": "x", "test/c/1.txt": "x"}, "unknown class 'c'.*training has no texts of it"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, files, message):
    write_all(tmp_path, files)
    with pytest.raises(DataError, match=message):
        read_textfolder(tmp_path)


def test_invalid_utf8_is_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_bytes(b"caf\xe9 \xff noir")
    write_all(tmp_path, {"b/1.txt": "x"})
    text, _ = next(read_textfolder(tmp_path).splits["train"]())
    assert text == "caf\ufffd \ufffd noir"
    assert decoded(b"\xef\xbb\xbfx", "utf-8-sig") == "x"
