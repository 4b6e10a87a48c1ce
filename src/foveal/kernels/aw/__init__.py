"""Convolution with kernel-shaped attention: plain forms, a fused operator, its Triton code and launch."""
