"""The live page's server against who would misuse it, and what it does to runs of others."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from command import SMALL, Command, on_gpus
from make.served import FIRST, GPUS, SECOND, Served, served
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = (*SMALL, "--gpus", "0", "--set", "fake.step_s=0.05", "--set", "warmup.passes=0", "--max-output-tokens", "20")
BEGIN = (*LONG, "--min-duration-s", "300", "--set", "exclusive=gpus")


def eventually(check: Callable[[], Any], seconds: float = 60) -> Any:
    """Return what `check` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)
    return found


def test_only_requests_for_this_machine_are_answered_and_none_changes_anything(wattdock: Command) -> None:
    """Another name that points here, another page, another method, a path to a file."""
    with served(wattdock, "--port", "0") as server:
        port = server.url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1].evil.example"):
            assert server.get("/", headers={"host": host}).status_code == 421
        assert server.get("/", headers={"host": f"localhost:{port}"}).status_code == 200
        assert server.get("/").headers.get("access-control-allow-origin") is None
        elsewhere = {"sec-fetch-site": "cross-site"}
        assert [server.get(path, headers=elsewhere).status_code for path in ("/", "/metrics")] == [200, 403]
        for path in ("/", "/events", "/metrics"):
            assert httpx.post(server.url + path, json={}, timeout=30).status_code == 405
        for path in ("/live.js/../server.py", "/..%2f..%2fetc%2fpasswd", "//etc/passwd", "/results"):
            # As it stands: a client would tidy it.
            with socket.create_connection(("127.0.0.1", int(port))) as link, link.makefile("rb") as answered:
                link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                answer = answered.read().decode()
            assert " 404 " in answer.splitlines()[0], answer
        assert not (wattdock.folder / "results").exists()


def test_thousands_of_connections_and_a_slow_reader_leave_it_serving(wattdock: Command) -> None:
    """Who says nothing is let go, so that others are served again; who does not read holds nobody up."""
    with served(wattdock, "--port", "0") as server, ExitStack() as stack:
        host, port = server.url.removeprefix("http://").split(":")
        slow = stack.enter_context(socket.create_connection((host, int(port))))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.sendall(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        for _ in range(10_000):
            try:
                stack.enter_context(socket.create_connection((host, int(port)), timeout=1))
            except OSError:
                # Either side has no more descriptors.
                break
        eventually(lambda: is_served(server))
        for _ in range(250):
            # A whole request, then half of one.
            half = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            half.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\nGET / HTTP/1.1\r\n".encode())
        eventually(lambda: is_served(server))
        assert server.process.poll() is None


def is_served(server: Served) -> bool:
    try:
        return server.get("/").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_run_is_seen_and_scraped_until_it_ends(wattdock: Command) -> None:
    """The study's folder tells."""
    env = on_gpus(wattdock, *GPUS)
    running = wattdock.start("run", *BEGIN, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with served(wattdock, "--port", "0", env=env) as server:
        run = eventually(lambda: next((run for run in server.now()["runs"] if run["output_tokens"]), None))
        assert (run["stage"], run["passes_left"], run["experiment"]) == ("pass 1/1", 1, "fake shape:tiny-llama batch 2")
        assert run["power_w"] == pytest.approx(300, abs=15)
        assert run["joules_per_token"] == pytest.approx(300 / run["tokens_per_s"], rel=0.2)
        assert 0 < run["share"] < 1
        gpus = {gpu["uuid"]: gpu for gpu in eventually(lambda: held(server))}
        assert (gpus[FIRST]["study"], gpus[SECOND]["holder"]) == (run["study"], None)
        assert "9,000,000,000 bytes" in list(gpus.values())[2]["occupied"]
        families = {family.name: family for family in text_string_to_metric_families(server.get("/metrics").text)}
        [leased] = families["wattdock_gpu_leased"].samples
        assert (leased.labels["gpu"], leased.labels["study"], leased.value) == (FIRST, run["study"], 1)
        watts = {sample.labels["gpu"]: sample.value for sample in families["wattdock_gpu_power_watts"].samples}
        assert watts[SECOND] == pytest.approx(200, abs=10)
        used = {sample.labels["gpu"]: sample.value for sample in families["wattdock_gpu_energy_joules"].samples}
        assert used[SECOND] > 0
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 130
        eventually(lambda: not server.now()["runs"])


def held(server: Served) -> list[dict[str, Any]] | None:
    gpus: list[dict[str, Any]] = server.now()["gpus"]
    return gpus if any(gpu["study"] for gpu in gpus) else None


def test_a_port_in_use_is_one_line(wattdock: Command) -> None:
    """The other one keeps it."""
    with served(wattdock, "--port", "0") as server:
        done = wattdock("serve", "--port", server.url.rpartition(":")[2])
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "--port" in done.stderr
