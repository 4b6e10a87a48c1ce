"""Parallel text in its official forms, and what can be wrong with it."""

import gzip

import pytest
import torch
from small_files import write_all

from foveal.data.check import check
from foveal.data.formats.iwslt import read_iwslt
from foveal.data.formats.multi30k import read_multi30k
from foveal.data.formats.parallel import read_parallel
from foveal.data.formats.wmt14 import TRAINING, read_wmt14
from foveal.data.registry import dataset
from foveal.data.text.parallel import ParallelOptions
from foveal.errors import DataError, UserError

EN = ["The dog is in the house.", "A man and a horse.", "It is the end of the day."]
DE = ["Der Hund ist im Haus.", "Ein Mann und ein Pferd.", "Das ist das Ende und nicht der Anfang."]


def text(lines):
    return "".join(f"{line}\n" for line in lines)


def pairs(corpus, split="train"):
    return list(corpus.splits[split]())


def test_multi30k(tmp_path):
    stems = ("train", "val", "test_2016_flickr", "test_2017_mscoco")
    write_all(tmp_path, {f"{s}.{end}": f"{s} {end}\n" for s in stems for end in ("en", "de")})
    (tmp_path / "train.en").unlink()
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"zipped\n"))
    corpus = read_multi30k(tmp_path, ParallelOptions())
    assert pairs(corpus) == [("zipped", "train de")]
    assert pairs(corpus, "test") == [("test_2016_flickr en", "test_2016_flickr de")]
    other = read_multi30k(tmp_path, ParallelOptions(test="2017_mscoco", source="de", target="en"))
    assert pairs(other, "test") == [("test_2017_mscoco de", "test_2017_mscoco en")]
    with pytest.raises(UserError, match="did you mean '2016_flickr'"):
        read_multi30k(tmp_path, ParallelOptions(test="2016flickr"))
    (tmp_path / "val.de").unlink()
    with pytest.raises(DataError, match=r"val\.de is missing"):
        read_multi30k(tmp_path, ParallelOptions())


def test_iwslt(tmp_path):
    def xml(*lines):
        body = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines, 1))
        return f'<?xml version="1.0"?>\n<mteval>\n<doc>\n<title>Talk</title>\n{body}</doc>\n</mteval>\n'

    ends, names = ("en", "de"), ("dev2010", "tst2010", "tst2015")
    sets = {f"IWSLT17.TED.{s}.en-de.{e}.xml": xml(f"{s} {e} &amp; more") for s in names for e in ends}
    train = {f"train.tags.en-de.{e}": f"<url>x</url>\n<title>T</title>\n{e} one\n{e} two\n" for e in ends}
    write_all(tmp_path, sets | train)
    corpus = read_iwslt(tmp_path, ParallelOptions())
    assert pairs(corpus) == [("en one", "de one"), ("en two", "de two")]
    assert pairs(corpus, "val") == [("dev2010 en & more", "dev2010 de & more")]
    assert [source for source, _ in pairs(corpus, "test")] == ["tst2010 en & more", "tst2015 en & more"]
    backwards = read_iwslt(tmp_path, ParallelOptions(source="de", target="en", test="tst2015"))
    assert pairs(backwards, "test") == [("tst2015 de & more", "tst2015 en & more")]
    with pytest.raises(UserError, match="did you mean 'tst2010'"):
        read_iwslt(tmp_path, ParallelOptions(test="tst210"))
    for file in tmp_path.glob("*.tst*"):
        file.unlink()
    with pytest.raises(DataError, match="unpack"):
        read_iwslt(tmp_path, ParallelOptions())


def test_iwslt_as_fairseq_prepares_it(tmp_path):
    write_all(tmp_path, {f"{s}.{e}": f"{s} {e}\n" for s in ("train", "valid", "test") for e in ("en", "de")})
    corpus = read_iwslt(tmp_path, ParallelOptions(source="de", target="en"))
    assert pairs(corpus, "val") == [("valid de", "valid en")]


def test_wmt14(tmp_path):
    files = {f"{stem}.{end}": f"{stem} {end}\n" for stem in TRAINING for end in ("en", "de")}
    files |= {f"dev/newstest2013.{end}": f"dev {end}\n" for end in ("en", "de")}
    for kind, end in (("src", "en"), ("ref", "de")):
        files[f"test-full/newstest2014-deen-{kind}.{end}.sgm"] = f'<srcset>\n<seg id="1">test {end}</seg>\n</srcset>\n'
    write_all(tmp_path, files)
    corpus = read_wmt14(tmp_path, ParallelOptions())
    assert [source for source, _ in pairs(corpus)] == [f"{stem} en" for stem in TRAINING]
    assert pairs(corpus, "test") == [("test en", "test de")]


def test_any_two_files(tmp_path):
    write_all(tmp_path, {"book.en": text(EN), "book.de": text(DE)})
    assert pairs(read_parallel(tmp_path, ParallelOptions())) == list(zip(EN, DE, strict=True))
    write_all(tmp_path, {"other.en": "", "other.de": ""})
    with pytest.raises(DataError, match=r"several pairs \(book, other\).*train\.en and train\.de"):
        read_parallel(tmp_path, ParallelOptions())
    with pytest.raises(DataError, match=r"no such pair.*data\.source and data\.target are the endings"):
        read_parallel(tmp_path, ParallelOptions(target="fr"))
    write_all(tmp_path, {"train.en": text(EN), "train.de": text(DE), "dev.en": "A.\n", "dev.de": "Ein.\n"})
    corpus = read_parallel(tmp_path, ParallelOptions())
    assert set(corpus.splits) == {"train", "val"}
    with pytest.raises(DataError, match=r"has no news\.en and news\.de"):
        read_parallel(tmp_path, ParallelOptions(test="news"))


# What can be wrong ------------------------------------------------------------------------------------------


def one_pair(folder, first, second, **options):
    for name, content in (("train.en", first), ("train.de", second)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return pairs(read_parallel(folder, ParallelOptions(**options)))


def test_line_ends_byte_order_marks_and_odd_characters(tmp_path):
    english = "\ufeffone\r\ntwo\u2028and\x85a half\r\n".encode()
    assert one_pair(tmp_path, english, "eins\nzwei\n") == [("one", "eins"), ("two\u2028and\x85a half", "zwei")]
    assert one_pair(tmp_path, "one\r\n".encode("utf-16"), "eins\n".encode("utf-16"), encoding="utf-16") == [
        ("one", "eins")
    ]


def test_files_of_unequal_length(tmp_path):
    with pytest.raises(DataError, match=r"train\.de ends after 2 lines.*line n of one must be the translation"):
        one_pair(tmp_path, "a\nb\nc\n", "x\ny\n")
    with pytest.raises(DataError, match=r"train\.en ends after 1 lines"):
        one_pair(tmp_path, "a\n", "x\ny\n")
    with pytest.raises(DataError, match=r"train\.de ends after 1 lines"):
        one_pair(tmp_path, "a\n\n", "x\n")  # an empty line is one


def test_empty_lines_are_left_out_on_both_sides(tmp_path):
    assert one_pair(tmp_path, "a\n\nc\n \n", "x\ny\n\nz\n") == [("a", "x")]
    problems = list(check("parallel", {"folder": str(tmp_path)}, tmp_path))
    assert [(p.stops, "3 of 4 pairs have an empty side" in p.message) for p in problems] == [(False, True)]


def test_files_in_each_others_place(tmp_path):
    with pytest.raises(DataError, match=r"train\.en looks like de and .*train\.de like en.*exchange their names"):
        one_pair(tmp_path, text(DE * 5), text(EN * 5))
    assert len(one_pair(tmp_path, text(DE[:2]), text(EN[:2]))) == 2  # too few to tell
    with pytest.raises(DataError, match="hold the same sentences"):
        one_pair(tmp_path, text(EN * 5), text(EN * 5))


def test_files_in_each_others_place_are_found_before_training(tmp_path, cache):
    write_all(tmp_path, {"train.en": text(DE * 5), "train.de": text(EN * 5)})
    with pytest.raises(DataError, match="exchange their names"):
        dataset("parallel").build(ParallelOptions(folder=str(tmp_path)), None)
    problems = list(check("parallel", {"folder": str(tmp_path)}, tmp_path))
    assert [(p.stops, "exchange their names" in p.message) for p in problems] == [(True, True)]


def test_wrong_encoding_and_damaged_files(tmp_path):
    with pytest.raises(DataError, match=r"train\.de: not valid utf-8; save it as UTF-8, or set data\.encoding"):
        one_pair(tmp_path, "a\n", "für\n".encode("latin-1"))
    assert one_pair(tmp_path, "a\n", "für\n".encode("latin-1"), encoding="latin-1") == [("a", "für")]
    write_all(tmp_path, {"train.de": "x\n" * 999})
    (tmp_path / "train.en").unlink()
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"a\n" * 999)[:20])
    with pytest.raises(DataError, match="damaged, get it again"):
        pairs(read_parallel(tmp_path, ParallelOptions()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "de"}, "both de"),
        ({"vocabulary": 3}, "at least 5"),
        ({"val_fraction": 0.7}, "less than 0.5"),
        ({"encoding": "klingon"}, "no text encoding"),
        ({"longest": 0}, "at least 1"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(UserError, match=message):
        ParallelOptions(**options)


def test_nothing_left(tmp_path, cache):
    write_all(tmp_path, {"train.en": "\n\n", "train.de": "x\n\n"})
    with pytest.raises(DataError, match="no pair of sentences is left"):
        dataset("parallel").build(ParallelOptions(folder=str(tmp_path)), None)


@pytest.mark.slow
def test_real_files(real_data, cache):
    source = dataset("multi30k").build(ParallelOptions(vocabulary=500), real_data)
    assert [source.count(split) for split in ("train", "val", "test")] == [29_000, 1_014, 1_000]
    batch = next(iter(source.loader("train", 2_000, device=torch.device("cpu"))))
    assert max(batch["source"].numel(), batch["target"].numel() - len(batch["target"])) <= 2_000
