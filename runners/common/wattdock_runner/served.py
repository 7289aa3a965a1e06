"""An engine behind its own HTTP server: send it the requests of a pass, read its answers.

The client runs on the thread of the common loop. Tokens are the ids that the server sends, never its chunks; their
instants are those at which the client had read them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, RunnerFault, WorkerDied
from wattdock_runner.recorder import Serving
from wattdock_runner.serving import LOOK_S, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wattdock_runner.backend import Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.engine_server import Server
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer

T = TypeVar("T")

PROBE_S, DRAIN_S = 0.02, 10.0
# How long an idle connection is kept. Servers close one after a few seconds (vLLM: 5), and lose a request sent then.
KEEP_S = 2.0
# The largest event that is read; an event may repeat a whole prompt.
MOST_EVENT_BYTES = 1 << 26
DATA, DONE = b"data: ", b"data: [DONE]"
# Placeholder id of a token that the server counted and sent no id for.
NO_ID = -1
BAD_REQUEST, SERVER_ERROR, OK = 400, 500, 200


@dataclass(frozen=True)
class Chunk:
    """What one event of an answer's stream says.

    Attributes:
        ids: New token ids.
        finish_reason: "stop" or "length" in the last event with tokens, else None.
        cached_prompt_tokens: Prompt tokens that came from a cache; None where this event does not say.
        output_tokens: Tokens of the answer up to this event, by the server's own count; None where it does not say.
        prompt_tokens: Tokens of the prompt as the server read it; None where this event does not say.
    """

    ids: Sequence[int] = ()
    finish_reason: str | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None


class Api:
    """How one kind of server is asked; a subclass for each kind. An `Api` keeps nothing of a pass.

    Attributes:
        path: Where requests are sent.
        draft_counters: On the server's metrics page, of tokens drafted and accepted; a server that drafts none has
            none.
        histograms: On the server's metrics page, of the times to the first token and between tokens; None without a
            page.
        keeps_alive: Whether a connection serves one request after the other.
        dying_s: How long after its connections a server ends that has failed.
    """

    path: str
    histograms: tuple[str, str] | None = None
    draft_counters: tuple[str, ...] = ()
    keeps_alive = True
    dying_s = 2.0

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a streaming request for the ids of one prompt."""
        raise NotImplementedError

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return what an event of the answer tells, which is no error."""
        raise NotImplementedError

    def counters(self, server: Server) -> Mapping[str, float]:
        """Return the server's counters; they are read before and after a pass."""
        return {} if self.histograms is None else server.metrics()

    def server_times(self, grown: Mapping[str, float]) -> tuple[float | None, float | None]:
        """Return the pass's mean times (s) to the first token and between tokens by the server's clock.

        Args:
            grown: By how much each counter grew in the pass.

        Raises:
            OutOfMemory: The requests in flight did not fit, so that the pass was of other work.
        """
        first, between = self.histograms or ("", "")
        return mean_of(grown, first), mean_of(grown, between)


class Watch:
    """What the client takes from a pass's first request on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late_s: list[float] = []
        self._cpu_s, self._began_s = time.thread_time(), time.monotonic()
        self.task = loop.create_task(self._time(loop))

    async def _time(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note how late the loop, which reads the answers, does what is due; a long stall misses several."""
        due_s = loop.time()
        while True:
            due_s += PROBE_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            self._late_s.append(max(0.0, loop.time() - due_s))

    def client_cost(self) -> tuple[float, float]:
        """Return the busy share of this thread, and the 99th percentile of lateness (s)."""
        share = (time.thread_time() - self._cpu_s) / (time.monotonic() - self._began_s)
        # The largest where there are few.
        return share, sorted(self._late_s)[-1 - len(self._late_s) // 100] if self._late_s else 0.0


class ServedEngine(Engine):
    """Sends requests to a server and returns its answers."""

    def __init__(self, server: Server, api: Api, *, tokenizer: Any = None) -> None:
        self.server, self.tokenizer = server, tokenizer
        self._api, self._loop, self._news = api, asyncio.new_event_loop(), asyncio.Event()
        self._streams: set[asyncio.Task[None]] = set()
        self._answers: list[Answer] = []
        self._fault: Exception | None = None
        self._watch: Watch | None = None

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Write the requests' bodies before the pass begins."""
        self._recorder = recorder
        self._bodies = {prompt.position: json.dumps(self._api.body(workload, prompt)).encode() for prompt in prompts}

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; end all streams where it fails, and name what became of the server."""
        self._answers, self._fault = [], None
        self._watch, self._without_ids = None, 0
        # Lines that the server printed earlier explain no failure of this pass.
        self.server.last_lines.clear()
        self._loop.run_until_complete(self._open())
        try:
            before = self._api.counters(self.server)
            done = work()
            share, late_s = (0.0, 0.0) if self._watch is None else self._watch.client_cost()
            after = self._api.counters(self.server)
            grown = {name: total - before.get(name, 0.0) for name, total in after.items()}
            counts = [int(grown[name]) for name in self._api.draft_counters if name in grown]
            self.drafts = (counts[0], counts[1]) if counts else None
            self._recorder.serving = Serving(share, late_s, *self._api.server_times(grown), self._without_ids)
            return done
        except RunnerFault:
            raise
        except Exception as error:
            # Its connections end before it does.
            with suppress(subprocess.TimeoutExpired):
                self.server.process.wait(self._api.dying_s)
            if memory_error := self.server.memory_error():
                raise memory_error from error
            if self.server.process.poll() is not None:
                raise WorkerDied(f"{doing}: the engine's server is gone: {self.server.ending()}") from error
            raise
        finally:
            self._loop.run_until_complete(self._close())

    async def _open(self) -> None:
        keeping: Any = {"keepalive_timeout": KEEP_S} if self._api.keeps_alive else {"force_close": True}
        self._session = aiohttp.ClientSession(
            self.server.url,
            connector=aiohttp.TCPConnector(limit=0, **keeping),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=MOST_EVENT_BYTES,
            headers={"content-type": "application/json"},
        )

    async def _close(self) -> None:
        tasks = [*self._streams, *([self._watch.task] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._streams.clear()
        await self._session.close()

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Send a request with the next step."""
        self._watch = self._watch or Watch(self._loop)
        stream = self._loop.create_task(self._stream(request, self._bodies[prompt.position]))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    def step(self, until_ns: int | None) -> Iterable[Answer]:
        """Return what has come, after waiting for something; nothing after a while without."""
        wait_s = LOOK_S if until_ns is None else min(LOOK_S, max(0.0, (until_ns - now_ns()) / NS_PER_S))
        self._loop.run_until_complete(self._wait(wait_s))
        if self._fault is not None:
            raise self._fault
        answers, self._answers = self._answers, []
        return answers

    async def _wait(self, seconds: float) -> None:
        # Until Python 3.11 it is another error than TimeoutError.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)
        self._news.clear()

    async def _stream(self, request: RequestRecord, body: bytes) -> None:
        try:
            async with self._session.post(self._api.path, data=body) as reply:
                if reply.status != OK:
                    raise refusal(reply.status, await reply.text())
                is_over, tokens = False, 0
                async for line in reply.content:
                    if not line.startswith(DATA) or line.startswith(DONE):
                        continue
                    event = json.loads(line[len(DATA) :])
                    if "error" in event:
                        raise RuntimeError(f"the engine's server: {event['error']}")
                    chunk = self._api.read(event)
                    if chunk.cached_prompt_tokens is not None:
                        request.cached_prompt_tokens = chunk.cached_prompt_tokens
                    if chunk.prompt_tokens not in (None, request.prompt_tokens):
                        raise RuntimeError(
                            f"the server read {chunk.prompt_tokens} prompt tokens of request {request.index}, which "
                            f"has {request.prompt_tokens}"
                        )
                    tokens += len(chunk.ids)
                    missing = 0 if chunk.output_tokens is None else chunk.output_tokens - tokens
                    # A count that comes after the last tokens cannot say when those without ids came.
                    if missing < 0 or (missing and is_over):
                        raise RuntimeError(
                            f"the server sent {tokens} ids of the {tokens + missing} tokens of request {request.index}"
                        )
                    tokens += missing
                    self._without_ids += missing
                    ids = [*[NO_ID] * missing, *chunk.ids]
                    self._answers.append((request, now_ns(), ids, chunk.finish_reason))
                    self._news.set()
                    is_over = is_over or chunk.finish_reason is not None
                if not is_over:
                    raise RuntimeError(f"the server closed the answer to request {request.index} before its end")
        except Exception as error:  # noqa: BLE001 - it belongs to the loop's thread, which raises it
            self._fault = self._fault or error
            self._news.set()

    def rest(self, seconds: float) -> None:
        """Let the loop run meanwhile, which sees what the server closes."""
        self._loop.run_until_complete(self._wait(seconds))

    def drain(self) -> None:
        """Return when all answers have been read to their ends: what comes after an answer's last token, too."""
        if self._streams:
            self._loop.run_until_complete(asyncio.wait(tuple(self._streams), timeout=DRAIN_S))
        if self._streams:
            raise RuntimeError(f"the server ended its answers not within {DRAIN_S:g} s of their last tokens")
        if self._fault is not None:
            raise self._fault

    def complete(self, requests: Sequence[RequestRecord]) -> None:
        """Keep the ids that are known."""
        for request in requests:
            request.output_ids = [token for token in request.output_ids if token != NO_ID]

    def end(self) -> None:
        """Stop the server."""
        self.server.end()
        self._loop.close()


def mean_of(grown: Mapping[str, float], histogram: str) -> float | None:
    """Return the mean of what a histogram of a metrics page took in during a pass; None where that was nothing."""
    count = grown.get(f"{histogram}_count")
    return grown[f"{histogram}_sum"] / count if count else None


def refusal(status: int, text: str) -> Exception:
    """Return the error for an HTTP error status."""
    said = f"the engine's server answered {status}: {text.strip()[:500]}"
    return InvalidRequest(said) if BAD_REQUEST <= status < SERVER_ERROR else RuntimeError(said)
