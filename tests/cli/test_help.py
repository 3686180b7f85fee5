"""Every command explains itself, with an example, on a terminal of 80 columns."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from codeward.cli._app import app

ROOT = Path(__file__).parents[2]


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


def read_commands(text):
    """Return the commands that a page or a help text shows, as words; comments and prompts are taken off."""
    lines = re.sub(r"\\\n\s*", "", text).replace(" && ", "\n").splitlines()
    shown = [re.match(r"\s*(?:\$ |Example: )?codeward ([a-z].*)", line) for line in lines]
    return [
        shlex.split(found[1], comments=True)
        for found in shown
        if found and found[1].split()[0] in get_command(app).commands
    ]


def list_helps(command):
    """Return the help texts of a command and of those below it."""
    return [
        command.help or "",
        *(text for name in getattr(command, "commands", ()) for text in list_helps(command.commands[name])),
    ]


def parse(words):
    """Read a command as the command line does, without doing it."""
    command, context = get_command(app), None
    while isinstance(command, click.Group):
        context = command.make_context("codeward", list(words), parent=context)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    return command.make_context("codeward", list(words), parent=context)


def test_every_command_that_is_shown_is_understood():
    """A flag that was renamed, an argument that is missing: in pages and in the examples of --help."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")]
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages}
    tried = [(place, words) for place, text in texts.items() for words in read_commands(text)]
    examples = [("--help", words) for text in list_helps(get_command(app)) for words in read_commands(text)]
    assert len(tried) > 90
    assert len(examples) > 20
    wrong = []
    for place, words in tried + examples:
        try:
            parse(words)
        except click.ClickException as error:
            wrong.append(f"{place}: codeward {' '.join(words)}: {error.format_message()}")
    assert wrong == []
