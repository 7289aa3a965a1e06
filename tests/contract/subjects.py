"""The backends that the contract test runs on, and the model folders it gives them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.runner_process import FAKE_FOLDER, PYTORCH_PYTHON, ROOT, VLLM_PYTHON
from runners.sglang.make_standin import make_standin as make_sglang
from runners.tensorrt.make_standin import make_standin
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

# llama.cpp's threads wait busily for each other.
ONE_THREAD = {"n_threads": 1, "n_threads_batch": 1}
SMALL_UNIFORM = pb.RandomWeights(low=-0.02, high=0.02, seed=1)
# Wide enough for continuations that differ from token to token.
WIDE_UNIFORM = pb.RandomWeights(low=-0.5, high=0.5, seed=3)
TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
CORPUS = ["the quick brown fox jumps over the lazy dog", "a watt is a joule per second", "0123456789"]
CHAT_TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{% endfor %}[assistant]"
# What vLLM's configuration holds nowhere; a new version's additions show here.
VLLM_UNREAD = frozenset(
    {
        # Choices of a layer's kernel; what was asked stands in `additional_config`.
        *("gdn_prefill_backend", "kda_prefill_backend", "kda_decode_backend"),
        # The caller's own, and the server's.
        *("aggregate_engine_logging", "device_ids", "disable_log_stats", "fail_on_environ_validation"),
        *("log_config_file", "tokens_only"),
        # A part that TINY_LLAMA is loaded without: drafting, adapters, other inputs than text.
        *("spec_method", "spec_model", "spec_tokens"),
        *("default_mm_loras", "enable_mixed_moe_lora_format", "enable_moe_shared_loras", "enable_tower_connector_lora"),
        *("fully_sharded_loras", "lora_dtype", "lora_target_modules", "max_cpu_loras", "max_lora_cls_labels"),
        *("max_lora_rank", "max_loras", "specialize_active_lora"),
        *("enable_mm_embeds", "interleave_mm_strings", "language_model_only", "limit_mm_per_prompt", "media_io_kwargs"),
        *("mm_device_do_normalize", "mm_encoder_attn_backend", "mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path"),
        *(
            "mm_encoder_fp8_scale_save_margin",
            "mm_encoder_fp8_scale_save_path",
            "mm_encoder_only",
            "mm_encoder_tp_mode",
        ),
        *("mm_hasher_algorithm", "mm_ipc_gpu_memory_gb", "mm_processor_cache_gb", "mm_processor_cache_type"),
        *("mm_processor_device", "mm_processor_kwargs", "mm_shm_cache_max_object_size_mb", "mm_tensor_ipc"),
        *("skip_mm_profiling", "video_pruning_method", "video_pruning_rate"),
    }
)


@dataclass(frozen=True)
class Subject:
    """A backend under test, in a way in which it is loaded.

    Attributes:
        engine_args: What a load is asked for: a pass long enough to be watched, few requests at a time.
        interpreter: With the packages that it needs; None is the backend's own environment.
        variables: Of its process's environment; what a test wants of one backend does not disturb the others.
        stand_in: Makes a folder with a package in place of an engine that cannot be had.
        gpus: UUIDs of the GPUs that it sees; the first holds all layers.
        dtype: What "auto" means there for TINY_LLAMA.
        statuses: What its diagnosis is made of.
        unread: Its arguments that cannot be read back from the engine.
        tells_steps: Whether the engine tells its steps.
    """

    name: str
    engine_args: dict[str, object] = field(default_factory=dict)
    interpreter: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    stand_in: Callable[[Path], Path] | None = None
    gpus: tuple[str, ...] = ()
    dtype: str = "float32"
    statuses: frozenset[str] = frozenset({"ok"})
    unread: frozenset[str] = frozenset()
    tells_steps: bool = True

    @property
    def backend(self) -> str:
        """Its name, without the way in which it is loaded."""
        return self.name.partition("-")[0]

    @property
    def folder(self) -> Path:
        """The folder with the backend's module."""
        return FAKE_FOLDER if self.backend == "fake" else ROOT / "runners" / self.backend

    @property
    def python(self) -> Path:
        """The interpreter that it runs on."""
        return self.interpreter or self.folder / ".venv/bin/python"

    @property
    def load_fields(self) -> dict[str, Any]:
        """What a load of TINY_LLAMA is asked for."""
        return {"engine_args": self.engine_args, "random_weights": WIDE_UNIFORM, "gpu_uuids": self.gpus}


TENSORRT = Subject(
    "tensorrt",
    # torch and transformers for a CPU are all that it needs beside the stand-in.
    interpreter=PYTORCH_PYTHON,
    variables={"WATTDOCK_STANDIN_GPUS": "2"},
    stand_in=make_standin,
    gpus=tuple(f"GPU-5a0d1000-0000-0000-0000-00000000000{index}" for index in range(2)),
    dtype="bfloat16",
    statuses=frozenset({"ok", "warn"}),
    tells_steps=False,
)
# vLLM's environment has all that a served engine's runner needs, beside the stand-in.
SGLANG = replace(TENSORRT, name="sglang", interpreter=VLLM_PYTHON, stand_in=make_sglang, statuses=frozenset({"ok"}))
# How many seconds vLLM's workers may take for a step: longer than two workers need on busy cores.
HANG_LIMIT_S = 10
VLLM = Subject(
    "vllm",
    {"max_num_seqs": 64},
    variables={
        # For a core in a process of its own, which the runner must not heed.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # Left to itself, vLLM wants a NUMA node for each worker.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(HANG_LIMIT_S),
        # A split engine's first step would compile two functions in each process, eager or not.
        "TORCH_COMPILE_DISABLE": "1",
    },
    unread=VLLM_UNREAD,
)
# vLLM's server with the worker in its engine's process, as on a GPU; on a CPU it is a third process otherwise.
UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
SERVED: dict[str, object] = {"serve": True, "distributed_executor_backend": UNIPROC}
VLLM_SERVED = replace(VLLM, name="vllm-served", engine_args={**VLLM.engine_args, **SERVED}, tells_steps=False)
SUBJECTS = (
    Subject("fake", {"step_s": 0.01}, interpreter=Path(sys.executable)),
    Subject("pytorch"),
    Subject("llamacpp", {**ONE_THREAD, "n_parallel": 64, "n_ctx": 64 * 512}, tells_steps=False),
    VLLM,
    VLLM_SERVED,
    TENSORRT,
    SGLANG,
)


def write_config(folder: Path, **changes: object) -> Path:
    """Write a model folder that holds config.json only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY_LLAMA, **changes}), encoding="utf-8")
    return folder


def write_tokenizer(folder: Path) -> None:
    """Add a byte-level BPE tokenizer that puts a BOS before text, and has a chat template that writes its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Typed in some of its versions only.
    make_trainer: Any = trainers.BpeTrainer
    trainer = make_trainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
