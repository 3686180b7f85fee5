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
    body_bytes : int
        413 beyond. With ``in_flight`` it bounds the memory that requests can take.
    batch : int
        Inputs in one request; 413 beyond.
    in_flight : int
        Requests being answered; 429 with Retry-After beyond.
    waiting : int
        Inputs waiting for the models; 429 with Retry-After beyond.
    upload_seconds : float
        Time for a body to arrive; 408 beyond.
    seconds : float
        Time for an answer once the body is there; 504 with Retry-After beyond.
    """

    body_bytes: int = 8 * 2**20
    batch: int = 256
    in_flight: int = 64
    waiting: int = 1024
    upload_seconds: float = 10.0
    seconds: float = 30.0


def refuse(status: int, message: str, retry_after: int | None = None) -> HTTPException:
    """Return the exception that answers with this status and message."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    return HTTPException(status, message, headers)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a body within the limits; what a client announces is not trusted, what arrives is counted."""
    too_large = refuse(413, f"the body is larger than {limits.body_bytes} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 20 and int(announced) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise refuse(408, f"the body did not arrive within {limits.upload_seconds:g} seconds") from None
    except ClientDisconnect:
        raise refuse(400, "the connection closed before the body was complete") from None
    return bytes(body)
