"""An engine behind its own HTTP server: send it the requests of a pass, read its answers.

The client runs on the thread of the common loop. Tokens are the ids that the server sends, never its chunks; their
instants are those at which the client had read them.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from wattdock_runner.clock import NS_PER_S, now_ns
from wattdock_runner.errors import InvalidRequest, RunnerFault
from wattdock_runner.recorder import Serving
from wattdock_runner.serving import LOOK_S, Engine
from wattdock_runner.stop_strings import StopStrings, text_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.engine_server import HttpServer
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer
    from wattdock_runner.values import Workload

T = TypeVar("T")

PROBE_S, DRAIN_S = 0.02, 10.0
# How long no token may come before and after a pass, longer than most steps take, and how often that is tried.
SETTLE_S, SETTLE_LOOKS = 0.1, 30
ALONE = "measure the server alone"
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
        text: The server's text of the new tokens, where it tells one.
    """

    ids: Sequence[int] = ()
    finish_reason: str | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    text: str = ""


class Api:
    """How one kind of server is asked; a subclass for each kind. An `Api` keeps nothing of a pass.

    Attributes:
        path: Where requests are sent.
        draft_counters: On the server's metrics page, of tokens drafted and accepted; a server that drafts none has
            none.
        tells_ids: Whether it takes prompts as ids and tells the ids of answers; others take texts, and tell counts.
        token_counter: On the server's metrics page, of tokens generated, whoever asked for them; a server without such
            a page has none.
        keeps_alive: Whether a connection serves one request after the other.
        reads_text: Whether the server knows the model's texts, and so ends a request at a stop string itself; otherwise
            its connection is closed there.
        dying_s: How long after its connections a server ends that has failed.
    """

    path: str
    draft_counters: tuple[str, ...] = ()
    tells_ids = True
    token_counter = ""
    keeps_alive = True
    reads_text = True
    dying_s = 2.0

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a streaming request for the ids of one prompt."""
        raise NotImplementedError

    def path_for(self, body: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return where a request is sent."""
        return self.path

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return what an event of the answer tells, which is no error."""
        raise NotImplementedError

    def counters(self, server: HttpServer) -> Mapping[str, float]:
        """Return the server's counters; they are read before and after a pass."""
        return server.metrics() if self.token_counter else {}

    def require_room(self, grown: Mapping[str, float]) -> None:
        """Refuse a pass whose requests in flight did not fit, so that it was of other work.

        Args:
            grown: By how much each counter grew in the pass.

        Raises:
            OutOfMemory: Holds what did not fit.
        """


class AnswerStream:
    """One answer as it comes, held against what was asked for and what the server counts.

    Args:
        is_exact: Whether the answer is to have as many tokens as it may have.

    Attributes:
        tokens, without_ids: Tokens so far, and how many of them have no id.
        ids: Of these tokens.
        finish_reason: As in `Chunk`, once it has come.
        text: The server's, so far.
    """

    def __init__(self, request: RequestRecord, *, tells_ids: bool, is_exact: bool) -> None:
        self._request, self._tells_ids, self._is_exact = request, tells_ids, is_exact
        self.tokens = self.without_ids = 0
        self.finish_reason: str | None = None
        self.text, self.ids = "", list[int]()
        self._is_counted = tells_ids
        if not tells_ids:
            request.prompt_tokens = None

    def take(self, chunk: Chunk) -> list[int]:
        """Return the new tokens of an event.

        Raises:
            RuntimeError: The server read another prompt, or sent other tokens than it counts.
        """
        request = self._request
        if chunk.cached_prompt_tokens is not None:
            request.cached_prompt_tokens = chunk.cached_prompt_tokens
        if not self._tells_ids and chunk.prompt_tokens is not None:
            request.prompt_tokens = chunk.prompt_tokens
        if chunk.prompt_tokens not in (None, request.prompt_tokens):
            raise RuntimeError(
                f"the server read {chunk.prompt_tokens} prompt tokens of request {request.index}, which has "
                f"{request.prompt_tokens}"
            )
        self.tokens += len(chunk.ids)
        missing = 0 if chunk.output_tokens is None else chunk.output_tokens - self.tokens
        # A count that comes after the last tokens cannot say when those without ids came.
        if missing < 0 or (missing and self.finish_reason and self._tells_ids):
            raise RuntimeError(
                f"the server sent {self.tokens} ids of the {self.tokens + missing} tokens of request {request.index}"
            )
        self._is_counted |= chunk.output_tokens is not None
        self.tokens += missing
        self.without_ids += missing + list(chunk.ids).count(NO_ID)
        self.finish_reason = self.finish_reason or chunk.finish_reason
        self.text += chunk.text
        new = [*[NO_ID] * missing, *chunk.ids]
        self.ids += new
        return new

    def require_whole(self) -> None:
        """Accept an answer that has ended, with as many tokens as were asked for.

        Raises:
            RuntimeError: It was cut, nobody counted it, or it is longer or shorter than asked for.
        """
        index, limit = self._request.index, self._request.max_output_tokens or 0
        if self.finish_reason is None:
            raise RuntimeError(f"the server closed the answer to request {index} before its end")
        if not self._is_counted:
            raise RuntimeError("the server counts no tokens: it ignores stream_options.include_usage")
        if self.tokens > limit:
            raise RuntimeError(f"the server ignores max_tokens: request {index} got {self.tokens} tokens, not {limit}")
        if self._is_exact and self.tokens < limit:
            raise RuntimeError(
                f"the server ignores ignore_eos: request {index} got {self.tokens} tokens, not {limit}; set "
                "workload.ignore_eos: false"
            )


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

    def __init__(self, server: HttpServer, api: Api, *, tokenizer: Any = None) -> None:
        self.server, self.tokenizer = server, tokenizer
        self._api, self._loop, self._news = api, asyncio.new_event_loop(), asyncio.Event()
        self._streams: set[asyncio.Task[None]] = set()
        self._answers: list[Answer] = []
        self._fault: Exception | None = None
        self._watch: Watch | None = None

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Write the requests' bodies before the pass begins."""
        self._recorder = recorder
        bodies = {prompt.position: self._api.body(workload, prompt) for prompt in prompts}
        self._bodies = {at: (self._api.path_for(body), json.dumps(body).encode()) for at, body in bodies.items()}
        self._is_exact = workload.ignore_eos and not workload.stop
        self._stop = StopStrings(self.tokenizer, () if self._api.reads_text else workload.stop)

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; end all streams where it fails, and name what became of the server."""
        self._answers, self._fault = [], None
        self._watch, self._without_ids, self._told = None, 0, 0
        self.server.begin()
        self._loop.run_until_complete(self._open())
        try:
            before = self._settled()
            done = work()
            share, late_s = (0.0, 0.0) if self._watch is None else self._watch.client_cost()
            after = self._settled()
            grown = {name: total - before.get(name, 0.0) for name, total in after.items()}
            if (others := round(grown.get(self._api.token_counter, 0.0)) - self._told) > 0:
                raise RuntimeError(f"{others} tokens of the pass were of others' requests; {ALONE}")
            counts = [int(grown[name]) for name in self._api.draft_counters if name in grown]
            self.drafts = (counts[0], counts[1]) if counts else None
            self._api.require_room(grown)
            # Of several servers at one address, one tells its own tokens only.
            self._recorder.serving = Serving(share, late_s, self._without_ids, others_counted=others == 0)
            return done
        except RunnerFault:
            raise
        except Exception as error:
            # Its connections end before it does.
            if fault := self.server.fault(doing, self._api.dying_s):
                raise fault from error
            raise
        finally:
            self._loop.run_until_complete(self._close())

    def _settled(self) -> Mapping[str, float]:
        """Return the server's counters, once it makes no more tokens, as for requests that were given up.

        Raises:
            RuntimeError: It goes on making tokens, which are others'.
        """
        before = self._api.counters(self.server)
        if self._api.token_counter not in before:
            return before
        for _ in range(SETTLE_LOOKS):
            time.sleep(SETTLE_S)
            earlier, before = before, self._api.counters(self.server)
            if before[self._api.token_counter] == earlier[self._api.token_counter]:
                return before
        raise RuntimeError(f"the server is busy with others' requests; {ALONE}")

    async def _open(self) -> None:
        keeping: Any = {"keepalive_timeout": KEEP_S} if self._api.keeps_alive else {"force_close": True}
        self._session = aiohttp.ClientSession(
            self.server.url,
            connector=aiohttp.TCPConnector(limit=0, **keeping),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=MOST_EVENT_BYTES,
            headers={"content-type": "application/json", **self.server.headers},
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
        stream = self._loop.create_task(self._stream(request, *self._bodies[prompt.position]))
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

    async def _stream(self, request: RequestRecord, path: str, body: bytes) -> None:
        tells_ids = self._api.tells_ids
        answer = AnswerStream(request, tells_ids=tells_ids, is_exact=self._is_exact)
        try:
            async with self._session.post(path, data=body, allow_redirects=False) as reply:
                if reply.status != OK:
                    raise refusal(reply.status, await reply.text())
                with suppress(aiohttp.ClientPayloadError):
                    async for line in reply.content:
                        if not line.startswith(DATA) or line.startswith(DONE):
                            continue
                        chunk = self._chunk(line)
                        ids, reason = answer.take(chunk), chunk.finish_reason
                        if is_over := self._is_over(answer):
                            reason = answer.finish_reason = "stop"
                        # Counts may come after the last text.
                        self._answers.append((request, now_ns(), ids, reason if tells_ids else None))
                        self._news.set()
                        if is_over:
                            # The server computes a token or two before it notices.
                            break
                answer.require_whole()
                if self.tokenizer is None or answer.without_ids:
                    request.text = answer.text
                if not tells_ids:
                    self._answers.append((request, now_ns(), (), answer.finish_reason))
        except Exception as error:  # noqa: BLE001 - it belongs to the loop's thread, which raises it
            self._fault = self._fault or error
        self._without_ids += answer.without_ids
        self._told += answer.tokens
        self._news.set()

    def _is_over(self, answer: AnswerStream) -> bool:
        """Whether an answer has come to a stop string that its server cannot know."""
        if answer.without_ids:
            return text_before(answer.text, self._stop.stops) != answer.text
        return self._stop.end(answer.ids)

    def _chunk(self, line: bytes) -> Chunk:
        """Return what a line of an answer tells.

        Raises:
            RuntimeError: It tells an error, or nothing that is known here.
        """
        try:
            event = json.loads(line[len(DATA) :])
            if not event.get("error"):
                return self._api.read(event)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            said = line.decode(errors="replace").strip()[:200]
            raise RuntimeError(f"the engine's server sent an unknown event: {said}") from error
        raise RuntimeError(f"the engine's server: {event['error']}")

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


def refusal(status: int, text: str) -> Exception:
    """Return the error for an HTTP error status."""
    said = f"the engine's server answered {status}: {text.strip()[:500]}"
    return InvalidRequest(said) if BAD_REQUEST <= status < SERVER_ERROR else RuntimeError(said)
