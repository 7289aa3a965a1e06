"""`wattdock estimate` answers from shapes and figures of GPUs alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu
from inputs.hub_server import serve
from make import models as tiny
from safetensors.numpy import save
from seams.inputs import shape_config

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Called


def test_a_70b_model_needs_two_80_gb_gpus_and_fewer_are_refused(called: Called) -> None:
    """141 GB of weights on 85.5 GB cannot be, however small the rest."""
    done = called("estimate", "llama-3.1-70b", "--gpu-model", "H100-80GB", "--tp", "1", "--json")
    assert done.returncode == 3, done.stderr
    [gpu] = json.loads(done.stdout)["gpus"]
    assert gpu["fewest_gpus"]["tensor"] == {"gpus": 2, "verdict": "fits"}
    assert (gpu["split"], gpu["verdict"]) == ("one GPU", "cannot fit")
    assert gpu["weights"] == 70_553_706_496 * 2


def test_what_one_node_cannot_hold_is_told_with_the_nodes_and_their_split(called: Called) -> None:
    """357 GB on 8 × 42.9 GB cannot be; on 16 each holds 22.3 GB. 16 L4s of 24.2 GB cannot hold it with the rest."""
    asked = ("estimate", "falcon-180b", "--gpu-model", "A100-40GB", "--gpu-model", "L4", "--gpu-model", "H200")
    done = called(*asked)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "one node" in line]
    assert line == "not enough in one node: 8 × A100-SXM4-40GB (2 nodes, TP=8 PP=2); 8 × L4 (3 nodes, TP=8 PP=3)"
    told = {
        gpu["gpu"].removeprefix("NVIDIA "): gpu["fewest_nodes"]
        for gpu in json.loads(called(*asked, "--json").stdout)["gpus"]
    }
    assert told["A100-SXM4-40GB"] == {"nodes": 2, "split": "TP=8 PP=2", "gpus": 16}
    assert told["H200"] == {"nodes": 1, "split": "TP=4", "gpus": 4}
    quarter = json.loads(called(*asked, "--gpus-per-node", "2", "--json").stdout)["gpus"]
    assert [gpu["fewest_nodes"]["nodes"] for gpu in quarter] == [6, 12, 2]
    assert {gpu["gpus_per_node"] for gpu in quarter} == {2}


def test_a_node_of_six_is_filled_by_tensor_and_pipeline_parallelism_together(called: Called) -> None:
    """TP=4 would leave two of six GPUs idle, and eight are more than a node has; TP=2 with three stages takes all."""
    asked = ("estimate", "llama-3.1-70b", "--gpu-model", "L40S", "--batch-size", "64", "--context", "4096", "--json")
    [gpu] = json.loads(called(*asked, "--gpus-per-node", "6").stdout)["gpus"]
    assert gpu["fewest_nodes"] == {"nodes": 1, "split": "TP=2 PP=3", "gpus": 6}


def test_a_machine_of_two_kinds_is_a_node_of_as_many_of_each(called: Called, library: Path) -> None:
    """Two of one and one of another: a model is split over one kind; 141 GB of weights on 80 GB each."""
    kinds = ("NVIDIA A", "NVIDIA B", "NVIDIA A")
    gpus = [
        FakeGpu(uuid=fake_nvml.uuid_of(at), name=kind, memory_total_bytes=80 * 10**9) for at, kind in enumerate(kinds)
    ]
    with fake_nvml.loaded(library, gpus=gpus):
        told = json.loads(called("estimate", "llama-3.1-70b", "--json").stdout)["gpus"]
    nodes = {gpu["gpu"]: (gpu["gpus_per_node"], gpu["fewest_nodes"]["nodes"]) for gpu in told}
    assert nodes == {"NVIDIA A": (2, 2), "NVIDIA B": (1, 3)}


def test_figures_that_were_found_nowhere_are_printed_as_not_verified(called: Called) -> None:
    """The first line says so."""
    said = called("estimate", "gpt-sw3-40b", "--gpu-model", "H200").stdout
    assert said.startswith("not verified: not all figures of gpt-sw3-40b were found in a source")
    assert "not verified" not in called("estimate", "falcon-180b", "--gpu-model", "H200").stdout


def asked_of(hub: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask in a process of its own: the hub's client reads the hub's address when it is imported."""
    words = (sys.executable, "-m", "wattdock", "estimate", *words)
    env = {**os.environ, "HF_ENDPOINT": hub, "no_proxy": "127.0.0.1"}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_weights_of_a_hub_model_are_read_from_the_headers_of_its_files() -> None:
    """In the type that config.json names, which engines convert to; known where the snapshot is not here."""
    weights = save({"all": np.zeros(4_999_424, dtype=np.float32)})
    config = json.dumps(shape_config("tiny-llama")).encode()
    with serve() as hub:
        hub.files["owner/tiny"] = tiny.files() | {"config.json": config, "model.safetensors": weights}
        estimate = json.loads(asked_of(hub.url, "owner/tiny", "--gpu-model", "L4", "--json").stdout)
    assert (estimate["weights_bytes"], estimate["parameters"]) == (2 * 4_999_424, 4_999_424)


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_asked_once() -> None:
    """One line, where the hub's own client tries for half a minute and says so each time."""
    with socket.socket() as nobody:
        # Bound and not listening: refused at once.
        nobody.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = asked_of(hub, "owner/model")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert done.stderr.startswith(f"wattdock: owner/model cannot be asked for: {hub} does not answer")
