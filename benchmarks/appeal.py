"""Certified accuracy of a vote with an appeal against the partition into 12 alone: `python -m benchmarks.appeal`.

Clean votes of the results: partition a, with b or c as the second code of the same users. The threshold q is chosen on
each repeat's validation votes: of those that lose nothing there at any k, the one that gains most. Test inputs are
asked once.
"""

import argparse
from itertools import product

import numpy as np

from codeward.certificates import certify
from codeward.codes import stack_codes
from codeward.decoding import AppealDecoder, VoteSet
from codeward.reproduction import list_runs

#: Attackers that are counted, and the thresholds that are tried.
SIZES, THRESHOLDS = range(4), range(2, 7)


def hold(decoder: AppealDecoder | None, code: object, given: VoteSet) -> np.ndarray:
    """Return, in percent, how many inputs are right and certified against k users, for each of SIZES."""
    found = certify(given.votes, code, decoder=decoder or "plurality", n_classes=10, max_attackers=SIZES[-1])
    return np.array([100 * ((found.labels == given.labels) & (found.radius >= k)).mean() for k in SIZES])


def main() -> None:
    """Print differences of means over repeats, with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=["cifar10-iid-modern", "mnist-iid-modern"])
    parser.add_argument("--results", default="results")
    asked = parser.parse_args()
    known = list_runs(asked.results)
    for name, second in product(asked.settings, "bc"):
        runs = [known[path] for path in (f"{name}/a", f"{name}/{second}") if path in known]
        cells = [
            cell for cell in runs[0].list_votes() if cell[1] == 0 and all(cell in run.list_votes() for run in runs)
        ]
        if len(runs) < 2 or len(cells) < 2:
            continue
        code = stack_codes(*(run.code for run in runs))
        alone, gains, chosen = [], [], []
        for place in cells:
            both = [run.cell(*place) for run in runs]
            parts = [(cell.validation, cell.clean) for cell in both]
            validation, clean = (
                VoteSet(np.concatenate([said.votes for said in side], axis=1), side[0].labels)
                for side in zip(*parts, strict=True)
            )
            decoders = {q: AppealDecoder(code, runs[0].code.n_models, q, 10) for q in THRESHOLDS}
            before = hold(None, runs[0].code, parts[0][0])
            tried = {q: hold(decoder, code, validation) - before for q, decoder in decoders.items()}
            best = max(THRESHOLDS, key=lambda q: (tried[q].min() >= 0, tried[q].sum()))
            alone.append(hold(None, runs[0].code, parts[0][1]))
            gains.append(hold(decoders[best], code, clean) - alone[-1])
            chosen.append(best)
        error = np.std(gains, axis=0, ddof=1) / np.sqrt(len(gains))
        print(f"{name}, {len(cells)} repeats of {len(clean.votes):,}; partition alone", np.mean(alone, axis=0).round(2))
        print(f"  appeal to {second}, q = {chosen}: {np.mean(gains, axis=0).round(3)} +- {error.round(3)}", flush=True)


if __name__ == "__main__":
    main()
