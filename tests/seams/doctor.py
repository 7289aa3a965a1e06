"""What tests reach behind the door of `doctor`: a name that moves is changed here only."""

from wattdock.doctor import machine
from wattdock.doctor.gpus import DRIVER, EACH_GPU, ExaminedGpu, energy_counter
from wattdock.doctor.machine import MACHINE, ExaminedMachine, cpu_load, governor, lease_folder

__all__ = [
    "DRIVER",
    "EACH_GPU",
    "MACHINE",
    "ExaminedGpu",
    "ExaminedMachine",
    "cpu_load",
    "energy_counter",
    "governor",
    "lease_folder",
    "machine",
]
