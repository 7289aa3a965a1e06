"""A model hub on loopback that speaks the few routes a snapshot needs: info, tree, and files by HEAD and GET."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What the real hub says of models that do not exist, so that private ones cannot be told apart.
MISSING: tuple[int, dict[str, str], bytes] = (401, {"X-Error-Code": "RepoNotFound"}, b"")


@dataclass
class Hub:
    """What the server holds, and what it was asked.

    Attributes:
        files: Of every model, path to content, by id OWNER/NAME.
        gated: Ids that need the token `hf_valid`.
        requests: Method, path and Authorization header of each request.
        resolver: The process that asks it.
    """

    url: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    resolver: subprocess.Popen[str] | None = None

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for one request."""
        match unquote(urlsplit(path).path).strip("/").split("/"):
            case ["api", "models", _, "broken", *_]:
                return 403, {}, b""
            case ["api", "models", owner, name, "revision", revision]:
                return self._info(f"{owner}/{name}", revision)
            case ["api", "models", owner, name, "tree", commit] if commit == COMMIT:
                return _json([_entry(path, content) for path, content in self.files[f"{owner}/{name}"].items()])
            case [owner, name, "resolve", _, *parts]:
                return self._file(f"{owner}/{name}", "/".join(parts), token)
        return 404, {}, b""

    def _info(self, model: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        if model not in self.files:
            return MISSING
        if revision not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        return _json({"id": model, "sha": COMMIT, "siblings": [{"rfilename": path} for path in self.files[model]]})

    def _file(self, model: str, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        if model in self.gated and token != "Bearer hf_valid":
            return 401 if token is None else 403, {"X-Error-Code": "GatedRepo"}, b""
        if model not in self.files:
            return MISSING
        content = self.files[model][path]
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{_blob_id(content)}"'}, content


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub on a free port of loopback; it is gone when the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization")
            hub.requests.append((self.command, self.path, token))
            status, headers, body = hub.answer(self.path, token)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _entry(path: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": path, "size": len(content), "oid": _blob_id(content)}


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _json(content: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()
