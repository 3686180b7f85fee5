"""The endpoint over real HTTP: answers, formats, limits, access."""

import base64
import io
import json
import socket
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image

from codeward.certify import certify
from codeward.data import render
from codeward.decoding import load_votes
from codeward.experiments._served import load_served
from codeward.serve import Ledger
from codeward.serve._guard import choose_prior
from codeward.serve._limits import Limits
from codeward.serve._schema import incidents as table

TOKEN = "a-token-long-enough-to-pass"


@pytest.fixture
def client(serving):
    with serving() as (url, _), httpx.Client(base_url=url) as client:
        yield client


def png_of(picture):
    return base64.b64decode(picture["png"].partition(",")[2])


def pixels_of(picture):
    return np.asarray(Image.open(io.BytesIO(png_of(picture))))


def npy_of(array):
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def post(client, body, kind="application/json"):
    return client.post("/predict", content=body, headers={"content-type": kind})


def test_stacked_models_vote_as_the_run_recorded(served_folder, opened):
    served = load_served(served_folder, 0, 1)
    scores = opened.guard.models.scores(render(served.setting.evaluation))
    kept = load_votes(served_folder / "votes" / "repeat0-attackers1-clean.npz")
    np.testing.assert_allclose(scores, served.ensemble.scores(served.setting.evaluation), atol=1e-4)
    np.testing.assert_array_equal(scores.argmax(axis=2), kept.votes)


@pytest.mark.parametrize("architecture", ["digits-cnn", "mnist-cnn", "resnet18"])
def test_stacked_layers_and_vmap_agree_with_the_models_one_by_one(architecture):
    import torch

    from codeward.serve._inference import StackedModels
    from codeward.training import Ensemble, TrainingSettings, build_network

    settings = TrainingSettings(architecture=architecture, mean=(0.4,), std=(0.3,))
    shape = (1, 8, 8)
    weights = {str(seed): build_network(architecture, shape, 10, seed).state_dict() for seed in range(3)}
    for state in weights.values():  # batch norm at work, not at its initial identity
        state.update({name: torch.rand_like(value) + 0.5 for name, value in state.items() if "running" in name})
    ensemble = Ensemble(tuple(weights), 0, 3, settings, shape, torch.device("cpu"), "float32", weights, None)
    images = np.random.default_rng(0).random((5, *shape), dtype=np.float32)
    stacked = StackedModels(ensemble)
    for seed, state in weights.items():
        network = build_network(architecture, shape, 10, 0).eval()
        network.load_state_dict(state)
        with torch.no_grad():
            alone = torch.log_softmax(network((torch.from_numpy(images) - 0.4) / 0.3), dim=1).numpy()
        np.testing.assert_allclose(stacked.scores(images)[:, int(seed)], alone, atol=2e-4)
    # Buffers left over from a larger batch do not leak into a smaller one.
    np.testing.assert_allclose(stacked.scores(images[:1]), stacked.scores(images)[:1], atol=1e-5)


def test_all_formats_of_one_picture_get_one_answer(client, opened):
    picture = opened.gallery[0]
    pixels = pixels_of(picture)
    answers = [
        post(client, png_of(picture), "image/png"),
        post(client, json.dumps({"images": pixels.tolist()})),
        post(client, json.dumps({"images": [[pixels.tolist()]], "scale": 255}), "application/json; charset=utf-8"),
        post(client, npy_of(pixels), "application/x-npy"),
        post(client, npy_of(np.asfortranarray(pixels[None, None])), "application/x-npy"),
        post(client, npy_of(pixels[None] / np.float64(255)), "application/x-npy"),
        post(client, json.dumps({"images": (pixels / 255).tolist(), "scale": 1})),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert len({answer.text for answer in answers}) == 1
    (found,) = answers[0].json()["predictions"]
    assert found["label"] == picture["label"]
    (expected,) = opened.guard.judge(pixels[None, None].astype(np.float32) / 255)
    assert tuple(found["votes"]) == expected.votes


def test_a_batch_is_answered_in_order_and_equals_single_answers(client, opened):
    batch = np.stack([pixels_of(picture) for picture in opened.gallery])
    together = post(client, npy_of(batch), "application/x-npy").json()["predictions"]
    for pixels, found in zip(batch, together, strict=True):
        (alone,) = post(client, npy_of(pixels), "application/x-npy").json()["predictions"]
        assert {k: v for k, v in alone.items() if k != "incident"} == {
            k: v for k, v in found.items() if k != "incident"
        }


def test_triggered_pictures_raise_incidents_that_name_who_planted_them(client, opened):
    triggered = [picture for picture in opened.gallery if picture["kind"] == "triggered"]
    found = [post(client, png_of(picture), "image/png").json()["predictions"][0] for picture in triggered]
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
    batch = npy_of(np.stack([pixels_of(picture) for picture in opened.gallery]))
    asked = {"content": batch, "headers": {"content-type": "application/x-npy"}}
    plain = client.post("/predict", **asked).json()["predictions"]
    assert {answer["certificate"] for answer in plain} == {None}
    found = client.post("/predict", params={"certify": True}, **asked).json()["predictions"]
    assert all(answer["certificate"] is None for answer in found if answer["flagged"])
    calm = [answer for answer in found if not answer["flagged"]]
    assert len(calm) >= 3
    for answer in calm:
        assert (answer["suspects"], answer["target"], answer["incident"], answer["hit_models"]) == ([], None, None, [])
        k = opened.guard.certified_attackers
        certificates = certify(
            [answer["votes"]], opened.guard.code, threat="deterministic", decoder=opened.guard.decoder, max_attackers=k
        )
        assert answer["certificate"]["radius"] == certificates.radius[0]
        assert answer["label"] == certificates.labels[0]


def test_what_is_remembered_is_bounded_and_equals_what_is_found_anew(opened, monkeypatch):
    from codeward.serve._guard import Guard

    monkeypatch.setattr("codeward.serve._guard.REMEMBERED", 5)
    old = opened.guard
    small = Guard(old.models, old.decoder, old.inspection, old.threshold)
    votes = np.random.default_rng(0).integers(0, 10, (40, old.code.n_models))
    first = small.read_votes(votes)
    assert len(small._verdicts._known) == 5
    assert [verdict.text for verdict in small.read_votes(votes[::-1])][::-1] == [verdict.text for verdict in first]
    alone = [old.decoder.decode(row[None]) for row in votes]
    assert [verdict.decoded.labels[0] for verdict in first] == [one.labels[0] for one in alone]


def test_the_prior_stops_at_what_the_code_detects(opened):
    inspection = opened.guard.inspection
    assert choose_prior((0.25,) * 4, replace(inspection, detect=1)) == (0.5, 0.5)
    assert choose_prior((0.25,) * 4, replace(inspection, detect=5)) == (0.25,) * 4
    assert len(choose_prior((0.5, 0.5), replace(inspection, detect=0))) == 2


def test_a_revoked_state_is_served_with_its_own_models_and_code(served_folder, tmp_path):
    from codeward.experiments import foresee_revocation, revoke_users
    from codeward.serve._opening import open_run

    output = tmp_path / "without"
    for _ in revoke_users(served_folder, foresee_revocation(served_folder, ["13"]), output):
        pass
    left = open_run(output)
    assert left.guard.code.n_users == 15
    assert "13" not in left.card["user_names"]
    served = load_served(output, 0, 1)
    kept = load_votes(output / "votes" / "repeat0-attackers1-triggered.npz")
    votes = left.guard.models.scores(render(served.triggered(served.setting.evaluation, served.groups[0]))).argmax(2)
    np.testing.assert_array_equal(votes, kept.votes)


def test_the_other_routes_answer(client, opened):
    assert client.get("/healthz").json()["status"] == "ok"
    card = client.get("/code").json()
    assert np.array_equal(card["matrix"], opened.guard.code.matrix)
    assert card["attackers"]["detect"] == opened.guard.inspection.detect
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/predict", "/code", "/incidents", "/metrics"}
    post(client, b"", "image/png")
    metrics = client.get("/metrics")
    assert 'codeward_requests_total{path="/predict",status="400"} 1.0' in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain")
    assert client.get("/docs").status_code == client.get("/page/..%2f_app.py").status_code == 404
    assert client.get("/predict").status_code == 405


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 200_000, "application/json", 400),
        (b'{"images": NaN}', "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"images": [[1]], "extra": 1}', "application/json", 422),
        (b'{"images": [], "scale": 255}', "application/json", 422),
        (b'{"images": [["1"]]}', "application/json", 422),
        (b'{"images": [[null]]}', "application/json", 422),
        (b'{"images": [[true]]}', "application/json", 422),
        (b'{"images": [[1], [1, 2]]}', "application/json", 422),
        (b'{"images": [[[[[1]]]]]}', "application/json", 422),
        (b'{"images": [[1' + b"0" * 400 + b"]]}", "application/json", 422),
        (json.dumps({"images": [[300] * 8] * 8}).encode(), "application/json", 422),
        (json.dumps({"images": [[-1] * 8] * 8}).encode(), "application/json", 422),
        (json.dumps({"images": [[2] * 8] * 8, "scale": 1}).encode(), "application/json", 422),
        (json.dumps({"images": [[2] * 8] * 8, "scale": True}).encode(), "application/json", 422),
        (npy_of(np.zeros((8, 8), np.int64)), "application/x-npy", 422),
        (npy_of(np.full((8, 8), np.nan)), "application/x-npy", 422),
        (npy_of(np.full((8, 8), 1e300)), "application/x-npy", 422),
        (npy_of(np.zeros((9, 8), np.uint8)), "application/x-npy", 422),
        (npy_of(np.zeros((0, 8, 8), np.uint8)), "application/x-npy", 422),
        (npy_of(np.zeros((8, 8), np.uint8))[:-1], "application/x-npy", 422),
        (b"\x93NUMPY\x01\x00", "application/x-npy", 400),
        (b"not numpy at all", "application/x-npy", 400),
        (b"\x89PNG\r\n\x1a\n", "image/png", 400),
    ],
)
def test_bad_bodies_get_their_4xx_and_one_sentence(client, body, kind, status):
    answer = post(client, body, kind)
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["detail"], str)


def png_bytes(size, mode="L", **more):
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG", **more)
    return out.getvalue()


def test_pickles_are_never_loaded_and_headers_are_not_believed(client):
    import pickle

    class Boom:
        def __reduce__(self):
            return (exec, ("raise SystemExit",))

    header = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n"
    assert post(client, header + pickle.dumps(Boom()), "application/x-npy").status_code == 422
    assert post(client, pickle.dumps(Boom()), "application/x-npy").status_code == 400
    # A header that announces a petabyte, and shapes whose product overflows.
    for shape in ("(1000000, 1000000, 1000)", f"({2**62}, 4)", "(-1, 8, 8)"):
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
        body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64
        assert post(client, body, "application/x-npy").status_code in (400, 422)


def test_png_bombs_wrong_sizes_deep_modes_and_animations_are_refused_unopened(client):
    for body in (
        png_bytes((20_000, 20_000), "1"),
        png_bytes((9, 8)),
        png_bytes((8, 8), "I;16"),
        png_bytes((8, 8), save_all=True, append_images=[Image.new("L", (8, 8), 9)]),
    ):
        assert post(client, body, "image/png").status_code == 422
    assert post(client, png_bytes((8, 8))[:45], "image/png").status_code == 400
    for mode in ("RGB", "RGBA", "P", "1", "LA"):
        assert post(client, png_bytes((8, 8), mode), "image/png").status_code == 200


def test_long_strings_in_json_take_no_more_memory_than_they_have(client):
    # np.array would pad the long string to every place: 100,000 of 2 MB each.
    body = b'{"images": ["' + b"x" * 2_000_000 + b'"' + b',""' * 100_000 + b"]}"
    assert post(client, body).status_code == 422


def test_body_and_batch_limits_answer_413(serving):
    limits = Limits(body_bytes=5000, batch=3)
    with serving(limits=limits) as (url, _), httpx.Client(base_url=url) as client:
        assert post(client, npy_of(np.zeros((4, 8, 8), np.uint8)), "application/x-npy").status_code == 413
        assert post(client, npy_of(np.zeros((3, 8, 8), np.uint8)), "application/x-npy").status_code == 200
        assert post(client, b"x" * 5001).status_code == 413
        chunks = (b"x" * 1000 for _ in range(50))
        assert post(client, chunks).status_code == 413  # no length announced


def test_a_body_that_trickles_in_gets_408(serving):
    with serving(limits=Limits(upload_seconds=0.2)) as (url, _):
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as line:
            line.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n")
            line.sendall(b"Content-Length: 100\r\n\r\n123")
            line.settimeout(10)
            assert line.recv(100).startswith(b"HTTP/1.1 408")


class SlowGuard:
    """The real guard, held up: what a machine under load looks like."""

    def __init__(self, guard, seconds):
        self.guard, self.seconds = guard, seconds

    def __getattr__(self, name):
        return getattr(self.guard, name)

    def judge(self, images):
        time.sleep(self.seconds)
        return self.guard.judge(images)


def test_too_many_at_once_get_429_and_too_slow_gets_504_both_with_retry_after(serving, opened):
    body = npy_of(np.zeros((8, 8), np.uint8))
    slow = replace(opened, guard=SlowGuard(opened.guard, 0.4))
    with serving(run=slow, limits=Limits(in_flight=2)) as (url, _), httpx.Client(base_url=url) as client:
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(post(client, body, "application/x-npy"))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        assert post(client, body, "application/x-npy").status_code == 200  # and then it goes on
    with serving(run=slow, limits=Limits(seconds=0.1)) as (url, _), httpx.Client(base_url=url) as client:
        answer = post(client, body, "application/x-npy")
        assert answer.status_code == 504
        assert answer.headers["retry-after"]
    with serving(limits=Limits(waiting=2)) as (url, _), httpx.Client(base_url=url) as client:
        assert post(client, npy_of(np.zeros((3, 8, 8), np.uint8)), "application/x-npy").status_code == 429


def test_requests_that_wait_together_share_a_pass(serving, opened):
    sizes = []

    class Watching(SlowGuard):
        def judge(self, images):
            sizes.append(len(images))
            return super().judge(images)

    with (
        serving(run=replace(opened, guard=Watching(opened.guard, 0.2))) as (url, _),
        httpx.Client(base_url=url) as client,
    ):
        threads = [
            threading.Thread(target=post, args=(client, npy_of(np.zeros((8, 8), np.uint8)), "application/x-npy"))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(sizes) == 8
    assert max(sizes) > 1


def test_a_ledger_that_fails_withholds_the_verdict(serving, opened, tmp_path):
    ledger = Ledger(tmp_path / "broken.sqlite")
    triggered = [picture for picture in opened.gallery if picture["kind"] == "triggered"]
    with serving(ledger=ledger) as (url, _), httpx.Client(base_url=url) as client:
        flagged = next(p for p in triggered if post(client, png_of(p), "image/png").json()["predictions"][0]["flagged"])
        ledger._engine.dispose()
        with ledger._engine.begin() as connection:
            table.drop(connection)
        answer = post(client, png_of(flagged), "image/png")
        assert answer.status_code == 503
        assert "predictions" not in answer.text


def test_the_token_guards_everything_but_health_and_the_page(serving, opened):
    with serving(token=TOKEN) as (url, _), httpx.Client(base_url=url) as client:
        for path in ("/code", "/incidents", "/gallery", "/metrics", "/evidence", "/openapi.json", "/nowhere"):
            assert client.get(path).status_code == 401
            for wrong in ("Bearer wrong", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
                assert client.get(path, headers={"authorization": wrong.encode()}).status_code == 401
        assert post(client, png_of(opened.gallery[0]), "image/png").status_code == 401
        assert client.get("/healthz").status_code == client.get("/").status_code == 200
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert post(client, png_of(opened.gallery[0]), "image/png").status_code == 200


def test_other_host_names_are_refused_and_nothing_may_be_framed_or_run_inline(client):
    assert client.get("/code", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/code", headers={"host": "localhost:1"}).status_code == 200
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in page.headers
