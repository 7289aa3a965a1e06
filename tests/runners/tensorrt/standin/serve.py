"""The command `trtllm-serve` over the stand-in's LLM, with the two routes that the runner asks.

Kept from the real one, because a runner must live with it: what is not a field of a request is refused; a server
without a tokenizer answers no request; ids come only where no text is made; counts come last, with no choice.
"""

import argparse
import asyncio
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tensorrt_llm import LLM as PyTorchLLM  # noqa: N811
from tensorrt_llm import SamplingParams, __version__

FACTS = json.loads(Path(__file__).with_name("facts.json").read_text())
FIELDS = FACTS["classes"]["CompletionRequest"]["fields"]
OF_SAMPLING = ("max_tokens", "top_k", "seed", "stop_token_ids", "include_stop_str_in_output", "ignore_eos")


class OpenAIServer:
    """Serves until it is ended. Each connection has a thread, and all their requests one event loop, as really.

    A client that does not read stops all answers here, since the loop writes them.
    """

    def __init__(self, llm, model):
        self.llm, self.tokenizer, self.loop = llm, None, asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        if not llm.args.skip_tokenizer_init:
            # A tokenizer needs no torch, which takes seconds to import.
            sys.modules.setdefault("torch", None)
            from transformers import AutoTokenizer

            self.tokenizer = AutoTokenizer.from_pretrained(model)

    def serve(self, host, port):
        """Answer."""
        http = ThreadingHTTPServer((host, port), Handler)
        http.served = self
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            http.serve_forever()
        finally:
            self.llm.shutdown()


class Handler(BaseHTTPRequestHandler):
    """A connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Say nothing."""

    def do_GET(self):
        """Tell the version."""
        self._json(200 if self.path == "/version" else 404, {"version": __version__})

    def do_POST(self):
        """Answer a request for a completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            if unknown := body.keys() - FIELDS:
                raise ValueError(f"Extra inputs are not permitted: {sorted(unknown)}")
            asyncio.run_coroutine_threadsafe(self._complete(body), self.server.served.loop).result()
        except (ValueError, AttributeError) as error:
            self._json(400, {"object": "error", "message": str(error), "type": "BadRequestError", "code": 400})

    def _json(self, status, value):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    async def _complete(self, body):
        served = self.server.served
        size, end_id = served.tokenizer.vocab_size, served.tokenizer.eos_token_id
        assert size > end_id
        assert body["temperature"] > 0
        named = {name: body[name] for name in OF_SAMPLING}
        sampling = SamplingParams(end_id=end_id, temperature=body["temperature"], top_p=body["top_p"], **named)
        stream = served.llm.generate_async(body["prompt"], sampling, streaming=body["stream"])
        try:
            self.send_response(200)
            self.send_header("connection", "close")
            self.end_headers()
            async for output in stream:
                self._event(self._choice(body, output))
            if (body["stream_options"] or {}).get("include_usage"):
                details = {"cached_tokens": output.cached_tokens}
                counted = {"completion_tokens": len(output.outputs[0].token_ids), "prompt_tokens_details": details}
                counted["prompt_tokens"] = len(body["prompt"])
                self._event({"choices": [], "usage": counted})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            # The client has gone; what comes until the engine has heard of it, must be taken.
            stream.abort()
            async for _ in stream:
                pass

    @staticmethod
    def _choice(body, output):
        made = output.outputs[0]
        ids = None if body.get("detokenize", True) else made.token_ids_diff
        return {"choices": [{"index": 0, "text": "", "token_ids": ids, "finish_reason": made.finish_reason}]}

    def _event(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


def main():
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    for option in FACTS["serve"]["options"]:
        parser.add_argument(option)
    asked = parser.parse_args(sys.argv[1:])
    settings = {"backend": asked.backend, "max_batch_size": 2048, "max_num_tokens": 8192}
    settings |= json.loads(Path(asked.extra_llm_api_options).read_text())
    OpenAIServer(PyTorchLLM(model=asked.model, **settings), asked.model).serve(asked.host, int(asked.port))
