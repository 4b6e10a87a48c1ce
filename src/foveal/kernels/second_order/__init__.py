"""Layers in forms with a cheap second derivative."""
