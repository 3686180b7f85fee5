"""One input's verdict as a value: the votes beside the code, the explanation, the alarm; a notebook shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from codeward._charts import draw_matrix
from codeward._errors import InputError
from codeward._figures import show_percent
from codeward._notebook import Displayed, Drawing, Sheet
from codeward.codes import Code
from codeward.decoding._assumptions import check_votes
from codeward.decoding._decoded import ALARM, Decoded


@dataclass(frozen=True)
class ExplainedVerdict(Displayed):
    """What the sub-models said about one input and what a decoder made of it.

    Attributes
    ----------
    code : Code
    votes : tuple of int
        One a sub-model.
    decoded : Decoded
        Of this input alone.
    class_names : tuple of str or None
    threshold : float
        Attack probability above which it is an alarm.

    Examples
    --------
    >>> from codeward.decoding import PluralityDecoder, explain_verdict
    >>> code = Code([[1, 0, 1], [0, 1, 1], [1, 1, 0]], users=["ann", "bob", "eve"])
    >>> found = explain_verdict(PluralityDecoder(code, 2).decode([[0, 1, 1]]), [[0, 1, 1]], code, ["cat", "dog"])
    >>> print(found.sentence)
    dog, by 2 of 3 sub-models; alarm (attack probability 100.0%); nobody is named.
    >>> found.plot()
    <Drawing: 3 sub-models vote: dog, by 2 of 3 sub-models>
    """

    code: Code
    votes: tuple[int, ...]
    decoded: Decoded
    class_names: tuple[str, ...] | None = None
    threshold: float = ALARM

    @property
    def label(self) -> int:
        """The decoded label."""
        return int(self.decoded.labels[0])

    @property
    def alarm(self) -> bool:
        """Whether the input is called attacked."""
        return bool(self.decoded.alarms(self.threshold)[0])

    @property
    def suspects(self) -> tuple[str, ...]:
        """Who is in every good explanation, by name; nobody where there is no alarm."""
        return tuple(map(self.code.user_name, self.decoded.suspects[0])) if self.alarm else ()

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        told = "alarm" if self.alarm else "no alarm"
        who = f"suspects: {', '.join(self.suspects)}" if self.suspects else "nobody is named"
        probability = show_percent(float(self.decoded.attack_probability[0]))
        return f"{self._head}; {told} (attack probability {probability}); {who}."

    @property
    def _head(self) -> str:
        return f"{self._word(self.label)}, by {self.votes.count(self.label)} of {len(self.votes)} sub-models"

    def _word(self, label: int) -> str:
        if label < 0:
            return "no verdict"
        return self.class_names[label] if self.class_names else str(label)

    def _sheet(self) -> Sheet:
        reached = self.code.pattern(self.decoded.suspects[0] if self.alarm else ())
        columns = {
            "sub-model": list(self.code.models or range(self.code.n_models)),
            "says": list(map(self._word, self.votes)),
            "learned from a suspect": reached.tolist(),
        }
        return Sheet(self.sentence, columns, self._draw, drawn=True)

    def _draw(self) -> Drawing:
        marked = self.decoded.suspects[0] if self.alarm else ()
        says, right = [self._word(vote) for vote in self.votes], [vote == self.label for vote in self.votes]
        label = f"{len(self.votes)} sub-models vote: {self._head}"
        return draw_matrix(self.code.matrix, self.code.users, marked, says, right, label)


def explain_verdict(
    decoded: Decoded,
    votes: ArrayLike,
    code: Code,
    class_names: Sequence[str] | None = None,
    index: int = 0,
    threshold: float = ALARM,
) -> ExplainedVerdict:
    """Return the verdict on one of N inputs with everything that explains it.

    Parameters
    ----------
    decoded : Decoded
        Verdicts on N inputs.
    votes : array_like, shape (N, m)
        The votes that were decoded.
    code : Code
    class_names : sequence of str, optional
    index : int
        Which input.
    threshold : float
        Attack probability above which it is an alarm.

    Examples
    --------
    >>> from codeward.decoding import PluralityDecoder
    >>> code = Code([[1, 0], [0, 1]])
    >>> votes = [[0, 0], [1, 0]]
    >>> explain_verdict(PluralityDecoder(code, 2).decode(votes), votes, code, index=1).alarm
    True
    """
    checked = check_votes(votes, code.n_models, None)
    if not 0 <= index < len(decoded) or len(checked) != len(decoded):
        raise InputError(f"no input {index} among {len(checked)} with votes and {len(decoded)} with verdicts")
    names = tuple(map(str, class_names)) if class_names is not None else None
    return ExplainedVerdict(code, tuple(checked[index].tolist()), decoded.take([index]), names, threshold)
