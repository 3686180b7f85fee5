import itertools
import json
import re

import numpy as np
import pytest

from codeward._errors import InputError
from codeward._figures import show_percent
from codeward.certificates import certified_accuracy, certify, certify_agreement
from codeward.codes import Code, enumerate_patterns, inspect, named_code
from codeward.decoding import NearestDecoder, VoteSet
from codeward.report import build_card
from codeward.runs import (
    Card,
    CardCurve,
    Cell,
    RunConfig,
    RunFolder,
    certify_kept,
    describe_machine,
    make_card,
    state_guarantees,
    sum_up_guarantees,
)

ASSUMED = {"encoders": "none", "validation": "the users' own: 60 inputs", "classes": "declared"}


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """Models that err now and then."""
    config = RunConfig(users=12, code={"name": "d"}, attack={"attackers": [0]}, decoder={"name": "bayes"})
    place = RunFolder(tmp_path_factory.mktemp("run") / "clinics")
    code, rng = place.open(config), np.random.default_rng(0)

    def vote(n_inputs):
        labels = rng.integers(0, 3, n_inputs)
        wrong = rng.random((n_inputs, code.n_models)) < 0.1
        return VoteSet(np.where(wrong, (labels[:, None] + 1) % 3, labels[:, None]), labels)

    about = {"classes": 3, "training": {}, "groups": [], **describe_machine("cpu")}
    return Cell(place, 0, 0).save_votes({"validation": vote(60), "clean": vote(40)}, about)


def test_a_card_says_what_decoder_and_certificates_say(cell):
    card, clean = make_card(cell, ASSUMED, {"data": "ab" * 32}), cell.clean
    decoded = cell.decoder().decode(clean.votes)
    assert card.accuracy == {"count": int((decoded.labels == clean.labels).sum()), "of": 40}
    assert card.false_alarms == {"count": int(decoded.alarms().sum()), "of": 40}
    curve = certified_accuracy(certify(clean.votes, cell.code, threat="arbitrary"), clean.labels)
    assert [card.certified[0].at(k) for k in range(len(curve.accuracy))] == pytest.approx(curve.accuracy.tolist())
    assert card.certified_at(9) == 0
    assert card.digests["code"] == cell.code.digest
    assert card.digests["data"] == "ab" * 32
    assert list(card.assumed) == ["validation", "classes", "encoders"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Default code and decoder, fitted on votes that users handed in."""
    place = RunFolder(tmp_path_factory.mktemp("run") / "fitted")
    code, rng = place.open(RunConfig(code={"name": "btc2412"}, attack={"attackers": [0]})), np.random.default_rng(0)

    def vote(n_inputs):
        labels = rng.integers(0, 2, n_inputs)
        return VoteSet(
            np.where(rng.random((n_inputs, code.n_models)) < 0.05, 1 - labels[:, None], labels[:, None]), labels
        )

    about = {"classes": 2, "training": {}, "groups": [], **describe_machine("cpu")}
    return Cell(place, 0, 0).save_votes({"validation": vote(200), "clean": vote(30)}, about)


@pytest.mark.slow
def test_what_votes_alone_determine_is_certified_for_a_fitted_decoder_and_true(fitted):
    card, clean, decoder = make_card(fitted, ASSUMED), fitted.clean, fitted.decoder()
    (curve,) = [curve for curve in card.certified if curve.threat == "deterministic"]
    assert curve.decoder == "calibrated"
    # The card fits nothing to certify it; the fitted decoder has the same votes to go by.
    held = certify(clean.votes, fitted.code, threat="deterministic", decoder=decoder.nearest_, max_attackers=2)
    assert curve.shares == CardCurve.of(certified_accuracy(held, clean.labels)).shares
    kept = decoder.predict(clean.votes) == clean.labels
    for k in (0, 1, 2):
        attacks = itertools.product(itertools.combinations(range(12), k), (0, 1))
        for users, target in attacks:
            kept &= decoder.predict(np.where(fitted.code.pattern(users), target, clean.votes)) == clean.labels
        assert 20 <= curve.shares[k]["count"] <= kept.sum()


def test_the_page_says_under_which_threat_its_best_figure_holds():
    def tell(*curves):
        return build_card(Card("t", {}, {"count": 9, "of": 10}, None, (), curves, {}, {}, {}))

    plain = CardCurve("plurality", "arbitrary", ({"count": 9, "of": 10}, {"count": 7, "of": 10}))
    sure = CardCurve("calibrated", "deterministic", ({"count": 8, "of": 10}, {"count": 8, "of": 10}))
    tied = CardCurve("calibrated", "deterministic", ({"count": 8, "of": 10}, {"count": 7, "of": 10}))
    assert "right whatever one target any 1 user plants" in tell(plain, sure)
    assert "right whatever any 1 user does" in tell(tied, plain)


def test_a_card_survives_its_file(cell, tmp_path):
    card = make_card(cell, ASSUMED, warnings=["encoders were fitted on all users"], certifiable=False)
    card.save(tmp_path / "card.json")
    assert Card.load(tmp_path / "card.json") == card
    assert card.certified == ()
    assert card.certified_at(0) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"accuracy": {"count": 3, "of": 2}},
        {"guarantees": [{"threat": "arbitrary"}]},
        {"certified": [{"decoder": "a", "threat": "b", "attackers": {"1": {"count": 1, "of": 1}}}]},
        {"title": 3},
    ],
)
def test_what_is_no_card_is_refused_in_one_line(cell, tmp_path, change):
    content = make_card(cell, ASSUMED).to_json() | change
    (tmp_path / "card.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"card\.json"):
        Card.load(tmp_path / "card.json")


def test_a_card_fits_a_terminal_and_a_page(cell):
    card = make_card(cell, ASSUMED | {"backbone": "none " * 40}, title="<clinics>", warnings=["<b>"])
    assert max(map(len, card.to_text().splitlines())) <= 80
    page = build_card(card)
    assert "<clinics>" not in page
    assert "<b></p>" not in page
    for said in card.guarantees:
        assert said.sentence in page
    assert "40" in page
    assert "users&#39; own" in page


def test_the_guarantee_is_the_code_s_and_the_decoder_s():
    found = inspect(named_code("c"))
    said = {(one.threat, one.property): one for one in reversed(state_guarantees(found))}
    assert said["deterministic", "correct"].n_attackers == found.correct == 4
    assert said["deterministic", "correct"].n_errors == 0  # margin 1 at four attackers
    assert "up to 3 attackers, if at most 1 other" in sum_up_guarantees(state_guarantees(found))

    class Stubborn:
        def predict(self, votes):
            return np.zeros(len(votes), dtype=np.int64)

    kept = certify_agreement(found.code, Stubborn(), 3, max_attackers=1)
    assert sum_up_guarantees(state_guarantees(found, kept)).startswith("Nothing is guaranteed")


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "f", "g", "h", "h16", "btc2412", "btc3416"])
def test_no_more_is_promised_than_the_fitted_decoder_keeps_under_every_attack(name, tmp_path):
    place, code = RunFolder(tmp_path), named_code(name)
    place.open(RunConfig(users=code.n_users, code={"name": name}))
    says = VoteSet(np.tile(np.arange(300)[:, None] % 3, code.n_models), np.arange(300) % 3)
    about = {"classes": 3, "training": {}, "groups": [], **describe_machine("cpu")}
    cell = Cell(place, 0, 0).save_votes({"validation": says, "clean": says}, about)
    kept = certify_kept(cell)
    nearest = NearestDecoder.choose(code, 3, 3)
    told = sum_up_guarantees(state_guarantees(inspect(code), kept))
    if nearest is None:
        assert kept.n_attackers == 0
        assert told.startswith("Nothing is guaranteed")
        return
    bits = enumerate_patterns(code, kept.n_attackers).bits
    attacked = np.where(bits, 1, 0)
    assert (nearest.predict(attacked) == 0).all()
    for wrong in (1, 2) if kept.n_errors else ():  # one clean model says the target, or something else
        err = attacked[:, None] + wrong * (~bits[:, None] & np.eye(code.n_models, dtype=bool))
        assert (nearest.predict(err.reshape(-1, code.n_models)) == 0).all()
    assert kept.n_errors == (0 if name in ("e", "h16", "btc3416") else 1)
    before, after = told.split("The decoder in use returns that label")
    promised = re.search(r"up to (\d+) attackers?, if (?:at most (\d+)|no)", before if after == "." else after)
    assert (int(promised[1]), int(promised[2] or 0)) == (kept.n_attackers, kept.n_errors)


def test_a_label_that_the_votes_determine_may_not_be_the_fitted_decoder_s():
    # Three users who reach all models but those of user 10 (save the one that learns from everybody): who allows for
    # one attacker and one wrong vote says that user 10 attacked; who allows for three, nothing.
    code = named_code("h16")
    votes = np.where(code.pattern([8, 9, 11]), 1, 0)
    assert inspect(code).correct == 3
    assert NearestDecoder.choose(code, 1, 2).predict([votes]) == [1]
    assert NearestDecoder.choose(code, 3, 2).predict([votes]) == [-1]


def test_nothing_is_guaranteed_where_one_user_feeds_all():
    said = state_guarantees(inspect(Code([[1, 1], [1, 0]])))
    assert all(one.n_attackers == 0 and one.sentence.startswith("Nothing") for one in said)


def test_neither_nothing_nor_everything_is_rounded_to_it():
    assert [show_percent(x) for x in (1e-9, 1 - 1e-9, 0.99949, float("nan"))] == ["<0.1%", ">99.9%", "99.9%", "-"]
