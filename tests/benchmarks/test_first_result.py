"""What the time to a first result is made of."""

from __future__ import annotations

from first_result import parts

LINES = [
    (1.0, "setting up .venv (about 155 MB to download)\n"),
    (7.0, '{"event": "StudyStarted"}\n'),
    (8.0, '{"event": "RunnerReady"}\n'),
    (8.1, '{"event": "Loading", "stage": "importing torch"}\n'),
    (10.0, '{"event": "Loading", "stage": "reading weights"}\n'),
    (12.0, '{"event": "PassStarted", "stage": "warm-up 1/1"}\n'),
    (12.1, '{"event": "TokensSeen", "stage": "warm-up 1/1", "output_tokens": 0}\n'),
    (13.0, '{"event": "TokensSeen", "stage": "warm-up 1/1", "output_tokens": 8}\n'),
    (20.0, '{"event": "PassStarted", "stage": "pass 1/2"}\n'),
    (30.0, '{"event": "PassStarted", "stage": "pass 2/2"}\n'),
    (42.0, '{"event": "ResultStored"}\n'),
    (42.5, "stored in results\n"),
]


def test_a_run_is_split_at_its_events() -> None:
    """Parts that a run lacks are absent; the first token is dated from the start."""
    assert parts(LINES) == {
        ".venv": 7.0,
        "launch": 1.0,
        "imports": 2.0,
        "load": 2.0,
        "first token": 13.0,
        "warm-up": 8.0,
        "passes and result": 22.0,
    }
