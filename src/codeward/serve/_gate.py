"""What every request passes: host check, token check, security headers, and the count."""

import hmac
import json
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codeward.serve._metrics import Metrics
from codeward.serve._settings import ServeSettings

#: Nothing from elsewhere, no inline script or style, no framing, no forms.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Answered without a token: the page holds no data, and a health check has nobody's secret.
_OPEN = ("/", "/healthz")


class Gate:
    """ASGI middleware around the application.

    Parameters
    ----------
    app : ASGI application
    settings : ServeSettings
    metrics : Metrics
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        path: str = scope["path"]
        headers = Headers(scope=scope)
        try:
            if not self._knows_host(headers):
                await _answer(send_on, 421, "this name is not served here; use the address that codeward serve printed")
            elif not self._is_open(path) and not self._has_token(headers):
                await _answer(send_on, 401, "a bearer token is needed", [("WWW-Authenticate", "Bearer")])
            else:
                await self.app(scope, receive, send_on)
        finally:
            self.metrics.count_request(path, status, time.perf_counter() - begin)

    def _knows_host(self, headers: Headers) -> bool:
        allowed = self.settings.allowed_hosts
        if allowed is None:
            return True
        host = headers.get("host", "").lower()
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        return name in allowed

    def _is_open(self, path: str) -> bool:
        return path in _OPEN or path.startswith("/page/")

    def _has_token(self, headers: Headers) -> bool:
        token = self.settings.token
        if token is None:
            return True
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        # Compared in constant time: how long it takes must not tell how much of a guess is right.
        right = hmac.compare_digest(shown.strip().encode(), token.encode())
        return scheme.lower() == "bearer" and right


async def _answer(send: Send, status: int, detail: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    body = json.dumps({"detail": detail}).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    raw += [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
