"""What a code and its decoder guarantee, in sentences: the words that the command, the report, the card share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from codeward.codes import Inspection

if TYPE_CHECKING:
    from codeward.certificates import Agreement

Property = Literal["detect", "correct", "track", "undo"]
Margin = Sequence[int | None]


@dataclass(frozen=True)
class StatedGuarantee:
    """One guarantee as a sentence.

    Attributes
    ----------
    threat : {"deterministic", "arbitrary"}
        What a sub-model that learned from an attacker may say on a triggered input: one target, or anything.
    n_attackers : int
        k, the most colluding accounts for which it holds; 0 where nothing is guaranteed.
    property : {"detect", "correct", "track", "undo"}
        The code shows an attack, determines the label, determines the attackers; the decoder undoes the attack.
    n_errors : int
        Wrong votes of other sub-models that it allows for.
    sentence : str

    Examples
    --------
    >>> from codeward.codes import inspect, named_code
    >>> print(state_guarantees(inspect(named_code("d")))[1].sentence)
    With up to 2 of 12 users attacking, the votes determine the true label if no other sub-model errs.
    """

    threat: str
    n_attackers: int
    property: Property
    n_errors: int
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return dict(vars(self))


def state_guarantees(found: Inspection, kept: "Agreement | None" = None) -> tuple[StatedGuarantee, ...]:
    """Say what a code guarantees per threat model and k, and what a decoder keeps of it.

    Propositions 1 to 3 and 12 to 14 of docs/theory.md; 23 and 43 for the decoder.

    Parameters
    ----------
    found : Inspection
    kept : Agreement, optional
        What the decoder in use keeps of it (`certify_kept`).

    Examples
    --------
    >>> from codeward.codes import inspect, named_code
    >>> [(said.threat, said.property, said.n_attackers) for said in state_guarantees(inspect(named_code("d")))]
    [('deterministic', 'detect', 2), ('deterministic', 'correct', 2), ('deterministic', 'track', 0), \
('arbitrary', 'correct', 1)]
    """
    shows = "some sub-model learned from none of them: as long as it is right, a triggered input shows as disagreement"
    label, names = "the votes determine the true label", "the votes determine who attacked"
    anything = f"{label} whatever the reached sub-models say"
    said = [_state(found, "deterministic", found.detect, "detect", 0, shows)]
    parts: tuple[tuple[str, Property, int, Margin, str], ...] = (
        ("deterministic", "correct", found.correct, found.margin, label),
        ("deterministic", "track", found.track, found.margin_track, names),
        ("arbitrary", "correct", found.correct_arbitrary, found.margin_arbitrary, anything),
    )
    for threat, what, k, margin, does in parts:
        said.append(_state(found, threat, k, what, _spare(margin, k), does))
        # With fewer attackers a wrong vote may be allowed for: real sub-models err.
        fewer = [size for size in range(1, k) if _spare(margin, size)]
        if fewer and not _spare(margin, k):
            said.append(_state(found, threat, fewer[-1], what, _spare(margin, fewer[-1]), does))
    if kept is not None:
        does = "the decoder in use returns the true label"
        said.insert(1, _state(found, "deterministic", kept.n_attackers, "undo", kept.n_errors, does))
    return tuple(said)


def sum_up_guarantees(said: Sequence[StatedGuarantee]) -> str:
    """Return the guarantees of the deterministic threat model as one sentence: the code's, then the decoder's.

    Votes that determine a label are of no use where the decoder in use says another, so its own guarantee is told
    beside the code's wherever it is known.

    Examples
    --------
    >>> from codeward.certificates import Agreement
    >>> from codeward.codes import inspect, named_code
    >>> found = inspect(named_code("c"))
    >>> print(sum_up_guarantees(state_guarantees(found, Agreement(2, 2, None, None, n_errors=1))))
    Guaranteed if every sub-model that learned from an attacker says one and the same target: the votes determine \
the true label with up to 3 attackers, if at most 1 other sub-model errs; nobody is named for sure. The decoder in use \
returns that label with up to 2 attackers, if at most 1 other sub-model errs.
    """
    label, names = _choose(said, "correct"), _choose(said, "track")
    if not label.n_attackers:
        return "Nothing is guaranteed: a single user may decide the label."
    condition = "every sub-model that learned from an attacker says one and the same target"
    limits = _name_limits(label)
    if (label.n_attackers, label.n_errors) == (names.n_attackers, names.n_errors):
        what = f"the votes determine the true label and who attacked, {limits}"
    else:
        who = f"and who attacked {_name_limits(names)}" if names.n_attackers else "nobody is named for sure"
        what = f"the votes determine the true label {limits}; {who}"
    undone = [one for one in said if one.property == "undo"]
    if not undone:
        return f"Guaranteed if {condition}: {what}."
    kept = undone[0]
    if not kept.n_attackers:
        return f"Nothing is guaranteed of the labels of the decoder in use. If {condition}, {what}."
    less = kept.n_attackers < label.n_attackers or kept.n_errors < label.n_errors
    return f"Guaranteed if {condition}: {what}. The decoder in use returns that label{f' {_name_limits(kept)}' * less}."


def count_words(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count_words(1, "attacker"), count_words(2, "attacker")
    ('1 attacker', '2 attackers')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def _choose(said: Sequence[StatedGuarantee], what: Property) -> StatedGuarantee:
    """Return the guarantee that allows for wrong votes, where one does, else the one for the most attackers."""
    found = [one for one in said if one.property == what and one.threat == "deterministic"]
    return max(found, key=lambda one: (one.n_errors > 0, one.n_attackers))


def _name_limits(said: StatedGuarantee) -> str:
    return f"with up to {count_words(said.n_attackers, 'attacker')}, {_name_errors(said.n_errors)}"


def _name_errors(spare: int) -> str:
    return (
        f"if at most {count_words(spare, 'other sub-model')} err{'s' * (spare == 1)}"
        if spare
        else "if no other sub-model errs"
    )


def _state(found: Inspection, threat: str, k: int, what: Property, spare: int, does: str) -> StatedGuarantee:
    users = found.code.n_users
    if not k:
        lost = {"detect": "shown as an attack", "track": "traced to them"}.get(what, "undone")
        sentence = f"Nothing: what a single one of {users} users plants need not be {lost}."
    else:
        condition = "" if what == "detect" else f" {_name_errors(spare)}"
        sentence = f"With up to {k} of {users} users attacking, {does}{condition}."
    return StatedGuarantee(threat, k, what, spare, sentence)


def _spare(margin: Margin, k: int) -> int:
    """Return the wrong votes that the margin for k attackers corrects."""
    return max(0, ((margin[k - 1] or 1) - 1) // 2) if 0 < k <= len(margin) else 0
