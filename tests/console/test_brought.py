"""What people bring in names, files and machines: a table of inputs, each with its exit code and its line.

What happens within a run stands elsewhere: locks that a file system lacks and LC_ALL=C in `test_refused.py`, templates
in `e2e/test_pytorch.py`, a driver or a container that loses its GPUs in `launch/test_engine.py` and
`containers/test_engine_faults.py`, a driver that changes between restarts in `audit/test_audit.py`, a clock that is
set back in `study/test_folder.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu
from metering.powercap import add_domain

from wattdock.metering import choose_meter

if TYPE_CHECKING:
    from conftest import Called

CONFIG, PREFLIGHT = 2, 3
FAKE = ("--backend", "fake", "--model", "shape:tiny-llama", "--prompts", "synthetic")
STUDY = "backend: fake\nmodel: shape:tiny-llama\n"
GPUS = tuple(FakeGpu(uuid=fake_nvml.uuid_of(number)) for number in range(3))


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (b"workload: {batch_size: 010}\n", CONFIG, "x.yaml:3: workload.batch_size: 010 means different values in"),
        (b"workload: {batch_size: 1:30}\n", CONFIG, "x.yaml:3: workload.batch_size: "),
        (b"workload: {prompts: {source: 2026-02-30}}\n", CONFIG, "2026-02-30"),
        (b"exclusive: on\n", CONFIG, "x.yaml:3: exclusive: on means different values in YAML 1.1 and 1.2; write true"),
        (b"name: 1:30\n", 0, "1:30"),
        (b"name: 2026-11-28\n", 0, "2026-11-28"),
        (b"name: 0o17\n", CONFIG, "x.yaml:3: name"),
        (b"fleet: {partition: a}\n", CONFIG, "x.yaml:3: fleet: "),
        (b"name: caf\xe9\n", CONFIG, "x.yaml: not UTF-8 text at byte 47; save it as UTF-8"),
        (b'name: "\\ud800"\n', CONFIG, "x.yaml:3: "),
    ],
)
def test_a_study_is_read_by_yaml_1_2_or_refused_with_its_line(
    called: Called, text: bytes, code: int, line: str
) -> None:
    """Numbers, dates, switches, and names that no record can hold."""
    Path("x.yaml").write_bytes(STUDY.encode() + text)
    require(called("plan", "x.yaml"), code, line)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b'{"prompt": "\\ud800"}\n', "p.jsonl:1: "), (b'{"prompt": "caf\xe9"}\n', "p.jsonl")],
)
def test_prompts_that_no_tokenizer_takes_are_refused_with_their_line(called: Called, content: bytes, line: str) -> None:
    """Before a runner starts."""
    Path("p.jsonl").write_bytes(content)
    require(called("plan", "--backend", "pytorch", "--prompts", "p.jsonl"), CONFIG, line)


@pytest.mark.parametrize(
    ("variables", "args", "gpus", "code", "line"),
    [
        ({"DOCKER_CONTEXT": "absent"}, ("--launcher", "docker"), (), PREFLIGHT, "absent"),
        ({"DOCKER_HOST": "unix:///absent.sock"}, ("--launcher", "docker"), (), PREFLIGHT, "unix:///absent.sock"),
        ({"PATH": "/absent"}, ("--launcher", "apptainer"), (), PREFLIGHT, "apptainer nor singularity is on PATH"),
        ({"CUDA_VISIBLE_DEVICES": "2,7,0"}, ("--gpus", "0"), GPUS, PREFLIGHT, "CUDA_VISIBLE_DEVICES=2,7,0"),
        ({"CUDA_VISIBLE_DEVICES": "2,7,0"}, ("--gpus", "count:2"), GPUS, PREFLIGHT, "2 GPU"),
        ({"CUDA_VISIBLE_DEVICES": "2,7,0"}, (), GPUS, 0, "GPU 2"),
        ({}, (), (FakeGpu(uuid=fake_nvml.uuid_of(1), mig=1, mig_slices=2),), PREFLIGHT, "MIG"),
        ({}, (), (FakeGpu(uuid=fake_nvml.uuid_of(1), name="NVIDIA A40-48Q"),), PREFLIGHT, "vGPU"),
    ],
)
def test_a_machine_is_taken_as_its_own_tools_take_it_or_refused(
    called: Called,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    args: tuple[str, ...],
    gpus: tuple[FakeGpu, ...],
    code: int,
    line: str,
) -> None:
    """Docker's contexts, CUDA's list of GPUs, parts of boards."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = {"gpus": gpus} if gpus else {"init_error": 12}
    with fake_nvml.loaded(library, **options):
        require(called("plan", *FAKE, *args), code, line)


def test_a_plan_reads_mirrored_rapl_counters_once(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies that show their package's counter, the package through MMIO, and the platform around it."""
    for folder, name in {
        ":0": "package-0-die-0",
        ":1": "package-0-die-1",
        "-mmio:0": "package-0",
        ":2": "psys",
    }.items():
        add_domain(tmp_path, f"intel-rapl{folder}", name, 700)
    monkeypatch.setitem(choose_meter.__kwdefaults__ or {}, "powercap", tmp_path)
    require(called("plan", *FAKE, "--meter", "rapl"), 0, "RAPL: package-0-die-0)")


def require(done: Any, code: int, line: str) -> None:
    """Assert an exit code, and a line that holds some words: the only line where it is an error."""
    said = done.stderr if code else done.stdout
    assert (done.returncode, line in said) == (code, True), done.stdout + done.stderr
    assert not code or (said.startswith("wattdock: ") and said.count("\n") == 1), said
