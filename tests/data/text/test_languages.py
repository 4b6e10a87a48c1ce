"""Files that do not hold the languages that their names say."""

import warnings
from pathlib import Path

import pytest

from foveal.data.problems import collecting
from foveal.data.text.languages import COMMON, checked, wrong_side
from foveal.data.text.parallel_lines import line_pairs
from foveal.errors import DataError

EN, DE = "The dog is in the house {}.", "Der Hund ist nicht in dem Haus {}."
FILES = (Path("train.en"), Path("train.de"))


def corpus(count):
    return [(EN.format(n), DE.format(n)) for n in range(count)]


def read(pairs, languages=("en", "de")):
    return list(checked(FILES, iter(pairs), languages))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("count", [0, 1, 15, 199, 200, 201, 1234])
def test_good_pairs_come_out_as_they_are(count):
    assert read(corpus(count)) == corpus(count)


@pytest.mark.parametrize("begin", [0, 1000, 2000])
def test_a_part_in_each_others_place(begin):
    pairs = corpus(3000)
    pairs[begin : begin + 1000] = [pair[::-1] for pair in pairs[begin : begin + 1000]]
    first = f"from pair {begin + 1:,} on, and in 5 of 15 places"
    with pytest.raises(DataError, match=rf"train\.en looks like de and .* \({first}.*exchange these lines"):
        read(pairs)


def test_one_language_on_both_sides():
    english = [(first, first.replace("dog", "cat")) for first, _ in corpus(300)]
    with pytest.raises(DataError, match=r"train\.en and train\.de both look like en; one of them must be the trans"):
        read(english)
    german = [(second.replace("Hund", "Igel"), second) for _, second in corpus(300)]
    with pytest.raises(DataError, match="both look like de"):
        read(german)
    with pytest.raises(DataError, match=r"both look like en \(from pair 1,001 on, and in 2 of 8 places"):
        read(corpus(1000) + english + corpus(200))


def test_the_same_sentences():
    with pytest.raises(DataError, match="hold the same sentences"):
        read([(first, first) for first, _ in corpus(10)], ("xx", "yy"))
    read([("1", "1")] * 9)  # too few to tell
    read(corpus(60) + [("Berlin", "Berlin")] * 50)


def test_a_little_is_a_warning():
    pairs = corpus(50_000)
    pairs[1000:1200] = [pair[::-1] for pair in pairs[1000:1200]]
    with pytest.warns(UserWarning, match="in 1 of 250 places"):
        assert read(pairs) == pairs
    with collecting() as problems:
        read(pairs)
    assert [problem.stops for problem in problems] == [False]


@pytest.mark.parametrize("languages", [("en", "fi"), ("", ""), ("en", "en"), ("xx", "de")])
def test_nothing_is_known_about_other_languages(languages):
    swapped = [pair[::-1] for pair in corpus(300)]
    assert read(swapped, languages) == swapped


@pytest.mark.parametrize("source", COMMON)
@pytest.mark.parametrize("target", COMMON)
def test_common_words_tell_every_two_languages(source, target):
    if source != target:
        pairs = [(" ".join(sorted(COMMON[source])), " ".join(sorted(COMMON[target])))] * 5
        assert wrong_side(pairs, (source, target)) is None
        assert wrong_side(pairs, (target, source)) == "both sides"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi30k/train", "multi30k/val", "tatoeba/deu-eng"])
def test_real_files(real_data, name):
    files = (real_data / f"{name}.en.gz", real_data / f"{name}.de.gz")
    if not files[0].is_file():
        pytest.skip(f"no {files[0]}")
    pairs = list(checked(files, line_pairs([files], "utf-8"), ("en", "de")))
    pairs[1000:2000] = [pair[::-1] for pair in pairs[1000:2000]]
    if len(pairs) > 2000:
        with pytest.raises(DataError, match="exchange these lines"):
            read(pairs)
