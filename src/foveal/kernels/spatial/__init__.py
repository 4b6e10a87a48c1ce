"""Attention over positions with up to four additive terms."""
