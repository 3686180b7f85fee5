"""What one client may ask of the endpoint, and how it is told that it asked too much."""

import asyncio
from dataclasses import dataclass

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect


@dataclass(frozen=True)
class Limits:
    """Bounds on requests; every one has an answer of its own.

    Attributes
    ----------
    body_bytes, json_bytes : int
        413 beyond. JSON has a lower limit: a number takes thirty times its text while it is read, and nothing else runs
        meanwhile; ``.npy`` has neither fault.
    pending_bytes : int
        Bodies of all requests in hand together; 429 with Retry-After beyond.
    batch : int
        Inputs in one request; 413 beyond.
    in_flight, per_client : int
        Predictions being made, of all clients and of one; 429 with Retry-After beyond.
    connections, connections_per_address : int
        Open connections; beyond, those without a request make room.
    header_seconds : float
        Time for the head of a request to arrive; 408 beyond.
    waiting : int
        Inputs waiting for the models; 429 with Retry-After beyond.
    upload_seconds : float
        Time for a body to arrive; 408 beyond.
    seconds : float
        Time for an answer once the body is there; 504 with Retry-After beyond.
    """

    body_bytes: int = 8 * 2**20
    json_bytes: int = 2**20
    pending_bytes: int = 64 * 2**20
    batch: int = 256
    in_flight: int = 128
    per_client: int = 64
    connections: int = 512
    connections_per_address: int = 256
    header_seconds: float = 10.0
    waiting: int = 1024
    upload_seconds: float = 10.0
    seconds: float = 30.0


def refuse(status: int, message: str, retry_after: int | None = None) -> HTTPException:
    """Return the exception that answers with this status and message."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return HTTPException(status, message, headers)


class BodyPool:
    """Counts the bytes of bodies in hand."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def hold(self, size: int) -> None:
        """Count more bytes; HTTPException 429 where it would be too many."""
        if self.held + size > self.most:
            raise refuse(429, "the bodies of all requests are too large together", retry_after=1)
        self.held += size

    def release(self, size: int) -> None:
        """Count fewer bytes."""
        self.held -= size


async def read_body(request: Request, limits: Limits, pool: BodyPool) -> bytes:
    """Read a body within the limits; what a client announces is not trusted, what arrives is counted.

    The pool holds its length afterwards, and nothing where it could not be read.
    """
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    most = min(limits.json_bytes, limits.body_bytes) if is_json else limits.body_bytes
    more = "; larger batches go as .npy" if is_json and most < limits.body_bytes else ""
    too_large = refuse(413, f"the body is larger than {most} bytes{more}")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > most:
        raise too_large
    body = bytearray()
    held = 0
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in request.stream():
                pool.hold(len(chunk))
                held += len(chunk)
                body += chunk
                if len(body) > most:
                    raise too_large
        held = 0
    except TimeoutError:
        raise refuse(408, f"the body did not arrive within {limits.upload_seconds:g} seconds") from None
    except ClientDisconnect:
        raise refuse(400, "the connection closed before the body was complete") from None
    finally:
        pool.release(held)
    return bytes(body)
