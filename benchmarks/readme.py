"""What README shows: the default run and one verdict, printed by the commands themselves, and their pictures.

Usage: python -m benchmarks.readme [FOLDER]

Writes docs/figures/run.txt, verdict.txt (what `codeward run` and `codeward decode` print), run-votes.svg and
run-accuracy.svg (figures of `codeward report`). FOLDER keeps the run; without it, it is forgotten.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from codeward._files import write_text_atomic
from codeward.cli import main as codeward

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def show(*arguments: str) -> str:
    """Run a command and return what it prints, under the command itself."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = codeward(list(arguments))
    assert status == 0, arguments
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([f"$ codeward {' '.join(arguments)}", *lines]) + "\n"


def main(folder: str | None) -> int:
    """Write the texts and pictures."""
    os.environ["COLUMNS"] = "80"
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(folder or scratch)
        run = "runs/digits"
        write_text_atomic(FIGURES / "run.txt", show("run", "-o", run, "--quiet"))
        votes = f"{run}/votes/repeat0-attackers2"
        decode = ("decode", f"{votes}-triggered.npz", "--code", f"{run}/code.json", "--batch", "-o", "verdicts.jsonl")
        text = show(*decode)
        first = next(line for line in Path("verdicts.jsonl").read_text(encoding="utf-8").splitlines() if _flagged(line))
        write_text_atomic(FIGURES / "verdict.txt", f"{text}$ head -1 verdicts.jsonl\n{first}\n")
        show("report", run)
        for name in ("votes", "accuracy"):
            shutil.copyfile(Path(run, "figures", f"{name}.svg"), FIGURES / f"run-{name}.svg")
    return 0


def _flagged(line: str) -> bool:
    return bool(json.loads(line)["suspects"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
