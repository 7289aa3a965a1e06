"""Says that it loads a GPU, ten times a second, and does nothing: python wattdock_fake_pulses.py COUNT."""

from __future__ import annotations

import json
import sys
import time

for _ in range(int(sys.argv[1])):
    on_ns = time.monotonic_ns()
    time.sleep(0.05)
    sys.stdout.write(json.dumps(["nothing", on_ns, time.monotonic_ns()]) + "\n")
    time.sleep(0.05)
