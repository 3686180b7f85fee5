"""What a secure sum inside one row of the code would cost, and what the server could no longer check.

    python -m benchmarks.secure_sum [--record benchmarks/records/secure_sum.json]

Pairwise masks (Bonawitz et al., 2017) among the users of one row: every two agree on a key (X25519), each user adds its
update, as fixed-point numbers modulo 2^64, to +- AES-CTR streams of the keys it shares; in the sum of the row the masks
cancel. Measured: processor time of a user, bytes it sends (with and without), what a user who falls silent after
masking costs the server, and what the server's checks of single replies see. Nothing of this is part of codeward;
docs/development/federated.md says why.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from codeward._files import write_text_atomic
from codeward.runs import describe_machine

ROWS, PARAMETERS = (4, 12, 50), (100_000, 11_000_000)
#: Fixed point: steps of 2^-32; a sum wraps beyond 2^31, and updates are far below 1.
ONE = 2.0**32
#: Bytes of a public key, and of an encrypted Shamir share of a key (33 bytes, nonce and tag); counted, not sent here.
KEY, SHARE = 32, 61
#: The server's bound of an update's norm (``clip_norm``).
BOUND = 1.0

Words = NDArray[np.uint64]


def stream(key: bytes, size: int) -> Words:
    """Return the mask of a pair: AES-128 in counter mode."""
    encryptor = Cipher(algorithms.AES(key[:16]), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), dtype=np.uint64)


def mask(update: NDArray[np.float32], user: int, keys: dict[int, bytes]) -> Words:
    """Return a user's update as the server would get it; ``keys`` are those it shares, by the other user."""
    with np.errstate(invalid="ignore"):
        sent = np.round(update * ONE).astype(np.int64).view(np.uint64)
    for other, key in keys.items():
        add = np.add if user < other else np.subtract
        add(sent, stream(key, len(sent)), out=sent)
    return sent


def open_sum(total: Words) -> NDArray[np.float64]:
    """Return the numbers of a sum modulo 2^64."""
    return total.view(np.int64) / ONE


def agree(row: int) -> tuple[list[dict[int, bytes]], float]:
    """Return the keys of every user of a row, and the processor time one of them took."""
    private = [X25519PrivateKey.generate() for _ in range(row)]
    begin = time.process_time()
    keys = [{other: private[user].exchange(private[other].public_key()) for other in range(row) if other != user}
            for user in range(row)]  # fmt: skip
    return keys, (time.process_time() - begin) / row


def cost(row: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Measure one row: a user's time and bytes, and what a silent user costs."""
    keys, agreeing = agree(row)
    update = (rng.standard_normal(size, dtype=np.float32) / np.sqrt(size)).astype(np.float32)
    begin = time.process_time()
    mask(update, 0, keys[0])
    masking = time.process_time() - begin
    # Somebody falls silent: its streams are made again from the key that others rebuilt, and taken out of the sum.
    begin = time.process_time()
    mask(np.zeros(size, np.float32), row - 1, keys[-1])
    mending = time.process_time() - begin
    plain, masked = 4 * size, 8 * size + KEY + (row - 1) * SHARE
    return {
        "row": row,
        "parameters": size,
        "user_seconds": round(agreeing + masking, 4),
        "user_bytes_without": plain,
        "user_bytes_with": masked,
        "bytes_factor": round(masked / plain, 3),
        "dropped_server_seconds": round(mending, 4),
        "dropped_share_bytes_asked": (row - 1) * SHARE,
    }


def checks(row: int, size: int, rng: np.random.Generator) -> dict[str, Any]:
    """Show what the server sees of an honest, a huge and a broken update in a row, masked and not, and of the sum."""
    keys, _ = agree(row)
    updates = rng.standard_normal((row, size)).astype(np.float32)
    updates *= 0.5 * BOUND / np.linalg.norm(updates, axis=1, keepdims=True)
    whole = sum(mask(update, user, keys[user]) for user, update in enumerate(updates))
    exact = updates.astype(np.float64).sum(axis=0)
    replies = {
        "honest": updates[0],
        "1000 times the bound": updates[0] * 2000,
        "NaN": np.full(size, np.nan, np.float32),
    }
    seen = {}
    for name, reply in replies.items():
        masked = open_sum(mask(reply, 0, keys[0]))
        total = mask(reply, 0, keys[0]) + sum(
            mask(update, user, keys[user]) for user, update in enumerate(updates) if user
        )
        seen[name] = {
            "norm_plain": f"{np.linalg.norm(reply):.4g}",
            "norm_masked": float(f"{np.linalg.norm(masked):.4g}"),
            "finite_masked": bool(np.isfinite(masked).all()),
            "norm_of_the_sum": float(f"{np.linalg.norm(open_sum(total)):.4g}"),
        }
    # Within row * bound the sum tells nothing: a user whose update is the whole of it passes.
    most = updates[0] / np.linalg.norm(updates[0]) * (row * BOUND - np.linalg.norm(exact - updates[0]))
    lost = sum(mask(update, user, keys[user]) for user, update in enumerate(updates) if user)
    return {
        "row": row,
        "parameters": size,
        "largest_error_of_the_sum": float(f"{np.abs(open_sum(whole) - exact).max():.2g}"),
        "replies": seen,
        "largest_norm_that_passes_a_bound_of_the_sum": round(float(np.linalg.norm(most)), 2),
        "norm_of_the_sum_without_a_dropped_user": float(f"{np.linalg.norm(open_sum(lost)):.4g}"),
    }


def main() -> None:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    stream(bytes(32), PARAMETERS[0])  # warm
    costs = [cost(row, size, rng) for size in PARAMETERS for row in ROWS]
    found = {"costs": costs, "checks": [checks(row, PARAMETERS[0], rng) for row in ROWS]}
    text = json.dumps(found | describe_machine("cpu"), indent=1)
    print(text)
    if arguments.record:
        write_text_atomic(arguments.record, text + "\n")


if __name__ == "__main__":
    main()
