"""A package index on loopback with hand-made wheels, for a real uv."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def make_wheel(name: str, version: str, requires: tuple[str, ...] = ()) -> tuple[str, bytes]:
    """Return file name and content of a wheel whose only module holds its version."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={digest(text)},{len(text.encode())}\n" for path, text in files.items())
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)
    return f"{name}-{version}-py3-none-any.whl", content.getvalue()


def digest(text: str) -> str:
    """Return a hash as RECORD files write it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def last_part(path: str) -> str:
    """Return the package or wheel that a path asks for."""
    return path.strip("/").rpartition("/")[2].replace("%2B", "+")


class LocalIndex:
    """Serves wheels at `url` while its `with` block lasts; `gate` holds back every answer while it is cleared.

    `refusals` maps the last part of a path to the HTTP status that it is refused with.
    """

    def __init__(self, *wheels: tuple[str, bytes]) -> None:
        self.wheels = dict(wheels)
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[str] = []
        self.refusals: dict[str, int] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                index.requests.append(self.path)
                index.gate.wait(60)
                self.answer(with_body=True)

            def answer(self, *, with_body: bool) -> None:
                kind, body = index.find(self.path)
                self.send_response(index.refusals.get(last_part(self.path), 200 if body else 404))
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple/"

    def find(self, path: str) -> tuple[str, bytes]:
        """Return content type and body for a path; an empty body where there is nothing."""
        last = last_part(path)
        if last in self.wheels:
            return "application/octet-stream", self.wheels[last]
        names = [wheel for wheel in self.wheels if wheel.partition("-")[0].replace("_", "-") == last]
        return "text/html", "".join(
            f'<a href="/files/{wheel}#sha256={hashlib.sha256(self.wheels[wheel]).hexdigest()}">{wheel}</a>'
            for wheel in names
        ).encode()

    def __enter__(self) -> LocalIndex:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
