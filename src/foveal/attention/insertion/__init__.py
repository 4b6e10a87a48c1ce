"""Attention put into a live model and taken out again: registry, sites, dry run."""
