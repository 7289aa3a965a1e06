"""A small OpenAI-compatible server that misbehaves as it is told: `python openai_server.py PORT BEHAVIOUR`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEHAVIOUR = sys.argv[2] if len(sys.argv) > 2 else ""
KEY = "Nq8ZtY3vBk1Lw6Rp"
PROMPT_TOKENS = 7
# Questions so far, of those to a server that "loads", and says so to the first two, and at /health.
ASKED = itertools.count()
# What servers say at /health, in turn: status and body. A busy one says that all is well.
# Source: `health_generate` in sglang/srt/entrypoints/http_server.py (0.5.23); `health` in
# vllm/entrypoints/serve/instrumentator/health.py (0.32.0), and in router/src/server.rs of TGI (db931fc).
WELL, FAILED = (200, ""), (503, "")
HEALTH = {
    "sglang": [FAILED, FAILED, WELL],  # its warm-up runs
    "sglang-hung": [FAILED],  # its scheduler has not answered in 20 s
    "vllm-dead": [FAILED],  # its engine is dead; it does not listen while it loads
    "tgi-dead": [(503, '{"error":"unhealthy","error_type":"healthcheck"}')],  # as vLLM
}
STEP_S = 0.05 if BEHAVIOUR == "slow" else 0.01


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if BEHAVIOUR == "loading" or (BEHAVIOUR == "loads" and next(ASKED) < 2):
            return self.send_error(503, "Loading model")
        if BEHAVIOUR == "key" and self.headers["authorization"] != f"Bearer {KEY}":
            return self.send_error(401)
        if BEHAVIOUR == "redirect":
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/")
            self.send_header("content-length", "0")
            return self.end_headers()
        if self.path == "/health" and (said := HEALTH.get(BEHAVIOUR)):
            return self._answer(*said[min(next(ASKED), len(said) - 1)])
        if self.path == "/version" and BEHAVIOUR == "vllm-dead":
            return self._answer(200, '{"version":"0.32.0"}')
        if self.path != "/v1/models":
            return self.send_error(404)
        models = [{"id": name, "object": "model"} for name in ("stand-in", *(["second"] * (BEHAVIOUR == "two")))]
        pages = {"html": "<html>hello</html>", "other": json.dumps({"hello": 1})}
        return self._answer(200, pages.get(BEHAVIOUR, json.dumps({"object": "list", "data": models})))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "stream" not in asked or BEHAVIOUR == "refuses":
            return self.send_error(400, "no such thing")
        assert (asked["model"], asked["stream_options"]) == ("stand-in", {"include_usage": True})
        is_chat = self.path == "/v1/chat/completions"
        assert is_chat == ("messages" in asked)
        tokens = {"longer": asked["max_tokens"] + 1, "shorter": 1}.get(BEHAVIOUR, asked["max_tokens"])
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(tokens):
            # The last event has two tokens' text.
            if number == tokens - 2 and not is_chat:
                continue
            if number and BEHAVIOUR == "dies":
                os._exit(7)
            if number and BEHAVIOUR == "cut":
                return None
            if BEHAVIOUR == "broken":
                self.wfile.write(b"data: {nonsense\n\n")
                return None
            said: dict[str, Any] = {"delta": {"content": "a "}} if is_chat else {"text": "a "}
            self._event({"choices": [{"index": 0, "finish_reason": None, **said}], "usage": None})
            time.sleep(STEP_S)
        self._event({"choices": [{"index": 0, "finish_reason": "length", "delta": {}, "text": ""}]})
        if BEHAVIOUR != "uncounted":
            self._event({"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


@contextmanager
def behaving(behaviour: str, **how: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the address of such a server, and its process."""
    words = [sys.executable, __file__, "0", behaviour]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **how) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


def certificate(folder: Path) -> Path:
    """Write a certificate for this machine that nobody trusts, with its key; return its file."""
    file = folder / "own.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", file, "-out", folder / "cert.pem", *subject)
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    with file.open("a") as whole:
        whole.write((folder / "cert.pem").read_text())
    return file


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    if pem := os.environ.get("STAND_IN_PEM"):
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
