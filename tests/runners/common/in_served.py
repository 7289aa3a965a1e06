"""Passes against a server that misbehaves as it is told, in an engine's environment; prints what became of each.

Run by test_served.py. With an argument and a port it is that server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner import served
from wattdock_runner.engine_server import loading
from wattdock_runner.process import descendants
from wattdock_runner.recorder import PassRecorder
from wattdock_runner.served import Api, Chunk, ServedEngine
from wattdock_runner.serving import serve
from wattdock_runner.values import Arrival, Prompt, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.engine_server import HttpServer

GAP_S, LONG_IDS = 0.05, 40
# By the first id of a prompt.
NAMES: tuple[str, ...] = ("GOOD", "CLOSES", "REFUSES", "FAILS", "TELLS", "HANGS", "LACKS", "DIES", "TWO_AT_ONCE")
NAMES += ("STAYS_OPEN", "TELLS_LATE", "COUNTS_MORE", "COUNTS_LESS", "WARNS", "LONG")
GOOD, CLOSES, REFUSES, FAILS, TELLS, HANGS, LACKS, DIES, TWO_AT_ONCE, *MORE = range(1, len(NAMES) + 1)
STAYS_OPEN, TELLS_LATE, COUNTS_MORE, COUNTS_LESS, WARNS, LONG = MORE
ENDING = {GOOD, *MORE}


class Handler(BaseHTTPRequestHandler):
    """Answers a request as the first id of its prompt says."""

    protocol_version = "HTTP/1.1"
    # Sent to anybody.
    ids = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(json.dumps({"tokens": Handler.ids}).encode())

    def do_POST(self) -> None:
        [what, *_] = json.loads(self.rfile.read(int(self.headers["content-length"])))["ids"]
        if what in (REFUSES, FAILS):
            return self.send_error(400 if what == REFUSES else 500, "no such thing")
        if what == LACKS:
            sys.stdout.write("cuda: out of memory, 5 GiB\n")
            sys.stdout.flush()
        if what in (LACKS, DIES):
            os._exit(7)
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        if what == TELLS:
            return self._event({"error": "the cache is gone"})
        if what == TWO_AT_ONCE:
            return self._event({"ids": [5, 6], "end": "length"})
        if what == WARNS:
            sys.stdout.write("warning: this may run out of memory\n")
            sys.stdout.flush()
        counts = {COUNTS_MORE: 2, COUNTS_LESS: -1}.get(what, 0)
        for number in range(LONG_IDS if what == LONG else 3):
            if number:
                time.sleep(GAP_S)
            end = "length" if number == 2 and what in ENDING else None
            self._event({"ids": [10 + number], "end": end, "counted": number + 1 + counts * (number == 2)})
        if what == TELLS_LATE:
            self._event({"error": "the cache is gone"})
        if what in (HANGS, STAYS_OPEN):
            time.sleep(3600)
        return None

    def _event(self, event: Mapping[str, Any]) -> None:
        Handler.ids += len(event.get("ids", ()))
        self.wfile.write(b": a comment\n\ndata: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n")
        self.wfile.flush()


class ScriptedApi(Api):
    """What `Handler` understands."""

    path = "/"
    token_counter = "tokens"

    def counters(self, server: HttpServer) -> Mapping[str, float]:
        counts: Mapping[str, float] = server.ask("/metrics")
        return counts

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        return {"ids": prompt.ids}

    def read(self, event: Mapping[str, Any]) -> Chunk:
        return Chunk(event["ids"], event["end"], output_tokens=event.get("counted"))


def started() -> ServedEngine:
    with loading(Path(__file__), "") as server:
        server.until(server.json_line)
        return ServedEngine(server, ScriptedApi())


def lives_after_a_look_that_raises() -> bool:
    """Return whether the server does, once the failure has left the block."""
    with suppress(ZeroDivisionError), loading(Path(__file__), "") as server:
        server.until(lambda: 1 // 0)
    return server.process.poll() is None


def outcome(engine: ServedEngine, *whats: int, gap_s: float = 0.0) -> dict[str, Any]:
    """Run one request of each kind, at once or one after the other, and tell what became of the pass."""
    recorder = PassRecorder()
    if HANGS in whats:
        threading.Timer(1.0, recorder.cancelled.set).start()
    try:
        arrivals_ns = tuple(round(number * gap_s * 1e9) for number in range(len(whats))) if gap_s else ()
        workload = Workload(Arrival.OPEN if gap_s else Arrival.BATCH, len(whats), 5, arrival_ns=arrivals_ns)
        serve(engine, workload, [Prompt([what, 2]) for what in whats], recorder)
    except Exception as error:  # noqa: BLE001 - told
        return {"kind": type(error).__name__, "message": str(error)}
    gaps_s = [gap_ns / 1e9 for request in recorder.requests for gap_ns in request.token_gaps_ns]
    assert recorder.serving
    return {
        "tokens": sum(request.output_tokens for request in recorder.requests),
        "gaps_s": gaps_s,
        **recorder.serving._asdict(),
    }


@contextmanager
def other_client(engine: ServedEngine, after_s: float) -> Iterator[None]:
    """Have somebody else's request run meanwhile, which begins `after_s` from now."""
    thread = threading.Timer(after_s, lambda: engine.server.text("/", {"ids": [LONG]}))
    thread.start()
    yield
    thread.join()


def main() -> None:
    """Serve, or run a pass of each kind."""
    if len(sys.argv) > 1:
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        server.serve_forever()
    outcomes: dict[str, Any] = {}
    served.DRAIN_S, served.SETTLE_LOOKS = 0.5, 6
    engine = started()
    for name in ("GOOD", "TWO_AT_ONCE", "CLOSES", "REFUSES", "WARNS", "FAILS", "TELLS", "HANGS", *NAMES[9:13]):
        outcomes[name] = outcome(engine, GOOD, globals()[name])
    outcomes["afterwards"] = outcome(engine, GOOD)
    outcomes["rests"] = outcome(engine, GOOD, GOOD, gap_s=3.0)
    with other_client(engine, 0.0):
        time.sleep(2 * GAP_S)
        outcomes["another_before"] = outcome(engine, GOOD)
    with other_client(engine, 0.5):
        outcomes["another_within"] = outcome(engine, GOOD, GOOD, gap_s=3.0)
    with other_client(engine, 0.5):
        outcomes["another_beyond"] = outcome(engine, GOOD, GOOD, gap_s=1.0)
    ScriptedApi.token_counter = "unknown"
    outcomes["uncounted"] = outcome(engine, GOOD)
    ScriptedApi.token_counter = "tokens"
    for name in ("DIES", "LACKS"):
        outcomes[name] = outcome(engine, GOOD, globals()[name])
        engine.end()
        engine = started()
    [pid] = descendants(os.getpid())
    engine.end()
    outcomes["left_by_a_look"] = lives_after_a_look_that_raises()
    outcomes["left"] = os.path.exists(f"/proc/{pid}")  # noqa: PTH110
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
