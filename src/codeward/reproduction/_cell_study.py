"""The votes of one cell under study, and decoders on them: each made once, each set of inputs decoded once."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codeward._errors import InputError
from codeward.codes import Code
from codeward.decoding import Assumptions, BayesDecoder, Decoded, Decoder, VoteSet, estimate_confusion, make_decoder
from codeward.runs import Cell, SimulatedAttack


@dataclass(frozen=True)
class CellStudy:
    """The votes of a cell under study: each decoder is made once, and decodes each set of inputs once.

    Attributes
    ----------
    code : Code
    n_classes : int
    validation, clean : VoteSet
    triggered : tuple of VoteSet
        Inputs with the trigger of each attacking group.
    groups : tuple of SimulatedAttack
        Who attacks, group by group.

    Examples
    --------
    >>> from codeward.codes import named_code
    >>> code = named_code("d")
    >>> votes = VoteSet(np.tile([[0], [1], [1]], code.n_models), labels=np.array([0, 1, 1]))
    >>> study = CellStudy(code, 2, votes, votes)
    >>> study.decode("bayes", "clean").labels.tolist()
    [0, 1, 1]
    """

    code: Code
    n_classes: int
    validation: VoteSet
    clean: VoteSet
    triggered: tuple[VoteSet, ...] = ()
    groups: tuple[SimulatedAttack, ...] = ()
    _bayes: dict[tuple[float, float], BayesDecoder] = field(default_factory=dict, init=False, repr=False)
    _others: dict[str, Decoder] = field(default_factory=dict, init=False, repr=False)
    _decoded: dict[tuple[Any, str], Decoded] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, cell: Cell) -> "CellStudy":
        """Read the votes of a cell."""
        return cls(cell.code, cell.n_classes, cell.validation, cell.clean, cell.triggered, cell.groups)

    @cached_property
    def confusion(self) -> NDArray[np.float64]:
        """Confusion matrices of the validation half, shape (m, c, c)."""
        return estimate_confusion(self.validation.votes, truth(self.validation), self.n_classes)

    @cached_property
    def attackers(self) -> tuple[int, ...]:
        """Who attacks, of the one group; nobody without."""
        self.check_groups()
        return self.groups[0].attackers if self.groups else ()

    @cached_property
    def others(self) -> NDArray[np.bool_]:
        """Triggered inputs whose true label is not the target: those an attack can change."""
        return np.asarray(truth(self.triggered[0]) != self.groups[0].target)

    @property
    def has_scores(self) -> bool:
        """Whether the vote files hold class scores."""
        return all(part.scores is not None for part in (self.validation, self.clean, *self.triggered))

    def check_groups(self) -> None:
        """Refuse several attacking groups."""
        if len(self.groups) > 1:
            raise InputError("this part of a study is for one attacking group")

    def votes(self, inputs: str) -> VoteSet:
        """Return the votes on ``clean`` inputs, or on those with the trigger of group ``0``, ``1``, ..."""
        return self.clean if inputs == "clean" else self.triggered[int(inputs)]

    def decoder(self, attack_rate: float = 0.5, success_rate: float = 0.99) -> BayesDecoder:
        """Return the paper's decoder, with its assumptions unless told otherwise; attacker sets are gathered once."""
        key = attack_rate, success_rate
        if key not in self._bayes:
            made = make_decoder("bayes", self.code, self.confusion, Assumptions.uniform(3, **_name_rates(key)))
            assert isinstance(made, BayesDecoder)
            known = next(iter(self._bayes.values()), None)
            if known is not None and made.is_exact:
                made.sets_ = known.sets_  # of code and prior alone
            self._bayes[key] = made
        return self._bayes[key]

    def decode(self, decoder: str | tuple[float, float], inputs: str) -> Decoded:
        """Decode by a decoder's name (see `codeward.decoding.make_decoder`), or by the paper's at rates A and S."""
        key = (0.5, 0.99) if decoder == "bayes" else decoder
        if (key, inputs) not in self._decoded:
            given = self.votes(inputs)
            made = self._make(key) if isinstance(key, str) else self.decoder(*key)
            seen = given.votes if made.needs == "votes" or given.scores is None else given.scores.astype(np.float64)
            self._decoded[key, inputs] = made.decode(seen)
        return self._decoded[key, inputs]

    def _make(self, name: str) -> Decoder:
        if name not in self._others:
            given = self.validation
            if name == "soft" and given.scores is not None:  # fitted at full precision, as it decodes
                given = replace(given, scores=given.scores.astype(np.float64))
            noise = self.confusion if name == "groups" else given
            self._others[name] = make_decoder(name, self.code, noise, n_classes=self.n_classes)
        return self._others[name]


def _name_rates(key: tuple[float, float]) -> dict[str, float]:
    return {"attack_rate": key[0], "success_rate": key[1]}


def truth(given: VoteSet) -> NDArray[np.int64]:
    """Return the labels of votes that have some: those of a run do."""
    if given.labels is None:
        raise InputError("the votes of a run need labels to be studied")
    return given.labels
