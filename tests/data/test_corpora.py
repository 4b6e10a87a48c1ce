"""Readers of labelled texts, on small files in the official formats."""

import io
import tarfile

import pytest
from sklearn.datasets import _twenty_newsgroups as scikit

from foveal.data.corpora import decoded, read_imdb, read_newsgroups, read_textfolder
from foveal.data.docstrings import clean, read_docstrings
from foveal.data.documents import TextOptions
from foveal.data.text_csv import drawn, read_csv, read_numbered_csv
from foveal.data.texts import text_format
from foveal.errors import DataError, UserError

MESSAGE = """From: someone@host.edu (Some One)
Subject: Re: engines
Lines: 6

In article <1@host> other@host.edu writes:
> What engine is best?

The small one, I think. It is caf\xe9 proof.

-----
Some One, host university
"""


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))


def newsgroups(folder):
    write(
        folder,
        {
            "20news-bydate-train/rec.autos/1": MESSAGE,
            "20news-bydate-train/sci.space/2": "Subject: moon\n\nThe moon.\n",
            "20news-bydate-test/sci.space/3": "Subject: sun\n\nThe sun.\n",
        },
    )


def archive(folder, files):
    path = folder / "20news-bydate.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return path


def test_newsgroups_in_folders_and_in_an_archive(tmp_path):
    newsgroups(tmp_path)
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
    newsgroups(tmp_path)
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


def test_new_texts_are_read_like_those_of_the_corpus(tmp_path):
    newsgroups(tmp_path)
    whole, bare = TextOptions(), TextOptions(strip="headers footers quotes")
    raw = (tmp_path / "20news-bydate-train/rec.autos/1").read_bytes()
    for options in (whole, bare):
        text, _ = next(text_format("20news").corpus(tmp_path, options).splits["train"]())
        assert "café" in text
        assert text_format("20news").text(raw, options) == text
        assert text_format("20news").text(raw.decode("latin-1"), options) == text
    assert text_format("20news").text("caf\xe9".encode(), TextOptions(encoding="utf-8")) == "café"
    assert text_format("20news").text("The moon.", bare) == "The moon."  # no message, no headers
    for name in ("imdb", "yahoo-answers", "ag-news"):
        assert text_format(name).text("Yes.<br />caf\xe9\\nNo.".encode(), whole) == "Yes.\ncafé\nNo."
    assert (
        text_format("of my own").text("a<br />b", whole) == text_format("textcsv").text("a<br />b", whole) == "a<br />b"
    )


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


def test_imdb(tmp_path):
    write(
        tmp_path,
        {f"{s}/{c}/0_7.txt": f"{s} {c}<br /><br />Yes." for s in ("train", "test") for c in ("pos", "neg")}
        | {"train/unsup/1_0.txt": "not labelled"},
    )
    corpus = text_format("imdb").corpus(tmp_path, TextOptions())
    assert corpus.answers == ["negative", "positive"]
    assert list(corpus.splits["train"]()) == [("train neg\n\nYes.", 0), ("train pos\n\nYes.", 1)]
    with pytest.raises(DataError, match="lacks pos or neg"):
        read_imdb(tmp_path / "train")


def test_text_folders(tmp_path):
    write(tmp_path, {"b/1.txt": "one", "a/deep/2.txt": "two", "a/.hidden.txt": "no", "a/image.png": "no"})
    corpus = read_textfolder(tmp_path)
    assert corpus.answers == ["a", "b"]
    assert list(corpus.splits["train"]()) == [("two", 0), ("one", 1)]
    write(tmp_path / "split", {"train/a/1.txt": "x", "train/b/1.txt": "x", "test/a/1.txt": "y"})
    assert list(read_textfolder(tmp_path / "split").splits["test"]()) == [("y", 0)]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no class folders"),
        ({"test/a/1.txt": "x"}, "no train folder"),
        ({"train/a/1.txt": "x", "train/b/1.png": "x"}, "b holds no text files"),
        ({"train/a/1.txt": "x", "test/c/1.txt": "x"}, "unknown class 'c'.*training has no texts of it"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, files, said):
    write(tmp_path, files)
    with pytest.raises(DataError, match=said):
        read_textfolder(tmp_path)


def test_invalid_utf8_is_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_bytes(b"caf\xe9 \xff noir")
    write(tmp_path, {"b/1.txt": "x"})
    text, _ = next(read_textfolder(tmp_path).splits["train"]())
    assert text == "caf\ufffd \ufffd noir"
    assert decoded(b"\xef\xbb\xbfx", "utf-8-sig") == "x"


def zhang(folder, rows, classes="World\nSports\n"):
    write(folder, {"train.csv": rows, "test.csv": '"1","t","d"\n', "classes.txt": classes})


def test_numbered_tables(tmp_path):
    zhang(tmp_path, '"2","A title","He said ""no""\\nand left"\n"1","Other",""\n')
    corpus = text_format("ag-news").corpus(tmp_path, TextOptions())
    assert corpus.answers == ["World", "Sports"]
    assert list(corpus.splits["train"]()) == [('A title\n\nHe said "no"\nand left', 1), ("Other", 0)]


def test_a_few_texts_of_each_class(tmp_path):
    zhang(tmp_path, "".join(f'"{1 + i % 2}","text {i}",""\n' for i in range(20)))
    few = read_numbered_csv(tmp_path, 3, per_class=3, seed=1)
    chosen = list(few.splits["train"]())
    assert sorted(label for _, label in chosen) == [0, 0, 0, 1, 1, 1]
    assert chosen == list(few.splits["train"]())
    other = read_numbered_csv(tmp_path, 3, per_class=3, seed=2)
    assert chosen != list(other.splits["train"]())
    assert len(list(few.splits["test"]())) == 1  # all of it
    assert len(drawn([0, 0, 1], 100, 0)) == 3
    with pytest.raises(UserError, match="at least 1"):
        drawn([0], 0, 0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('"3","t","d"\n', "row 1: class '3', expected a number from 1 to 2"),
        ('"1","t","d"\n"x","t","d"\n', "row 2: class 'x'"),
        ('"1","t"\n', "row 1: 2 columns instead of 3"),
        ('"\xc2\xb2","t","d"\n', "row 1: class '²'"),  # two bytes of UTF-8
        ("\n", "train.csv holds no rows"),
    ],
)
def test_numbered_tables_that_cannot_be_read(tmp_path, rows, said):
    zhang(tmp_path, rows)
    with pytest.raises(DataError, match=said):
        list(read_numbered_csv(tmp_path, 3).splits["train"]())
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes.txt cannot be read"):
        read_numbered_csv(tmp_path, 3)


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
    ("train", "test", "said"),
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
def test_tables_that_cannot_be_read(tmp_path, train, test, said):
    files = {"train": tmp_path / "train.csv"}
    files["train"].write_text(train)
    if test is not None:
        files["test"] = tmp_path / "test.csv"
        files["test"].write_text(test)
    with pytest.raises(DataError, match=said):
        [list(texts()) for texts in read_csv(files, "text", "label").splits.values()]
    with pytest.raises(DataError, match="is missing"):
        read_csv({"train": tmp_path / "none.csv"}, "text", "label")


def test_docstrings_of_installed_libraries():
    corpus = read_docstrings(("torchvision", "networkx", "no_such_library"))
    assert corpus.answers == ["torchvision", "networkx"]
    texts = list(corpus.splits["train"]())
    assert {label for _, label in texts} == {0, 1}
    assert min(sum(label == i for _, label in texts) for i in (0, 1)) > 100
    assert len({text for text, _ in texts}) == len(texts)
    words = {word.lower().strip(".,`'") for text, _ in texts for word in text.split()}
    assert not words & {"torchvision", "networkx", "torch", "numpy", "np"}
    assert not any(">>>" in text for text, _ in texts)
    with pytest.raises(DataError, match="nothing to tell apart"):
        read_docstrings(("no_such_library", "networkx"))


def test_cleaning_a_docstring():
    assert clean("A :class:`torch.Tensor` of ``x``.\n\n    >>> 1 + 1\n    2\n\nNotes\n-----\nEnd") == (
        "A Tensor of x.\n\n 2\n\nNotes\n\nEnd"
    )
