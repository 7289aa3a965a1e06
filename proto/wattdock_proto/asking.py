"""Ask a server over HTTP: coordinator and runners do it alike, and need the standard library only.

No proxy stands between, and no redirect is followed: it could carry a key to another host.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The variable with the key of a server that wants one; a key is no setting, which results would hold.
KEY_VARIABLE = "WATTDOCK_API_KEY"
# The variable with the only address that gets the key: a stranger's study may name another.
URL_VARIABLE = "WATTDOCK_API_URL"
# Variables of the coordinator that whoever asks such a server needs, too.
VARIABLES = (KEY_VARIABLE, URL_VARIABLE, "SSL_CERT_FILE", "SSL_CERT_DIR")
ANSWER_S = 30.0
# How often a wait for a server that starts or loads is told.
TELL_S = 60.0
# The most that is read of an answer, and quoted of one in a message.
MOST_BYTES, QUOTED = 1 << 26, 300
REFUSED = (401, 403)
# How servers say at /health that they cannot serve, and what TGI then calls itself.
UNREADY, UNHEALTHY = 503, '"unhealthy"'


class Unanswered(Exception):  # noqa: N818 - named for what the caller learns
    """A server gave no usable answer; holds one line, with what to do."""


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def fetch(url: str, body: Any = None, headers: Mapping[str, str] = {}, *, wait_s: float = ANSWER_S) -> str:
    """Return what a server answers, to a body of JSON if any, after a silence of `wait_s` at most.

    Raises:
        OSError, http.client.HTTPException: It does not answer, or with an error.
    """
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"content-type": "application/json", **headers})
    with build_opener(ProxyHandler({}), _NoRedirect).open(request, timeout=wait_s) as reply:
        return str(reply.read(MOST_BYTES).decode(errors="replace"))


def key_header(base_url: str) -> dict[str, str]:
    """Return the header that holds the caller's key; empty without one, or where it is another server's.

    Raises:
        Unanswered: No header can hold the key.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not (key.isascii() and key.isprintable()):
        raise Unanswered(f"{KEY_VARIABLE} holds what no header can hold; set it again, without a line's end")
    return {"authorization": f"Bearer {key}"} if key and _gets_key(base_url) else {}


def _gets_key(base_url: str) -> bool:
    return os.environ.get(URL_VARIABLE, "").rstrip("/").removesuffix("/v1") == base_url


def ask(base_url: str, path: str, body: Any = None, *, wait_s: float = ANSWER_S) -> Any:
    """Return the JSON that a server answers, asked with the caller's key, after a silence of `wait_s` at most.

    Raises:
        Unanswered: It does not answer, refuses, or answers no JSON; says why.
    """
    try:
        return json.loads(fetch(base_url + path, body, key_header(base_url), wait_s=wait_s))
    except HTTPError as error:
        with error:
            said = " ".join(error.read(1000).decode(errors="replace").split())[:QUOTED]
        if error.code not in REFUSED:
            raise Unanswered(f"{base_url} answers {path} with {error.code} {said}".rstrip()) from error
        if not os.environ.get(KEY_VARIABLE):
            raise Unanswered(f"{base_url} wants a key: put it into the environment variable {KEY_VARIABLE}") from error
        if not _gets_key(base_url):
            where = f"only the address in --url gets the one in {KEY_VARIABLE}; or export {URL_VARIABLE}={base_url}"
            raise Unanswered(f"{base_url} wants a key: {where}") from error
        raise Unanswered(f"{base_url} refuses the key in the environment variable {KEY_VARIABLE}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(f"{base_url}: {_why(error, wait_s)}") from error
    except ValueError as error:
        raise Unanswered(
            f"{base_url} answers {path} with no JSON; it is no OpenAI-compatible server; correct the address"
        ) from error


def wait_loaded(base_url: str, *, within_s: float = 0.0, say: Callable[[str], None] = lambda _: None) -> None:
    """Return once a server does not say at /health that it cannot serve; of anything else the next question tells.

    Raises:
        Unanswered: Its engine has failed, or it says the same `within_s` on.

    Source: tools/server/README.md of llama.cpp, which answers 503 to everything while it loads; `health_generate` in
    sglang/srt/entrypoints/http_server.py; `health` in vllm/entrypoints/serve/instrumentator/health.py, and in
    router/src/server.rs of TGI. vLLM and TGI listen only once their model is loaded.
    """
    begun_s, told = time.monotonic(), 0
    while True:
        try:
            return ask(base_url, "/health")
        except Unanswered as error:
            if getattr(error.__cause__, "code", None) != UNREADY:
                return None
            has_failed = UNHEALTHY in str(error)
            with suppress(Unanswered):
                # vLLM's page, which SGLang does not have.
                has_failed = has_failed or bool(ask(base_url, "/version"))
            if has_failed:
                raise Unanswered(f"{error}; its engine has failed") from error
            if (waited_s := time.monotonic() - begun_s) > within_s:
                raise Unanswered(f"{error}; it loads its model, or hangs, for {within_s:g} s") from error
            if waited_s >= told * TELL_S:
                longer = f"{error}; it loads its model, or hangs, for {waited_s:.0f} s"
                say(longer if told else f"{base_url} is loading its model")
                told += 1
        time.sleep(1)


def _why(error: Exception, wait_s: float) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    # urllib wraps what ends a connection's making; a handshake of TLS is made on a connection.
    if isinstance(cause, TimeoutError) and (cause is error or "handshake" in str(cause)):
        return f"accepts the connection, and has not answered in {wait_s:g} s; wait for the server, or start it again"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}); set SSL_CERT_FILE to its authority's file"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS ({cause.reason}); write http:// for a server without"
    if isinstance(cause, (http.client.HTTPException, ConnectionResetError)):
        return f"no HTTP ({cause or type(cause).__name__}); write https:// for a server with TLS"
    return f"nobody answers ({getattr(cause, 'strerror', None) or cause}); start the server, or correct the address"
