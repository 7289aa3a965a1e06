"""What tests reach behind the door of `doctor`: a name that moves is changed here only."""

from wattdock.doctor import checks as machine
from wattdock.doctor.checks import (
    DRIVER,
    EACH_GPU,
    MACHINE,
    ExaminedGpu,
    cpu_load,
    energy_counter,
    governor,
    lease_folder,
)

__all__ = [
    "DRIVER",
    "EACH_GPU",
    "MACHINE",
    "ExaminedGpu",
    "cpu_load",
    "energy_counter",
    "governor",
    "lease_folder",
    "machine",
]
