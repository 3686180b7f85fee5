"""The ``codeward`` command: one small module per command, heavy imports inside the functions."""

from codeward.cli._app import main

__all__ = ["main"]
