from __future__ import annotations

from typing import TYPE_CHECKING

import fake_nvml
import numpy as np
import pytest
from fake_nvml import FakeGpu, constant, ramp, sine, square

if TYPE_CHECKING:
    from pathlib import Path

PROFILES = {
    "constant": (constant(300.0),),
    "step": (constant(100.0, 1.3), constant(650.0)),
    "ramp": (ramp(100.0, 700.0, 2.0), constant(700.0)),
    "sine": (sine(400.0, 250.0, 0.7, phase_rad=1.0),),
    "bursts": (square(120.0, 690.0, 0.45, 0.3, phase_s=0.1),),
    "mixed": (sine(300.0, 50.0, 0.5, 0.9), ramp(200.0, 500.0, 0.8), square(100.0, 600.0, 0.21, 0.6)),
}


@pytest.mark.parametrize("name", PROFILES)
def test_closed_form_energy_is_the_integral_of_power(library: Path, name: str) -> None:
    """The truth that other tests compare with must itself be true."""
    with fake_nvml.loaded(library, gpus=[FakeGpu(profile=PROFILES[name])]) as fake:
        start_ns = fake_nvml.VIRTUAL_ORIGIN_NS
        step_ns = 20_000
        middles_ns = start_ns + np.arange(0, 3_000_000_000, step_ns) + step_ns // 2
        summed_j = sum(fake.power_w(0, int(at_ns)) for at_ns in middles_ns) * step_ns / 1e9
        assert fake.energy_j(0, start_ns, start_ns + 3_000_000_000) == pytest.approx(summed_j, rel=1e-4)


def test_a_misspelt_configuration_is_refused(library: Path, tmp_path: Path) -> None:
    """A knob that does nothing would make a test that checks nothing."""
    path = tmp_path / "bad.conf"
    path.write_text("clock virtual\ngpu\nlag_ms 5\n")
    with fake_nvml.loaded(library) as fake, pytest.raises(ValueError, match="line 3"):
        fake.configure(path)
