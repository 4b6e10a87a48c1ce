"""The LSTM for padded sequences, compared with PyTorch's one sequence at a time."""

import pytest
import torch
from torch_lstm import torch_lstm

from foveal.errors import UserError
from foveal.models.lstm import BiLSTM


@pytest.mark.parametrize("form", ["packed", "flipped"])
def test_lstm_against_torch_sequence_by_sequence(form):
    """Values and gradients; what is in the padding does not matter."""
    torch.manual_seed(0)
    lstm = BiLSTM(4, hidden=3).double()
    other = torch_lstm(lstm)
    x = torch.randn(5, 6, 4, dtype=torch.float64, requires_grad=True)
    length = torch.tensor([6, 1, 4, 0, 5])
    mask = torch.arange(6) < length[:, None]
    run = lstm._packed if form == "packed" else lstm._flipped
    out = run(x, length).masked_fill(~mask[:, :, None], 0)
    expected = torch.zeros_like(out)
    for i, n in enumerate(length.tolist()):
        if n:
            expected[i, :n] = other(x[i : i + 1, :n])[0][0]
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lstm(x, mask), expected)
    weight = torch.randn_like(out)
    gradient, wanted = (torch.autograd.grad((o * weight).sum(), x)[0] for o in (out, expected))
    torch.testing.assert_close(gradient, wanted)
    assert gradient[~mask].abs().sum() == 0


def test_lstm_without_sequences_and_with_gaps():
    lstm = BiLSTM(4, hidden=3)
    assert lstm(torch.zeros(0, 6, 4), torch.zeros(0, 6, dtype=torch.bool)).shape == (0, 6, 6)
    gap = torch.tensor([[True, False, True, False]])
    out = lstm(torch.randn(1, 4, 4), gap)
    assert (out[0, 1] == 0).all()
    assert (out[0, 2] != 0).all()
    with pytest.raises(UserError, match="at least 1"):
        BiLSTM(4, hidden=0)


def test_lstm_starts_as_keras_does():
    lstm = BiLSTM(10, hidden=8)
    for state, bias in zip(lstm.state, lstm.bias, strict=True):
        torch.testing.assert_close(state.T @ state, torch.eye(8))
        assert bias.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
