"""The endpoint over real HTTP: what it refuses, be it a bad body, too much at once or a stranger."""

import io
import json
import socket
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from codeward.serve._access import Limits

TOKEN = "a-token-long-enough-to-pass"
#: An array of 64 bytes without its last one.
SHORT = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8), }".ljust(127) + b"\n" + bytes(63)
)


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
        (np.zeros((8, 8), np.int64), "application/x-npy", 422),
        (np.full((8, 8), np.nan), "application/x-npy", 422),
        (np.full((8, 8), 1e300), "application/x-npy", 422),
        (np.zeros((9, 8), np.uint8), "application/x-npy", 422),
        (np.zeros((0, 8, 8), np.uint8), "application/x-npy", 422),
        (SHORT, "application/x-npy", 422),
        (b"\x93NUMPY\x01\x00", "application/x-npy", 400),
        (b"not numpy at all", "application/x-npy", 400),
        (b"\x89PNG\r\n\x1a\n", "image/png", 400),
    ],
)
def test_bad_bodies_get_their_4xx_and_one_sentence(client, body, kind, status):
    answer = client.predict(body, kind)
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
    assert client.predict(header + pickle.dumps(Boom()), "application/x-npy").status_code == 422
    assert client.predict(pickle.dumps(Boom()), "application/x-npy").status_code == 400
    # A header that announces a petabyte, and shapes whose product overflows.
    for shape in ("(1000000, 1000000, 1000)", f"({2**62}, 4)", "(-1, 8, 8)"):
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
        body = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 64
        assert client.predict(body, "application/x-npy").status_code in (400, 422)


def test_png_bombs_wrong_sizes_deep_modes_and_animations_are_refused_unopened(client):
    for body in (
        png_bytes((20_000, 20_000), "1"),
        png_bytes((9, 8)),
        png_bytes((8, 8), "I;16"),
        png_bytes((8, 8), save_all=True, append_images=[Image.new("L", (8, 8), 9)]),
    ):
        assert client.predict(body, "image/png").status_code == 422
    assert client.predict(png_bytes((8, 8))[:45], "image/png").status_code == 400
    for mode in ("RGB", "RGBA", "P", "1", "LA"):
        assert client.predict(png_bytes((8, 8), mode), "image/png").status_code == 200


def test_pictures_unlike_the_training_data_in_channels_are_taken_only_when_asked():
    from fastapi import HTTPException

    from codeward.serve._inputs import read_images

    for channels, mode, word in ((3, "L", "in grey"), (3, "1", "in grey"), (1, "RGB", "in colour")):
        out = io.BytesIO()
        Image.effect_noise((8, 8), 60).convert(mode).save(out, "PNG")
        if mode == "RGB":
            out = io.BytesIO()
            Image.merge("RGB", [Image.effect_noise((8, 8), 60) for _ in range(3)]).save(out, "PNG")
        with pytest.raises(HTTPException, match=word):
            read_images(out.getvalue(), "image/png", (channels, 8, 8), Limits())
        assert read_images(out.getvalue(), "image/png", (channels, 8, 8), Limits(), convert=True).shape[1] == channels


def test_long_strings_in_json_take_no_more_memory_than_they_have(client):
    # np.array would pad the long string to every place: 100,000 of half a MB each. (JSON has a limit of 1 MiB.)
    body = b'{"images": ["' + b"x" * 500_000 + b'"' + b',""' * 100_000 + b"]}"
    assert client.predict(body).status_code == 422


def test_body_and_batch_limits_answer_413(calling):
    limits = Limits(body_bytes=5000, batch=3)
    with calling(limits=limits) as client:
        assert client.predict(np.zeros((4, 8, 8), np.uint8)).status_code == 413
        assert client.predict(np.zeros((3, 8, 8), np.uint8)).status_code == 200
        assert client.predict(b"x" * 5001).status_code == 413
        chunks = (b"x" * 1000 for _ in range(50))
        assert client.predict(chunks).status_code == 413  # no length announced


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

    def predict(self, images):
        time.sleep(self.seconds)
        return self.guard.predict(images)


def test_too_many_at_once_get_429_and_too_slow_gets_504_both_with_retry_after(calling, opened):
    body = np.zeros((8, 8), np.uint8)
    slow = replace(opened, guard=SlowGuard(opened.guard, 0.4))
    with calling(run=slow, limits=Limits(in_flight=2)) as client:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(client.predict(body))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
        assert client.predict(body).status_code == 200  # and then it goes on
    with calling(run=slow, limits=Limits(seconds=0.1)) as client:
        answer = client.predict(body)
        assert answer.status_code == 504
        assert answer.headers["retry-after"]
    with calling(limits=Limits(waiting=2)) as client:
        assert client.predict(np.zeros((3, 8, 8), np.uint8)).status_code == 429


def test_requests_that_wait_together_share_a_pass(calling, opened):
    sizes = []

    class Watching(SlowGuard):
        def predict(self, images):
            sizes.append(len(images))
            return super().predict(images)

    with calling(run=replace(opened, guard=Watching(opened.guard, 0.2))) as client:
        threads = [threading.Thread(target=client.predict, args=(np.zeros((8, 8), np.uint8),)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(sizes) == 8
    assert max(sizes) > 1


def test_the_token_guards_everything_but_health_and_the_page(calling):
    picture = png_bytes((8, 8))
    with calling(token=TOKEN) as client:
        for path in ("/code", "/incidents", "/gallery", "/metrics", "/evidence", "/openapi.json", "/nowhere"):
            assert client.get(path).status_code == 401
            for wrong in ("Bearer wrong", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
                assert client.get(path, headers={"authorization": wrong.encode()}).status_code == 401
        assert client.predict(picture, "image/png").status_code == 401
        assert client.get("/healthz").status_code == client.get("/").status_code == 200
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert client.predict(picture, "image/png").status_code == 200


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
