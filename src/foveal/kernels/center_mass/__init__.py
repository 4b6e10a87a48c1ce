"""Log-sums over an attention matrix that is never stored: plain form, operator, Triton kernels and their launch."""
