"""SGLang's server without SGLang: the routes that the runner asks, and a process that it cannot live without.

Kept from the real one, because a runner must live with it: it answers before it is ready; a stream's events repeat all
ids unless told otherwise; faults of a request come as events of a stream that began well; ids that end an answer are
among them; its own process watches the others each second, and ends with them.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tokenizers

# What a test writes there is what goes wrong.
FILE = Path(__file__).parents[1] / "fault"
STEP_S = 0.004
CHILD = "import time; time.sleep(3600)"
SAMPLING = {"frequency_penalty", "ignore_eos", "max_new_tokens", "min_p", "presence_penalty", "repetition_penalty"}
SAMPLING |= {"sampling_seed", "stop", "stop_token_ids", "temperature", "top_k", "top_p"}
HISTOGRAMS = {"time_to_first_token": [0.0, 0], "inter_token_latency": [0.0, 0]}
LOCK, PROMPTS = threading.Lock(), set()


def run_server(args):
    """Serve until ended."""
    fault = FILE.read_text() if FILE.exists() else ""
    if fault == "oom at load":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
    if args.mem_fraction_static is not None and not 0 < args.mem_fraction_static < 1:
        raise ValueError(f"mem_fraction_static must be in (0, 1), got {args.mem_fraction_static}")
    folder = Path(args.model_path)
    assert args.skip_tokenizer_init or (folder / "tokenizer.json").exists()
    if not args.skip_tokenizer_init:
        Handler.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    Handler.args, Handler.config = args, json.loads((folder / "config.json").read_text())
    drawn = b"".join(file.read_bytes() for file in sorted(folder.glob("*.safetensors")))
    Handler.weights = hashlib.sha256(drawn).hexdigest()
    Handler.room = threading.Semaphore(args.max_running_requests or 256)
    child = subprocess.Popen([sys.executable, "-c", CHILD, "sglang::scheduler"])
    if fault == "waits for a rank":
        # The real one watches its processes once it serves.
        time.sleep(1.0)
        child.kill()
        time.sleep(3600)
    threading.Thread(target=watch, args=[child], daemon=True).start()
    threading.Timer(0.5, Handler.ready.set).start()
    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


def watch(child):
    """End with it."""
    while child.poll() is None:
        time.sleep(1.0)
    sys.stdout.write(f"Subprocess scheduler_0 (pid={child.pid}) crashed with exit code {child.poll()}\n")
    sys.stdout.flush()
    os._exit(131)


class Handler(BaseHTTPRequestHandler):
    """A connection."""

    protocol_version = "HTTP/1.1"
    ready = threading.Event()

    def log_message(self, *arguments):
        """Say nothing."""

    def do_GET(self):
        """Answer what is asked of the server."""
        if self.path == "/health":
            self._text(200 if self.ready.is_set() else 503, "")
        elif self.path == "/server_info":
            positions = self.args.context_length or self.config["max_position_embeddings"]
            own = {
                "max_total_num_tokens": self.args.max_total_tokens or 65536,
                "max_req_input_len": positions - 6,
                "startup_time": 1.0,
                "version": "0",
            }
            states = [{"effective_max_running_requests_per_dp": self.args.max_running_requests or 256}]
            self._text(200, json.dumps({**vars(self.args), **own, "internal_states": states}))
        elif self.path == "/metrics" and self.args.enable_metrics:
            lines = [
                f'sglang:{name}_seconds_{part}{{model_name="x y"}} {value}'
                for name, values in HISTOGRAMS.items()
                for part, value in zip(("sum", "count"), values, strict=True)
            ]
            self._text(200, "\n".join(lines) + "\n")
        else:
            self._text(404, '{"detail":"Not Found"}')

    def _text(self, status, text):
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self):
        """Answer a request for ids."""
        began_s = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        sampling = body["sampling_params"]
        if FILE.exists() and FILE.read_text() == "bad request":
            return self._text(400, '{"error":"invalid type: string"}')
        if unknown := sampling.keys() ^ SAMPLING:
            return self._text(400, json.dumps({"error": {"message": f"unknown field: {sorted(unknown)}"}}))
        assert body["stream"]
        assert sampling["top_k"] == -1 or sampling["top_k"] >= 1
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        try:
            with self.room:
                self._generate(body["input_ids"], sampling, began_s)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            # The client has gone.
            pass
        self.close_connection = True
        return None

    def _generate(self, prompt, sampling, began_s):
        fault = FILE.read_text() if FILE.exists() else ""
        if fault == "refuses":
            return self._event({"error": {"message": "The input is too long", "code": 400}})
        with LOCK:
            caches = not self.args.disable_radix_cache and tuple(prompt) in PROMPTS
            PROMPTS.add(tuple(prompt))
        meta = {"cached_tokens": len(prompt) - 1 if caches else 0, "num_retractions": int(fault == "retracts")}
        meta["prompt_tokens"] = len(prompt) - (fault == "cuts")
        ids, at_s = [], began_s
        while True:
            time.sleep(STEP_S)
            seed = f"{self.weights}:{prompt}:{len(ids)}"
            vocabulary = self.config["vocab_size"]
            token = 3 + int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") % (vocabulary - 3)
            reason = None
            # A prompt that begins with 7 ends by itself after its third token.
            if len(ids) == 2 and prompt[0] == 7 and not sampling["ignore_eos"]:
                token, reason = self.config["eos_token_id"], {"type": "stop", "matched": self.config["eos_token_id"]}
            elif len(ids) == sampling["max_new_tokens"] - 1:
                reason = {"type": "length", "length": len(ids) + 1}
            text = self.tokenizer.decode([*ids, token]) if sampling["stop"] else ""
            if matched := [stop for stop in sampling["stop"] or () if stop in text]:
                reason = {"type": "stop", "matched": matched[0]}
            if fault == "gives up":
                reason = {"type": "abort", "message": "Aborted by a test", "status_code": 503, "err_type": None}
            ids.append(token)
            now_s = time.monotonic()
            with LOCK:
                histogram = HISTOGRAMS["inter_token_latency" if len(ids) > 1 else "time_to_first_token"]
                histogram[0] += now_s - at_s
                histogram[1] += 1
            at_s = now_s
            told = ids[-1:] if self.args.incremental_streaming_output else ids
            counted = {} if fault == "gives up" else {**meta, "completion_tokens": len(ids)}
            self._event({"output_ids": told, "meta_info": {**counted, "finish_reason": reason}})
            if reason:
                return None

    def _event(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()
