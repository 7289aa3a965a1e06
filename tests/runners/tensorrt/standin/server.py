"""The worker of the stand-in engine: one token per request and step; JSON lines on stdin and stdout.

Named as mpi4py's own server, since the runner tells workers by that.
"""

import hashlib
import json
import queue
import sys
import threading
import time
from pathlib import Path

# What a test writes there is what goes wrong.
FILE = Path(__file__).parents[2] / "fault"
FAULT = FILE.read_text() if FILE.exists() else ""
STEP_S = 0.002


def main():
    """Serve until told to stop."""
    setup = json.loads(sys.stdin.readline())
    if FAULT == "oom at load":
        answer([{"fatal": "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB"}])
        return
    if FAULT == "death at load":
        answer([{"fatal": "MPI_ABORT was invoked"}])
        return
    answer([{"ready": True}])
    arrivals = queue.SimpleQueue()
    threading.Thread(target=lambda: [arrivals.put(json.loads(line)) for line in sys.stdin], daemon=True).start()
    serve(setup, arrivals)


def serve(setup, arrivals):
    """Do one step after another while there is work, and wait while there is none."""
    active, waiting, prompts_before = {}, [], set()
    while True:
        while not arrivals.empty() or not (active or waiting):
            message = arrivals.get()
            if message is None:
                return
            if "abort" in message:
                if active.pop(message["abort"], None):
                    answer([{"id": message["abort"], "ids": [], "final": True, "reason": "cancelled"}])
            else:
                waiting.append(message)
        while waiting and len(active) < setup["max_batch_size"]:
            request = waiting.pop(0)
            prompt = tuple(request["prompt"])
            reusable = (len(prompt) - 1) // 32 * 32
            request |= {"done": 0, "cached": reusable if setup["reuse"] and prompt in prompts_before else 0}
            prompts_before.add(prompt)
            active[request["id"]] = request
        time.sleep(STEP_S)
        answer([step(setup, request) for request in active.values()])
        active = {record["id"]: record for record in active.values() if not record.get("over")}


def step(setup, request):
    """Return the response of one request for one step."""
    if FAULT == "oom in a pass" and len(request["prompt"]) > 1:
        request["over"] = True
        return {"id": request["id"], "error": "CUDA out of memory. Tried to allocate 2.00 GiB."}
    request["done"] += 1
    seed = f"{setup['seed']}:{request['prompt']}:{request['done']}"
    token = 3 + int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") % (setup["vocab"] - 3)
    # A prompt that begins with 7 ends by itself after its third token; one that begins with 8, by its second end id.
    ends = request["done"] == 3 and not request["ignore_eos"]
    reason = None
    if ends and request["prompt"][0] == 7:
        token, reason = request["end_id"], "stop"
    elif ends and request["prompt"][0] == 8 and request["stop_ids"]:
        token, reason = request["stop_ids"][0], "stop"
    elif request["done"] == request["max_tokens"]:
        reason = "length"
    # A stop id is cut off unless it is asked for.
    ids = [] if reason == "stop" and request["prompt"][0] == 8 and not request["include_stop"] else [token]
    request["over"] = reason is not None
    return {"id": request["id"], "ids": ids, "final": request["over"], "reason": reason, "cached": request["cached"]}


def answer(responses):
    """Send one step's responses together."""
    sys.stdout.write(json.dumps(responses) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
