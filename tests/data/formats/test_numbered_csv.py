"""CSV files whose first column is a class number."""

import pytest
from small_files import write_all

from foveal.data.formats.numbered_csv import read_numbered_csv
from foveal.data.text.csv_files import drawn
from foveal.data.text.documents import TextOptions, text_format
from foveal.errors import DataError, UserError


def zhang(folder, rows, classes="World\nSports\n"):
    write_all(folder, {"train.csv": rows, "test.csv": '"1","t","d"\n', "classes.txt": classes})


def test_numbered_tables(tmp_path):
    zhang(tmp_path, '"2","A title","He message ""no""\\nand left"\n"1","Other",""\n')
    corpus = text_format("ag-news").corpus(tmp_path, TextOptions())
    assert corpus.answers == ["World", "Sports"]
    assert list(corpus.splits["train"]()) == [('A title\n\nHe message "no"\nand left', 1), ("Other", 0)]


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
    ("rows", "message"),
    [
        ('"3","t","d"\n', "row 1: class '3', expected a number from 1 to 2"),
        ('"1","t","d"\n"x","t","d"\n', "row 2: class 'x'"),
        ('"1","t"\n', "row 1: 2 columns instead of 3"),
        ('"\xc2\xb2","t","d"\n', "row 1: class '²'"),  # two bytes of UTF-8
        ("\n", "train.csv holds no rows"),
    ],
)
def test_numbered_tables_that_cannot_be_read(tmp_path, rows, message):
    zhang(tmp_path, rows)
    with pytest.raises(DataError, match=message):
        list(read_numbered_csv(tmp_path, 3).splits["train"]())
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes.txt cannot be read"):
        read_numbered_csv(tmp_path, 3)
