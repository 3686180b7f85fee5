"""What a code's own decoders keep against colluding writers: counted where a margin allows it, searched elsewhere."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward.certificates import certify
from codeward.codes import Code, inspect
from codeward.decoding import Assumptions, ConsensusDecoder, NearestDecoder, estimate_confusion, make_decoder


def count_consensus(
    code: Code, votes: NDArray[np.int64], labels: NDArray[np.int64], sizes: Sequence[int]
) -> dict[str, dict[str, int]]:
    """Count inputs that the consensus decoder keeps right against k users, whatever their models say (*arbitrary*).

    For each k it is the decoder of (k, e) with 2e + 1 models that no 2k users reach: the columns with most models bound
    how many they can. An input on which at most e models err is certified (Propositions 14 and 21 of docs/theory.md);
    there may be more of them. A k that the bound says nothing about is left out.

    Examples
    --------
    >>> from codeward.codes import partition_code
    >>> count_consensus(partition_code(9, 9), np.array([[1] * 9, [1] * 6 + [0] * 3]), np.array([1, 1]), (1, 2, 5))
    {'1': {'errors': 3, 'count': 2}, '2': {'errors': 2, 'count': 1}}
    """
    wrong = (votes != labels[:, None]).sum(axis=1)
    reach = np.sort(code.matrix.sum(axis=0, dtype=np.int64))[::-1].cumsum()
    alone = {k: code.n_models - int(reach[min(2 * k, code.n_users) - 1]) for k in sizes}
    errors = {k: (margin - 1) // 2 for k, margin in alone.items() if margin > 0}
    return {str(k): {"errors": most, "count": int((wrong <= most).sum())} for k, most in errors.items()}


def certify_decoders(
    code: Code, votes: NDArray[np.int64], labels: NDArray[np.int64], quiet: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Certify what a tracking code's own decoders say against one writer and against two.

    - Consensus, with as many wrong votes as the code's margin allows, under *arbitrary* against one (Proposition 21 of
      docs/theory.md).
    - The nearest attack, under *deterministic* against one and against two: inputs with at most as many wrong models as
      the margin for so many allows are counted (Proposition 43), a lower bound that needs no search.
    - The paper's decoder, expecting at most one attacker, under *deterministic* (Proposition 22), with confusions
      of the quiet writers' images, on the images of the others.

    ``certified`` of each is how many inputs are right with 0, 1, ... attackers; what is not there is not certified.
    """
    found = []
    margin = inspect(code, 1).margin_arbitrary[0]
    if margin:
        errors = (margin - 1) // 2
        held = certify(votes, code, threat="arbitrary", decoder=ConsensusDecoder(code, 1, errors, 10), max_attackers=1)
        kept = [int(((held.labels == labels) & (held.radius >= k)).sum()) for k in (0, 1)]
        found.append((f"consensus, 1 attacker, wrong votes: {errors}", "arbitrary", len(labels), kept))
    wrong = (votes != labels[:, None]).sum(axis=1)
    for k, margin in enumerate(inspect(code, 2).margin, start=1):
        if margin:
            errors = (margin - 1) // 2
            right = NearestDecoder(code, k, errors, 10).predict(votes) == labels
            kept = [int(right.sum()), *[int((wrong <= errors).sum())] * k]
            name = f"nearest, up to {k} attacker{'s'[: k - 1]}, wrong votes: {errors}"
            found.append((name, "deterministic", len(labels), kept))
    confusion = estimate_confusion(votes[quiet], labels[quiet], 10)
    paper = make_decoder("bayes", code, confusion, Assumptions.uniform(1), n_classes=10)
    held = certify(votes[~quiet], code, threat="deterministic", decoder=paper, max_attackers=1)
    kept = [int(((held.labels == labels[~quiet]) & (held.radius >= k)).sum()) for k in (0, 1)]
    found.append(("Bayes, up to 1 attacker", "deterministic", len(held), kept))
    return [
        {"decoder": decoder, "threat": threat, "inputs": of, "certified": counts}
        for decoder, threat, of, counts in found
    ]
