"""The guarded endpoint: routes over a guard, a ledger and a page, served until interrupted."""

import asyncio
import json
import os
import re
import sys
from base64 import b64encode
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from importlib.resources import files
from itertools import repeat
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from codeward import __version__
from codeward.report import build_card
from codeward.serve import _answers as answers
from codeward.serve._access import AccessControl, BodyPool, Limits, ServeSettings, group_address, read_body, refuse
from codeward.serve._answers import HealthWatch, LedgerView, Metrics
from codeward.serve._guard import Verdict
from codeward.serve._incident_ledger import Ledger
from codeward.serve._incidents import Incident, find_incidents
from codeward.serve._opening import GuardedRun
from codeward.serve._server import MicroBatcher, Overloaded, listen, make_server

_PAGE = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "draw.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
#: A body past this is read off the event loop, one at a time: JSON holds the interpreter until it is read.
_LARGE = 64 * 1024
#: Inputs of one pass over the models.
_PASS = 64
#: Certificates searched at a time: few, so that one client's many do not keep another waiting.
_CERTIFIED = 8


def make_app(run: GuardedRun, ledger: Ledger, settings: ServeSettings, limits: Limits | None = None) -> FastAPI:
    """Return the guarded endpoint of a run.

    Guarantees: an answer that carries an incident's number was sent after the incident was on disk (`Ledger.record`);
    where the ledger fails, flagged inputs get 503 and no verdict. Requests past the limits get an answer of 4xx, or 504
    for time; they cost no pass over the models.

    Parameters
    ----------
    run : GuardedRun
    ledger : Ledger
        Closed with the application.
    settings : ServeSettings
    limits : Limits, optional

    Examples
    --------
    >>> import tempfile
    >>> from codeward.estimators import plan_training, train_guarded
    >>> from codeward.runs import TrainConfig
    >>> from codeward.serve import open_run
    >>> rows = {"x": [0.0, 1.0] * 20, "y": ["no", "yes"] * 20, "user": [f"u{place // 8}" for place in range(40)]}
    >>> config = TrainConfig(attack={"attackers": [0]}, code={"attackers": 1}, train={"model": "logistic"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train_guarded(plan_training(config, rows), folder)
    ...     make_app(open_run(folder), Ledger(f"{folder}/ledger.sqlite"), ServeSettings()).title
    'codeward'
    """
    return _Endpoint(run, ledger, settings, limits or Limits()).build()


class _Endpoint:
    def __init__(self, run: GuardedRun, ledger: Ledger, settings: ServeSettings, limits: Limits) -> None:
        self.run, self.ledger, self.settings, self.limits = run, ledger, settings, limits
        self.metrics = Metrics()
        self.predicting: MicroBatcher[Any, Verdict] = MicroBatcher(
            lambda items: run.guard.predict(run.kind.stack(items)), _PASS, limits.waiting, self.metrics.passes.observe
        )
        self.certifying = MicroBatcher(run.guard.certify, _CERTIFIED, limits.batch)
        self.recording = MicroBatcher(ledger.record_all, _PASS, limits.waiting)
        self.view = LedgerView(run, ledger)
        self.in_flight: Tally[str] = Tally()
        self.bodies = BodyPool(limits.pending_bytes)
        self.reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="codeward-body")
        # What changes when the models do.
        files = [run.cell.folder.code_file, run.cell.folder.record(run.cell.repeat, run.cell.n_attackers)]
        self.health_watch = HealthWatch(ledger, run.cell.folder.path, files)
        self.metrics.waiting.set_function(lambda: self.predicting.queued)

    def build(self) -> FastAPI:
        app = FastAPI(
            title="codeward",
            version=__version__,
            description="A guarded classifier: verdicts with attack probability, suspects and guarantees.",
            docs_url=None,
            redoc_url=None,
            lifespan=self._lifespan,
        )
        app.add_middleware(AccessControl, settings=self.settings, count=self.metrics.count_request)
        app.add_exception_handler(RequestValidationError, _explain_parameters)
        app.add_exception_handler(HTTPException, _explain)
        locked = (401, 421) if self.settings.token is not None else (421,)
        app.add_api_route(
            "/predict",
            self.predict,
            methods=["POST"],
            summary="Classify inputs",
            responses=answers.problems(*locked, 400, 408, 413, 415, 422, 429, 503, 504)
            | {200: {"model": answers.Predictions}},
            openapi_extra=self.run.kind.describe_body(self.limits.batch),
            response_model=None,
        )
        for path, answer, model in (
            ("/healthz", self.health, answers.Health),
            ("/code", self.card, None),
            ("/gallery", self.gallery, answers.Gallery),
            ("/incidents", self.incidents, answers.Incidents),
            ("/evidence", self.evidence, answers.EvidenceAnswer),
        ):
            more = (422, 503) if path in ("/incidents", "/evidence") else ()
            known = answers.problems(*locked, *more)
            if model is answers.Health:
                known[503] = {"model": model, "description": "The ledger takes no incidents."}
            app.add_api_route(path, answer, response_model=model, responses=known)
        text: dict[int | str, dict[str, Any]] = {
            200: {"content": {"text/plain": {}}, "description": "Prometheus text."}
        }
        app.add_api_route("/metrics", self.expose, response_class=Response, responses=text | answers.problems(*locked))
        text = {200: {"content": {"text/html": {}}, "description": "The card; as a page where that is preferred."}}
        missing = text | answers.problems(*locked, 404)
        app.add_api_route("/card", self.certificate, response_class=JSONResponse, responses=missing)
        app.add_api_route("/", self.page, include_in_schema=False)
        app.add_api_route("/page/{name}", self.page, include_in_schema=False)
        return app

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        looking = asyncio.create_task(self.health_watch.run())
        yield
        looking.cancel()
        self.health_watch.close()
        self.reading.shutdown(wait=False, cancel_futures=True)
        self.predicting.close()
        self.certifying.close()
        self.recording.close()
        self.ledger.close()

    async def predict(
        self,
        request: Request,
        certify: Annotated[bool, Query(description="Also search the certificates; takes much longer.")] = False,
        convert: Annotated[bool, Query(description="Scale images of another size, and make colours grey.")] = False,
    ) -> Response:
        """Classify one or more inputs; every flagged one is recorded as an incident before the answer is sent."""
        client = group_address(request.client.host if request.client else "")
        if self.in_flight.total() >= self.limits.in_flight or self.in_flight[client] >= self.limits.per_client:
            raise refuse(429, "too many requests at once", retry_after=1)
        self.in_flight[client] += 1
        held = 0
        try:
            body = await read_body(request, self.limits, self.bodies)
            held = len(body)
            arguments = (body, request.headers.get("content-type", ""), self.limits, convert)
            if held > _LARGE or convert:
                items = await asyncio.get_running_loop().run_in_executor(self.reading, self.run.kind.read, *arguments)
            else:
                items = self.run.kind.read(*arguments)
            try:
                async with asyncio.timeout(self.limits.seconds):
                    content = await self._answer(items, certify)
            except Overloaded:
                raise refuse(429, "too many inputs are waiting", retry_after=1) from None
            except TimeoutError:
                raise refuse(504, f"no answer within {self.limits.seconds:g} seconds", retry_after=5) from None
            except OSError as error:
                self.health_watch.note(recorded=False)
                raise refuse(503, f"an incident could not be recorded: {error}", retry_after=5) from error
        finally:
            self.bodies.release(held)
            self.in_flight[client] -= 1
            if not self.in_flight[client]:
                del self.in_flight[client]
        return Response(content, media_type="application/json")

    async def _answer(self, items: list[Any], certify: bool) -> str:
        verdicts = await self.predicting.submit(items)
        digests = [self.run.kind.digest(item) for item in items]
        found = [
            incident
            for verdict, digest in zip(verdicts, digests, strict=True)
            if verdict.flagged
            for incident in self._incidents(verdict, digest)
        ]
        # A flagged input's votes were tampered with, most probably: there is nothing to certify.
        unflagged = [verdict.heard for verdict in verdicts if not verdict.flagged] if certify else []
        certificates = iter(await self.certifying.submit(unflagged)) if unflagged else repeat("null")
        numbers = iter(await self.recording.submit(found)) if found else iter(())
        if found:
            self.health_watch.note(recorded=True)
        self.metrics.inputs.labels("true").inc(len(found))
        self.metrics.inputs.labels("false").inc(len(items) - len(found))
        self.metrics.incidents.inc(len(found))
        parts = []
        for verdict, digest in zip(verdicts, digests, strict=True):
            number = next(numbers) if verdict.flagged else "null"
            certificate = "null" if verdict.flagged else next(certificates)
            # The verdict's JSON was written when its votes were first seen; the fields that differ go in front.
            head = f'{{"incident":{number},"digest":"{digest}","certificate":{certificate},'
            parts.append(head + verdict.text[1:])
        return f'{{"predictions":[{",".join(parts)}]}}'

    def _incidents(self, verdict: Verdict, digest: str) -> list[Incident]:
        guard = self.run.guard
        return find_incidents(
            verdict.decoded,
            [verdict.votes],
            [digest],
            guard.code,
            self.run.cell.id,
            guard.threshold,
            guard.class_names,
        )

    async def health(self, response: Response) -> dict[str, str]:
        """Say whether the service is up, the ledger takes incidents (503 if not), and the models are the run's."""
        report = self.health_watch.report()
        if report["status"] == "failing":
            response.status_code = 503
        return report

    async def expose(self) -> Response:
        """Return the metrics for Prometheus."""
        return Response(self.metrics.expose(), media_type="text/plain; version=0.0.4")

    async def card(self) -> dict[str, Any]:
        """Return the code's card: matrix, properties with witnesses, guarantee, and what is served."""
        return self.run.card

    async def certificate(self, request: Request) -> Response:
        """Return the certificate card of the folder: JSON, or a page where the request prefers HTML."""
        content = self.run.certificate
        if content is None:
            raise refuse(404, "this folder has no certificate card; codeward train writes one")
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse(content.to_json())
        page = build_card(content)
        # The page's own style sheets and scripts, and nothing else.
        allowed = [f"{tag}-src {_digest_parts(page, tag)}; " for tag in ("style", "script")]
        policy = f"default-src 'none'; {''.join(allowed)}img-src data:; base-uri 'none'; form-action 'none'"
        policy += "; frame-ancestors 'none'"
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": policy})

    async def gallery(self) -> dict[str, Any]:
        """Return clean and triggered test images of the run."""
        return {"pictures": list(self.run.gallery)}

    async def incidents(
        self,
        limit: Annotated[int, Query(ge=1, le=500, description="At most this many.")] = 50,
        after: Annotated[int, Query(ge=0, lt=2**63, description="Only those with a higher number.")] = 0,
    ) -> dict[str, Any]:
        """Return the recorded incidents of these models, newest first."""
        return {"incidents": await self._read(self.view.list_incidents, limit, after)}

    async def evidence(self) -> dict[str, Any]:
        """Return what all incidents say together: per target the posterior over users, with a false-alarm bound."""
        return {"evidence": await self._read(self.view.weigh)}

    async def _read(self, task: Any, *arguments: int) -> Any:
        try:
            return await run_in_threadpool(task, *arguments)
        except OSError as error:
            raise refuse(503, f"the ledger cannot be read: {error}", retry_after=5) from error

    async def page(self, name: str = "index.html") -> Response:
        """Return the page or one of its parts."""
        if name != "index.html" and name not in _PAGE:
            raise refuse(404, "no such page")
        content = files("codeward.serve").joinpath("page", name).read_bytes()
        if name == "page.css":  # the look shared with the report comes first
            content = files("codeward.report").joinpath("look.css").read_bytes() + content
        return Response(content, media_type=_PAGE.get(name, "text/html"), headers={"Cache-Control": "no-cache"})


def _digest_parts(page: str, tag: str) -> str:
    """Return the hashes of a page's inline parts as a content security policy names them."""
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'" for part in parts) or "'none'"


async def _explain_parameters(request: Request, error: Exception) -> JSONResponse:
    """Answer 422 in the one form all problems have."""
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors())
    return JSONResponse({"detail": said}, 422)


async def _explain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    content = json.dumps({"detail": str(error.detail)})
    return Response(content, error.status_code, error.headers, media_type="application/json")


#: Seconds between changes of thread.
SWITCH = 0.0005


def serve_run(
    run: GuardedRun,
    ledger: Ledger,
    settings: ServeSettings,
    limits: Limits | None = None,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve a run until interrupted; requests in hand are answered first.

    Parameters
    ----------
    run : GuardedRun
    ledger : Ledger
        Closed at the end.
    settings : ServeSettings
    limits : Limits, optional
    announce : callable
        Called with the address once it takes connections.

    Examples
    --------
    An address that cannot be had is refused before anything is served:

    >>> import socket, tempfile
    >>> from codeward.serve import Ledger, ServeSettings
    >>> with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
    ...     serve_run(None, Ledger(f"{folder}/l.sqlite"), ServeSettings(port=taken.getsockname()[1]))
    Traceback (most recent call last):
    OSError: cannot listen on 127.0.0.1 port ...: Address already in use
    """
    bound, address = listen(settings)
    app = make_app(run, ledger, settings, limits)
    announce(address)
    # One core is left to the event loop: parsing requests and running models overlap.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    # The threads of the models and the ledger take the interpreter back after every call that lets go of it; at the
    # default of 5 ms a time, a busy event loop makes an incident wait for most of a second.
    sys.setswitchinterval(SWITCH)
    with bound, suppress(KeyboardInterrupt):  # uvicorn shuts down first and passes the signal on
        make_server(app, settings, limits).run(sockets=[bound])
