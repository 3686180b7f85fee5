"""The uvicorn server: a socket bound before anything is announced, and a quiet, graceful end."""

import os
import socket
import sys
from contextlib import suppress

import torch
import uvicorn
from fastapi import FastAPI

from codeward.serve._settings import ServeSettings

#: Connections beyond this get 503 from the server itself, before any request is read.
CONNECTIONS = 512
#: Seconds an idle connection is kept.
KEEP_ALIVE = 15
#: Seconds between changes of thread.
SWITCH = 0.0005
#: Seconds requests in hand get at the end.
GRACE = 10


def listen(settings: ServeSettings) -> tuple[socket.socket, str]:
    """Bind the address and return the socket with its URL; OSError says why where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named: asyncio turns off Nagle's delay (40 ms an answer) on sockets that say they are TCP only.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise OSError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}") from error
    port = bound.getsockname()[1]
    name = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
    return bound, f"http://{name}:{port}/"


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return the server; it says nothing of itself, and speaks HTTP only."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def run_server(app: FastAPI, bound: socket.socket) -> None:
    """Serve until interrupted; requests in hand are answered first."""
    # One core is left to the event loop: parsing requests and running models overlap.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    # The threads of the models and the ledger take the interpreter back after every call that lets go of it; at the
    # default of 5 ms a time, a busy event loop makes an incident wait for most of a second.
    sys.setswitchinterval(SWITCH)
    with bound, suppress(KeyboardInterrupt):  # uvicorn shuts down first and passes the signal on
        make_server(app).run(sockets=[bound])
