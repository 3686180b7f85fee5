"""What is proved of a run's clean votes: certified curves of its decoders, and what its own decoder keeps."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codeward._progress import Progress, silent
from codeward.certificates import (
    Agreement,
    Certificates,
    CertifiedCurve,
    certified_accuracy,
    certify,
    certify_agreement,
    is_agreement_affordable,
    join_certificates,
)
from codeward.codes import Inspection, count_attacker_sets
from codeward.decoding import ConsensusDecoder, Decoder, NearestDecoder, VoteSet, choose_fitted
from codeward.decoding.soft import find_planted
from codeward.runs._cell import Cell

#: Attacker sets times inputs up to which a decoder is certified: some seconds.
_AFFORDABLE = 30_000_000
#: Seconds for the solver of the plurality certificate, where there are too many users to enumerate attackers.
_SOLVER_SECONDS = 20.0
#: How the name of a decoder ends whose certificate does not count some attacks.
LEFT_OUT = ", not all attacks"
#: Sets of users that a card names at most.
_MOST_NAMED = 5


def certify_kept(cell: Cell, decoder: Decoder | None = None) -> Agreement | None:
    """Find how many attackers the decoder of a cell provably undoes, and with how many wrong votes of other models.

    A decoder of votes is tried on every attack where no model errs (Proposition 23 of docs/theory.md). A fitted one
    keeps what the votes alone determine (Proposition 43), against all attacks; nothing need be fitted to know that.
    None under the arbitrary threat model (federated runs), for other decoders of class scores, and where it takes too
    long.

    Parameters
    ----------
    cell : Cell
        With vote files.
    decoder : Decoder, optional
        The cell's own, where it is made already.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder, describe_machine
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = RunFolder(folder)
    ...     code = place.open(RunConfig(code={"name": "c"}))  # the calibrated decoder
    ...     says = VoteSet(np.tile([[0], [1]] * 150, code.n_models), np.arange(300) % 2)
    ...     about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    ...     kept = certify_kept(Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about))
    >>> kept.n_attackers, kept.n_errors
    (2, 1)
    """
    most = min(cell.assumptions.max_attackers, cell.code.n_users)
    if cell.threat != "deterministic" or most < 1:
        return None
    if choose_fitted(cell.decoding.name, cell.code, cell.validation, cell.assumptions):
        return Agreement.of_votes_alone(_choose_nearest(cell))
    if not is_agreement_affordable(cell.code, cell.n_classes, most):
        return None
    if decoder is None:
        decoder = cell.decoder()
    if decoder.needs != "votes":
        return None
    return certify_agreement(cell.code, decoder, cell.n_classes, max_attackers=most)


def certify_clean(
    cells: Sequence[Cell], inspection: Inspection, progress: Progress | None = None
) -> tuple[dict[str, CertifiedCurve], list[str]]:
    """Certify the clean votes of cells of one run, all together (Propositions 20, 21 and 43 of docs/theory.md).

    Plurality, and consensus for the most users that the code allows, under *arbitrary*, which includes every other
    attack. Under *deterministic* also the decoder in use, as far as the votes alone determine its answer: nothing is
    fitted there, so that it holds whoever handed in the validation inputs.

    Where few users hold a class, the last is there twice: against all attacks, and but for those that `say_uncovered`
    names (its name ends in `LEFT_OUT`).

    The cells are of models that nobody attacks on purpose and have vote files; ``progress`` advances by 2. Returned are
    curves by name, and what was left out, and why.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.codes import inspect
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder, describe_machine
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = RunFolder(folder)
    ...     code = place.open(RunConfig(code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"}))
    ...     says = VoteSet(np.tile([[0], [1]], code.n_models), np.array([0, 1]))
    ...     about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    ...     cell = Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about)
    ...     curves, notes = certify_clean([cell], inspect(code))
    >>> {name: curve.at(1) for name, curve in curves.items()}
    {'plurality vote': 0.5, 'consensus decoder for k = 1': 1.0}
    """
    bar, notes = progress or silent(), list[str]()
    code, threat, name = cells[0].code, cells[0].threat, cells[0].decoding.name
    votes = np.concatenate([cell.clean.votes for cell in cells])
    labels = np.concatenate([cell.clean.labels for cell in cells if cell.clean.labels is not None])
    plain = certify(votes, code, threat="arbitrary", time_limit=_SOLVER_SECONDS)
    if not plain.exact.all():
        notes.append(f"For {int((~plain.exact).sum()):,} inputs the plurality radius is a sound lower bound.")
    curves = {"plurality vote": certified_accuracy(plain, labels)}
    bar.advance()
    k = inspection.correct_arbitrary
    if k == 0:
        notes.append("The consensus decoder is left out: this code corrects nobody under the arbitrary threat model.")
    elif count_attacker_sets(code.n_users, min(k + 1, code.n_users)) * len(votes) > _AFFORDABLE:
        notes.append("The consensus decoder is left out: too many attacker sets for a report; see `codeward certify`.")
    else:
        # One past k: there the curve still says exactly what is certified, and it is where it should fall.
        held = certify(votes, code, threat="arbitrary", decoder=ConsensusDecoder(code, k), max_attackers=k + 1)
        curves[f"consensus decoder for k = {k}"] = certified_accuracy(held, labels)
    notes += [f"Left out of the decoder's fit: {said}." for said in map(say_planted, cells) if said]
    fitted = [choose_fitted(name, code, cell.validation, cell.assumptions) for cell in cells]
    if threat == "deterministic" and all(fitted):
        parts = [_certify_fitted(cell, kind) for cell, kind in zip(cells, fitted, strict=True)]
        if all(part is not None for part in parts):
            held = join_certificates([part for part in parts if part is not None])
            curves[f"{name} decoder"] = replace(certified_accuracy(held, labels), decoder=name)
            left_out = [said for said in map(say_uncovered, cells) if said]
            if left_out:
                but = [_certify_fitted(cell, kind, conditional=True) for cell, kind in zip(cells, fitted, strict=True)]
                held = join_certificates([part for part in but if part is not None])
                curves[f"{name} decoder{LEFT_OUT}"] = replace(certified_accuracy(held, labels), decoder=name + LEFT_OUT)
            notes += [f"Left out: {said}." for said in left_out]
    bar.advance()
    return curves, notes


def _certify_fitted(cell: Cell, fitted: str | None, conditional: bool = False) -> Certificates | None:
    """Certify what the votes alone determine (Proposition 43 of docs/theory.md); None where that is nothing."""
    nearest = _choose_nearest(cell)
    if nearest is None:
        return None
    heard, nearest = _hear(cell.clean, fitted), nearest.but_left_out if conditional else nearest
    return certify(heard, cell.code, threat="deterministic", decoder=nearest, max_attackers=nearest.n_attackers)


def _choose_nearest(cell: Cell) -> NearestDecoder | None:
    assumed = cell.assumptions
    return NearestDecoder.choose(cell.code, assumed.max_attackers, cell.n_classes, assumed.class_counts)


def say_uncovered(cell: Cell) -> str:
    """Name the attacks that break every label of a fitted decoder, since few users hold the target; or nothing.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder, describe_machine
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = RunFolder(folder)
    ...     code = place.open(RunConfig(code={"name": "btc2412"}, decoder={"name": "calibrated"}))
    ...     says = VoteSet(np.tile([[0], [1]] * 150, code.n_models), np.arange(300) % 2)
    ...     about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    ...     about["class_counts"] = [[50, 50]] + [[90, 0]] * 11
    ...     said = say_uncovered(Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about))
    >>> said[:27], said[-44:]
    ('attacks by 0 with target 1;', ': at most one model without them has seen it')
    """
    fitted = choose_fitted(cell.decoding.name, cell.code, cell.validation, cell.assumptions)
    nearest = None if fitted is None else _choose_nearest(cell)
    found = [] if nearest is None else nearest.list_uncovered()
    names = cell.class_names or tuple(map(str, range(cell.n_classes)))
    said = []
    for users, targets in found[:_MOST_NAMED]:
        who, what = map(cell.code.user_name, users), (names[target] for target in targets)
        said.append(f"{' and '.join(who)} with target {' or '.join(what)}")
    more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"attacks by {'; '.join(said)}{more}: at most one model without them has seen it" if said else ""


def say_planted(cell: Cell) -> str:
    """Name the validation inputs that a fitted decoder leaves out, and who seems to have planted them; or nothing.

    Examples
    --------
    >>> import tempfile
    >>> from codeward.decoding import VoteSet
    >>> from codeward.runs import RunConfig, RunFolder, describe_machine
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = RunFolder(folder)
    ...     code = place.open(RunConfig(code={"name": "btc2412"}, decoder={"name": "calibrated"}))
    ...     labels = np.arange(300) % 3
    ...     votes = np.tile(labels[:, None], code.n_models)
    ...     stamped = np.flatnonzero(labels != 1)[:10]  # ten inputs with a trigger, labelled with its target
    ...     votes[np.ix_(stamped, code.pattern((3, 8)))] = labels[stamped] = 1
    ...     says = VoteSet(votes, labels)
    ...     about = {"classes": 3, "training": {}, "groups": [], **describe_machine("cpu")}
    ...     about["class_counts"] = [[50, 50, 50]] * 12
    ...     say_planted(Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about))
    '10 of 300 validation inputs, labelled 1, as only the models of 3 and 8 say: they look planted'
    """
    fitted = choose_fitted(cell.decoding.name, cell.code, cell.validation, cell.assumptions)
    assumed, labels = cell.assumptions, cell.validation.labels
    if fitted is None or assumed.class_counts is None or labels is None:
        return ""
    votes, names = _hear(cell.validation, fitted), cell.class_names
    found = find_planted(votes, labels, cell.code, assumed.max_attackers, assumed.class_counts, cell.n_classes)
    said = []
    for one in found[:_MOST_NAMED]:
        who = " or ".join(" and ".join(map(cell.code.user_name, users)) for users in one.users[:_MOST_NAMED])
        label = names[one.target] if names else one.target
        which = f"{one.rows.size:,} of {len(votes):,} validation inputs, labelled {label}, as only"
        unnamed = f"{which} the same models say: planted, or too hard for the others"
        said.append(f"{which} the models of {who} say: they look planted" if who else unnamed)
    return "; ".join(said)


def _hear(given: VoteSet, fitted: str | None) -> NDArray[np.int64]:
    """Return the votes as the decoder reads them: of class scores the largest, which need not be the prediction."""
    return given.votes if fitted != "soft" or given.scores is None else given.scores.argmax(axis=2)
