"""The endpoint under clients that dawdle, pile up or break off, and what ``/healthz`` says meanwhile."""

import shutil
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from codeward._errors import InputError
from codeward.serve import Ledger
from codeward.serve._access import Limits, ServeSettings, group_address
from codeward.serve._server import listen

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def connect(url):
    place = urlsplit(url)
    line = socket.create_connection((place.hostname, place.port))
    line.settimeout(10)
    return line


def read_all(line):
    found = b""
    while part := line.recv(65536):
        found += part
    return found


def test_a_head_that_does_not_arrive_ends_the_connection(serving):
    with serving(limits=Limits(header_seconds=0.3)) as (url, _):
        lines = [connect(url) for _ in range(5)]
        for line in lines[1:]:
            line.sendall(b"GET /healthz HT")
        begin = time.monotonic()
        lines[2].sendall(b"TP/1.1\r\nX-Slow: ")  # more bytes are no more time
        for line in lines:
            assert read_all(line).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begin < 5
        # On a connection in use too.
        with connect(url) as line:
            line.sendall(HEAD + b"\r\n")
            assert line.recv(65536).startswith(b"HTTP/1.1 200")
            line.sendall(b"GET /hea")
            assert read_all(line).startswith(b"HTTP/1.1 408")
            line.close()
        for line in lines:
            line.close()


@pytest.mark.parametrize("limits", [Limits(connections=10), Limits(connections_per_address=10)])
def test_silent_connections_keep_nobody_out(serving, limits):
    with serving(limits=limits) as (url, _):
        lines = [connect(url) for _ in range(40)]
        for _ in range(3):
            assert httpx.get(url + "healthz").status_code == 200
        assert read_all(lines[0]) == b""  # the oldest made room
        for line in lines:
            line.close()


def test_a_client_that_closes_its_sending_side_is_answered(serving, opened):
    with serving() as (url, _):
        body = np.zeros((8, 8), np.uint8)
        content = body_of(body)
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
        for request in (HEAD + b"\r\n", head + f"Content-Length: {len(content)}\r\n\r\n".encode() + content):
            with connect(url) as line:
                line.sendall(request)
                line.shutdown(socket.SHUT_WR)
                assert read_all(line).startswith(b"HTTP/1.1 200")
        # Half a body and the end of it is no request.
        with connect(url) as line:
            line.sendall(head + b"Content-Length: 100\r\n\r\n123")
            line.shutdown(socket.SHUT_WR)
            assert read_all(line) == b""


def body_of(array):
    import io

    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


class HeldGuard:
    """The real guard, which waits until it is let go."""

    def __init__(self, guard):
        self.guard, self.free = guard, threading.Event()

    def __getattr__(self, name):
        return getattr(self.guard, name)

    def predict(self, images):
        self.free.wait(20)
        return self.guard.predict(images)


@contextmanager
def holding(calling, opened, senders, **how):
    """Serve with a held guard and requests of these forwarded addresses in hand; the client and their answers."""
    guard, answers = HeldGuard(opened.guard), {}
    with calling(run=replace(opened, guard=guard), **how) as client:

        def send(number, sender):
            headers = {"content-type": "application/x-npy", "x-forwarded-for": sender}
            content = body_of(np.zeros((8, 8), np.uint8))
            answers[number] = client.post("/predict", content=content, headers=headers).status_code

        threads = [threading.Thread(target=send, args=pair) for pair in enumerate(senders)]
        for thread in threads:
            thread.start()
            time.sleep(0.2)  # in this order
        try:
            yield client, answers
        finally:
            guard.free.set()
            for thread in threads:
                thread.join()


def test_one_client_cannot_take_every_place_also_behind_a_proxy(calling, opened):
    limits = Limits(per_client=1)
    senders = ["203.0.113.1", "203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8::2", "6.6.6.6, 203.0.113.2"]
    with holding(calling, opened, senders, limits=limits, trusted_proxies=("127.0.0.0/8",)) as (client, answers):
        assert client.get("/healthz").status_code == 200
        assert answers == {1: 429, 4: 429, 5: 429}  # the last names somebody else in front: not the proxy's word
    assert answers == {0: 200, 1: 429, 2: 200, 3: 200, 4: 429, 5: 429}
    # Without a trusted proxy nobody's word counts.
    with holding(calling, opened, ["203.0.113.1", "203.0.113.2"], limits=limits) as (_, answers):
        pass
    assert answers == {0: 200, 1: 429}


def test_addresses_are_grouped_as_clients_have_them():
    assert group_address("203.0.113.1") == "203.0.113.1"
    assert group_address("::ffff:203.0.113.1") == "203.0.113.1"
    assert group_address("2001:db8::1") == group_address("2001:db8::ffff:1")
    assert group_address("somewhere") == "somewhere"
    assert not ServeSettings(trusted_proxies=("10.0.0.0/8",)).trusts("somewhere")
    with pytest.raises(InputError, match="trusted proxy"):
        ServeSettings(trusted_proxies=("proxy.example",))


def test_large_json_is_refused_and_all_bodies_together_are_bounded(calling):
    with calling() as client:
        answer = client.predict(b" " * (2**20 + 1))
        assert answer.status_code == 413
        assert ".npy" in answer.json()["detail"]
        assert client.predict(b" " * 2**20).status_code == 400
    with calling(limits=Limits(pending_bytes=1000)) as client:
        assert client.predict(np.zeros((20, 8, 8), np.uint8)).status_code == 429
        for _ in range(3):  # what was held is let go
            assert client.predict(np.zeros((8, 8, 8), np.uint8)).status_code == 200


def wait_for(client, **expected):
    deadline = time.monotonic() + 20
    while True:
        found = client.get("/healthz")
        if all(found.json()[name].startswith(value) for name, value in expected.items()):
            return found.status_code
        assert time.monotonic() < deadline, found.text
        time.sleep(0.05)


def test_health_is_truthful_about_ledger_and_models(calling, opened, tmp_path, monkeypatch):
    monkeypatch.setattr("codeward.serve._answers.EVERY", 0.05)
    ledger = tmp_path / "mine.sqlite"
    with calling(ledger=Ledger(ledger)) as client:
        assert wait_for(client, status="ok", ledger="ok", models="current") == 200
        ledger.rename(tmp_path / "gone")
        assert wait_for(client, status="failing", ledger="takes no incidents") == 503
        (tmp_path / "gone").rename(ledger)
        assert wait_for(client, status="ok") == 200


@pytest.mark.parametrize("made", ["13/revocation.json", "0123456789abcdef.json"])
def test_health_says_when_users_were_revoked(calling, opened, served_folder, monkeypatch, made):
    monkeypatch.setattr("codeward.serve._answers.EVERY", 0.05)
    state = served_folder / "revoked" / made
    with calling() as client:
        assert wait_for(client, models="current") == 200
        state.parent.mkdir(parents=True)
        try:
            state.write_text("{}")
            assert wait_for(client, status="degraded", models="old: users were revoked") == 200
        finally:
            state.unlink()
            shutil.rmtree(served_folder / "revoked")
        assert wait_for(client, status="ok") == 200


def test_health_says_when_the_ledger_does_not_answer(tmp_path, monkeypatch):
    from codeward.serve._answers import HealthWatch

    monkeypatch.setattr("codeward.serve._answers.PATIENCE", -1.0)
    with Ledger(tmp_path / "l.sqlite") as ledger:
        watch = HealthWatch(ledger, tmp_path, [tmp_path / "code.json"])
        assert watch.report()["status"] == "failing"
        assert "no answer" in watch.report()["ledger"]
        monkeypatch.setattr("codeward.serve._answers.PATIENCE", 60.0)
        (tmp_path / "code.json").write_text("{}")
        watch.look()
        assert watch.report()["models"].startswith("old: the run folder has changed")
        watch.close()


def test_an_announced_address_takes_connections_before_the_server_runs():
    bound, url = listen(ServeSettings(port=0))
    with bound, connect(url):
        pass
