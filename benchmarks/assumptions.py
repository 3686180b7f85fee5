"""What happens to the paper's decoder when triggers work less often than it assumes: digits, code c, paper's recipe.

    python -m benchmarks.assumptions [--repeats 5]

The share of an attacker's data that is poisoned decides how often the trigger works in a hit model. Prints, for each
share and number of attackers, how often it does, and the right labels of the plain vote and of the decoder with several
assumed success rates S, all on triggered inputs whose label is not the target: mean and standard deviation over repeats
in percent. Takes about a minute on two cores; needs no data beyond scikit-learn's.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import PluralityDecoder
from codeward.experiments import run_experiment
from codeward.reproduction import CellStudy
from codeward.runs import Cell, RunFolder, load_config

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.5)
SUCCESSES = (0.99, 0.9, 0.7, 0.4)
CODE = "c"


def measure(cell: Cell) -> NDArray[np.float64]:
    """Success in hit models, then right labels of the vote and of the decoder with each assumed S, in percent."""
    study, attack = CellStudy.of(cell), cell.groups[0]
    votes, labels = (part[study.others] for part in (cell.triggered[0].votes, cell.triggered[0].labels))
    worked = votes[:, cell.code.pattern(attack.attackers)] == attack.target
    given = [PluralityDecoder(n_classes=cell.n_classes).predict(votes)]
    given += [study.decoder(success_rate=success).predict(votes) for success in SUCCESSES]
    return 100 * np.array([worked.mean(), *((found == labels).mean() for found in given)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print("poisoned, attackers | trigger works | vote | " + " | ".join(f"S = {success}" for success in SUCCESSES))
    with tempfile.TemporaryDirectory() as folder:
        for fraction in FRACTIONS:
            place = Path(folder, str(fraction))
            settings = [
                "decoder.name=bayes",
                "training.recipe=paper",
                f"code.name={CODE}",
                f"attack.fraction={fraction}",
                f"repeats={options.repeats}",
            ]
            for _ in run_experiment(load_config(None, [*settings, f"store={folder}/store"]), place):
                pass
            for size in (1, 2, 3):
                found = [measure(Cell(RunFolder(place), r, size)) for r in range(options.repeats)]
                mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1 if len(found) > 1 else 0)
                cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(mean, spread, strict=True)]
                print(f"{fraction:.0%}, {size} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
