"""The page's server: one address of this machine, one update a second at most, and nothing that a stranger could use.

Only requests for this machine's own name are answered (a page of another one, whose name an attacker lets point here,
has that name); what changes something needs a token, and comes from this page. No request names a file.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattdock.errors import ConfigError, PreflightError, WattdockError
from wattdock.live.feed import Feed
from wattdock.live.metrics import exposition
from wattdock.live.order import Order, StartedRuns, choices
from wattdock.live.peers import is_owner, peer_of
from wattdock.live.results import ServedResults
from wattdock.text import COMPACT, from_json, json_text

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
# Connections in all, of all other users, and of one of them: the serving user always finds room.
MOST_CONNECTIONS, MOST_OF_OTHERS, MOST_OF_USER = 200, 150, 50
MOST_BODY_BYTES = 16_000
TOKEN = "x-wattdock-token"
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
        token: What starts and stops runs; None where nothing can be.
        is_ending: Whether the server waits for its viewers to go.
        update: The latest state as a server-sent event, empty before the first look; `news` tells of the next.
        fault: The bug that ended the server.
    """

    feed: Feed
    started: StartedRuns
    names: tuple[str, ...]
    token: str | None
    is_ending: Callable[[], bool] = lambda: False
    update: bytes = b""
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    fault: BaseException | None = None

    def __post_init__(self) -> None:
        self.results = ServedResults(self.feed)

    async def look(self) -> None:
        """Look at the machine again and again, for as long as the server runs."""
        while True:
            await asyncio.to_thread(self.feed.look)
            self.update = _event("now", self.feed.now() | {"started": [str(run) for run in self.started.latest]})
            async with self.news:
                self.news.notify_all()
            await asyncio.sleep(PASS_UPDATE_S if self.feed.measuring else UPDATE_S)

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

    async def choices(self, _: Request) -> Response:
        """Answer with what can be started, and whether it may be."""
        service = {"allowed": self.token is not None, "folder": str(self.feed.output_dir.absolute())}
        return JSONResponse(choices() | service)

    async def rows(self, request: Request) -> Response:
        """Answer with the stored results."""
        rows = await self.results.rows(for_owner=_is_for_owner(request))
        return Response(json_text(rows), media_type="application/json")

    async def report(self, request: Request) -> Response:
        """Answer with the report of a result or a study."""
        page = await self.results.report(request.path_params["name"], for_owner=_is_for_owner(request))
        # The report has a policy of its own.
        return Response(page, media_type="text/html", headers={"content-security-policy": "frame-ancestors 'none'"})

    async def start(self, request: Request) -> Response:
        """Start a run."""
        order = Order.model_validate(await self._trusted(request))
        self.feed.require_no_pass()
        await asyncio.to_thread(self.started.start, order)
        return PlainTextResponse("handed over; what becomes of it stands below\n")

    async def stop(self, request: Request) -> Response:
        """Stop a run of the serving user, at once or after its pass."""
        asked = await self._trusted(request)
        name, at_once = (asked.get("study"), asked.get("now")) if isinstance(asked, dict) else (None, None)
        run = next((run for run in self.feed.runs if run.path.name == name), None)
        if run is None or not await asyncio.to_thread(run.stop, at_once=at_once is True):
            raise HTTPException(403, "no such run of yours is under way")
        return PlainTextResponse("stops now\n" if at_once is True else "stops after this pass\n")

    async def _trusted(self, request: Request) -> Any:
        """Return the body of a request that may change something."""
        if self.token is None:
            raise HTTPException(403, "nothing can be started here: wattdock serve --allow-run prints a token that can")
        if not secrets.compare_digest(request.headers.get(TOKEN, "").encode(), self.token.encode()):
            raise HTTPException(403, "wrong token; it is the one that wattdock serve printed")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY_BYTES:
                raise HTTPException(413, f"more than {MOST_BODY_BYTES:,} bytes")
        try:
            return from_json(body)
        except ValueError as error:
            raise HTTPException(400, f"no JSON: {error}") from error


class TimedConnection(H11Protocol):
    """Serves one request; closed where nothing whole was asked in time, or its user has many others."""

    peer: int | str = ""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, for a while."""
        super().connection_made(transport)
        if self.client and self.server:
            self.peer = peer_of(self.client, self.server)
        if not is_owner(self.peer):
            peers = [peer for each in self.connections if not is_owner(peer := getattr(each, "peer", ""))]
            if len(peers) > MOST_OF_OTHERS or peers.count(self.peer) > MOST_OF_USER:
                transport.abort()
        self.loop.call_later(SILENT_S, lambda: None if self.cycle else transport.close())


class SlowTickServer(uvicorn.Server):
    """Looks for Ctrl-C once a second; ten times, as the base does, takes 0.7 % of a CPU."""

    async def main_loop(self) -> None:
        """Serve until the server should end."""
        while not await self.on_tick(0):
            await asyncio.sleep(UPDATE_S)


class Guard:
    """Answers only requests for this machine's own name, and those that change something only from its own page.

    Ends an answer that nobody takes.

    Source: for names, RFC 9110, section 7.2 (Host) and 15.5.20 (421); for origins, the Fetch standard.
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
        is_own = headers.get("origin", f"http://{host}") == f"http://{host}"
        is_elsewhere = headers.get("sec-fetch-site") == "cross-site"
        refusal = None
        if PORT.sub("", host).lower() not in self._names:
            refusal = PlainTextResponse(f"this is not {host[:200]!r}; it answers to {', '.join(self._names)}\n", 421)
        elif not is_own if scope["method"] not in ("GET", "HEAD") else is_elsewhere and scope["path"] != "/":
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
        "/choices": service.choices,
        "/results": service.rows,
        "/report/{name}": service.report,
    }
    changes = {"/start": service.start, "/stop": service.stop}
    return Starlette(
        routes=[
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in reads.items()),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in changes.items()),
        ],
        middleware=[Middleware(Guard, names=service.names)],
        exception_handlers={WattdockError: _refused, ValidationError: _refused},
        lifespan=lifespan,
    )


def _is_for_owner(request: Request) -> bool:
    return is_owner(peer_of(request.scope["client"], request.scope["server"]))


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name = (*first["loc"], "order")[0]
        known = Order.model_fields.get(str(name))
        said = first["msg"].removeprefix("Value error, ")
        return PlainTextResponse(f"{(known and known.title) or name}: {said}, not {str(first['input'])[:200]!r}\n", 400)
    return PlainTextResponse(f"{error}\n", 404)


def _event(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {json_text(value, separators=COMPACT)}\n\n".encode()


def serve(output_dir: Path, *, host: str, port: int, allow_run: bool, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        host: Name or address of this machine to listen on, beside which it answers to localhost.
        port: 0 takes a free one.
        allow_run: Whether runs can be started and stopped, by who has the token that `say` receives.

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
    token = secrets.token_urlsafe(24) if allow_run else None
    cpus = os.sched_getaffinity(0)
    # Before any thread: all of them stay off the others, which runs have.
    os.sched_setaffinity(0, {max(cpus)})
    service = Service(Feed(output_dir), StartedRuns(output_dir, cpus), tuple(dict.fromkeys((*LOCAL, name))), token)
    config = uvicorn.Config(
        application(service),
        http=TimedConnection,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
    )
    what = "" if token else "; read-only, since --allow-run was not given"
    say(f"http://{name}:{listening.getsockname()[1]}/ shows this machine and {output_dir}{what}. Ctrl-C ends it.")
    if token:
        say(f"token, with which runs can be started and stopped: {token}")
    server = SlowTickServer(config)
    service.is_ending = lambda: server.should_exit
    try:
        server.run(sockets=[listening])
    finally:
        if service.fault:
            raise service.fault
