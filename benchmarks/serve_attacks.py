"""Attacks on a served run, counted: load, damaged requests, silent and half-closed clients, large bodies, kills.

Everything on loopback, bounded in number and time. Run: ``python -m benchmarks.serve_attacks [FOLDER]``; without a
folder a small run on digits is made. Prints one table; exits with 1 where something is lost or answered with 5xx.
"""

import argparse
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from codeward.serve import Ledger

_CLI = "import sys; from codeward.cli import main; sys.exit(main(sys.argv[1:]))"
#: Attack, number, what was seen, whether it should have been.
Row = tuple[str, int, str, bool]


class Server:
    """``codeward serve`` in a process of its own."""

    def __init__(self, folder: Path, ledger: Path) -> None:
        command = [sys.executable, "-c", _CLI, "serve", str(folder), "--port", "0", "--json"]
        self.process = subprocess.Popen([*command, "--ledger", str(ledger)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]

    def memory(self) -> int:
        """Resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024

    def stop(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(30)

    def connect(self) -> socket.socket:
        place = urlsplit(self.url)
        assert place.hostname is not None
        assert place.port is not None
        line = socket.create_connection((place.hostname, place.port))
        line.settimeout(30)
        return line


def body_of(images: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, images)
    return out.getvalue()


def pictures(url: str) -> list[bytes]:
    """Return the run's triggered images: most of them are incidents."""
    import base64

    found = httpx.get(url + "gallery").json()["pictures"]
    return [base64.b64decode(item["png"].partition(",")[2]) for item in found if item["kind"] == "triggered"]


def watch_health(url: str, stop: threading.Event, seen: list[float]) -> None:
    with httpx.Client() as client:
        while not stop.wait(0.05):
            begin = time.perf_counter()
            answer = client.get(url + "healthz", timeout=30)
            assert answer.status_code == 200, answer.text
            seen.append(time.perf_counter() - begin)


def under_watch(url: str, attack: Callable[[], str]) -> tuple[str, float]:
    """Attack while somebody asks for the health twenty times a second; return what was seen and the longest wait."""
    stop, seen = threading.Event(), [0.0]
    watcher = threading.Thread(target=watch_health, args=(url, stop, seen))
    watcher.start()
    try:
        text = attack()
    finally:
        stop.set()
        watcher.join()
    return f"{text}; /healthz {len(seen) - 1} times, at most {max(seen) * 1000:.0f} ms", max(seen)


def send_load(server: Server, seconds: float, connections: int) -> tuple[Counter[int], list[int]]:
    """Send triggered pictures over many connections; return statuses and the incidents acknowledged."""
    statuses: Counter[int] = Counter()
    acknowledged: list[int] = []
    images = pictures(server.url)
    end = time.monotonic() + seconds

    def work() -> None:
        with httpx.Client(timeout=30) as client:
            while time.monotonic() < end:
                try:
                    body = random.choice(images)
                    answer = client.post(server.url + "predict", content=body, headers={"content-type": "image/png"})
                except httpx.HTTPError:
                    statuses[0] += 1
                    return
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    acknowledged.extend(
                        item["incident"] for item in answer.json()["predictions"] if item["incident"] is not None
                    )

    threads = [threading.Thread(target=work) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses, acknowledged


def lost(ledger: Path, acknowledged: Sequence[int]) -> tuple[int, bool]:
    """Return how many acknowledged incidents are missing, and whether the chain is whole."""
    with Ledger(ledger) as opened:
        kept = {incident.id for incident in opened.incidents()}
        return len(set(acknowledged) - kept), not opened.verify().problems


def attack_load(folder: Path, ledger: Path, seconds: float) -> Row:
    server = Server(folder, ledger)
    try:
        found: list[Any] = []
        text, _ = under_watch(server.url, lambda: (found.extend(send_load(server, seconds, 16)), "")[1])
        statuses, acknowledged = found
    finally:
        server.stop()
    missing, whole = lost(ledger, acknowledged)
    said = f"{dict(statuses)}, {len(acknowledged)} incidents, {missing} missing, chain {'whole' if whole else 'broken'}"
    return "load, 16 connections", statuses.total(), said + text, not missing and whole and set(statuses) <= {200, 429}


def attack_kills(folder: Path, ledger: Path, count: int) -> Row:
    acknowledged: list[int] = []
    for number in range(count):
        server = Server(folder, ledger)
        killer = threading.Timer(
            2.0, server.process.send_signal, (signal.SIGKILL if number % 2 == 0 else signal.SIGTERM,)
        )
        killer.start()
        acknowledged += send_load(server, 4, 8)[1]
        server.process.wait(30)
    missing, whole = lost(ledger, acknowledged)
    said = f"{len(acknowledged)} incidents acknowledged, {missing} missing, chain {'whole' if whole else 'broken'}"
    return "kill -9 and SIGTERM under load", count, said, not missing and whole


def attack_two(folder: Path, ledger: Path, seconds: float) -> Row:
    servers = [Server(folder, ledger) for _ in range(2)]
    found: list[list[int]] = [[], []]

    def work(place: int) -> None:
        found[place] = send_load(servers[place], seconds, 4)[1]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.stop()
    missing, whole = lost(ledger, found[0] + found[1])
    twice = len(found[0] + found[1]) - len(set(found[0] + found[1]))
    said = f"{len(found[0])} + {len(found[1])} incidents, {missing} missing, {twice} numbers twice"
    return (
        "two servers, one ledger",
        2,
        f"{said}, chain {'whole' if whole else 'broken'}",
        whole and not missing and not twice,
    )


def attack_fuzz(server: Server, count: int) -> Row:
    rng = random.Random(0)
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    bodies = {
        b"application/x-npy": body_of(np.zeros((1, 8, 8), np.uint8)),
        b"application/json": json.dumps({"images": [[0] * 8] * 8}).encode(),
        b"image/png": pictures(server.url)[0],
    }
    seeds = [head % (kind, len(body)) + body for kind, body in bodies.items()]
    seeds += [
        b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in (b"/incidents?limit=5&after=0", b"/evidence")
    ]
    statuses: Counter[str] = Counter()
    for _ in range(count):
        request = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 5, 30))):
            place = rng.randrange(len(request))
            how = rng.random()
            if how < 0.5:
                request[place] = rng.randrange(256)
            elif how < 0.75:
                del request[place : place + rng.randrange(1, 40)]
            else:
                request[place:place] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 40)))
            if not request:
                request = bytearray(b"\r\n")
        with server.connect() as line:
            try:
                line.sendall(request)
                line.shutdown(socket.SHUT_WR)
                answer = line.recv(65536)
            except OSError:
                answer = b""
        statuses[answer[9:12].decode("ascii", "replace") or "closed"] += 1
    bad = [status for status in statuses if status.startswith("5")]
    return "damaged requests, half-closed", count, str(dict(statuses)), not bad and server.process.poll() is None


def attack_half_closed(server: Server, count: int) -> Row:
    answered = 0
    request = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\nContent-Length: %d\r\n\r\n"
    )
    body = body_of(np.zeros((1, 8, 8), np.uint8))
    for _ in range(count):
        with server.connect() as line:
            line.sendall(request % len(body) + body)
            line.shutdown(socket.SHUT_WR)
            answered += line.recv(100).startswith(b"HTTP/1.1 200")
    return "whole requests, half-closed", count, f"{answered} answered", answered == count


def attack_silence(server: Server, count: int) -> Row:
    """Silent sockets and half-sent heads: everybody else is answered, and after the limit they are gone."""

    def attack() -> str:
        lines = [server.connect() for _ in range(count)]
        for line in lines[::2]:
            with suppress(OSError):
                line.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        time.sleep(13)
        gone = 0
        for line in lines:
            try:
                while line.recv(4096):
                    pass
                gone += 1
            except ConnectionError:
                gone += 1
            except TimeoutError:
                pass
            line.close()
        return f"{gone} closed by the server within 13 s"

    text, worst = under_watch(server.url, attack)
    return "silent sockets and half-sent heads", count, text, worst < 2 and text.startswith(f"{count} closed")


def attack_bodies(server: Server, count: int, size: int, kind: str) -> Row:
    """Large bodies at once, as the format takes the most time to read."""
    content = b'{"images": [' + b"0.5," * (size // 4) + b"0]}" if kind == "application/json" else bytes(size)
    before = server.memory()

    def attack() -> str:
        statuses: Counter[int] = Counter()

        def work() -> None:
            answer = httpx.post(server.url + "predict", content=content, headers={"content-type": kind}, timeout=60)
            statuses[answer.status_code] += 1

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return str(dict(statuses))

    text, worst = under_watch(server.url, attack)
    text += f"; memory {before} to {server.memory()} MiB"
    return f"bodies of {size / 2**20:g} MiB, {kind}", count, text, worst < 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a run folder on digits")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies counts and seconds")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or make_run(Path(scratch, "run"))
        rows = attack_all(folder, Path(scratch), options.scale)
    print("| attack | number | seen | as it should be |\n|---|---|---|---|")
    for attack, number, seen, right in rows:
        print(f"| {attack} | {number:,} | {seen} | {'yes' if right else 'NO'} |")
    return 0 if all(row[3] for row in rows) else 1


def attack_all(folder: Path, scratch: Path, scale: float) -> list[Row]:
    def times(number: float) -> int:
        return max(1, round(number * scale))

    rows = [
        attack_load(folder, scratch / "load.sqlite", 8 * scale),
        attack_kills(folder, scratch / "kills.sqlite", times(4)),
        attack_two(folder, scratch / "two.sqlite", 4 * scale),
    ]
    server = Server(folder, scratch / "rest.sqlite")
    try:
        rows += [
            attack_fuzz(server, times(1500)),
            attack_half_closed(server, times(200)),
            attack_silence(server, times(530)),
            attack_bodies(server, 12, 2**20 - 100, "application/json"),
            attack_bodies(server, 12, 8 * 2**20, "application/json"),
            attack_bodies(server, 12, 8 * 2**20, "application/x-npy"),
        ]
        rows.append(attack_ledger(server, scratch / "rest.sqlite"))
    finally:
        server.stop()
    return rows


def attack_ledger(server: Server, ledger: Path) -> Row:
    """Remove the ledger under the server: no incident may be acknowledged, and /healthz must say so."""
    os.rename(ledger, f"{ledger}.away")
    statuses, acknowledged = send_load(server, 3, 4)
    time.sleep(6)
    health = httpx.get(server.url + "healthz").json()["ledger"]
    os.rename(f"{ledger}.away", ledger)
    time.sleep(6)
    again = httpx.get(server.url + "healthz").json()["ledger"]
    text = f"{dict(statuses)}, {len(acknowledged)} acknowledged, /healthz: {health}; put back: {again}"
    return "ledger removed", statuses.total(), text, not acknowledged and health != "ok" and again == "ok"


def make_run(folder: Path) -> Path:
    settings = (
        "users=16",
        "code.name=g",
        "decoder.name=bayes",
        "attack.attackers=[0,1]",
        "attack.fraction=0.5",
        "training.architecture=mlp",
    )
    command = [sys.executable, "-c", _CLI, "run", "-o", str(folder)]
    for setting in (*settings, "training.epochs=12", "training.device=cpu"):
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


if __name__ == "__main__":
    sys.exit(main())
