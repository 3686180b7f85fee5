"""``codeward federate collect``: a run folder from the models of a federation."""

import json
from pathlib import Path

import typer


def collect(
    federation: Path = typer.Argument(..., help="Folder with result.json: server/federation of a consortium."),
    dataset: str = typer.Option(..., "--data", help="Labelled test data: a data set by name, or an .npz file."),
    data_dir: Path = typer.Option(None, "--data-dir", help="Where named data sets are kept."),
    output: Path = typer.Option(..., "--output", "-o", help="Run folder to make."),
    as_json: bool = typer.Option(False, "--json", help="Print the record as one JSON object."),
) -> None:
    """Make a run folder of a federation that has finished, for decode, certify, report and serve.

    The users' data stay where they are: the server asks the models about labelled test data of its own. Half of them
    estimates how each model errs, the other half is counted.

    Example: codeward federate collect server/federation --data test.npz -o runs/consortium
    """
    from codeward.experiments._collection import collect_federation

    record = collect_federation(federation, dataset, output, data_dir)
    if as_json:
        print(json.dumps({"folder": str(output), "records": [record]}))
        return
    print(f"{output}: {len(record['federated']['keys'])} sub-models, {len(record['federated']['rounds'])} rounds")
