"""The runner's finding about CUDA, with a stand-in for torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattdock_runner.backend import Backend
from wattdock_runner.gpus import cuda_findings

if TYPE_CHECKING:
    from pathlib import Path

TORCH = """
from types import SimpleNamespace
version = SimpleNamespace(cuda={cuda!r})
cuda = SimpleNamespace(device_count=lambda: {count})
print("a library's own line")
"""


@pytest.mark.parametrize(
    ("source", "status", "value"),
    [
        (TORCH.format(cuda="13.0", count=2), "ok", "13.0, GPUs: 2"),
        (TORCH.format(cuda=None, count=0), "fail", "torch for CUDA None sees no GPU"),
        ("raise ImportError('libcudart.so.13 is missing')", "fail", "ImportError: libcudart.so.13 is missing"),
    ],
)
def test_diagnosis_says_what_torch_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, status: str, value: str
) -> None:
    """A child process imports torch, so the runner itself opens no context."""
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [finding] = cuda_findings({"CUDA_VISIBLE_DEVICES": "0"}, "torch", Backend.gpu_probe)
    assert (finding.name, finding.status, finding.value) == ("CUDA in the runner", status, value)
    assert bool(finding.advice) == (status == "fail")


def test_a_runner_without_gpus_has_no_finding_about_cuda() -> None:
    """An empty CUDA_VISIBLE_DEVICES starts no child."""
    assert cuda_findings({"CUDA_VISIBLE_DEVICES": ""}, "torch", Backend.gpu_probe) == []
