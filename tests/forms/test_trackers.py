"""Results in MLflow and in Weights & Biases: the figures arrive, and a tracker that fails costs a line."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from make.kept import kept

from wattdock.errors import ExitCode
from wattdock.forms import tracker
from wattdock.store import StoredResult, load_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Called

RUN = ("run", "--backend", "fake", "--model", "shape:tiny-llama", "--passes", "1", "--quiet")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep both trackers to this machine."""
    own = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    for name, value in (own | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path / "wandb")}).items():
        monkeypatch.setenv(name, value)


def log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: blocks of 32 KiB, in them parts with a header of 7 bytes."""
    record, at = b"", 7
    while at + 7 < len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
        size, kind = struct.unpack_from("<HB", content, at + 4)
        record, at = record + content[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.usefixtures("offline")
def test_mlflow_has_a_run_of_each_result(called: Called, tmp_path: Path) -> None:
    """Settings are parameters; standard output is still one document; the settings' numbers are no metrics."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    uri = (tmp_path / "runs").as_uri()
    done = called(*RUN, "--set", "workload.batch_size=2", "--log-to", f"mlflow:{uri}", "--json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)
    [run] = mlflow.MlflowClient(uri).search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.params["workload.batch_size"] == "2"
    assert run.data.metrics["output_tokens_per_s"] == result["performance"]["output_tokens_per_s"]
    assert "batch_size" not in run.data.metrics
    assert run.data.tags["experiment_id"] == result["experiment_id"]
    assert (run.data.tags["publishable"], run.data.tags["status"]) == ("not publishable", "ok")
    assert run.data.tags["verdict"] == result["audit"]["summary"]


@pytest.mark.usefixtures("offline")
def test_figures_arrive_to_the_digit(tmp_path: Path) -> None:
    """Joules, their interval, and what the figure is found again by; what is sent again is left as it was."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    stored, uri = StoredResult(tmp_path, load_result(kept(tmp_path / "kept"))), (tmp_path / "runs").as_uri()
    warned: list[str] = []
    for sent in ([stored], [stored, stored], []):
        tracker(f"mlflow:{uri}", warned.append)(sent)
    assert warned == []
    [run] = mlflow.MlflowClient(uri).search_runs(["0"])
    assert run.data.metrics["energy_per_output_token_j"] == stored.row.energy_per_output_token_j
    assert run.data.metrics["energy_per_output_token_low_j"] == stored.row.energy_per_output_token_low_j
    assert run.data.tags["publishable"] == "publishable"
    assert run.data.tags["wattdock_commit"] == "f51ad2b4cc446e9fac61650bda71cf90fe4646d7"
    assert "@sha256:" in run.data.tags["image_digest"]


@pytest.mark.usefixtures("offline")
def test_wandb_offline_holds_the_figures(tmp_path: Path) -> None:
    """Its own reader finds summary, configuration and the verdict in the file of an offline run."""
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    stored, warned = StoredResult(tmp_path, load_result(kept(tmp_path / "kept"))), list[str]()
    (tmp_path / "wandb").mkdir()
    tracker("wandb:team/energy", warned.append)([stored])
    wandb.teardown()
    assert warned == []
    [file] = (tmp_path / "wandb").rglob("run-*.wandb")
    records = list(map(wandb_internal_pb2.Record.FromString, log_records(file.read_bytes())))
    summary = {
        (update.key or ".".join(update.nested_key)): json.loads(update.value_json)
        for record in records
        for update in record.summary.update
    }
    runs = [record.run for record in records if record.HasField("run")]
    config = {update.key: json.loads(update.value_json) for run in runs for update in run.config.update}
    assert summary["energy_per_output_token_j"] == stored.row.energy_per_output_token_j
    assert {run.run_id for run in runs} == {stored.folder.name}
    assert (runs[0].entity, runs[0].project, list(runs[0].tags)) == ("team", "energy", ["publishable"])
    assert config["workload.batch_size"] == "160"
    # The command refuses pandas, which wandb asks after when it is imported.
    code = "import sys; from wattdock.__main__ import WithoutPandas as W; sys.meta_path.insert(0, W); import wandb"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert config["verdict"] == "publishable: 0.329 J/output token ± 0.50 %"


def test_a_tracker_that_fails_costs_a_line(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is stored and printed, the exit code is that of the run, and no password is shown."""

    def refused(_: str) -> None:
        raise ConnectionError("https://me:hunter22hunter@host.example refused\nand more")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(set_tracking_uri=refused, __spec__=find_spec("json")))
    done = called(*RUN, "--log-to", "mlflow:https://me:hunter22hunter@host.example", "--json")
    [result] = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (0, "ok")
    [line] = [line for line in done.stderr.splitlines() if "not logged" in line]
    assert "is stored, but not logged to mlflow: ConnectionError: https://" in line
    assert "hunter22hunter" not in done.stderr
    failed = called(*RUN, "--set", "fake.pass_fault=die", "--log-to", "mlflow:x")
    assert (failed.returncode, "not logged" in failed.stderr) == (ExitCode.RUNNER, True)


@pytest.mark.parametrize(
    ("target", "line", "code"),
    [
        ("mlflow", "--log-to mlflow: no tracker; write mlflow:URI or wandb:PROJECT", ExitCode.CONFIG),
        ("neptune:x", "--log-to neptune:x: no tracker; write mlflow:URI or wandb:PROJECT", ExitCode.CONFIG),
        (
            "mlflow:sqlite:///runs.db",
            "--log-to mlflow:sqlite:…: not supported; name an HTTP server or a folder",
            ExitCode.CONFIG,
        ),
        ("wandb:x", "this command needs the extra `wandb`: pip install 'wattdock[wandb]'", ExitCode.PREFLIGHT),
    ],
)
def test_what_cannot_be_logged_to_is_refused_before_the_run(
    called: Called, monkeypatch: pytest.MonkeyPatch, target: str, line: str, code: ExitCode
) -> None:
    """Nothing is measured first."""
    modules: Any = sys.modules
    monkeypatch.setitem(modules, "wandb", None)
    for on in ("local", "slurm"):
        done = called(*RUN, "--log-to", target, "--on", on)
        assert (done.returncode, done.stderr) == (code, f"wattdock: {line}\n")
    assert not Path("results").exists()
