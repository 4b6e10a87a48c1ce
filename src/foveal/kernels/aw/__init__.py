"""Convolution with kernel-shaped attention: plain forms, a fused operator, its Triton kernels and their launch."""
