"""Start llama.cpp's server with a model, and ask it over HTTP."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer
from wattdock_llamacpp_weights import Weights, dtype_named, gguf_file, weights_of

from wattdock_proto.context import SLOT_TOKENS, model_context
from wattdock_runner.apis import LlamaCppApi
from wattdock_runner.checkpoint import read_config, read_tokenizer, special_ids
from wattdock_runner.engine_server import loading
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.gpus import parallelism, require_gpus
from wattdock_runner.served import ServedEngine
from wattdock_runner.values import LoadedModel

if TYPE_CHECKING:
    from wattdock_runner.values import LoadOrder, Report

PROGRAM = Path(__file__).with_name("wattdock_llamacpp_server.py")
# A cached prompt is never used, so none is kept: the server would copy it within the pass.
NO_CACHES = {"cache_ram_mib": 0, "cache_idle_slots": False, "n_ctx_checkpoints": 0}
# How many requests are served at once by default.
PARALLEL = 8


def load_engine(order: LoadOrder, report: Report) -> tuple[ServedEngine, LoadedModel]:
    """Start the server, and return when it answers.

    Raises:
        WrongState: llama.cpp sees other GPUs than requested; a build for CPUs sees none.
        InvalidRequest: Several GPUs are asked for, the folder's model cannot be written as GGUF, or the server refuses
            an argument.
        OutOfMemory: It does not fit.
    """
    if len(order.gpu_uuids) > 1:
        raise InvalidRequest(f"{len(order.gpu_uuids)} GPUs: this runner keeps a model on one; give gpus.count 1")
    config = read_config(AutoConfig, order)
    report("drawing random weights" if order.random_weights else "reading weights")
    tokenizer = read_tokenizer(AutoTokenizer, order)
    ids = special_ids(order, config, tokenizer)
    with gguf_file(order, config, ids.eos) as gguf:
        weights = weights_of(gguf)
        if order.dtype not in ("auto", weights.kind):
            raise InvalidRequest(f"dtype {order.dtype}: {gguf.name} holds {weights.kind}; leave it out")
        settings = {"model": str(gguf), **settings_for(order, config)}
        with loading(PROGRAM, json.dumps(settings)) as server:
            gpus = tuple(server.until(server.json_line, report)["gpus"])
            require_gpus(order.gpu_uuids, gpus, "this build of llama.cpp")
            in_effect = server.until(lambda: line if (line := server.json_line()) and "n_ctx" in line else None, report)
            props = server.ask("/props")
    slots, slot_tokens = props["total_slots"], props["default_generation_settings"]["n_ctx"]
    # The vocabulary of a file that was written for it has no texts.
    engine = ServedEngine(server, LlamaCppApi(reads_text=False), tokenizer=tokenizer)
    engine.vocab_size = config.vocab_size
    engine.max_in_flight, engine.in_flight_argument = slots, "n_parallel"
    engine.context_tokens = slot_tokens
    layers, asked = config.num_hidden_layers, in_effect["n_gpu_layers"]
    # A negative number is all of them; otherwise the output is the first that the GPU gets.
    on_gpu = layers if asked < 0 else min(max(0, asked - 1), layers)
    return engine, LoadedModel(
        visible_gpu_uuids=gpus,
        # Whatever layers it holds, a GPU multiplies the matrices of long prompts.
        used_gpu_uuids=order.gpu_uuids,
        effective_engine_args={
            **in_effect,
            "n_gpu_layers": asked if gpus else 0,
            # It makes each slot's share a round number.
            "n_ctx": slot_tokens if in_effect["kv_unified"] else slots * slot_tokens,
            "build": props["build_info"],
            **_dtypes(weights, in_effect["cache_type_k"]),
            "eos_token_ids": list(ids.eos),
        },
        parallelism=parallelism(1, 1, dict.fromkeys(order.gpu_uuids, on_gpu)),
        parameter_count=weights.parameters,
        weight_bytes=weights.bytes,
        warnings=ids.warnings,
    )


def _dtypes(weights: Weights, cache_type: str) -> dict[str, Any]:
    """Return what weights and KV cache are held in, as all backends call it."""
    return {
        # The dtype of weights that are not quantised. Quantised weights are multiplied with 8-bit activations.
        "dtype": "float32" if weights.is_quantized else weights.kind,
        "quantization": weights.kind if weights.is_quantized else None,
        "linear_weights": [weights.kind],
        "kv_cache_dtype": dtype_named(cache_type),
    }


def settings_for(order: LoadOrder, config: Any) -> dict[str, Any]:
    """Return what the server is started with: the order's arguments, and wattdock's defaults for the rest."""
    given = dict(order.engine_args)
    parallel = int(given.get("n_parallel", PARALLEL))  # type: ignore[call-overload]
    context = min(SLOT_TOKENS, model_context(config.to_dict()) or SLOT_TOKENS)
    # llama.cpp's own number of threads is that of cores, whoever else uses them.
    threads = len(os.sched_getaffinity(0))
    defaults = {"n_parallel": parallel, "n_ctx": parallel * context, "n_threads": threads, "n_threads_batch": threads}
    # Each answer holds a thread of the server's until its end.
    fixed = {"n_threads_http": parallel + 4, "verbosity": 1, "fit_params": False, "ctx_shift": False}
    return defaults | given | fixed | NO_CACHES
