"""The command line of the comparison; it chooses a trial and a folder, and leaves the rest to the other modules."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from benchmarks.federated_attacks._records import run_cells, write_docs, write_tables
from benchmarks.federated_attacks._trial import MARGINS, TRIALS
from codeward.runs import pack_record_folder


def main() -> None:
    """Run what is missing, print the tables, and write them into the docs when asked."""
    parser = argparse.ArgumentParser(
        description="What stops a trigger in federated training? One global model under Flower's strategies against a "
        "code's sub-models."
    )
    parser.add_argument("--dataset", choices=sorted(TRIALS), default="digits")
    parser.add_argument("--data-dir", help="folder of data sets; by default $CODEWARD_DATA")
    parser.add_argument("--images-per-user", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attackers", type=int, nargs="+", default=[1, 2], choices=sorted(MARGINS))
    parser.add_argument("--output", type=Path, help="by default results/federated-<dataset>")
    parser.add_argument("--docs", action="store_true", help="only write the tables into docs/federated-attacks.md")
    options = parser.parse_args()
    folder = options.output or Path("results") / f"federated-{options.dataset}"
    trial = replace(TRIALS[options.dataset], data_dir=options.data_dir or os.environ.get("CODEWARD_DATA"))
    if options.images_per_user:
        trial = replace(trial, images_per_user=options.images_per_user)
    if not options.docs:
        run_cells(trial, options.seeds, options.attackers, folder)
        pack_record_folder(folder)
    tables = write_tables(folder)
    print(tables)
    if options.docs:
        write_docs(Path("docs") / "federated-attacks.md", options.dataset, tables)
