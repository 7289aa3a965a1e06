"""A model that an engine reads from a folder by itself: what transformers knows of it, and its random weights as files.

Torch, transformers and safetensors are duck-typed: nothing is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner import checkpoint
from wattdock_runner.errors import InvalidRequest, WrongState
from wattdock_runner.gpus import cuda_versions, parallelism, require_gpus, torch_gpus
from wattdock_runner.values import LoadedModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock_runner.values import LoadOrder, Report

KEPT_SUFFIXES = (".json", ".model", ".py", ".txt")


@dataclass(frozen=True)
class FolderModel:
    """What transformers knows of a model, and where it is to run.

    Attributes:
        gpus: UUIDs of those that torch sees.
        text: The config of its language model.
        meta: The model, without values.
        dtype: The dtype that it runs in: the order's, or the checkpoint's own.
        tokenizer: A tokenizer of transformers; None where the folder has none.
        ids: The ids that end its answers.
        weight_bytes: Size of a copy in that dtype; None where a checkpoint is quantised.
    """

    gpus: tuple[str, ...]
    versions: Mapping[str, str | None]
    text: Any
    meta: Any
    tokenizer: Any
    dtype: str
    ids: checkpoint.SpecialIds
    parameters: int
    weight_bytes: int | None

    def loaded(self, tensor: int, pipeline: int, effective: Mapping[str, object]) -> LoadedModel:
        """Return what an engine runs with that takes the first GPUs, one for each part of the model.

        Args:
            effective: The engine's arguments, read back.
        """
        used = self.gpus[: tensor * pipeline]
        # Workers do not say which layers they have where stages share them out.
        layers_by_gpu = dict.fromkeys(used, self.text.num_hidden_layers) if pipeline == 1 else {}
        return LoadedModel(
            visible_gpu_uuids=self.gpus,
            used_gpu_uuids=used,
            effective_engine_args={**effective, "dtype": self.dtype, "eos_token_ids": list(self.ids.eos)},
            parallelism=parallelism(tensor, pipeline, layers_by_gpu),
            parameter_count=self.parameters,
            weight_bytes=self.weight_bytes,
            warnings=self.ids.warnings,
            **self.versions,
        )


def read_model(torch: Any, transformers: Any, order: LoadOrder, engine: str) -> FolderModel:
    """Return what transformers reads from the folder of `order`, without its weights, for an engine that needs a GPU.

    Raises:
        InvalidRequest: Transformers cannot read it.
        WrongState: Torch sees other GPUs than asked for, or none.
    """
    try:
        config = checkpoint.read_config(transformers.AutoConfig, order)
        meta = checkpoint.meta_model(
            torch, transformers.AutoModelForCausalLM, config, trust_remote_code=order.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise InvalidRequest(f"transformers cannot read {order.model_path}: {error}") from error
    gpus = torch_gpus(torch.cuda)
    require_gpus(order.gpu_uuids, gpus, "torch")
    if not gpus:
        raise WrongState(f"{engine} runs on NVIDIA GPUs only, and none was asked for; set gpus")
    dtype = checkpoint.dtype_of(order, config) or "bfloat16"
    parameters = checkpoint.parameter_count(meta)
    is_quantised = getattr(config, "quantization_config", None) is not None
    tokenizer = checkpoint.read_tokenizer(transformers.AutoTokenizer, order)
    return FolderModel(
        gpus=gpus,
        versions=cuda_versions(torch, gpus),
        text=config.get_text_config(),
        meta=meta,
        tokenizer=tokenizer,
        dtype=dtype,
        ids=checkpoint.special_ids(order, config, tokenizer),
        parameters=parameters,
        weight_bytes=None if is_quantised else parameters * int(getattr(torch, dtype).itemsize),
    )


@contextmanager
def weights_folder(torch: Any, save_file: Any, order: LoadOrder, model: FolderModel, report: Report) -> Iterator[Path]:
    """Yield the folder that an engine reads: the order's, or a temporary folder of drawn weights.

    Engines' own dummy weights have ranges and seeds that no result could state.

    Args:
        save_file: The function of safetensors.torch.
    """
    if order.random_weights is None:
        yield order.model_path
        return
    report("drawing random weights")
    # The weights are too large for a container's small /tmp.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir())
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wattdock-drawn-", dir=cache) as name:
        folder = Path(name)
        for file in order.model_path.iterdir():
            if file.is_file() and file.suffix in KEPT_SUFFIXES:
                shutil.copyfile(file, folder / file.name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # Older versions of transformers read the first name, newer versions the second.
        (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": model.dtype, "dtype": model.dtype}))
        drawn = {}
        for parameter_name, parameter in model.meta.named_parameters():
            drawn[parameter_name] = torch.empty(parameter.shape, dtype=getattr(torch, model.dtype))
            checkpoint.draw_uniform(torch, drawn[parameter_name], parameter_name, order.random_weights)
        save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
        yield folder
