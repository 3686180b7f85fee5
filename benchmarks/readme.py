"""What README shows: the default run and one verdict, printed by the commands themselves, and their pictures.

Usage: python -m benchmarks.readme [FOLDER | --idea | --results]

Writes docs/figures/run.txt, verdict.txt (what `codeward run` and `codeward decode` print), and of the figures of
`codeward report` run-votes.svg, run-accuracy.svg, run-alarms.svg and run-certified.svg. FOLDER keeps the run; without
it, it is forgotten. --idea draws the pictures of docs/concepts.md instead, which are those of examples/plot_idea.py;
--results those of docs/results.md, from the records in results/.
"""

import contextlib
import io
import json
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from codeward._files import write_text_atomic
from codeward.cli import main as codeward
from codeward.reproduction import (
    PackedRun,
    PackedSetting,
    draw_samples,
    draw_writers,
    load_sample_records,
    load_writer_records,
)

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"


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
        for name, kept in (("votes", "votes"), ("accuracy", "accuracy"), ("roc", "alarms"), ("certified", "certified")):
            shutil.copyfile(Path(run, "figures", f"{name}.svg"), FIGURES / f"run-{kept}.svg")
    return 0


STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "codeward",
    "font.family": "sans-serif",
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_results() -> int:
    """Write the pictures of the results: right labels under attack, certificates per sample."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        _, panels = pyplot.subplots(1, 2, figsize=(8, 3), sharey=True)
        settings = {"cifar10-iid": "as in the paper", "cifar10-iid-modern": "modern training"}
        for axis, (setting, title) in zip(panels, settings.items(), strict=True):
            run = PackedRun(PackedSetting(ROOT / "results" / setting), "c")
            decoder = "calibrated" if setting.endswith("modern") else "bayes"
            for shift, (who, color) in enumerate({"plurality": "#9aa5b1", decoder: "#1f5f7a"}.items()):
                shares = [_share_right(run.cell(0, k).record["figures"], k, who) for k in range(4)]
                name = "majority of 15 models" if who == "plurality" else "codeward"
                axis.bar([k + 0.4 * shift for k in range(4)], shares, 0.38, color=color, label=name)
            axis.set_xticks([k + 0.2 for k in range(4)], ["0", "1", "2", "3"])
            axis.set_xlabel("attackers among 12 users")
            axis.set_title(title)
        panels[0].set_ylabel("right labels")
        panels[0].set_ylim(0, 1)
        panels[0].figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False
        )
        pyplot.savefig(FIGURES / "results-labels.svg", metadata={"Date": None})
    # The pictures show a line a number of models; tables have the other codes and decoders.
    samples = [
        record | {"certified": {"runoff": record["certified"]["runoff"]}}
        for record in load_sample_records(ROOT / "results")
        if "backbone" not in record
    ]
    draw_samples(samples).save(FIGURES / "results-samples.svg")
    writers = [
        record | {"name": f"{record['models']} groups"}
        for record in load_writer_records(ROOT / "results" / "writers")[0]
        if record["name"].startswith("partition")
    ]
    draw_writers(writers).save(FIGURES / "writers.svg")
    return 0


def _share_right(figures: dict[str, Any], n_attackers: int, who: str) -> float:
    """Return the share of right labels of one cell: on triggered inputs, or on clean ones without attackers."""
    if who == "calibrated":
        part = figures["decoder"]["groups"][0]["all"] if n_attackers else figures["decoder"]["clean"]
        share = part["right"]
    else:
        share = (figures["groups"][0]["triggered"] if n_attackers else figures["clean"])["all"][who]
    return float(share["count"] / share["of"])


def draw_idea() -> int:
    """Write the four pictures of the idea, as its tutorial draws them."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    numbers = iter(range(1, 5))

    def keep() -> None:
        pyplot.savefig(FIGURES / f"idea-{next(numbers)}.svg", metadata={"Date": None})
        pyplot.close("all")

    with pyplot.rc_context(STYLE):
        pyplot.show = keep
        runpy.run_path(str(ROOT / "examples" / "plot_idea.py"))
    return 0


def _flagged(line: str) -> bool:
    return bool(json.loads(line)["suspects"])


if __name__ == "__main__":
    if "--results" in sys.argv:
        sys.exit(draw_results())
    sys.exit(draw_idea() if "--idea" in sys.argv else main(sys.argv[1] if len(sys.argv) > 1 else None))
