"""PyTorch's LSTM with the weights of foveal's, for tests that compare with it."""

import torch


def torch_lstm(lstm):
    """The bidirectional ``nn.LSTM`` that computes what ``lstm`` computes without padding."""
    other = torch.nn.LSTM(lstm.channels, lstm.hidden, batch_first=True, bidirectional=True).to(lstm.bias[0].dtype)
    with torch.no_grad():
        for direction, end in ((0, ""), (1, "_reverse")):
            getattr(other, f"weight_ih_l0{end}").copy_(lstm.input[direction])
            getattr(other, f"weight_hh_l0{end}").copy_(lstm.state[direction])
            getattr(other, f"bias_ih_l0{end}").copy_(lstm.bias[direction])
            getattr(other, f"bias_hh_l0{end}").zero_()
    return other
