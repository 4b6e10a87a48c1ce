"""Layers in forms with a second derivative of their own."""
