"""A context collected with its sockets waits for ever, unless they are held and closed; with the engine's own zmq."""

from __future__ import annotations

import subprocess
from textwrap import dedent

import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON

pytestmark = pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")

# A queue as vLLM's: sockets with an unread message, and the context that nothing but they and it hold, frozen.
SCRIPT = dedent(
    """
    import gc, os, sys, threading
    import zmq
    from wattdock_vllm_processes import close_sockets, open_sockets

    class Queue:
        def __init__(self):
            context = zmq.Context()
            self.writer, self.reader = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
            self.writer.bind("inproc://cancel")
            self.reader.connect("inproc://cancel")
            self.writer.send(b"0")
            self.itself = self

    gc.disable()
    queue = Queue()
    gc.freeze()
    sockets = open_sockets()
    print(len(sockets), gc.get_freeze_count() > 0)
    queue = None
    gc.unfreeze()
    if sys.argv[1] == "left":
        sockets = None

    def collect():
        gc.collect()
        close_sockets(sockets)
        globals().update(sockets=None)
        gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(float(sys.argv[2]))
    print("waits" if thread.is_alive() else "ended", flush=True)
    os._exit(0)
    """
)


def collect(what: str, timeout_s: float) -> list[str]:
    """Collect such a queue whose sockets are `held` or `left`, and return what was seen."""
    command = [str(VLLM_PYTHON), "-c", SCRIPT, what, str(timeout_s)]
    found = subprocess.run(command, cwd=VLLM_FOLDER, check=True, capture_output=True, text=True, timeout=120)
    return found.stdout.split()


def test_held_sockets_are_closed_and_their_context_ends() -> None:
    """The frozen ones are found, and the rest of the heap stays frozen."""
    assert collect("held", 60) == ["2", "True", "ended"]


def test_without_holding_them_the_collector_waits() -> None:
    """If this ever fails, zmq has been mended, and the module can go."""
    assert collect("left", 2) == ["2", "True", "waits"]
