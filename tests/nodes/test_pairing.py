"""Who may talk to an agent, and who is refused in one line: a real agent on loopback."""

from __future__ import annotations

import io
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest
from refused import raises
from seams import nodes as behind

from wattdock.errors import Cause, ConfigError, PreflightError, RunnerError, StoreError
from wattdock.nodes import Agent, Pairing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pair.pem"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def agent(file: Path, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    with Agent(Pairing.make(file, 1), "127.0.0.1:0", said.append) as serving:
        yield serving


def link(agent: Agent, file: Path) -> behind.NodeLink:
    return behind.NodeLink(f"127.0.0.1:{agent.port}", Pairing.read(file))


def test_a_pairing_file_is_for_its_owner_alone_and_never_replaced(file: Path) -> None:
    """Mode 600 as it is made; one that others can read is refused, whoever made it so."""
    Pairing.make(file, 1)
    assert file.stat().st_mode & 0o777 == 0o600
    with raises(StoreError, str(file)):
        Pairing.make(file, 1)
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        with raises(ConfigError, str(file), f"{mode & 0o77:03o}", cause=Cause.OTHERS_COULD_WRITE):
            Pairing.read(file)


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_pairing_file_is_told_in_one_line(file: Path, content: bytes) -> None:
    """Empty, text, half a file."""
    file.touch(0o600)
    file.write_bytes(content)
    with raises(ConfigError, "is no pairing file"):
        Pairing.read(file)
    with raises(ConfigError, "missing.pem"):
        Pairing.read(file.with_name("missing.pem"))


def test_a_pairing_can_come_through_standard_input(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ssh and srun hand it over; what is no pairing is told in one line there, too."""
    for content, same in ((Pairing.make(file, 1).pem, True), (b"", False), (b"x" * 99_999, False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        if same:
            assert Pairing.read(Path("-")).pem == content == file.read_bytes()
            continue
        with raises(ConfigError, "- is no pairing file"):
            Pairing.read(Path("-"))


def test_key_and_certificate_of_two_files_are_no_pairing(file: Path, tmp_path: Path) -> None:
    """A certificate that another key signed says nothing."""
    other = tmp_path / "other.pem"
    Pairing.make(file, 1)
    Pairing.make(other, 1)
    key, _, _ = file.read_text().partition("-----BEGIN CERTIFICATE")
    _, mark, certificate = other.read_text().partition("-----BEGIN CERTIFICATE")
    file.write_text(key + mark + certificate)
    with raises(ConfigError, "is no pairing file"):
        Pairing.read(file)


def test_an_expired_pairing_is_refused_by_whoever_reads_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file from yesterday."""
    Pairing.make(file, 1)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=1)

    monkeypatch.setattr(behind.pairing, "datetime", Tomorrow)
    with raises(ConfigError, "has expired"):
        Pairing.read(file)


def test_a_head_of_the_same_pairing_is_served(agent: Agent, file: Path) -> None:
    """It is told which wattdock is there, and its clock."""
    opened = link(agent, file)
    try:
        deadline_s = time.monotonic() + 30
        while len(opened.exchanges) < behind.LEAST_EXCHANGES and time.monotonic() < deadline_s:
            opened.check(wait_s=0.1)
        # The same clock: no more apart than the round trip.
        clock = opened.clock()
        here_ns = time.monotonic_ns()
        assert abs(int(clock.here(np.array([here_ns]))[0]) - here_ns) < 1e9 * (clock.bound_s + 0.01)
        assert here_ns <= opened.beyond(here_ns) < here_ns + 1e9
    finally:
        opened.close()


def test_an_unpaired_head_is_refused(agent: Agent, file: Path, tmp_path: Path) -> None:
    """With a pairing of its own; and one that speaks no TLS gets nothing at all."""
    Pairing.make(tmp_path / "own.pem", 1)
    with raises(PreflightError, f"127.0.0.1:{agent.port}", cause=Cause.NOT_PERMITTED):
        link(agent, tmp_path / "own.pem")
    with grpc.insecure_channel(f"127.0.0.1:{agent.port}") as channel:
        stub = behind.node_pb2_grpc.NodeStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError):
            stub.DescribeNode(behind.pb.Nothing(), timeout=5)


def test_a_replayed_pairing_of_an_earlier_agent_is_refused(agent: Agent, file: Path, said: list[str]) -> None:
    """The agent was started anew with a new file; the head still has the old one."""
    old = file.rename(file.with_name("old.pem"))
    with Agent(Pairing.make(file, 1), "127.0.0.1:0", said.append) as anew:
        with raises(PreflightError, str(anew.port), cause=Cause.NOT_PERMITTED):
            link(anew, old)
        link(anew, file).close()


@pytest.mark.slow
def test_an_expired_agent_is_refused_by_tls_itself(
    file: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that was started in time, and whose head asks too late: 3.6 s of validity."""
    pairing = Pairing.make(file, 0.001)
    with Agent(pairing, "127.0.0.1:0", said.append) as agent:
        time.sleep(4)
        with raises(PreflightError, str(agent.port), cause=Cause.NOT_PERMITTED):
            behind.NodeLink(f"127.0.0.1:{agent.port}", pairing)
        # It ends by itself: a port that nobody can use is not left open.
        agent.wait()
    assert "the pairing has expired" in said


def test_no_port_is_open_without_a_pairing_and_none_twice(agent: Agent, file: Path, said: list[str]) -> None:
    """A port in use is one line."""
    with raises(PreflightError, str(agent.port)):
        Agent(Pairing.read(file), f"127.0.0.1:{agent.port}", said.append)


def test_a_second_head_is_refused_while_the_first_is_served(agent: Agent, file: Path) -> None:
    """And served once the first has gone."""
    first = link(agent, file)
    ready(first)
    second = link(agent, file)
    with raises(PreflightError, "serves another head", cause=Cause.IN_USE):
        ready(second)
    second.close()
    first.check()
    first.close()
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        third = link(agent, file)
        try:
            ready(third)
            break
        except PreflightError:
            time.sleep(0.2)
        finally:
            third.close()
    else:
        pytest.fail("the agent is not free again")


def test_an_agent_ends_its_session_where_nobody_reads_its_lines_any_more(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What started it, such as ssh, is gone, and its error stream with it."""
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))

    def gone(line: str) -> None:
        raise BrokenPipeError(line)

    with Agent(Pairing.make(file, 1), "127.0.0.1:0", gone, once=True) as serving:
        opened = link(serving, file)
        ready(opened)
        opened.close()
        waiting = threading.Thread(target=serving.wait, daemon=True)
        waiting.start()
        waiting.join(30)
        assert not waiting.is_alive()


def ready(opened: behind.NodeLink) -> None:
    """Wait until a link is served, or raise why it is not."""
    deadline_s = time.monotonic() + 20
    while not opened.exchanges and time.monotonic() < deadline_s:
        opened.check(wait_s=0.1)
    opened.check()


def test_another_version_commit_or_user_is_refused_with_both_values(
    agent: Agent, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that differ would not mean the same by one message."""
    own = [behind.messages.description() for _ in range(2)]
    unequal = {"wattdock": ("9.9", "1.2"), "user": ("else", "some"), "commit": ("0ddba11", ""), "protocol": (7, 8)}
    for name, (there, here) in unequal.items():
        told = [behind.pb.DescribeNodeResponse.FromString(message.SerializeToString()) for message in own]
        for message, value in zip(told, (there, here), strict=True):
            setattr(message, name, value)
        for module, message in zip((behind.agent, behind.link), told, strict=True):
            monkeypatch.setattr(module, "description", lambda message=message: message)
        with raises(PreflightError, f"has another {name} {there}, here {here or 'none'}", cause=Cause.VERSION):
            link(agent, file)


def test_nothing_listens(file: Path) -> None:
    """The address, and what to start there."""
    Pairing.make(file, 1)
    with raises(PreflightError, "127.0.0.1:9"):
        behind.NodeLink("127.0.0.1:9", Pairing.read(file))


def test_a_head_that_falls_silent_ends_its_session(
    agent: Agent, file: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stands, as over a cut link, and no question comes."""
    monkeypatch.setattr(behind.agent, "SILENCE_S", 1.0)
    monkeypatch.setattr(behind.link, "EXCHANGE_S", 60.0)
    opened = link(agent, file)
    deadline_s = time.monotonic() + 30
    while not any("everything of it has ended" in line for line in said) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert any("asked nothing for 1 s" in line for line in said), said
    with raises(RunnerError, cause=Cause.NODE):
        opened.check(wait_s=2)
    opened.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "agent-end"]
