"""Sentences and words."""

import pytest

from foveal.data.text.tokens import is_word, sentences, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  \n \n ", []),
        ("No end", ["No end"]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("It cost 3.5 euros. Cheap.", ["It cost 3.5 euros.", "Cheap."]),
        ("Mr. Smith met J. Doe. He left.", ["Mr. Smith met J. Doe.", "He left."]),
        ("See e.g. This one.", ["See e.g. This one."]),
        ("wait... what is it", ["wait... what is it"]),
        ("i like it. it is good", ["i like it.", "it is good"]),
        ("First\n\nsecond\nline", ["First", "second\nline"]),
        ("From: me\nSubject: cars\nLines: 3\n\nHi", ["From: me", "Subject: cars", "Lines: 3", "Hi"]),
        ('He message "no." Then left.', ['He message "no."', "Then left."]),
        ("www.foveal.org is up. Go!", ["www.foveal.org is up.", "Go!"]),
        ("日本。語！", ["日本。", "語！"]),
    ],
)
def test_sentences(text, expected):
    assert list(sentences(text)) == expected


def test_tokens():
    assert tokens("I can’t, won't: we'll see John's 1,000.5 e-mails!") == [
        "I", "ca", "n't", ",", "wo", "n't", ":", "we", "'ll", "see", "John", "'s", "1,000.5", "e", "-", "mails", "!",
    ]  # fmt: skip
    assert tokens("naïve Straße snake_case") == ["naïve", "Straße", "snake", "_", "case"]
    assert tokens("\ufffd\x00 ok") == ["\ufffd", "\x00", "ok"]
    assert [token for token in tokens("a \ufffd !") if is_word(token)] == ["a"]
