"""Certified accuracy beside the vote of the partition into 12, one network a user: `python -m benchmarks.appeal`.

Run-off and committees of three networks: what studies of the results counted, paired by repeat, k = 0 to 5. Then a vote
with an appeal, on clean votes of the results: partition a, with b or c as the second code of the same users. The
threshold q is chosen on each repeat's validation votes: of those that lose nothing there at any k, the one that gains
most. Test inputs are asked once.
"""

import argparse
from collections.abc import Mapping
from itertools import product

import numpy as np

from codeward.certificates import certify
from codeward.codes import stack_codes
from codeward.decoding import AppealDecoder, VoteSet
from codeward.reproduction import list_runs
from codeward.runs import RunFolder

#: Attackers that are counted, and the thresholds that are tried.
SIZES, THRESHOLDS = range(4), range(2, 7)


def hold(decoder: AppealDecoder | None, code: object, given: VoteSet) -> np.ndarray:
    """Return, in percent, how many inputs are right and certified against k users, for each of SIZES."""
    found = certify(given.votes, code, decoder=decoder or "plurality", n_classes=10, max_attackers=SIZES[-1])
    return np.array([100 * ((found.labels == given.labels) & (found.radius >= k)).mean() for k in SIZES])


def read_certified(run: RunFolder) -> dict[str, np.ndarray]:
    """Return, in percent, what studies certified of each repeat, shape (repeats, k), by decoder."""
    studies = [run.read_json(file) for file in run.list_json("studies")]
    held: dict[str, list[list[float]]] = {}
    for study in sorted(studies, key=lambda study: study["repeat"]):
        for name, counted in study.get("certified", {}).items():
            held.setdefault(name, []).append([100 * right / counted["inputs"] for right in counted["right"]])
    return {name: np.array(curves) for name, curves in held.items() if len({len(curve) for curve in curves}) == 1}


def compare_studies(known: Mapping[str, RunFolder], name: str) -> None:
    """Print what run-off and committees add to the vote of single networks, with standard errors."""
    alone = read_certified(known[f"{name}/a"])["plurality"]
    print(f"{name}, {len(alone)} repeats; partition alone", alone.mean(axis=0).round(2))
    for path in (f"{name}/a", f"{name}-committee3/a"):
        for decoder, found in read_certified(known[path]).items() if path in known else ():
            itself = (path, decoder) == (f"{name}/a", "plurality")
            if decoder in ("plurality", "runoff") and not itself and len(found) == len(alone) > 1:
                gains = found - alone[:, : found.shape[1]]
                error = gains.std(axis=0, ddof=1) / np.sqrt(len(gains))
                print(f"  {path}, {decoder}: {found.mean(axis=0).round(2)}")
                print(f"    gain {gains.mean(axis=0).round(3)} +- {error.round(3)}")


def main() -> None:
    """Print differences of means over repeats, with standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=["cifar10-iid-modern", "mnist-iid-modern"])
    parser.add_argument("--results", default="results")
    asked = parser.parse_args()
    known = list_runs(asked.results)
    for name in asked.settings:
        compare_studies(known, name)
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
