"""Dynamic convolution: each position has its own weights for fixed taps."""
