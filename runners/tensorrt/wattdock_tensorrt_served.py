"""TensorRT-LLM behind its own HTTP server (`tensorrt.serve`), asked for token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from wattdock_tensorrt import WORKER_MODULE, describe, engine_settings, set_limits
from wattdock_tensorrt_server import EFFECTIVE, SETTINGS

from wattdock_runner.engine_server import loading
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.folder_model import read_model, weights_folder
from wattdock_runner.process import Processes, descendants
from wattdock_runner.served import CompletionsApi, ServedEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.backend import LoadedModel, LoadOrder, Report, Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.folder_model import FolderModel

PROGRAM = Path(__file__).with_name("wattdock_tensorrt_server.py")
GREEDY = {"temperature": 1.0, "top_k": 1, "top_p": 1.0}


class TensorrtApi(CompletionsApi):
    """trtllm-serve's completions, which tell ids where they make no text.

    Source: class CompletionRequest in tensorrt_llm/serve/openai_protocol.py, which refuses fields that it lacks, and
    completion_stream_post_processor in tensorrt_llm/serve/postprocess_handlers.py.
    """

    def __init__(self, eos_ids: Sequence[int]) -> None:
        self._eos_ids = list(eos_ids)

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request for ids; the server ends an answer at its tokenizer's end id only, unless told more."""
        own = {
            "detokenize": False,
            "stream_options": {"include_usage": True, "continuous_usage_stats": False},
            "stop_token_ids": [] if workload.ignore_eos else self._eos_ids,
            "include_stop_str_in_output": True,
        }
        # A top_k of 1 is greedy by itself, in process, too.
        return super().body(workload, prompt) | own | (GREEDY if workload.sampling.temperature == 0 else {})


def load_engine(order: LoadOrder, report: Report) -> tuple[ServedEngine, LoadedModel]:
    """Start the server, and return when it answers.

    Raises:
        WrongState, InvalidRequest, OutOfMemory: As without a server.
    """
    model = read_model(torch, transformers, order, "TensorRT-LLM")
    if model.tokenizer is None and order.random_weights is None:
        raise InvalidRequest(
            f"serve: trtllm-serve answers no request without a tokenizer, and {order.model_path} has none"
        )
    settings = engine_settings(order, model.dtype) | {"skip_tokenizer_init": False}
    with weights_folder(torch, save_file, order, model, report) as folder:
        if model.tokenizer is None:
            write_numbers(folder, model)
        Path(SETTINGS).write_text(json.dumps({name: value for name, value in settings.items() if name != "model"}))
        report("starting the server")
        with loading(PROGRAM, str(folder)) as server:
            server.until(lambda: server.is_up("/version"))
            server.workers = Processes(descendants(server.process.pid, WORKER_MODULE))
            effective = json.loads(Path(EFFECTIVE).read_text())
            engine = ServedEngine(server, TensorrtApi(model.eos_ids), tokenizer=model.tokenizer)
            set_limits(engine, model, effective)
            return engine, describe(model, effective, server.workers)


def write_numbers(folder: Path, model: FolderModel) -> None:
    """Write a tokenizer of numbers: the server asks its tokenizer for a size and an end, though it gets ids only."""
    words = {f"<{number}>": number for number in range(model.text.vocab_size)}
    end = {"eos_token": f"<{model.eos_ids[0]}>"} if model.eos_ids else {}
    numbers = Tokenizer(WordLevel(words, unk_token="<0>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=numbers, **end).save_pretrained(folder)
