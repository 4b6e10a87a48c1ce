"""A bidirectional LSTM for padded sequences.

Two things differ from :class:`torch.nn.LSTM`. There is one bias vector for each direction, as in Keras, and weights
start as there: Glorot-uniform, orthogonal where states meet, zero biases but one for the forget gate. And padding is
seen by neither direction: a backward LSTM that begins in the padding enters the sentence with a state that depends on
how long the longest sentence of the batch is.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from foveal.errors import UserError

# cuDNN wants all weights in one piece of memory and gathers them at every call, which is little work for these.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class BiLSTM(nn.Module):
    """Run an LSTM over sequences in both directions.

    Args:
        channels: size D of the input.
        hidden: size H of the state of each direction.

    >>> lstm = BiLSTM(100, hidden=50)
    >>> sum(p.numel() for p in lstm.parameters())
    60400
    >>> lstm(torch.rand(2, 30, 100), torch.ones(2, 30, dtype=torch.bool)).shape
    torch.Size([2, 30, 100])
    """

    def __init__(self, channels: int, *, hidden: int) -> None:
        super().__init__()
        if min(channels, hidden) < 1:
            raise UserError(f"channels={channels}, hidden={hidden}: expected at least 1 of each")
        self.channels, self.hidden = channels, hidden
        # First the forward direction, then the backward one.
        self.input = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden, channels)) for _ in range(2))
        self.state = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden, hidden)) for _ in range(2))
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as Keras does."""
        for weight, state, bias in zip(self.input, self.state, self.bias, strict=True):
            nn.init.xavier_uniform_(weight)
            nn.init.orthogonal_(state)
            nn.init.zeros_(bias)
            with torch.no_grad():
                bias[self.hidden : 2 * self.hidden] = 1.0  # the order is input, forget, cell, output

    def forward(self, sequences: Tensor, mask: Tensor) -> Tensor:
        """States of both directions.

        Args:
            sequences: (B, T, D), padded at their ends.
            mask: bool (B, T), true for real positions. A gap before the last real position is read as it is.

        Returns:
            (B, T, 2H), forward states first, zero at padding.
        """
        if not len(sequences):
            return sequences.new_zeros(*sequences.shape[:2], 2 * self.hidden)
        length = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)
        if sequences.is_cuda or torch.compiler.is_compiling():
            states = self._flipped(sequences, length)
        else:
            states = self._packed(sequences, length)
        return states.masked_fill(~mask[:, :, None], 0)

    def _weights(self, direction: int) -> list[Tensor]:
        bias = self.bias[direction]
        return [self.input[direction], self.state[direction], bias, torch.zeros_like(bias)]

    def _flipped(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Each direction as a forward LSTM, the second over sequences turned around within their length.

        Padding then comes after everything that counts. Nothing waits for the lengths, so a GPU can run ahead.
        """
        place = torch.arange(sequences.shape[1], device=sequences.device).expand(sequences.shape[:2])
        turn = torch.where(place < length[:, None], length[:, None] - 1 - place, place)
        forward = self._run(sequences, 0)
        back = self._run(_take(sequences, turn), 1)
        return torch.cat([forward, _take(back, turn)], 2)

    def _run(self, sequences: Tensor, direction: int) -> Tensor:
        start = sequences.new_zeros(1, len(sequences), self.hidden)
        options = (
            True,
            1,
            0.0,
            self.training,
            False,
            True,
        )  # biases, layers, dropout, training, both ways, batch first
        return torch.lstm(sequences, (start, start), self._weights(direction), *options)[0]

    def _packed(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Both directions at once over real positions only: less work, but the lengths must be known here and now."""
        pack = nn.utils.rnn.pack_padded_sequence
        packed = pack(sequences, length.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
        start = sequences.new_zeros(2, len(sequences), self.hidden)
        weights = [*self._weights(0), *self._weights(1)]
        options = (True, 1, 0.0, self.training, True)
        data = torch.lstm(packed.data, packed.batch_sizes, (start, start), weights, *options)[0]
        states = nn.utils.rnn.PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=sequences.shape[1])[0]

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.channels}, hidden={self.hidden}"


def _take(sequences: Tensor, place: Tensor) -> Tensor:
    """Positions ``place`` (B, T) of each sequence (B, T, D)."""
    return sequences.gather(1, place[:, :, None].expand_as(sequences))
