"""What of a stranger's bundle is used on this machine, and what is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from stored_results import SAMPLE, bundled, stored

from wattdock.config.experiment import ExperimentConfig
from wattdock.errors import ConfigError, PreflightError
from wattdock.publish.reproduce import Local, prepare
from wattdock.publish.reproduction import TokenComparison, compared, differences, settings_here, token_comparison
from wattdock.publish.study_file import pinned_settings
from wattdock.publish.verify import verify
from wattdock.store.folders import load_result

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis.result_schema import ExperimentResult


def sample(tmp_path: Path, name: str = "20260101T000000-pytorch-0123abcd", **changes: Any) -> ExperimentResult:
    return load_result(stored(tmp_path / name, **changes))


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SAMPLE.read_text())
    return loaded


def on_cpu(**config: Any) -> dict[str, Any]:
    """Return the sample's settings and environment as those of a run without a GPU."""
    seen = document()
    environment = seen["environment"] | {"gpu_count": 0, "gpu_names": [], "gpu_vram_gb": [], "gpu_uuids": []}
    return {"config": seen["config"] | config, "environment": environment}


def prepared(tmp_path: Path, local: Local, **changes: Any) -> None:
    made = bundled(stored(tmp_path / "results", **changes), tmp_path / "b")
    prepare(made.path, verify(made.path), local, output_dir=tmp_path / "out", home=tmp_path, resume=False)


def test_another_machines_interpreter_and_gpu_numbers_are_left_out(tmp_path: Path) -> None:
    """A path in a bundle must not decide what is executed here."""
    config = document()["config"] | {"runner_python": "/tmp/evil", "gpus": [2, 3]}
    settings = pinned_settings(sample(tmp_path, config=config), {})
    assert "runner_python" not in settings
    assert settings["gpus"] == {"count": 2}


def test_a_models_own_code_runs_only_where_that_is_said_here(tmp_path: Path) -> None:
    """The author's word does not do."""
    model = document()["config"]["model"] | {"trust_remote_code": True}
    with pytest.raises(ConfigError, match="--trust-remote-code"):
        prepared(tmp_path, Local(), **on_cpu(model=model))


def test_weights_from_a_folder_must_be_named_and_be_the_same(tmp_path: Path) -> None:
    """A folder of another model is refused before it is loaded."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    changes = on_cpu(model={"path": "/home/somebody/weights"})
    changes["environment"]["model"] |= {"kind": "path", "name": "weights", "revision": "sampled-sha256:0"}
    with pytest.raises(PreflightError, match="--model-folder"):
        prepared(tmp_path / "a", Local(), **changes)
    with pytest.raises(PreflightError, match="find that one"):
        prepared(tmp_path / "b", Local(model_folder=folder), **changes)


def test_prompts_from_a_file_that_is_not_in_the_bundle_cannot_be_sent_again(tmp_path: Path) -> None:
    """Nor is a file of this machine taken instead, whatever its path."""
    config = on_cpu()["config"]
    workload = config["workload"] | {"prompts": {"source": "/etc/hostname"}}
    with pytest.raises(PreflightError, match="not in the bundle"):
        prepared(tmp_path, Local(), **on_cpu(workload=workload))


def test_an_image_is_the_locked_one_where_the_lock_is_the_same_else_the_one_by_its_digest(tmp_path: Path) -> None:
    """Never what a tag leads to by now."""
    digest, lock = f"registry.example/wattdock-vllm@sha256:{'a' * 64}", "b" * 64
    inside = {"engine": "docker", "engine_version": "27", "rootless": False, "image": "wattdock-vllm:latest"}
    inside |= {"image_id": "sha256:0", "locked": True, "locked_digest": digest, "lock_sha256": lock}
    seen = document()["environment"] | {"launcher": "docker", "container": inside}
    before = sample(tmp_path, environment=seen)
    pinned = pinned_settings(before, {})
    locked = settings_here(pinned, before, lock_sha256=lock)
    assert (locked["container"]["image"], locked["container"]["locked"]) == (None, True)
    for other in (None, "c" * 64):
        elsewhere = settings_here(pinned, before, lock_sha256=other)
        assert (elsewhere["container"]["image"], elsewhere["container"]["locked"]) == (digest, False)
    assert ExperimentConfig.model_validate(locked).container.locked


def test_a_value_that_is_not_above_0_is_told_apart_from_one_that_was_not_measured(tmp_path: Path) -> None:
    """A counter that stood still was read."""
    energy = document()["energy"]
    reasons = []
    for name, total_j in (("none", None), ("zero", 0.0)):
        passes = [one | {"total_j": total_j} for one in energy["passes"]]
        before = sample(tmp_path, name=name, energy=energy | {"passes": passes})
        nothing = TokenComparison(compared=None, equal=None)
        found = compared(
            "a", before, sample(tmp_path, name=f"{name}-now"), folders=("a", "b"), tokens=nothing, margin=0.1
        )
        reasons += [one.reason for one in found.figures if one.quantity == "energy_per_output_token_j"]
    zero = "a restart's energy is 0 or less, so without a ratio, in the bundle"
    assert reasons == ["energy was not measured in the bundle", zero]


def test_token_ids_are_compared_request_by_request_where_that_means_something(tmp_path: Path) -> None:
    """Not where tokens were drawn at random, nor for other prompts."""
    before = sample(tmp_path)
    old, new = {(0, 1, 0): (1, 2), (0, 1, 1): (3,), (0, 1, 2): None}, {(0, 1, 0): (1, 2), (0, 1, 1): (4,)}
    same = token_comparison(before, before, old, new)
    assert (same.compared, same.equal) == (2, 1)
    drawn = document()["config"]
    drawn["workload"]["temperature"] = 0.7
    assert token_comparison(sample(tmp_path, "drawn", config=drawn), before, old, new).reason == "sampled, not greedy"
    other = document()["environment"] | {"dataset_sha256": "0" * 64}
    assert token_comparison(before, sample(tmp_path, "other", environment=other), old, new).reason == "another dataset"


def test_what_differs_between_environments_is_named_with_both_values(tmp_path: Path) -> None:
    """Boards, driver, packages that one of them lacks; not where somebody's home lies."""
    seen = document()["environment"]
    before = sample(tmp_path, environment=seen | {"engine_args": {"model": "/home/user1/m", "memory_by_gpu": {"G": 1}}})
    changed = {"driver_version": "999", "package_versions": {"torch": "9"}, "gpu_uuids": ["GPU-9"]}
    engine = {"model": "/home/anybody/m", "memory_by_gpu": {"G": 2}}
    now = sample(tmp_path, "other", environment=seen | changed | {"engine_args": engine})
    found = {one.name: (one.before, one.now) for one in differences(before, now)}
    assert found.pop("driver") == (seen["driver_version"], "999")
    assert found.pop("package: torch") == ("none", "9")
    assert found.pop("GPU boards")[1] == "GPU-9"
    assert all(now == "none" for _, now in found.values()), found
    assert not differences(before, before)
