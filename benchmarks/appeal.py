"""Certified accuracy of a vote with an appeal against the partition into 12 alone: `python -m benchmarks.appeal`.

Clean votes of the committed results (paper's recipe): partition a, with b or c as the second code of the same users.
"""

import argparse
from pathlib import Path

import numpy as np

from codeward.certificates import Certificates, certify
from codeward.codes import stack_codes
from codeward.decoding import AppealDecoder
from codeward.reproduction import PackedRun, PackedSetting

#: Most attackers.
LIMIT = 5


def hold(found: Certificates, labels: np.ndarray) -> np.ndarray:
    """Return, in percent, how many inputs are right and certified against k = 0 .. LIMIT users."""
    return np.array([100 * ((found.labels == labels) & (found.radius >= k)).mean() for k in range(LIMIT + 1)])


def main() -> None:
    """Print differences of means over repeats, with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=["cifar10-iid", "mnist-iid"])
    parser.add_argument("--most", type=int, nargs="*", default=[3, 4])
    asked = parser.parse_args()
    for name in asked.settings:
        runs = {run: PackedRun(PackedSetting(Path("results") / name), run) for run in "abc"}
        gains: dict[tuple[str, int], list[np.ndarray]] = {}
        alone = []
        for cell in (found for found in runs["a"].list_votes() if found[1] == 0):
            clean = {run: runs[run].cell(*cell).clean for run in runs}
            labels = np.asarray(clean["a"].labels)
            alone.append(hold(certify(clean["a"].votes, runs["a"].code, max_attackers=LIMIT), labels))
            for second in "bc":
                code = stack_codes(runs["a"].code, runs[second].code)
                votes = np.concatenate([clean["a"].votes, clean[second].votes], axis=1)
                for most in asked.most:
                    decoder = AppealDecoder(code, runs["a"].code.n_models, most, 10)
                    found = certify(votes, code, decoder=decoder, max_attackers=LIMIT)
                    gains.setdefault((second, most), []).append(hold(found, labels) - alone[-1])
        print(name, f"{len(alone)} repeats, partition alone:", np.mean(alone, axis=0).round(2))
        for (second, most), rows in gains.items():
            error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
            print(f"with {second}, q = {most}:", np.mean(rows, axis=0).round(3), "+-", error.round(3))


if __name__ == "__main__":
    main()
