"""CSV files with a header."""

import pytest

from foveal.data.formats.numbered_csv import read_numbered_csv
from foveal.data.formats.text_csv import read_csv
from foveal.errors import DataError


def test_tables_with_a_header(tmp_path):
    train = tmp_path / "train.csv"
    train.write_text('\ufefftitle,kind,body\nA,x,first\n\nB,y,"second,\nline"\n', encoding="utf-8")
    corpus = read_csv({"train": train}, "title+body", "kind")
    assert corpus.answers == ["x", "y"]
    assert list(corpus.splits["train"]()) == [("A\n\nfirst", 0), ("B\n\nsecond,\nline", 1)]
    assert len(list(read_csv({"train": train}, "body", "kind", per_class=1).splits["train"]())) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path, encoding):
    written = "utf-16" if encoding == "utf-16" else "utf-8-sig"
    train = tmp_path / "train.csv"
    train.write_bytes('"text","label"\r\n"café","x"\r\n"thé","y"\r\n'.encode(written))
    corpus = read_csv({"train": train}, "text", "label", encoding)
    assert list(corpus.splits["train"]()) == [("café", 0), ("thé", 1)]
    train.write_bytes('"2","A title","and a text"\n'.encode(written))
    (tmp_path / "test.csv").write_bytes(train.read_bytes())
    (tmp_path / "classes.txt").write_text("World\nSports\n", encoding="utf-8-sig")
    corpus = read_numbered_csv(tmp_path, 3, encoding)
    assert corpus.answers == ["World", "Sports"]
    assert list(corpus.splits["train"]()) == [("A title\n\nand a text", 1)]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("text,label\na,x\nb,y\n", "text,label\nc,z\n", "unknown class 'z'.*training has no texts of it"),
        ("body,label\na,x\n", None, "no column 'text'; its columns are 'body', 'label'"),
        ("text,class\na,x\n", None, "no column 'label'"),
        ("", None, "its columns are none"),
        ("text,label\n", None, "train.csv holds no rows below its header"),
        ("text,label\na,x\nb,y\n", "text,label\n", "test.csv holds no rows below its header"),
        ("text,label\na,x\n", None, "1 class"),
        ("text,label\na,x,extra\nb,y\n", None, "row 2: 3 columns instead of 2"),
        ("text,label\na,x\nb, \nc,y\n", None, "train.csv, row 3: the column 'label' is empty"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, train, test, message):
    files = {"train": tmp_path / "train.csv"}
    files["train"].write_text(train)
    if test is not None:
        files["test"] = tmp_path / "test.csv"
        files["test"].write_text(test)
    with pytest.raises(DataError, match=message):
        [list(texts()) for texts in read_csv(files, "text", "label").splits.values()]
    with pytest.raises(DataError, match="is missing"):
        read_csv({"train": tmp_path / "none.csv"}, "text", "label")
