"""Fused GPU code for a mechanism, and the plain PyTorch reference beside it.

Nothing here is needed to use the rest: where Triton or an NVIDIA GPU is missing, the plain forms serve.
"""

from foveal.kernels.support import fused_available

__all__ = ["fused_available"]
