"""A bidirectional LSTM for padded sequences.

Two differences from :class:`torch.nn.LSTM`. Each direction has one bias vector, and weights are initialised as in
Keras: Glorot-uniform for inputs, orthogonal for states, zero biases except ones for the forget gate. And neither
direction reads padding: a backward LSTM that starts in the padding would enter the sentence with a state that depends
on the longest sentence of the batch.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from foveal.errors import UserError

# cuDNN needs all weights in one contiguous chunk and copies them at every call; these are small.
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
        # Index 0 is the forward direction, 1 the backward one.
        self.input = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden, channels)) for _ in range(2))
        self.state = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden, hidden)) for _ in range(2))
        self.bias = nn.ParameterList(nn.Parameter(torch.empty(4 * hidden)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as Keras does."""
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
            mask: bool (B, T), true for real positions. Masked positions before the last real one are read too.

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
        """Each direction as a forward LSTM, the second over sequences reversed within their length.

        Padding then follows all real positions. The lengths stay on the GPU, so there is no synchronisation.
        """
        positions = torch.arange(sequences.shape[1], device=sequences.device).expand(sequences.shape[:2])
        reverse = torch.where(positions < length[:, None], length[:, None] - 1 - positions, positions)
        forward = self._run(sequences, 0)
        backward = self._run(_take(sequences, reverse), 1)
        return torch.cat([forward, _take(backward, reverse)], 2)

    def _run(self, sequences: Tensor, direction: int) -> Tensor:
        start = sequences.new_zeros(1, len(sequences), self.hidden)
        # biases, layers, dropout, training, bidirectional, batch first
        options = (True, 1, 0.0, self.training, False, True)
        return torch.lstm(sequences, (start, start), self._weights(direction), *options)[0]

    def _packed(self, sequences: Tensor, length: Tensor) -> Tensor:
        """Both directions at once over real positions only: less work, but the lengths are needed on the CPU."""
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


def _take(sequences: Tensor, positions: Tensor) -> Tensor:
    """The ``positions`` (B, T) of each sequence (B, T, D)."""
    return sequences.gather(1, positions[:, :, None].expand_as(sequences))
