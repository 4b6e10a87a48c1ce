"""Fused GPU kernels of foveal's operations: one folder a kernel, with the plain PyTorch form beside it.

The rest of foveal works without them: where Triton or an NVIDIA GPU is missing, the plain forms run.
"""

from foveal.kernels.support import fused_available

__all__ = ["fused_available"]
