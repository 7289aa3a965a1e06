"""Real backends on a real model: what a container computes is what a process computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from containers.engines import image_there
from contract.subjects import write_config, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPO = Path(__file__).resolve().parents[2]
WATTDOCK = Path(sys.executable).with_name("wattdock")
SMALL = "--passes 1 --batch-size 2 --max-output-tokens 8 --accelerator cpu --json --quiet --set warmup.passes=0".split()
ENGINE_ARGS: Mapping[str, Sequence[str]] = {
    "llamacpp": (),
    "pytorch": (),
    "vllm": ("--set", "vllm.kv_cache_memory_bytes=200000000"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with weights, made by the PyTorch environment."""
    folder = write_config(tmp_path_factory.mktemp("model"))
    write_tokenizer(folder)
    python = REPO / "runners/pytorch/.venv/bin/python"
    if not python.exists():
        pytest.skip("runners/pytorch/.venv is not there: `make test` makes it")
    code = (
        "import sys, torch; from transformers import AutoConfig, AutoModelForCausalLM as A; torch.manual_seed(1); "
        "A.from_config(AutoConfig.from_pretrained(sys.argv[1]), dtype=torch.float32).save_pretrained(sys.argv[1])"
    )
    subprocess.run([python, "-c", code, folder], check=True, capture_output=True)
    return folder


def measured(tmp_path: Path, model: Path, backend: str, launcher: str) -> tuple[dict[str, Any], list[list[int]]]:
    """Run one small experiment and return its row and the ids of every request."""
    folder = tmp_path / launcher
    what = ("--backend", backend, "--model", model, "--launcher", launcher, "--output-dir", folder)
    done = subprocess.run(
        [WATTDOCK, "run", *what, *SMALL, *ENGINE_ARGS[backend]],
        env={**os.environ, "WATTDOCK_HOME": str(tmp_path / "home"), "WATTDOCK_LEASES": str(tmp_path / "leases")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert folder.is_dir(), done.stderr
    [stored] = folder.glob("2*")
    row = json.loads((stored / "result.json").read_text())
    return row, pq.read_table(stored / "restarts/0/requests.parquet")["output_ids"].to_pylist()


@pytest.mark.parametrize("backend", sorted(ENGINE_ARGS))
def test_a_container_gives_the_token_ids_that_a_process_gives(backend: str, model: Path, tmp_path: Path) -> None:
    """Same model, same prompts, same engine, another way to start it."""
    image_there(f"wattdock-{backend}")
    if not (REPO / f"runners/{backend}/.venv/bin/python").exists():
        pytest.skip(f"runners/{backend}/.venv is not there: `make test` makes it")
    inside, ids_inside = measured(tmp_path, model, backend, "docker")
    outside, ids_outside = measured(tmp_path, model, backend, "process")
    assert (inside["error"], outside["error"]) == (None, None)
    assert (inside["environment"]["launcher"], outside["environment"]["launcher"]) == ("docker", "process")
    assert len(ids_inside) == 4
    assert ids_inside == ids_outside
