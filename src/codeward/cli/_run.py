"""``codeward run``: the main job."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from codeward.cli._cluster import name_cluster

if TYPE_CHECKING:
    from codeward.experiments import Experiment


def run(
    config: Path = typer.Argument(None, metavar="[CONFIG.yaml]", help="What to run; see configs/. Default: digits."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Override, such as attack.kind=blended."),
    output: Path = typer.Option(None, "-o", "--output", help="Run folder; by default runs/<data set>-<digest>."),
    engine: str = typer.Option(None, "--engine", metavar="serial|ray", help="Train here (default) or with Ray."),
    address: str = typer.Option(
        None, "--address", metavar="auto|HOST:PORT", help="Ray cluster to join; by default Ray starts on this machine."
    ),
    force: bool = typer.Option(False, "--force", help="Move a folder with another run aside (to FOLDER.1, ...)."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bars."),
    as_json: bool = typer.Option(False, "--json", help="Print the records as one JSON object."),
) -> None:
    """Train a code's sub-models under attack, decode their votes, and write a run folder.

    Without a configuration: scikit-learn's digits, 12 users, 15 sub-models that each learn from a third of them, a
    decoder with 5% false alarms, 0 to 3 attackers; the code names two of them. The paper's: --set decoder.name=bayes
    --set code.name=c. The folder gets the resolved configuration, one record a cell, vote files for decode and certify,
    and plots. Run it again to go on after an interruption, or to train models again that the folder lost; nothing is
    trained twice. Where it trains changes nothing in the results.

    Example: codeward run configs/mnist-c.yaml --set repeats=1 --set data_dir=data -o runs/mnist
    """
    from codeward.runs import load_config

    resolved = load_config(config, [*settings, *name_cluster(engine, address)])

    if resolved.dataset.endswith(".npz"):
        from codeward.experiments import settle_users

        invented = resolved.split.kind
        resolved = settle_users(resolved)
        if resolved.split.kind != invented:
            print(
                f"codeward: the groups of {resolved.dataset} are the users, {resolved.users} of them", file=sys.stderr
            )

    from codeward.runs import RunFolder

    folder = RunFolder(output or Path("runs") / f"{Path(resolved.dataset).stem}-{resolved.digest[:8]}")
    moved = folder.move_aside() if force else None
    if moved is not None:
        print(f"codeward: what was in {folder.path} is now in {moved}", file=sys.stderr)

    from codeward.experiments import Experiment

    experiment, records = Experiment(resolved, folder), []
    try:
        for cell, made in experiment.run(progress=not quiet and not as_json):
            records.append(cell.record)
            if not as_json:
                print(_line(cell.record, made), flush=True)
    except KeyboardInterrupt:
        print(f"codeward: interrupted; the same command with -o {folder.path} goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    plots = _draw(experiment, records)
    if as_json:
        print(json.dumps({"folder": str(folder.path), "records": records, "plots": [str(plot) for plot in plots]}))
        return
    from codeward.cli._run_summary import print_summary

    print_summary(folder, records)


def _draw(experiment: "Experiment", records: Sequence[dict[str, Any]]) -> list[Path]:
    """Draw the plots; a machine without matplotlib gets its records all the same."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("codeward: no plots, matplotlib is missing (pip install 'codeward[plot]')", file=sys.stderr)
        return []
    from codeward.codes import plot_code
    from codeward.report import plot_accuracy

    folder = experiment.folder
    plots = [folder.plots / name for name in ("accuracy.svg", "code.svg", "users.svg")]
    plot_accuracy(records, plots[0])
    if not plots[1].exists():
        plot_code(folder.code, plots[1])
    if not plots[2].exists():
        experiment.draw_users(plots[2])
    return plots


def _line(record: dict[str, Any], made: bool = True) -> str:
    work = record["work"]
    done = f"{work['trained']} of {work['models']} sub-models trained" if made else "already there"
    size = record["n_attackers"]
    return f"repeat {record['repeat']}, {size} attacker{'s' * (size != 1)}: {done}"
