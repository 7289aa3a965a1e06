"""The page's server: one address of this machine, one update a second at most, and nothing that a stranger could use.

Only requests for this machine's own name are answered (a page of another one, whose name an attacker lets point here,
has that name). No request changes anything or names a file.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattdock.errors import ConfigError, PreflightError
from wattdock.live.feed import Feed
from wattdock.live.metrics import exposition
from wattdock.text import COMPACT, json_text

if TYPE_CHECKING:
    from asyncio import Transport
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["serve"]

# Less often while a pass is measured: what an update costs here and in a browser could slow it.
UPDATE_S, PASS_UPDATE_S = 1.0, 5.0
# Viewers go with the next update after Ctrl-C.
GRACE_S = 8
# A viewer that takes nothing for so long is let go; who has connected and asks nothing, too.
STALLED_S, SILENT_S = 20.0, 10.0
MOST_CONNECTIONS = 200
ASSETS = {
    "/": ("wattdock.live", "assets/live.html", "text/html"),
    "/live.js": ("wattdock.live", "assets/live.js", "text/javascript"),
    "/live.css": ("wattdock.live", "assets/live.css", "text/css"),
    "/page.css": ("wattdock.reports", "page_assets/page.css", "text/css"),
}
HEADERS = {
    "connection": "close",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
PORT = re.compile(r":\d+$")
EVERYWHERE = ("", "0.0.0.0", "::")
LOCAL = ("127.0.0.1", "localhost", "[::1]")


@dataclass
class Service:
    """Answers requests, of one look at the machine for all viewers.

    Attributes:
        names: Hosts that requests may be for.
        is_ending: Whether the server waits for its viewers to go.
        update: The latest state as a server-sent event, empty before the first look; `news` tells of the next.
        fault: The bug that ended the server.
    """

    feed: Feed
    names: tuple[str, ...]
    is_ending: Callable[[], bool] = lambda: False
    update: bytes = b""
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    fault: BaseException | None = None

    async def look(self) -> None:
        """Look at the machine again and again, for as long as the server runs."""
        while True:
            await asyncio.to_thread(self.feed.look)
            self.update = _event("now", self.feed.now())
            async with self.news:
                self.news.notify_all()
            await asyncio.sleep(PASS_UPDATE_S if self.feed.in_pass else UPDATE_S)

    async def _updates(self) -> AsyncIterator[bytes]:
        """Yield the power so far and the latest update, then each next one; a slow viewer misses some."""
        yield _event("history", {"points": list(self.feed.points)}) + self.update
        while not self.is_ending():
            async with self.news:
                await self.news.wait()
            yield self.update

    def ended(self, task: asyncio.Task[None]) -> None:
        """End the server, since a task of it ended: a bug."""
        if not task.cancelled():
            self.fault = task.exception()
            signal.raise_signal(signal.SIGINT)

    async def asset(self, request: Request) -> Response:
        """Answer with a file of the page."""
        package, name, kind = ASSETS[request.url.path]
        return Response(resources.files(package).joinpath(name).read_bytes(), media_type=kind)

    async def events(self, _: Request) -> Response:
        """Answer with updates until the viewer goes."""
        return StreamingResponse(self._updates(), media_type="text/event-stream")

    async def metrics(self, _: Request) -> Response:
        """Answer Prometheus."""
        return Response(exposition(self.feed), media_type=CONTENT_TYPE_LATEST)


class TimedConnection(H11Protocol):
    """Serves one request; closed where nothing whole was asked in time."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, for a while."""
        super().connection_made(transport)
        self.loop.call_later(SILENT_S, lambda: None if self.cycle else transport.close())


class SlowTickServer(uvicorn.Server):
    """Looks for Ctrl-C once a second; ten times, as the base does, takes 0.7 % of a CPU."""

    async def main_loop(self) -> None:
        """Serve until the server should end."""
        while not await self.on_tick(0):
            await asyncio.sleep(UPDATE_S)


class Guard:
    """Answers only requests for this machine's own name, and no other page's; ends an answer that nobody takes.

    Source: for names, RFC 9110, section 7.2 (Host) and 15.5.20 (421); for pages, Fetch Metadata Request Headers.
    """

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; add `HEADERS` to the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        is_elsewhere = headers.get("sec-fetch-site") == "cross-site"
        refusal = None
        if PORT.sub("", host).lower() not in self._names:
            refusal = PlainTextResponse(f"this is not {host[:200]!r}; it answers to {', '.join(self._names)}\n", 421)
        elif is_elsewhere and scope["path"] != "/":
            refusal = PlainTextResponse("from another page\n", 403)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in own)]
            async with asyncio.timeout(STALLED_S):
                await send(message)

        with suppress(TimeoutError, ClientDisconnect):
            await (refusal or self._app)(scope, receive, guarded)


def application(service: Service) -> Starlette:
    """Return the web application."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(service.look())
        task.add_done_callback(service.ended)
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    reads: dict[str, Callable[[Request], Awaitable[Response]]] = {
        **dict.fromkeys(ASSETS, service.asset),
        "/events": service.events,
        "/metrics": service.metrics,
    }
    return Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in reads.items()],
        middleware=[Middleware(Guard, names=service.names)],
        lifespan=lifespan,
    )


def _event(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {json_text(value, separators=COMPACT)}\n\n".encode()


def serve(output_dir: Path, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        host: Name or address of this machine to listen on, beside which it answers to localhost.
        port: 0 takes a free one.

    Raises:
        PreflightError: The address cannot be had.
        ConfigError: `output_dir` is no folder.
    """
    if output_dir.exists() and not output_dir.is_dir():
        raise ConfigError(f"{output_dir} is a file", "give a folder of results with --output-dir")
    if host in EVERYWHERE:
        raise PreflightError(
            f"--host {host} is every address, and requests must be for one", "give this machine's name"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise PreflightError(f"cannot listen on {host}:{port}: {reason}", "choose another --port or --host") from error
    name = f"[{host}]" if ":" in host else host.lower()
    # Before any thread: all of them stay off the other CPUs, which runs have.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    service = Service(Feed(output_dir), tuple(dict.fromkeys((*LOCAL, name))))
    config = uvicorn.Config(
        application(service),
        http=TimedConnection,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
    )
    say(f"http://{name}:{listening.getsockname()[1]}/ shows this machine and runs in {output_dir}. Ctrl-C ends it.")
    server = SlowTickServer(config)
    service.is_ending = lambda: server.should_exit
    try:
        server.run(sockets=[listening])
    finally:
        if service.fault:
            raise service.fault
