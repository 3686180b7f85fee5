"""Every command explains itself, with an example, on a terminal of 80 columns."""

from itertools import pairwise

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from codeward.cli._app import app


def list_commands(command, path=()):
    if isinstance(command, click.Group):
        return [found for name in command.commands for found in list_commands(command.commands[name], (*path, name))]
    return [path]


def list_groups(command, path=()):
    if not isinstance(command, click.Group):
        return []
    return [path, *(found for name in command.commands for found in list_groups(command.commands[name], (*path, name)))]


@pytest.mark.parametrize("path", list_commands(get_command(app)), ids=" ".join)
def test_help_has_an_example_and_fits_the_terminal(path):
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Example" in shown.output
    assert f"codeward {' '.join(path)}" in " ".join(shown.output.split())
    assert max(map(len, shown.output.splitlines())) <= 80


@pytest.mark.parametrize("path", list_groups(get_command(app)), ids=" ".join)
def test_help_of_a_group_lists_its_commands_and_fits_the_terminal(path):
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "Example" in shown.output or not path
    group = get_command(app)
    for name in path:
        group = group.commands[name]
    assert all(f" {name} " in shown.output for name in group.commands)


def test_paragraphs_flow():
    shown = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, ["train", "--help"])
    said = shown.output.split("Says first")[1].split("Example")[0].strip().splitlines()
    said[0] = f" Says first {said[0]}"
    # A line ends where the next word would not fit, not where the docstring breaks.
    assert all(len(line.rstrip()) + 1 + len(after.split()[0]) > 78 for line, after in pairwise(said))


def test_the_command_alone_prints_a_guide(capsys):
    from codeward.cli import main

    assert main([]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    named = {line.split("codeward ")[1].split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert named <= set(get_command(app).commands) | {"train"}
