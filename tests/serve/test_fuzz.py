"""Hostile bodies and schema-driven requests: nothing crashes, and no answer is a 5xx."""

import asyncio
import io
import json
from collections import Counter

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from PIL import Image
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from codeward.serve import Ledger
from codeward.serve._access import ServeSettings
from codeward.serve._endpoint import make_app

KINDS = ("application/json", "application/x-npy", "image/png")


def seeds():
    """Good bodies of every kind, to be damaged."""
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    array, picture = io.BytesIO(), io.BytesIO()
    np.save(array, pixels)
    Image.fromarray(pixels).save(picture, "PNG")
    text = json.dumps({"images": [pixels.tolist()], "scale": 255}).encode()
    return {"application/json": text, "application/x-npy": array.getvalue(), "image/png": picture.getvalue()}


def damage(body, rng):
    """Flip, cut, insert, repeat or replace bytes, a few times over."""
    damaged = bytearray(body)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(len(damaged) + 1))
        kind = int(rng.integers(6))
        if kind == 0 and damaged:
            damaged[place % len(damaged)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del damaged[place:]
        elif kind == 2:
            damaged[place:place] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 3:
            damaged[place:place] = damaged[place : place + int(rng.integers(1, 40))] * int(rng.integers(1, 20))
        elif kind == 4:
            words = (b"-1", b"1e999", b"null", b"[[", b"'|O'", b"IEND", b"9" * 30, b"{", b"\xff" * 4, b"NaN", b"(8,")
            damaged[place : place + 3] = words[int(rng.integers(len(words)))]
        elif len(damaged) > 4:
            damaged[place % len(damaged) :] = rng.bytes(len(damaged) - place % len(damaged))
    return bytes(damaged)


async def send_all(app, count, seed):
    rng = np.random.default_rng(seed)
    good, statuses = seeds(), Counter()
    # raise_app_exceptions: an exception that no handler expects fails the test by itself.
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for number in range(count):
            kind = KINDS[number % 3]
            body = rng.bytes(int(rng.integers(200))) if rng.random() < 0.05 else damage(good[kind], rng)
            declared = kind if rng.random() < 0.95 else KINDS[int(rng.integers(3))]
            answer = await client.post("/predict", content=body, headers={"content-type": declared})
            statuses[answer.status_code] += 1
            assert answer.status_code < 500, (answer.text, declared, body)
        for kind, body in good.items():  # and it still works
            answer = await client.post("/predict", content=body, headers={"content-type": kind})
            assert answer.status_code == 200
    return statuses


@pytest.fixture
def app(opened, tmp_path):
    return make_app(opened, Ledger(tmp_path / "fuzz.sqlite"), ServeSettings())


def test_a_thousand_damaged_bodies_crash_nothing(app):
    statuses = asyncio.run(send_all(app, 1000, 0))
    assert statuses[200] > 10  # some survive the damage
    assert statuses[400] > 100
    assert statuses[422] > 20


@pytest.mark.slow
def test_ten_thousand_damaged_bodies_crash_nothing(app):
    assert sum(asyncio.run(send_all(app, 10_000, 1)).values()) == 10_000


def test_requests_drawn_from_the_openapi_document_find_no_5xx_and_answers_match_it(app):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "localhost"})
    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    for operation in schema.get_all_operations():
        operation = operation.ok()

        @settings(
            max_examples=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        def check(case):
            case.call_and_validate(headers={"host": "localhost"}, checks=checks)

        given(case=operation.as_strategy())(check)()
