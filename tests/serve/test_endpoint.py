"""The endpoint over real HTTP: what it answers."""

import base64
import io
import json
import shutil

import numpy as np
from PIL import Image

from codeward.certificates import certify
from codeward.data import render
from codeward.decoding import NearestDecoder, PluralityDecoder, load_votes
from codeward.estimators import load_sub_models
from codeward.experiments import Experiment
from codeward.runs import RunFolder, find_cell
from codeward.serve import Ledger
from codeward.serve._database import incidents as table


def prepare(folder):
    """Split the data as the run did."""
    place = RunFolder(folder)
    return Experiment(place.config, place).prepare(0)


def png_of(picture):
    return base64.b64decode(picture["png"].partition(",")[2])


def pixels_of(picture):
    return np.asarray(Image.open(io.BytesIO(png_of(picture))))


def test_stacked_models_vote_as_the_run_recorded(served_folder, opened):
    setting = prepare(served_folder)
    scores = opened.guard.models.scores(render(setting.evaluation))
    kept = load_votes(served_folder / "votes" / "repeat0-attackers1-clean.npz")
    np.testing.assert_allclose(
        scores, load_sub_models(find_cell(served_folder, 0, 1)).scores(setting.evaluation), atol=1e-4
    )
    np.testing.assert_array_equal(scores.argmax(axis=2), kept.votes)


def test_all_formats_of_one_picture_get_one_answer(client, opened):
    picture = opened.gallery[0]
    pixels = pixels_of(picture)
    answers = [
        client.predict(png_of(picture), "image/png"),
        client.predict(json.dumps({"images": pixels.tolist()})),
        client.predict(json.dumps({"images": [[pixels.tolist()]], "scale": 255}), "application/json; charset=utf-8"),
        client.predict(pixels),
        client.predict(np.asfortranarray(pixels[None, None])),
        client.predict(pixels[None] / np.float64(255)),
        client.predict(json.dumps({"images": (pixels / 255).tolist(), "scale": 1})),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert len({answer.text for answer in answers}) == 1
    (found,) = answers[0].json()["predictions"]
    assert found["label"] == picture["label"]
    (expected,) = opened.guard.predict(pixels[None, None].astype(np.float32) / 255)
    assert tuple(found["votes"]) == expected.votes


def test_a_batch_is_answered_in_order_and_equals_single_answers(client, opened):
    batch = np.stack([pixels_of(picture) for picture in opened.gallery])
    together = client.predict(batch).json()["predictions"]
    for pixels, found in zip(batch, together, strict=True):
        (alone,) = client.predict(pixels).json()["predictions"]
        assert {k: v for k, v in alone.items() if k != "incident"} == {
            k: v for k, v in found.items() if k != "incident"
        }


def test_triggered_pictures_raise_incidents_that_name_who_planted_them(client, opened):
    triggered = [picture for picture in opened.gallery if picture["kind"] == "triggered"]
    found = [client.predict(png_of(picture), "image/png").json()["predictions"][0] for picture in triggered]
    flagged = [(answer, picture) for answer, picture in zip(found, triggered, strict=True) if answer["flagged"]]
    assert len(flagged) >= len(triggered) / 2
    right = sum(
        [suspect["user"] for suspect in answer["suspects"]] == picture["planted_by"] for answer, picture in flagged
    )
    assert right >= len(flagged) / 2
    listed = client.get("/incidents").json()["incidents"]
    assert [entry["id"] for entry in listed] == sorted((answer["incident"] for answer, _ in flagged), reverse=True)
    assert {entry["digest"] for entry in listed} == {answer["digest"] for answer, _ in flagged}
    newest = client.get("/incidents", params={"after": listed[1]["id"]}).json()["incidents"]
    assert [entry["id"] for entry in newest] == [listed[0]["id"]]
    target = triggered[0]["target"]
    assert [entry for entry in client.get("/evidence").json()["evidence"] if entry["target"] == target]


def test_an_unflagged_input_accuses_nobody_and_its_certificate_is_certifys(client, opened):
    batch = np.stack([pixels_of(picture) for picture in opened.gallery])
    plain = client.predict(batch).json()["predictions"]
    assert {answer["certificate"] for answer in plain} == {None}
    found = client.predict(batch, certify=True).json()["predictions"]
    assert all(answer["certificate"] is None for answer in found if answer["flagged"])
    unflagged = [answer for answer in found if not answer["flagged"]]
    assert len(unflagged) >= 3
    for answer in unflagged:
        assert (answer["suspects"], answer["target"], answer["incident"], answer["hit_models"]) == ([], None, None, [])
        k = opened.guard.certified_attackers
        certificates = certify(
            [answer["votes"]], opened.guard.code, threat="deterministic", decoder=opened.guard.decoder, max_attackers=k
        )
        assert answer["certificate"]["radius"] == certificates.radius[0]
        assert answer["label"] == certificates.labels[0]


def test_a_fitted_decoder_is_certified_as_far_as_the_votes_determine_its_answer(opened):
    from codeward.serve._guard import Guard

    class Fitted(PluralityDecoder):
        nearest_ = NearestDecoder(opened.guard.code, 1, 0, 10)

    old = opened.guard
    guard = Guard(old.models, old.code, Fitted(old.code, 10), old.inspection, 0.5)
    unsure = [0] * (old.code.n_models - 2) + [1, 2]
    sure, none = (json.loads(text) for text in guard._certify([(3,) * old.code.n_models, tuple(unsure)]))
    assert (sure["radius"], sure["exact"], sure["threat"]) == (1, False, "deterministic")
    assert none["radius"] == 0
    assert "do not determine the label" in none["text"]
    assert Guard(old.models, old.code, Fitted(old.code, 10), old.inspection, 0.5, threat="arbitrary")._certify(
        [(3,)]
    ) == ["null"]


def test_a_decoder_of_scores_is_certified_on_the_votes_it_reads(opened):
    from codeward.serve._guard import Guard

    old = opened.guard

    class Models:
        n_models, n_classes = old.code.n_models, 10

        def scores(self, inputs):
            return np.where(np.arange(10) == 4, -0.1, -5.0) * np.ones((len(inputs), self.n_models, 1))

        def votes(self, inputs):
            return np.full((len(inputs), self.n_models), 3)

    class Scored(PluralityDecoder):
        needs = "scores"

        def decode(self, scores):
            return super().decode(scores.argmax(axis=2))

    guard = Guard(Models(), old.code, Scored(old.code, 10), old.inspection, 0.5)
    (verdict,) = guard.predict(np.zeros((1, 2)))
    assert set(verdict.votes) == {3}
    assert set(verdict.heard) == {int(verdict.decoded.labels[0])} == {4}


def test_what_is_remembered_is_bounded_and_equals_what_is_found_anew(opened, monkeypatch):
    from codeward.serve._guard import Guard

    monkeypatch.setattr("codeward.serve._guard.REMEMBERED", 5)
    old = opened.guard
    small = Guard(old.models, old.code, old.decoder, old.inspection, old.threshold)
    votes = np.random.default_rng(0).integers(0, 10, (40, old.code.n_models))
    first = small.decode_votes(votes)
    assert len(small._verdicts._known) == 5
    assert [verdict.text for verdict in small.decode_votes(votes[::-1])][::-1] == [verdict.text for verdict in first]
    alone = [old.decoder.decode(row[None]) for row in votes]
    assert [verdict.decoded.labels[0] for verdict in first] == [one.labels[0] for one in alone]


def test_decoder_and_threshold_are_those_the_record_counts(opened):
    assert tuple(opened.guard.decoder.attackers_prior) == opened.cell.assumptions.attackers_prior
    assert opened.guard.threshold == opened.cell.decoder().threshold
    verdicts = opened.guard.decode_votes(opened.cell.clean.votes)
    counted = opened.cell.record["figures"]["clean"]["all"]["alarms"]
    assert sum(verdict.flagged for verdict in verdicts) == counted["count"]


def test_a_revoked_state_is_served_with_its_own_models_and_code(served_folder, tmp_path):
    from codeward.experiments import revoke_users
    from codeward.runs import foresee_revocation
    from codeward.serve._opening import open_run

    # A copy: revoking leaves a note in the folder, and the other tests serve that one as it is.
    folder = shutil.copytree(served_folder, tmp_path / "run")
    output = tmp_path / "without"
    for _ in revoke_users(folder, foresee_revocation(folder, ["13"]), output):
        pass
    left = open_run(output)
    assert left.guard.code.n_users == 15
    assert "13" not in left.card["user_names"]
    setting = prepare(output)
    kept = load_votes(output / "votes" / "repeat0-attackers1-triggered.npz")
    votes = left.guard.models.scores(render(setting.triggered(*setting.attack(1)))).argmax(2)
    np.testing.assert_array_equal(votes, kept.votes)


def test_a_ledger_that_fails_withholds_the_verdict(calling, opened, tmp_path):
    ledger = Ledger(tmp_path / "broken.sqlite")
    triggered = [picture for picture in opened.gallery if picture["kind"] == "triggered"]
    with calling(ledger=ledger) as client:
        pictures = map(png_of, triggered)
        flagged = next(p for p in pictures if client.predict(p, "image/png").json()["predictions"][0]["flagged"])
        ledger._engine.dispose()
        with ledger._engine.begin() as connection:
            table.drop(connection)
        answer = client.predict(flagged, "image/png")
        assert answer.status_code == 503
        assert "predictions" not in answer.text


def test_the_other_routes_answer(client, opened):
    assert client.get("/healthz").json()["status"] == "ok"
    card = client.get("/code").json()
    assert np.array_equal(card["matrix"], opened.guard.code.matrix)
    assert card["attackers"]["detect"] == opened.guard.inspection.detect
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/predict", "/code", "/incidents", "/metrics"}
    client.predict(b"", "image/png")
    metrics = client.get("/metrics")
    assert 'codeward_requests_total{path="/predict",status="400"} 1.0' in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain")
    assert client.get("/docs").status_code == client.get("/page/..%2f_app.py").status_code == 404
    assert client.get("/predict").status_code == 405
