"""IMDB."""

import pytest
from small_files import write_all

from foveal.data.formats.imdb import read_imdb
from foveal.data.text.documents import TextOptions, text_format
from foveal.errors import DataError


def test_imdb(tmp_path):
    write_all(
        tmp_path,
        {f"{s}/{c}/0_7.txt": f"{s} {c}<br /><br />Yes." for s in ("train", "test") for c in ("pos", "neg")}
        | {"train/unsup/1_0.txt": "not labelled"},
    )
    corpus = text_format("imdb").corpus(tmp_path, TextOptions())
    assert corpus.answers == ["negative", "positive"]
    assert list(corpus.splits["train"]()) == [("train neg\n\nYes.", 0), ("train pos\n\nYes.", 1)]
    with pytest.raises(DataError, match="lacks pos or neg"):
        read_imdb(tmp_path / "train")
