"""Words and their tags."""

import sys
import types

import pytest
import torch

from foveal.data.formats.conllu import read_conllu
from foveal.data.text.encode import Form, prepare
from foveal.data.text.tagging import PENN, UNIVERSAL, accuracy, find_tagger, penn
from foveal.errors import UserError
from foveal.supervise import Tag, word_pairs

CONLLU = """# sent_id = 1
# text = Fast cars don't stop.
1\tFast\tfast\tADJ\tJJ\t_\t2\tamod\t_\t_
2\tcars\tcar\tNOUN\tNNS\t_\t5\tnsubj\t_\t_
3-4\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
3\tdo\tdo\tAUX\tVBP\t_\t5\taux\t_\t_
4\tn't\tnot\tPART\tRB\t_\t5\tadvmod\t_\t_
5\tstop\tstop\tVERB\tVB\t_\t0\troot\t_\t_
5.1\tx\t_\t_\t_\t_\t_\t_\t_\t_
6\t.\t.\tPUNCT\t.\t_\t5\tpunct\t_\t_

"""


@pytest.fixture
def pattern():
    pytest.importorskip("textblob", reason="part-of-speech tags: install foveal[text]")
    return find_tagger("pattern")


def test_every_tag_of_the_tagset_is_known():
    assert set(PENN.values()) == {tag for tag in Tag if tag is not Tag.PAD}
    assert set(UNIVERSAL.values()) == {tag for tag in Tag if tag is not Tag.PAD}
    assert [penn(name) for name in ("NNP-PERS", "NN", "VBZ", "??", "")] == [
        Tag.NOUN, Tag.NOUN, Tag.VERB, Tag.X, Tag.X,
    ]  # fmt: skip


def test_the_tagger_that_comes_along(pattern):
    tags = pattern(["the", "old", "cars", "never", "stop", "here", "."])
    assert tags == [Tag.DET, Tag.ADJ, Tag.NOUN, Tag.ADV, Tag.VERB, Tag.ADV, Tag.PUNCT]
    assert pattern([]) == []
    assert len(pattern(["", "\x00", "x" * 5000, "日本語"])) == 4
    pairs = word_pairs(torch.tensor(tags))
    assert pairs[1, 2]  # adjective and noun
    assert pairs[3, 4]  # adverb and verb
    assert not pairs[0].any()


def test_tags_stay_with_their_words_through_cutting(pattern):
    text = "Well, the old ship sails very slowly! It sank."
    whole = prepare(text, Form(15, 30))
    assert whole[0][0] == ["well", "the", "old", "ship", "sails", "very", "slowly"]
    assert whole[0][1][3] == Tag.NOUN
    assert len(whole) == 2
    cut = prepare(text, Form(1, 4))
    assert cut == [(whole[0][0][:4], whole[0][1][:4])]


def test_on_real_data(pattern, real_data):
    file = real_data / "pos" / "en_ewt-ud-test.conllu"
    if not file.is_file():
        pytest.skip("real data: pos/en_ewt-ud-test.conllu of Universal Dependencies")
    sample = read_conllu(file)
    assert sum(map(len, sample)) == 25_094
    score = accuracy(pattern, sample)
    assert score["five"] > 0.93
    assert score["five_universal"] > 0.92
    assert score["all"] > 0.90


def test_scores(tmp_path):
    file = tmp_path / "some.conllu"
    file.write_text(CONLLU, encoding="utf-8")
    (sentence,) = read_conllu(file)
    assert [token for token, _, _ in sentence] == ["Fast", "cars", "do", "n't", "stop", "."]
    right = [Tag.ADJ, Tag.NOUN, Tag.VERB, Tag.ADV, Tag.VERB, Tag.PUNCT]
    assert accuracy(lambda _: right, [sentence]) == {"five": 1.0, "five_universal": 5 / 6, "all": 1.0}
    assert accuracy(lambda words: [Tag.DET] * len(words), [sentence])["five"] == pytest.approx(1 / 6)


def test_the_benchmark_runs(tmp_path, monkeypatch, capsys):
    import runpy
    from pathlib import Path

    script = Path(__file__).resolve().parents[3] / "benchmarks" / "tagger.py"
    file = tmp_path / "some.conllu"
    file.write_text(CONLLU, encoding="utf-8")
    mine = types.ModuleType("all_nouns")
    mine.tag = lambda words: ["NOUN"] * len(words)
    monkeypatch.setitem(sys.modules, "all_nouns", mine)
    monkeypatch.setattr(sys, "argv", [str(script), "--tagger", "all_nouns:tag", "--file", str(file)])
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert "6 tokens" in out
    assert "five             0.1667" in out


def test_a_tagger_of_your_own(monkeypatch):
    mine = types.ModuleType("my_taggers")
    mine.universal = lambda words: ["PROPN"] * len(words)
    mine.penn = lambda words: ["VBZ"] * len(words)
    mine.short = lambda words: ["NOUN"]
    mine.silent = lambda words: None
    mine.table = {"a": "NOUN"}
    monkeypatch.setitem(sys.modules, "my_taggers", mine)
    assert find_tagger("my_taggers:universal", "de")(["ein", "Haus"]) == [Tag.NOUN, Tag.NOUN]
    assert find_tagger("my_taggers:penn")(["is"]) == [Tag.VERB]
    with pytest.raises(UserError, match="1 tags for 2 tokens"):
        find_tagger("my_taggers:short")(["a", "b"])
    with pytest.raises(UserError, match="cannot be loaded"):
        find_tagger("my_taggers:nothing")
    with pytest.raises(UserError, match="my_taggers:silent returned NoneType; expected a list"):
        find_tagger("my_taggers:silent")(["a"])
    with pytest.raises(UserError, match="my_taggers:table is not a function but dict"):
        find_tagger("my_taggers:table")


def test_spacy_where_it_is(monkeypatch):
    """A stand-in for spaCy: what is asked of it, and what becomes of its tags."""
    asked = {}

    class Pipeline:
        vocab = "vocabulary"

        def __call__(self, doc):
            return [types.SimpleNamespace(pos_=pos) for pos, _ in zip(("PROPN", "AUX", "SPACE"), doc, strict=False)]

    def load(model, exclude):
        asked[model] = exclude
        if model == "missing":
            raise OSError("no such model")
        return Pipeline()

    fake = types.ModuleType("spacy")
    fake.load = load
    fake.tokens = types.SimpleNamespace(Doc=lambda vocab, words: words)
    monkeypatch.setitem(sys.modules, "spacy", fake)
    assert find_tagger("spacy:small", "de")(["Rom", "ist", " "]) == [Tag.NOUN, Tag.VERB, Tag.X]
    assert "ner" in asked["small"]
    with pytest.raises(UserError, match="spaCy has no model 'missing'"):
        find_tagger("spacy:missing")


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        ("pattern", "de", r"knows en and not 'de'; use data.tagger=spacy:MODEL.*data.tagger=none"),
        ("patern", "en", "unknown tagger 'patern'"),
        ("no_such_module:tag", "en", "cannot be loaded"),
        (":", "en", "cannot be loaded.*use module:function"),
        (".a:b", "en", "cannot be loaded"),
    ],
)
def test_no_tagger(name, language, message):
    with pytest.raises(UserError, match=message):
        find_tagger(name, language)


def test_without_textblob(monkeypatch):
    from foveal.data.text import tagging

    tagging._find.cache_clear()
    monkeypatch.setitem(sys.modules, "textblob", None)
    monkeypatch.setitem(sys.modules, "textblob.en", None)
    with pytest.raises(UserError, match=r"install foveal\[text\], or use data.tagger=none"):
        find_tagger("pattern")
    tagging._find.cache_clear()
