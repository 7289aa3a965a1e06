"""Peak rates of GPU models, and where they are unknown."""

from __future__ import annotations

import pytest

from wattdock.host.gpu_models import peak_of, why_no_peak


def test_peaks_of_several_gpus_add_up_and_one_unknown_makes_them_unknown() -> None:
    """Half a peak would double the share."""
    two = peak_of(["NVIDIA H200", "NVIDIA H200"])
    assert two is not None
    assert two.memory_bytes_per_s == pytest.approx(9.6e12)
    assert peak_of(["NVIDIA H200", "NVIDIA GeForce"]) is None
    assert peak_of([]) is None


def test_a_peak_that_nobody_has_read_in_a_source_is_none() -> None:
    """A figure from memory must not make a check pass, and says why it does not."""
    assert peak_of(["NVIDIA H200", "NVIDIA H200 NVL"]) is None
    assert why_no_peak(["NVIDIA H200", "NVIDIA H200 NVL"]) == "the peak of NVIDIA H200 NVL in gpus.yaml is not verified"
    assert why_no_peak(["NVIDIA H200"]) is None
