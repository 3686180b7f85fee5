"""The endpoint under load, against the same models called in a plain FastAPI loop, in one run.

The baseline is what one would write first: an endpoint that takes the same body, asks each model in turn, decodes the
votes, and answers; no batching, no stacked weights, no memory of vote vectors, no certificate, no ledger. Ours does all
it does in production: certificates, and incidents on disk before the answer. Both are served by uvicorn in a process of
its own, and called by one client process over loopback with keep-alive, a number of connections at once.

Run: ``python -m benchmarks.serve [RUN_DIR]``; without a folder a small run is trained first.
"""

import argparse
import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CONNECTIONS = (1, 8, 32)


def serve_plain(folder: str, port: int) -> None:
    import torch
    import uvicorn
    from fastapi import FastAPI, Request

    from codeward.estimators import load_sub_models
    from codeward.runs import find_cell
    from codeward.training import build_network

    cell = find_cell(folder)
    ensemble = load_sub_models(cell)
    settings = ensemble.settings
    networks = []
    for model in range(ensemble.n_models):
        network = build_network(settings.architecture, ensemble.shape, settings.n_classes, 0)
        network.load_state_dict(ensemble.weights(model))
        networks.append(network.eval())
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))  # as the guarded endpoint does
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (settings.mean, settings.std))
    decoder = cell.decoder()
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, object]:
        pixels = np.load(io.BytesIO(await request.body()), allow_pickle=False)
        images = torch.from_numpy(pixels.reshape(-1, *ensemble.shape).astype(np.float32) / 255)
        with torch.inference_mode():
            votes = [network((images - mean) / std).argmax(1) for network in networks]
        decoded = decoder.decode(torch.stack(votes, 1).numpy())
        return {
            "predictions": [
                {"label": int(label), "attack_probability": float(p), "suspects": list(map(int, suspects))}
                for label, p, suspects in zip(decoded.labels, decoded.attack_probability, decoded.best_set, strict=True)
            ]
        }

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def send_all(port: int, bodies: list[bytes], connections: int, seconds: float) -> list[float]:
    """Return the time of every answered request; a bare HTTP/1.1 client, because the client shares the cores."""
    times: list[float] = []
    stop = time.perf_counter() + seconds

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() < stop:
            body = bodies[place % len(bodies)]
            place += connections
            head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-npy\r\n"
            head += f"Content-Length: {len(body)}"
            begin = time.perf_counter()
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"unexpected answer: {answer[:60]!r}")
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return times


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise SystemExit("a server did not start")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("a server did not start in a minute")


def draw_bodies(folder: str, triggered_share: float) -> list[bytes]:
    """Return one-image .npy bodies: test images of the run, some of them triggered."""
    from codeward.data import render
    from codeward.experiments import Experiment
    from codeward.runs import find_cell

    cell = find_cell(folder)
    setting = Experiment(cell.folder.config, cell.folder).prepare(cell.repeat)
    clean, rng = render(setting.evaluation), np.random.default_rng(0)
    groups = setting.attack(cell.n_attackers)
    attacked = render(setting.triggered(groups[0])) if groups else clean
    chosen = np.where((rng.random(len(clean)) < triggered_share)[:, None, None, None], attacked, clean)
    bodies = []
    for image in np.rint(chosen * 255).astype(np.uint8):
        out = io.BytesIO()
        np.save(out, image)
        bodies.append(out.getvalue())
    return bodies


def measure(folder: str, seconds: float, share: float) -> None:
    bodies = draw_bodies(folder, share)
    code = json.loads(Path(folder, "code.json").read_text())["matrix"]
    print(f"{len(code)} models of {len(code[0])} users, one image a request, {share:.0%} of them triggered, ", end="")
    print(f"{seconds:g} s a cell, {os.cpu_count()} cores shared by server and client, load {os.getloadavg()[0]:.1f}")
    print(f"{'server':>12} {'connections':>11} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8}")
    rates: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        start = "import sys; from codeward.cli import main; sys.exit(main(sys.argv[1:]))"
        for name in ("plain loop", "codeward"):
            port = free_port()
            command = [sys.executable, "-m", "benchmarks.serve", folder, "--plain-port", str(port)]
            if name == "codeward":
                options = ["--port", str(port), "--ledger", str(Path(scratch, "ledger.sqlite"))]
                command = [sys.executable, "-c", start, "serve", folder, *options]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                wait_for(port, server)
                asyncio.run(send_all(port, bodies, 4, 1.0))  # compiled kernels, filled caches
                for connections in CONNECTIONS:
                    times = np.array(asyncio.run(send_all(port, bodies, connections, seconds))) * 1000
                    rates[name, connections] = len(times) / seconds
                    middle, late = np.percentile(times, [50, 99])
                    rate = rates[name, connections]
                    print(f"{name:>12} {connections:11d} {rate:10.0f} {middle:8.1f} {late:8.1f}", flush=True)
            finally:
                server.terminate()
                server.wait()
    ratios = ", ".join(f"{rates['codeward', n] / rates['plain loop', n]:.1f} with {n}" for n in CONNECTIONS)
    print(f"requests/s of codeward over the plain loop: {ratios} connections")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--triggered", type=float, default=0.05, help="share of triggered inputs")
    parser.add_argument("--plain-port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.plain_port:
        serve_plain(given.folder, given.plain_port)
        return
    if given.folder:
        measure(given.folder, given.seconds, given.triggered)
        return
    from codeward.experiments import run_experiment
    from codeward.runs import load_config

    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch, "run"))
        for _ in run_experiment(
            load_config(None, ["attack.attackers=[2]", "code.name=c", "decoder.name=bayes"]), folder
        ):
            pass
        measure(folder, given.seconds, given.triggered)


if __name__ == "__main__":
    main()
