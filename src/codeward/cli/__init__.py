"""The ``codeward`` command: one small module per command, heavy imports inside the functions."""

from codeward.cli._app import app, main

__all__ = ["app", "main"]
