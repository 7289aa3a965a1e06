"""Start SGLang's server with a model, and ask it over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import save_file
from wattdock_sglang import DEFAULTS, SglangBackend

from wattdock_runner import checkpoint
from wattdock_runner.engine_server import loading
from wattdock_runner.errors import CacheTooSmall, InvalidRequest
from wattdock_runner.folder_model import read_model, weights_folder
from wattdock_runner.served import SERVER_ERROR, Api, Chunk, ServedEngine, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.folder_model import FolderModel
    from wattdock_runner.values import LoadedModel, LoadOrder, Report, Workload

PROGRAM = Path(__file__).with_name("wattdock_sglang_server.py")
# SGLang asks itself for its first answer, by a library that heeds proxies.
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
# What SGLang's scheduler says when it fails, and what its processes call themselves.
# Source: run_scheduler_process in sglang/srt/managers/scheduler.py.
FAILURE, WORKERS = "Scheduler hit an exception", b"sglang::scheduler"
ALL_TOKENS = -1


class SglangApi(Api):
    """SGLang's own endpoint, which tells ids.

    Source: class GenerateReqInput in sglang/srt/managers/io_struct.py, class SamplingParams in
    sglang/srt/sampling/sampling_params.py, and method _handle_batch_output of class TokenizerManager in
    sglang/srt/managers/tokenizer_manager.py, which sends new ids only where `incremental_streaming_output` is set.
    """

    path = "/generate"
    # It looks for its processes each second, and then ends with all of them.
    dying_s = 5.0

    def __init__(self, eos_ids: Sequence[int]) -> None:
        self._eos_ids = list(eos_ids)

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request that leaves nothing to the server's or the checkpoint's defaults.

        SGLang heeds its seed only with `enable_deterministic_inference`.
        """
        sampling = workload.sampling
        return {
            "input_ids": prompt.ids,
            "stream": True,
            "sampling_params": {
                "max_new_tokens": prompt.max_output_tokens,
                "ignore_eos": workload.ignore_eos,
                # Heeded besides its own ends, unless it ignores all of them.
                "stop_token_ids": self._eos_ids,
                "stop": list(workload.stop) or None,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or ALL_TOKENS,
                "min_p": 0.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
                "repetition_penalty": 1.0,
                "sampling_seed": workload.seed + prompt.position,
            },
        }

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return the ids of an event.

        Raises:
            OutOfMemory: The server stopped the request, and computed it again.
            InvalidRequest, RuntimeError: It gave the request up.
        """
        meta = event["meta_info"]
        reason = meta["finish_reason"] or {"type": None}
        # It tells nothing else of a request that it gives up.
        if reason["type"] == "abort":
            raise refusal(reason.get("status_code") or SERVER_ERROR, str(reason["message"]))
        if stopped := meta["num_retractions"]:
            raise CacheTooSmall(
                f"the KV cache could not hold what was in flight: SGLang stopped a request {stopped} time(s) and "
                "computed it again; lower batch_size, or raise mem_fraction_static"
            )
        counted = meta["completion_tokens"] if reason["type"] else None
        return Chunk(event["output_ids"], reason["type"], meta["cached_tokens"], counted, meta["prompt_tokens"])


def server_settings(order: LoadOrder, folder: Path, model: FolderModel) -> dict[str, object]:
    """Return all arguments of the server: the order's, wattdock's defaults, and those that nobody chooses."""
    return {
        **DEFAULTS,
        **order.engine_args,
        "model_path": str(folder),
        "dtype": model.dtype,
        "trust_remote_code": order.trust_remote_code,
        # It turns answers into text, as wherever it serves, if it has the model's tokenizer.
        "skip_tokenizer_init": model.tokenizer is None,
        # Otherwise each event repeats all ids before.
        "incremental_streaming_output": True,
    }


def load_engine(order: LoadOrder, report: Report) -> tuple[ServedEngine, LoadedModel]:
    """Start the server, and return when it has answered its own first request.

    Raises:
        WrongState: Torch sees other GPUs than requested.
        InvalidRequest: The folder cannot be read, or the server refuses an argument's value.
        OutOfMemory: The weights or the KV cache do not fit.
    """
    model = read_model(torch, transformers, order, "SGLang as wattdock drives it")
    if order.random_weights is None and not checkpoint.weight_files(order.model_path):
        raise InvalidRequest(f"SGLang cannot load {order.model_path}: it has no safetensors of the names that are read")
    with weights_folder(torch, save_file, order, model, report) as folder:
        report("starting the server")
        settings = server_settings(order, folder, model)
        with loading(PROGRAM, json.dumps(settings), DIRECT) as server:
            # By a token of its own; it has "/ready" from 0.5.20 on only.
            server.until(lambda: server.text("/health"), report, failure=FAILURE, workers=WORKERS)
            info = server.ask("/server_info")
            api = SglangApi(model.ids.eos)
            engine = ServedEngine(server, api, tokenizer=model.tokenizer)
            engine.vocab_size = model.text.vocab_size
            # SGLang makes an answer shorter, without a word, that a few positions more would not hold.
            engine.context_tokens = info["max_req_input_len"]
            # Limits that it has computed.
            limits = {
                "max_running_requests": info["internal_states"][0]["effective_max_running_requests_per_dp"],
                "max_total_num_tokens": info["max_total_num_tokens"],
            }
            engine.max_in_flight, engine.in_flight_argument = limits["max_running_requests"], "max_running_requests"
            # Requests beyond would wait, or be computed twice.
            engine.block_tokens = info["page_size"] or 1
            engine.cache_blocks = limits["max_total_num_tokens"] // engine.block_tokens
            engine.cache_arguments = "mem_fraction_static"
            effective = {name: info[name] for name in SglangBackend.engine_arguments or () if name in info} | limits
            return engine, model.loaded(info["tp_size"], info["pp_size"], effective)
