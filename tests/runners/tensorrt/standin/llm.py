"""The LLM API as TensorRT-LLM has it, over a worker process that computes nothing.

Kept from the real one, because a runner must live with it: settings are checked by pydantic, unknown ones are refused;
a request belongs to the event loop that it was made on, and responses for a loop that has stopped are an error; one
wake-up brings a whole step; errors of the worker come as text; `shutdown` waits for the worker without end.
"""

import asyncio
import collections
import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import pydantic
from sitecustomize import properties, visible
from tensorrt_llm.llmapi import llm_args
from tensorrt_llm.sampling_params import SamplingParams


class RequestError(RuntimeError):
    """A request that failed alone."""


class CompletionOutput:
    """One sequence."""

    def __init__(self):
        self.token_ids = []
        self.finish_reason = None
        self._shown = 0

    @property
    def token_ids_diff(self):
        """Ids of the latest response."""
        return self.token_ids[self._shown :]


class RequestOutput:
    """One request."""

    def __init__(self, number, abort):
        self.outputs = [CompletionOutput()]
        self.cached_tokens = 0
        self.finished = False
        self.request_id = number
        self._abort = abort
        self._responses = collections.deque()
        self._event = asyncio.Event()

    def abort(self):
        """Ask for its end."""
        self._abort(self.request_id)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finished:
            raise StopAsyncIteration
        while not self._responses:
            # May still be set for a response that was taken before its notice came.
            self._event.clear()
            await self._event.wait()
        response = self._responses.popleft()
        if "error" in response:
            self.finished = True
            raise RequestError(response["error"])
        output = self.outputs[0]
        output._shown = len(output.token_ids)
        output.token_ids.extend(response["ids"])
        output.finish_reason = response["reason"]
        self.cached_tokens = response.get("cached", 0)
        self.finished = response["final"]
        return self


class BaseLLM:
    """What both engines share."""

    _args_class = None

    def __init__(self, model, **kwargs):
        for key in kwargs:
            if key not in self._args_class.model_fields:
                raise ValueError(f"{type(self).__name__} got invalid argument: {key}")
        properties(0)
        self.args = self._args_class(model=model, **kwargs)
        world_size = self.args.tensor_parallel_size * self.args.pipeline_parallel_size
        if len(visible()) < world_size:
            raise RuntimeError(f"Only {len(visible())} GPUs are available, but {world_size} are required.")
        self._requests, self._numbers = {}, itertools.count(1)
        self._worker = None
        self._start(Path(model), world_size)

    def _start(self, model, world_size):
        config = json.loads((model / "config.json").read_text())
        self._worker, *self._others = [
            subprocess.Popen(
                [sys.executable, "-m", "mpi4py.futures.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(world_size)
        ]
        setup = {
            "seed": _weights_seed(model),
            "vocab": config["vocab_size"],
            "max_batch_size": self.args.max_batch_size,
            "reuse": self.args.kv_cache_config.enable_block_reuse,
        }
        for worker in (self._worker, *self._others):
            worker.stdin.write(json.dumps(setup) + "\n")
            worker.stdin.flush()
            (state,) = json.loads(worker.stdout.readline())
            if "fatal" in state:
                raise RuntimeError("Executor worker returned error") from RuntimeError(state["fatal"])
        self._dispatching = threading.Thread(target=self._dispatch, daemon=True)
        self._dispatching.start()

    def _dispatch(self):
        for line in self._worker.stdout:
            reached = collections.defaultdict(list)
            for response in json.loads(line):
                output, loop = self._requests[response["id"]]
                output._responses.append(response)
                reached[loop].append(output)
                if response.get("final") or "error" in response:
                    del self._requests[response["id"]]
            for loop, outputs in reached.items():
                if not loop.is_running():
                    raise RuntimeError("EventLoopShutdownError")
                asyncio.run_coroutine_threadsafe(_notify(outputs), loop)

    def generate_async(
        self,
        inputs,
        sampling_params=None,
        lora_request=None,
        prompt_adapter_request=None,
        streaming=False,
        kv_cache_retention_config=None,
        disaggregated_params=None,
        _postproc_params=None,
        scheduling_params=None,
        cache_salt=None,
    ):
        """Send one request."""
        if self._worker is None:
            raise RuntimeError("LLM is shutting down")
        if not isinstance(sampling_params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams or None, but got {type(sampling_params)}")
        _check_types(sampling_params)
        if sampling_params.end_id is None:
            raise ValueError(
                "tokenizer is required to reset end_id if it is None, or you can explicitly specify the end_id"
            )
        assert all(isinstance(record, int) for record in inputs)
        if len(inputs) > self.args.max_num_tokens and not self.args.enable_chunked_prefill:
            raise ValueError(f"The sum of prompt length ({len(inputs)}) should not exceed max_num_tokens")
        number = next(self._numbers)
        output = RequestOutput(number, self._abort)
        self._requests[number] = output, asyncio.get_running_loop()
        self._send(
            {
                "id": number,
                "prompt": inputs,
                "max_tokens": sampling_params.max_tokens,
                "end_id": sampling_params.end_id,
                "stop_ids": sampling_params.stop_token_ids,
                "include_stop": sampling_params.include_stop_str_in_output,
                "ignore_eos": sampling_params.ignore_eos,
            }
        )
        assert streaming, "a measured request must be a stream"
        return output

    def _abort(self, number):
        self._send({"abort": number})

    def _send(self, message):
        # The real one's queue takes messages that a killed worker never reads.
        with contextlib.suppress(BrokenPipeError):
            self._worker.stdin.write(json.dumps(message) + "\n")
            self._worker.stdin.flush()

    def shutdown(self):
        """Tell the workers to end, and wait for it."""
        if self._worker is None:
            return
        for worker in (self._worker, *self._others):
            try:
                worker.stdin.write("null\n")
                worker.stdin.flush()
            except BrokenPipeError:
                # The real one waits for an answer that a killed worker never gives.
                threading.Event().wait()
            worker.wait()
        self._dispatching.join()
        for worker in (self._worker, *self._others):
            worker.stdin.close()
            worker.stdout.close()
        self._worker = None


class _TorchLLM(BaseLLM):
    """The PyTorch engine."""

    _args_class = llm_args.TorchLlmArgs


class LLM(_TorchLLM):
    """What `from tensorrt_llm import LLM` gives."""


async def _notify(outputs):
    for output in outputs:
        output._event.set()


def _weights_seed(model):
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ValueError(f"no weights in {model}")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _check_types(params):
    for name, kind in SamplingParams.__annotations__.items():
        pydantic.TypeAdapter(kind).validate_python(getattr(params, name), strict=True)
