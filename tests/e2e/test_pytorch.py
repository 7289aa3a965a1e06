"""The whole product on a real model: SmolLM2 through transformers, in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from wattdock.config import ModelSpec
from wattdock.inputs import resolve_model

REPO = Path(__file__).resolve().parents[2]
WATTDOCK = Path(sys.executable).with_name("wattdock")
RUNNER_PYTHON = REPO / "runners/pytorch/.venv/bin/python"
# <|im_end|>, which ends an answer of this model.
END_OF_TURN = 2


@pytest.mark.slow
def test_real_text_with_the_token_counts_that_the_tokenizer_gives(embedded_home: Path, tmp_path: Path) -> None:
    """Counts are ids, for prompts and for answers; text is their decoding; the model can speak."""
    if not RUNNER_PYTHON.exists():
        pytest.skip("runners/pytorch/.venv is not there: `make test` makes it")
    small = ("--passes", "1", "--batch-size", "3", "--max-output-tokens", "24")
    done = subprocess.run(
        [WATTDOCK, "run", *small, "--output-dir", tmp_path, "--runner-python", RUNNER_PYTHON],
        env={**os.environ, "WATTDOCK_HOME": str(embedded_home), "WATTDOCK_LEASES": str(tmp_path / "leases")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [folder] = tmp_path.glob("*-pytorch-*")
    result = json.loads((folder / "result.json").read_text())
    requests = pq.read_table(folder / "restarts/0/requests.parquet").to_pylist()
    tokenizer = Tokenizer.from_file(str(embedded_home / "models/smollm2-135m-instruct/tokenizer.json"))
    assert len(requests) == 6
    for request in requests:
        assert request["output_tokens"] == len(request["output_ids"])
        assert request["text"] == tokenizer.decode(request["output_ids"], skip_special_tokens=True)
        assert (request["finish_reason"] == "length") == (request["output_tokens"] == 24) or request["output_ids"][
            -1
        ] == 2
        assert request["submitted_ns"] < request["first_token_ns"] <= request["finished_ns"]
        assert len(request["text"].split()) > 3
    performance = result["performance"]
    assert performance["output_tokens"] == sum(request["output_tokens"] for request in requests)
    assert performance["prompt_tokens"] == sum(request["prompt_tokens"] for request in requests)
    assert performance["output_tokens_per_s"] * performance["duration_s"] == pytest.approx(performance["output_tokens"])
    assert result["environment"]["model"]["weights"] == "real"


@pytest.fixture(scope="module")
def embedded_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the embedded model, fetched and converted once."""
    home = tmp_path_factory.mktemp("home")
    resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=home, progress=print)
    return home
