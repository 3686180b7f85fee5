"""The application, its exit codes, and the one line an error gets."""

import inspect
import sys

import click
import typer

from codeward._errors import InputError, UnmetError
from codeward.cli._certify import certify
from codeward.cli._compare import compare
from codeward.cli._decode import decode
from codeward.cli._design import design
from codeward.cli._design import inspect as inspect_code
from codeward.cli._federate import federate_app
from codeward.cli._own_data import data_app, features, train
from codeward.cli._referee import referee
from codeward.cli._report import report
from codeward.cli._reproduce import reproduce
from codeward.cli._run import revoke, run
from codeward.cli._serve import ledger_app, serve

#: Which extra brings a package that the core does without.
_EXTRAS = (
    dict.fromkeys(
        ("torch", "sklearn", "safetensors", "pydantic", "yaml", "jinja2", "pooch", "platformdirs", "skops"), "train"
    )
    | dict.fromkeys(("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "PIL", "starlette"), "serve")
    | {
        "ortools": "solver",
        "threadpoolctl": "train",
        "ray": "ray",
        "flwr": "flower",
        "cryptography": "flower",
    }
)

app = typer.Typer(
    name="codeward",
    help="Provable backdoor defense for collaborative learning.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from codeward import __version__

        typer.echo(f"codeward {__version__}")
        raise typer.Exit


#: What ``codeward`` alone prints: the way through the commands, for whoever is here for the first time.
_GUIDE = """\
codeward: provable backdoor defense for collaborative learning

  see it work         codeward run -o runs/demo
  read the result     codeward report runs/demo
  on your own data    codeward train people.csv --user clinic -o runs/mine
  guard an endpoint   codeward serve runs/mine
  remove somebody     codeward revoke runs/mine clinic-03
  only the code       codeward design --users 12 --attackers 2 -o code.json
  only the votes      codeward decode votes.npz --code code.json

codeward --help lists all commands; codeward COMMAND --help explains one.
codeward --install-completion completes commands with the Tab key."""


@app.callback()
def codeward(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Decide by a code which user feeds which sub-model; read the votes as a received word."""
    if context.invoked_subcommand is None:
        typer.echo(_GUIDE)


# One line a command, in the order of `codeward --help`.
app.command("design")(design)
app.command("inspect")(inspect_code)
app.command("run")(run)
app.command("train")(train)
app.add_typer(data_app, name="data")
app.command("features")(features)
app.command("decode")(decode)
app.command("certify")(certify)
app.command("compare")(compare)
app.command("referee")(referee)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.command("serve")(serve)
app.add_typer(ledger_app, name="ledger")
app.add_typer(federate_app, name="federate")
app.command("revoke")(revoke)


# Docstrings break their lines at the width of the sources; on a terminal a paragraph flows.
for _commands in (app, data_app, ledger_app, federate_app):
    for _command in _commands.registered_commands:
        _help = inspect.getdoc(_command.callback) or ""
        _command.help = "\n\n".join(" ".join(part.split()) for part in _help.split("\n\n"))


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Exit 0 when it worked, 2 for bad input (one line on stderr), 1 for a run that failed.

    Examples
    --------
    >>> main(["--version"])  # doctest: +ELLIPSIS
    codeward ...
    0
    """
    try:
        code = app(args=arguments, standalone_mode=False)
    except UnmetError as error:
        return _complain(str(error), 1)
    except InputError as error:
        return _complain(str(error), 2)
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", 130)
    except OSError as error:
        return _complain(str(error), 1)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _complain(f"{error.name} is not installed; pip install 'codeward[{extra}]' brings it", 2)
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        _complain(f"failed: {error}", 1)
        raise
    return code if isinstance(code, int) else 0


def _complain(message: str, status: int) -> int:
    print("codeward: " + " ".join(message.split()), file=sys.stderr)
    return status
