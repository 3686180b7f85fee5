"""What a code and its decoder guarantee, in sentences: the words that the command, the report, the card share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from codeward.codes import Inspection

if TYPE_CHECKING:
    from codeward.certificates import Agreement

Property = Literal["detect", "correct", "track", "undo"]


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

    Propositions 1 to 3 and 12 to 14 of docs/theory.md; 23 for the decoder.

    Parameters
    ----------
    found : Inspection
    kept : Agreement, optional
        `codeward.certificates.certify_agreement` of the decoder in use.

    Examples
    --------
    >>> from codeward.codes import inspect, named_code
    >>> [(said.threat, said.property, said.n_attackers) for said in state_guarantees(inspect(named_code("d")))]
    [('deterministic', 'detect', 2), ('deterministic', 'correct', 2), ('deterministic', 'track', 0), \
('arbitrary', 'correct', 1)]
    """
    shows = "some sub-model learned from none of them: as long as it is right, a triggered input shows as disagreement"
    parts: list[tuple[str, Property, int, int, str]] = [
        ("deterministic", "detect", found.detect, 0, shows),
        (
            "deterministic",
            "correct",
            found.correct,
            _spare(found.margin, found.correct),
            "the votes determine the true label",
        ),
        (
            "deterministic",
            "track",
            found.track,
            _spare(found.margin_track, found.track),
            "the votes determine who attacked",
        ),
        (
            "arbitrary",
            "correct",
            found.correct_arbitrary,
            _spare(found.margin_arbitrary, found.correct_arbitrary),
            "the votes determine the true label whatever the reached sub-models say",
        ),
    ]
    said = [
        StatedGuarantee(threat, k, what, spare, _say(found, k, what, spare, does))
        for threat, what, k, spare, does in parts
    ]
    if kept is not None:
        does = "the decoder in use returns the true label"
        said.insert(
            2,
            StatedGuarantee(
                "deterministic", kept.n_attackers, "undo", 0, _say(found, kept.n_attackers, "undo", 0, does)
            ),
        )
    return tuple(said)


def sum_up_guarantees(said: Sequence[StatedGuarantee]) -> str:
    """Return the guarantees of the deterministic threat model as one sentence.

    Examples
    --------
    >>> from codeward.codes import inspect, named_code
    >>> print(sum_up_guarantees(state_guarantees(inspect(named_code("g")))))
    Guaranteed if every sub-model that learned from an attacker says one and the same target: the true label with up \
to 1 attacker; who attacked with up to 1; if no other sub-model errs.
    """
    known = {guarantee.property: guarantee for guarantee in said if guarantee.threat == "deterministic"}
    label, names = known["correct"], known["track"]
    if "undo" in known and known["undo"].n_attackers < label.n_attackers:
        label = known["undo"]
    if not label.n_attackers:
        return "Nothing is guaranteed: a single user may decide the label."
    parts = [f"the true label with up to {count_words(label.n_attackers, 'attacker')}{_allow(label, names)}"]
    parts.append(
        f"who attacked with up to {names.n_attackers}{_allow(names, label)}"
        if names.n_attackers
        else "nobody is named for sure"
    )
    common = f"; {_name_errors(label.n_errors)}" if not _allow(label, names) else ""
    condition = "Guaranteed if every sub-model that learned from an attacker says one and the same target"
    return f"{condition}: {'; '.join(parts)}{common}."


def count_words(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count_words(1, "attacker"), count_words(2, "attacker")
    ('1 attacker', '2 attackers')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def _allow(one: StatedGuarantee, other: StatedGuarantee) -> str:
    """Return the condition of one guarantee where the other has not the same."""
    return "" if one.n_errors == other.n_errors or not other.n_attackers else f" ({_name_errors(one.n_errors)})"


def _name_errors(spare: int) -> str:
    return (
        f"if at most {count_words(spare, 'other sub-model')} err{'s' * (spare == 1)}"
        if spare
        else "if no other sub-model errs"
    )


def _say(found: Inspection, k: int, what: Property, spare: int, does: str) -> str:
    users = found.code.n_users
    if not k:
        lost = {"detect": "shown as an attack", "track": "traced to them"}.get(what, "undone")
        return f"Nothing: what a single one of {users} users plants need not be {lost}."
    condition = "" if what == "detect" else f" {_name_errors(spare)}"
    return f"With up to {k} of {users} users attacking, {does}{condition}."


def _spare(margin: Sequence[int | None], k: int) -> int:
    """Return the wrong votes that the margin for k attackers corrects."""
    return max(0, ((margin[k - 1] or 1) - 1) // 2) if 0 < k <= len(margin) else 0
