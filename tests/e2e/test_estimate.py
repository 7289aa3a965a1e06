"""`wattdock estimate`, as a user runs it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import fake_nvml
import numpy as np
import pytest
from command import on_gpus
from fake_nvml import FakeGpu
from inputs import tiny
from inputs.hub_server import serve
from safetensors.numpy import save

from wattdock.inputs.shapes import shape_config

if TYPE_CHECKING:
    from command import Command


def told(wattdock: Command, *args: str, code: int = 0, **env: str) -> dict[str, Any]:
    """Return what the command says as JSON."""
    done = wattdock("estimate", *args, "--json", env=env)
    assert done.returncode == code, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_70b_model_needs_two_80_gb_gpus_and_one_is_refused_before_anything_starts(wattdock: Command) -> None:
    """141 GB of weights on 85.5 GB cannot be, however small the rest."""
    [gpu] = told(wattdock, "llama-3.1-70b", "--gpu", "H100-80GB", "--tp", "1", code=3)["gpus"]
    assert gpu["smallest"]["tensor"] == {"gpus": 2, "verdict": "fits"}
    assert (gpu["split"], gpu["verdict"]) == ("one GPU", "cannot fit")
    assert gpu["needs"]["weights"] == 70_553_706_496 * 2


def test_a_split_that_heads_do_not_allow_is_refused_with_the_legal_ones(wattdock: Command) -> None:
    """64 heads do not go over 6 GPUs."""
    done = wattdock("estimate", "llama-3.1-70b", "--tp", "6")
    assert done.returncode == 2
    assert "over 6 GPUs is not possible: the model has 64 heads, 8 key/value heads" in done.stderr
    assert "legal are 1, 2, 4, 8, 16, 32, 64" in done.stderr


def test_figures_that_were_found_nowhere_are_printed_as_not_verified(wattdock: Command) -> None:
    """The first line says so."""
    done = wattdock("estimate", "gpt-sw3-40b", "--gpu", "H200")
    assert done.stdout.splitlines()[0].startswith("NOT VERIFIED: not all figures of gpt-sw3-40b were found in a source")
    assert "NOT VERIFIED" not in wattdock("estimate", "falcon-180b", "--gpu", "H200").stdout


def test_weights_of_a_hub_model_are_read_from_the_headers_of_its_files(wattdock: Command) -> None:
    """In the precision they are stored in, whatever the config says; known where the snapshot is not here."""
    config = shape_config("tiny-llama")
    stored = save({"all": np.zeros(4_999_424, dtype=np.int8)})
    with serve() as hub:
        hub.files["owner/tiny"] = tiny.files() | {
            "config.json": json.dumps(config).encode(),
            "model.safetensors": stored,
        }
        seen = told(wattdock, "owner/tiny", "--gpu", "L4", HF_ENDPOINT=hub.url, no_proxy="127.0.0.1")
    assert seen["weights_bytes"] == 4_999_424
    assert seen["parameters"] == 4_999_424


def test_a_plan_refuses_what_cannot_fit_and_says_how_much_the_rest_takes(wattdock: Command) -> None:
    """On simulated GPUs of 85.5 GB; a sweep's larger batches are judged by themselves."""
    h100 = FakeGpu(uuid=fake_nvml.uuid_of(1), name="NVIDIA H100 80GB HBM3", memory_total_bytes=81559 << 20)
    env = on_gpus(wattdock, h100)
    refused = wattdock("plan", "--backend", "vllm", "--model", "shape:llama-3.1-70b", env=env)
    assert refused.returncode == 3, refused.stderr
    assert "shape:llama-3.1-70b cannot fit on one GPU: 141.1 GB of weights make 141.1 GB" in refused.stderr
    study = {
        "defaults": {"backend": "vllm", "model": "shape:llama-3.1-8b", "gpus": [0]},
        "sweep": {"workload.batch_size": [1, 1000]},
    }
    (wattdock.folder / "study.yaml").write_text(json.dumps(study))
    planned = wattdock("plan", "study.yaml", env=env)
    assert planned.returncode == 3
    assert "memory of shape:llama-3.1-8b, one GPU: fits: about " in planned.stdout
    assert "8b cannot fit on one GPU: 16.1 GB of weights and keys and values of 1000 requests" in planned.stdout


def test_a_hub_that_does_not_answer_is_asked_once(wattdock: Command) -> None:
    """One line, where the hub's own client tries for half a minute and says so each time."""
    with socket.socket() as nobody:
        # Bound and not listening: refused at once.
        nobody.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = wattdock("estimate", "owner/model", env={"HF_ENDPOINT": hub, "no_proxy": "127.0.0.1"})
    assert done.returncode == 3
    assert done.stderr.startswith(f"wattdock: owner/model cannot be asked for: {hub} does not answer")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("gemini",), "model 'gemini' is not known; write OWNER/NAME, ./FOLDER, or one of alia-40b"),
        (("smollm2-135m-instruct",), "is not known; did you mean smollm2-135m? write OWNER/NAME"),
        (("llama-3.1-8b", "--gpu", "H1000"), "GPU 'H1000' is not known; did you mean H100-80GB?"),
        (("llama-3.1-8b", "--dtype", "int3"), "dtype 'int3' is not known; known are float32"),
        (("llama-3.1-8b", "--backend", "vlm"), "vllm"),
    ],
)
def test_what_is_not_known_is_one_line_with_what_is(wattdock: Command, args: tuple[str, ...], why: str) -> None:
    """Exit code 2, no traceback."""
    done = wattdock("estimate", *args)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
