"""Hierarchical attention networks for documents, with and without focused attention between words.

Wang, Samari, Kim, Chaudhuri, Siddiqi: "FAN: Focused Attention Networks" (https://arxiv.org/abs/1905.11498), on top
of Yang et al., "Hierarchical attention networks for document classification" (NAACL 2016).

A bidirectional LSTM reads words and attention over them gives a sentence vector; a second LSTM with attention over
sentences gives the document vector. FAN-hatt adds a branch: focused attention between the words of each sentence, whose
mean is concatenated with the sentence vector.

Departures, where the paper says nothing: the branch is pooled by its mean over real words, and no part of the network
reads padding.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from foveal.attention.focused import FocusedAttention
from foveal.attention.records.record import Attends
from foveal.errors import UserError
from foveal.models.lstm import BiLSTM
from foveal.models.registry import register


class SequenceAttention(Attends):
    """Sum of a sequence, weighted by how well each element matches a learnt context vector.

    With h the states, u_t = tanh(W h_t + b) and α = softmax_t(u_t · u)::

        out = Σ_t α_t h_t

    Args:
        channels: size C of the states.

    >>> attention = SequenceAttention(100)
    >>> attention(torch.rand(4, 30, 100), torch.ones(4, 30, dtype=torch.bool)).shape
    torch.Size([4, 100])
    >>> sum(p.numel() for p in attention.parameters())
    10200
    """

    kind = "spatial"
    normalised = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels, channels)
        self.context = nn.Parameter(torch.empty(channels))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.uniform_(self.context, -0.05, 0.05)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Attended states.

        Args:
            states: (..., T, C).
            mask: bool (..., T).

        Returns:
            (..., C), zero for a sequence of padding only. The record is α as maps: (N, S, T) for the words of S
            sentences, (N, 1, T) for T sentences.
        """
        scores = (torch.tanh(self.hidden(states)) @ self.context).float()
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
        self.note(weights if weights.ndim > 2 else weights.unsqueeze(1))
        return (weights.to(states.dtype).unsqueeze(-2) @ states).squeeze(-2)


class Reading(NamedTuple):
    """Output of a document network for N documents.

    Attributes:
        logits: (N, K), one for each class.
        pairs: affinities between the words of each sentence, (R, W, W) or (N, S, W, W); None without focused attention.
        mask: bool (R, W) or (N, S, W), true for words.
        place: int (R,), index of the pairs' sentences among all N · S; None if ``pairs`` has all of them.
    """

    logits: Tensor
    pairs: Tensor | None
    mask: Tensor
    place: Tensor | None


class DocumentNet(nn.Module):
    """Classify documents of S sentences of W words.

    Args:
        channels: size of the states of words, sentences and documents, even: half for each direction.
        vocabulary: number of words; 0 is padding, 1 the unknown word.
        classes: number of classes.
        embedding: size of the word vectors.
        focus: whether there is a branch of focused attention between words.
        supervised: whether training supervises that attention with labelled pairs; the network is the same.
        key_channels: size of keys and queries.
        heads: number of heads of the focused attention.
        focus_logits: ``learnt``, or ``zero`` for a control: every word then attends to all words equally, and the
            branch is the mean of the words' states. The projections to keys and queries are zero and frozen; all other
            weights are initialised as with ``learnt``.
        pool: pooling of the branch over words: ``mean`` or ``sum``.
        dropout: of word vectors, sentence vectors and the document vector.
        word_dropout: fraction of words that are replaced by the unknown word in training.
    """

    def __init__(
        self,
        channels: int = 100,
        *,
        vocabulary: int = 20_002,
        classes: int = 20,
        embedding: int = 100,
        focus: bool = True,
        supervised: bool = False,
        key_channels: int = 100,
        heads: int = 1,
        focus_logits: Literal["learnt", "zero"] = "learnt",
        pool: Literal["mean", "sum"] = "mean",
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if channels < 2 or channels % 2 or min(vocabulary, classes, embedding) < 1:
            raise UserError(
                f"channels={channels}, vocabulary={vocabulary}, classes={classes}, embedding={embedding}: expected at "
                "least 1 of each, and channels even"
            )
        if not 0 <= word_dropout < 1:
            raise UserError(f"word_dropout={word_dropout}: expected at least 0 and below 1")
        if focus_logits == "zero" and (supervised or not focus):
            raise UserError(
                "focus_logits=zero is for focused attention that is not supervised; use the model fan_hatt_unsup"
            )
        self.supervised, self.pool, self.word_dropout = supervised and focus, pool, word_dropout
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.words = BiLSTM(embedding, hidden=channels // 2)
        self.word_attention = SequenceAttention(channels)
        self.focus = FocusedAttention(channels, key_channels=key_channels, heads=heads) if focus else None
        self.sentences = BiLSTM(channels * (1 + focus), hidden=channels // 2)
        self.sentence_attention = SequenceAttention(channels)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, classes)
        self.reset_parameters()
        if self.focus is not None and focus_logits == "zero":
            for projection in (self.focus.key, self.focus.query):
                nn.init.zeros_(projection.weight)
                projection.requires_grad_(False)

    def reset_parameters(self) -> None:
        """Initialise as Keras does; submodules initialise themselves."""
        nn.init.xavier_uniform_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        with torch.no_grad():
            self.embedding.weight[0] = 0

    def set_vectors(self, vectors: Tensor) -> None:
        """Initialise with word vectors (vocabulary, embedding), such as GloVe's; training changes them."""
        if vectors.shape != self.embedding.weight.shape:
            raise UserError(
                f"word vectors {tuple(vectors.shape)} do not fit the model's {tuple(self.embedding.weight.shape)}; set "
                f"model.embedding={vectors.shape[-1]}"
            )
        with torch.no_grad():
            self.embedding.weight.copy_(vectors)
            self.embedding.weight[0] = 0

    def forward(self, words: Tensor) -> Tensor:
        """Logits (N, classes) of documents ``words`` int (N, S, W), 0 for padding."""
        return self.read(words).logits

    def read(self, words: Tensor) -> Reading:
        """Logits of documents and the affinities between their words.

        Args:
            words: int (N, S, W), 0 for padding; a document may be empty (all padding).
        """
        if words.ndim != 3 or words.dtype.is_floating_point:
            raise UserError(f"words must be integers (N, S, W), got {words.dtype} {tuple(words.shape)}")
        mask = words > 0
        real = mask.any(2)
        words = self._dropped(words, mask)
        if self._whole():
            vectors, pairs = self._sentences(words, mask)
            return Reading(self._document(vectors, real), pairs, mask, None)
        # Empty sentences, often half of all, are left out; nonzero is the only synchronisation with the GPU.
        place = real.flatten().nonzero().squeeze(1)
        words, mask = (tensor.flatten(0, 1).index_select(0, place) for tensor in (words, mask))
        sentences, pairs = self._sentences(words, mask)
        vectors = sentences.new_zeros(real.numel(), sentences.shape[-1]).index_copy(0, place, sentences)
        return Reading(self._document(vectors.view(*real.shape, -1), real), pairs, mask, place)

    def _whole(self) -> bool:
        """Whether to keep empty sentences: records need their positions, compiled code needs one shape."""
        watched = any(module.watchers for module in self.modules() if isinstance(module, Attends))
        return watched or torch.compiler.is_compiling()

    def _dropped(self, words: Tensor, mask: Tensor) -> Tensor:
        if not (self.training and self.word_dropout):
            return words
        dropped = torch.rand(words.shape, device=words.device) < self.word_dropout
        return torch.where(dropped & mask, 1, words)  # 1 is the unknown word

    def _sentences(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors (..., C) of sentences (..., W), and the affinities of their words (..., W, W)."""
        vectors = self.dropout(self.embedding(words))
        states = self.words(vectors.flatten(0, -3), mask.flatten(0, -2))
        states = states.view(*words.shape, states.shape[-1])
        attended = self.word_attention(states, mask)
        if self.focus is None:
            return attended, None
        gathered, pairs = self.focus(states, mask)
        pooled = gathered.sum(-2)
        if self.pool == "mean":
            pooled = pooled / mask.sum(-1, keepdim=True).clamp_min(1)
        return torch.cat([attended, pooled.to(attended.dtype)], -1), pairs

    def _document(self, vectors: Tensor, real: Tensor) -> Tensor:
        """Logits (N, K) of documents from the vectors (N, S, C) of their sentences."""
        states = self.sentences(self.dropout(vectors), real)
        return self.classifier(self.dropout(self.sentence_attention(states, real)))


@register(DocumentNet)
def hatt(**options: Any) -> DocumentNet:
    """Hatt: attention over words, then over sentences."""
    return DocumentNet(**{"focus": False, **options})


@register(DocumentNet)
def fan_hatt_unsup(**options: Any) -> DocumentNet:
    """FAN-hatt-unsup: Hatt with focused attention between words, trained by the class alone."""
    return DocumentNet(**{"focus": True, "supervised": False, **options})


@register(DocumentNet)
def fan_hatt_sup(**options: Any) -> DocumentNet:
    """FAN-hatt-sup: the same, its attention between words supervised by the center-mass loss."""
    return DocumentNet(**{"focus": True, "supervised": True, **options})
