"""10,000 users in a federation, three rounds, on one machine: time, bytes and memory of the server.

    python -m benchmarks.federated_scale [--users 10000] [--rounds 3] [--record benchmarks/records/federated_scale.json]

The users sit on the 4 distinct columns of the paper's code d (6 sub-models, 3 of them a user, perceptrons of 19 kB).
Every message is packed as Flower records, unpacked, checked and summed by the code that a deployed server runs; what is
left out is the network. Each line runs in a process of its own, so that its peak memory is its own:

- *everybody*: all users are asked. They send the weights back with noise in place of local training, which is theirs;
- *few*: the same with a tenth of the users, to see whether memory grows with their number;
- *sample*: 25 users of every column are asked (``federated.sample``), and they train, 16 images each.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from codeward._files import write_text_atomic
from codeward.codes import Code, named_code
from codeward.data import load_dataset
from codeward.federated import FederatedSettings, Federation, FederationPlan, answer, train_update
from codeward.federated.client_app import pack_reply, unpack_assignment
from codeward.federated.server_app import pack_assignment, unpack_reply
from codeward.runs import describe_machine
from codeward.training import PRESETS


def measure(users: int, rounds: int, sample: int | None) -> dict[str, Any]:
    """Run one federation in this process; with a sample users train, without one they send noise."""
    code = named_code("d")
    columns = np.tile(code.matrix, -(-users // code.n_users))[:, :users]
    training = replace(PRESETS["digits"], architecture="mlp", batch_size=16)
    settings = FederatedSettings(rounds=rounds, local_epochs=1, sample=sample)
    images = load_dataset("digits", None).train
    rng = np.random.default_rng(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    federation = Federation(FederationPlan(Code(columns), training, settings, (1, 8, 8), 0))
    lines = []
    server = time.process_time() - begin
    for _ in range(rounds):
        begin, spent, clients, sent, received = time.perf_counter(), server, 0.0, 0, 0
        mark = time.process_time()
        assignments = federation.assign()
        for user, assignment in assignments.items():
            message = pack_assignment(assignment)
            sent += _weigh(message)
            server += time.process_time() - mark
            mark = time.process_time()
            own = unpack_assignment(message)
            if sample is None:
                noisy = {
                    model: {name: array + np.float32(rng.normal(0, 1e-3)) for name, array in arrays.items()}
                    for model, arrays in own.models.items()
                }
                reply = answer(own, int(rng.integers(1, 100)), noisy)
            else:
                reply = train_update(own, images.take(rng.integers(0, len(images), 16)))
            content = pack_reply(reply)
            clients += time.process_time() - mark
            mark = time.process_time()
            received += _weigh(content)
            federation.accept(user, unpack_reply(content))
        report = federation.close()
        server += time.process_time() - mark
        assert len(report.counted) == len(assignments)
        lines.append(
            {
                "asked": len(assignments),
                "seconds": round(time.perf_counter() - begin, 2),
                "server_cpu_seconds": round(server - spent, 2),
                "clients_cpu_seconds": round(clients, 2),
                "sent_bytes": sent,
                "received_bytes": received,
            }
        )
    federation.result()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "users": users,
        "sample": sample,
        "rounds": lines,
        "memory_before_mb": round(before / 1024, 1),
        "memory_peak_mb": round(peak / 1024, 1),
    }


def _weigh(content: Any) -> int:
    return int(sum(record.count_bytes() for record in content.array_records.values()))


def main() -> None:
    """Measure each line in a process of its own, print a table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lines = {
        "everybody": (options.users, None),
        "few": (options.users // 10, None),
        "sample": (options.users, 25),
    }
    if options.line:
        users, sample = lines[options.line]
        print(json.dumps(measure(users, options.rounds, sample)))
        return
    found = {}
    for name in lines:
        command = [sys.executable, "-m", "benchmarks.federated_scale", "--line", name]
        command += ["--users", str(options.users), "--rounds", str(options.rounds)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[name] = json.loads(output)
        rounds = found[name]["rounds"]
        print(
            f"{name}: {found[name]['users']:,} users, {rounds[0]['asked']:,} asked a round; a round "
            f"{max(line['seconds'] for line in rounds):.1f} s at most, server "
            f"{max(line['server_cpu_seconds'] for line in rounds):.1f} s of CPU, "
            f"{rounds[0]['sent_bytes'] / 1e6:.0f} MB sent, {rounds[0]['received_bytes'] / 1e6:.0f} MB received; memory "
            f"{found[name]['memory_peak_mb']:.0f} MB, {found[name]['memory_before_mb']:.0f} MB before it began",
            flush=True,
        )
    if options.record:
        load = round(os.getloadavg()[0], 1)
        record = {"lines": found, "load_average": load, **describe_machine("cpu")}
        write_text_atomic(options.record, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
