"""Texts, a tagger and a recipe small enough to train in a second, shared by the tests of documents."""

from pathlib import Path

NOUNS = {"cats": ("mice", "milk", "cushions"), "dogs": ("bones", "postmen", "gardens")}


def tag(tokens):
    """Universal tags by lists of words: enough for the texts below, in any process."""
    kinds = {"chase": "VERB", "love": "VERB", "old": "ADJ", "small": "ADJ", "often": "ADV", "the": "DET"}
    return [kinds.get(token.lower(), "NOUN" if token.isalpha() else "PUNCT") for token in tokens]


def write_texts(root: Path, train: int = 24, test: int = 10) -> Path:
    """A folder of datasets that holds textfolder/{train,test}/{cats,dogs}."""
    for split, count in (("train", train), ("test", test)):
        for kind, things in NOUNS.items():
            folder = root / "textfolder" / split / kind
            folder.mkdir(parents=True)
            for i in range(count):
                one, two = things[i % 3], things[(i + 1) % 3]
                text = f"The old animals often chase small {one}. They love {two}! Number {i} is here."
                (folder / f"{i:02}.txt").write_text(text)
    return root


def recipe(**changes) -> list[str]:
    """``key=value`` overrides that make demo/document tiny."""
    tiny = {
        "data": "{name: textfolder, tagger: 'small_texts:tag', min_count: 1, sentences: 4, words: 8}",
        "model.channels": 8,
        "model.embedding": 8,
        "model.key_channels": 8,
        "train.epochs": 3,
        "train.batch": 8,
        "train.eval_batch": 8,
    }
    return [f"{key}={value}" for key, value in (tiny | changes).items()]
