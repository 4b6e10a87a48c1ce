"""Layers in forms whose second derivative is cheap."""
