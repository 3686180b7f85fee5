"""Suspects named rightly and wrongly when the evidence of q triggered inputs is pooled, on the votes in results/.

``python -m benchmarks.tracking`` prints the table of docs/tracking.md.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codeward.decoding import BayesDecoder, estimate_confusion, pool_evidence, tracking_score
from codeward.reproduction import PackedSetting

STORED = PackedSetting(Path(__file__).parent.parent / "results" / "cifar10-iid")
POOLS = (1, 2, 5, 20)
DRAWS = 500


def measure(name: str, seed: int = 0) -> list[list[str]]:
    """One row a number of attackers: mean true / false positives of `DRAWS` pools of each size, over all repeats."""
    code = STORED.load_code(name)
    found: dict[int, list[NDArray[np.float64]]] = {}
    records = [STORED.read_json(file) for file in STORED.list_files(f"{name}/records")]
    for record in sorted(records, key=lambda record: (record["repeat"], record["n_attackers"])):
        repeat, n_attackers = record["repeat"], record["n_attackers"]
        for group in record["figures"]["groups"]:
            cell = f"{name}/votes/repeat{repeat}-attackers{n_attackers}"
            votes, known = (STORED.load_votes(f"{cell}-{inputs}.npz") for inputs in ("triggered", "validation"))
            assert known.labels is not None
            decoder = BayesDecoder(code, estimate_confusion(known.votes, known.labels, 10))
            usable = votes.votes[votes.labels != group["target"]]
            rng = np.random.default_rng([seed, repeat, n_attackers])
            scores = []
            for size in POOLS:
                pools = [usable[rng.choice(len(usable), size, replace=False)] for _ in range(DRAWS)]
                scores.append(tracking_score(pool_evidence(decoder, pools).best_set, group["attackers"]))
            found.setdefault(n_attackers, []).append(np.mean(scores, axis=2))
    return [
        [name, str(k), str(len(scores)), *(f"{right:.2f} / {wrong:.2f}" for right, wrong in np.mean(scores, axis=0))]
        for k, scores in sorted(found.items())
    ]


def main() -> None:
    print("| code | attackers | repeats | " + " | ".join(f"q = {size}" for size in POOLS) + " |")
    print("|---|---|---|" + "---|" * len(POOLS))
    for name in ("g", "h16", "btc3416", "h", "c", "d"):
        for row in measure(name):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
