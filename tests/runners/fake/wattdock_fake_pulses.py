"""Says that it loads a GPU, ten times a second, and does nothing: python wattdock_fake_pulses.py COUNT."""

from __future__ import annotations

import json
import sys
import time

# Operations, bytes and bits of an operand of the pulses of known work.
WORK: tuple[tuple[float, ...], ...] = ((0.0, 1e9, 32), (1e12, 1e9, 32), (1e12, 1e8, 32), (5e11, 5e8, 32))

for work in [()] * int(sys.argv[1]) + list(WORK):
    on_ns = time.monotonic_ns()
    time.sleep(0.05)
    sys.stdout.write(json.dumps(["nothing", on_ns, time.monotonic_ns(), *work]) + "\n")
    time.sleep(0.05)
