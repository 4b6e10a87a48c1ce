"""The command line: a thin layer over the library, one file a group of commands."""

from foveal.cli.app import app, main

__all__ = ["app", "main"]
