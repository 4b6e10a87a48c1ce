"""Sentences as numbers of subwords: byte pair encoding by ``tokenizers``, one vocabulary for both languages.

Sennrich, Haddow, Birch: "Neural machine translation of rare words with subword units"
(https://arxiv.org/abs/1508.07909). A piece that begins a word starts with ``▁``; punctuation marks are pieces of their
own. So a sentence can be put together again without a rule of any language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from foveal.errors import DataError, UserError

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  # padding, an unknown character, the beginning and the end
PAD, UNKNOWN, BEGIN, END = range(4)
SPACE = "▁"
CHARACTERS = 1000  # that a vocabulary has at most


def _library() -> Any:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise UserError("texts are cut into subwords by the library tokenizers: install foveal[translate]") from error
    return tokenizers


class Subwords:
    """A vocabulary of subwords.

    Args:
        tokenizer: of the library.
        lowercase: whether texts are turned into small letters.

    >>> subwords = Subwords.train(lambda: ["low lower lowest", "new newer newest"] * 9, 30)
    >>> numbers = subwords.encode(["newest, low"])[0]
    >>> subwords.pieces(numbers)[:2], subwords.decode([numbers])
    (['newest', '�'], ['newest low'])
    """

    def __init__(self, tokenizer: Any, lowercase: bool = False) -> None:
        self.tokenizer, self.lowercase = tokenizer, lowercase
        tokenizer.encode_special_tokens = True  # "</s>" in a text is a text

    @classmethod
    def train(cls, read: Callable[[], Iterable[str]], size: int, lowercase: bool = False) -> Subwords:
        """Learn at most ``size`` pieces, with the special ones and the commonest characters, from texts.

        Args:
            read: reads the texts anew; called twice.
            size: of the vocabulary.
            lowercase: whether texts are turned into small letters.
        """
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE(unk_token=SPECIAL[UNKNOWN]))
        split = library.pre_tokenizers
        tokenizer.pre_tokenizer = split.Sequence([split.Metaspace(), split.Punctuation()])
        tokenizer.decoder = library.decoders.Metaspace()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            show_progress=False,
            limit_alphabet=CHARACTERS,
            initial_alphabet=_commonest(cleaned(text, lowercase) for text in read()),
        )
        tokenizer.train_from_iterator((cleaned(text, lowercase) for text in read()), trainer)
        return cls(tokenizer, lowercase)

    @classmethod
    def load(cls, text: str, lowercase: bool = False) -> Subwords:
        """What :meth:`dump` returned."""
        try:
            tokenizer = _library().Tokenizer.from_str(text)
        except UserError:
            raise
        except Exception as error:  # the library raises no other class
            raise DataError(f"no vocabulary of subwords: {error}") from error
        return cls(tokenizer, lowercase)

    def dump(self) -> str:
        """All of it as JSON."""
        return self.tokenizer.to_str()

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Numbers of the pieces of each text, without beginning and end."""
        cleaned_texts = [cleaned(text, self.lowercase) for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(cleaned_texts, add_special_tokens=False)]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Texts of rows of numbers, each up to its end; special ones are left out."""
        rows = [list(row[: row.index(END)] if END in row else row) for row in map(list, numbers)]
        return [" ".join(text.split()) for text in self.tokenizer.decode_batch(rows, skip_special_tokens=True)]

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """Each piece for a person: one that continues a word after a dot, an unknown character as one, the end as ⏎.

        Padding and what follows the end are left out.
        """
        shown = []
        for number in numbers:
            if number in (PAD, BEGIN):
                continue
            piece = self.tokenizer.id_to_token(number) or ""
            if number in (UNKNOWN, END):
                shown.append("�" if number == UNKNOWN else "⏎")
            elif piece.startswith(SPACE) or not piece[:1].isalnum():
                shown.append(piece.removeprefix(SPACE) or SPACE)
            else:
                shown.append(f"·{piece}")
            if number == END:
                break
        return shown


def _commonest(texts: Iterable[str]) -> list[str]:
    """The commonest characters if there are too many: of equally rare ones, the library would keep random ones."""
    counts = Counter({SPACE: 0})
    for text in texts:
        counts.update(text)
    counts[SPACE] += counts.pop(" ", 0)
    if len(counts) <= CHARACTERS:
        return []
    return sorted(counts, key=lambda character: (-counts[character], character))[:CHARACTERS]


def cleaned(text: str, lowercase: bool = False) -> str:
    r"""A text with single spaces, in small letters if so asked.

    >>> cleaned(" A\tman \u00a0 rides. ", lowercase=True)
    'a man rides.'
    """
    text = " ".join(text.split())
    return text.lower() if lowercase else text
