"""Fused layers whose parameters are attributes, as in replicas of nn.DataParallel and inside FSDP."""

import pytest
import torch

from foveal.attention import CBAM, AWConv2d, SqueezeExcite
from foveal.kernels.aw import branch
from foveal.kernels.aw import fused as aw
from foveal.kernels.gates import fused as gates

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def replica(module):
    """A copy without parameters of its own: they are attributes, as torch.nn.parallel.replicate makes them."""
    copy = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(copy, name, None if parameter is None else parameter.clone())
    for name, child in module._modules.items():
        copy._modules[name] = None if child is None else replica(child)
    return copy


@pytest.mark.parametrize(
    "make",
    [lambda: AWConv2d(8, 16, 1), lambda: AWConv2d(8, 16, 3, padding=1), lambda: SqueezeExcite(8), lambda: CBAM(8)],
    ids=["pointwise", "aw", "se", "cbam"],
)
def test_a_replica_computes_the_same(make, monkeypatch):
    for module in (branch, aw, gates):
        monkeypatch.setattr(module, "fused_available", lambda device: True)
    torch.manual_seed(0)
    layer = make().to(DEVICE).eval()
    x = torch.randn(2, 8, 6, 5, device=DEVICE).to(memory_format=torch.channels_last)
    torch.testing.assert_close(replica(layer)(x), layer(x))
