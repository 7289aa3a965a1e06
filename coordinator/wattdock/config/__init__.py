"""What a person writes, in YAML and flags, checked: experiments, and studies that sweep them.

In: a file and command-line flags. Out: a `Study` of `ExperimentConfig`s, each with its backend's section, which says
how the engine is split (`Split`) and uses memory (`EngineMemory`); or a `ConfigError` with file, line, nearest name.
Must not know: this machine, models' files, runners.
"""

from wattdock.config.expand import Study
from wattdock.config.experiment import ContainerSpec, ExperimentConfig, ModelSpec
from wattdock.config.load import load_study
from wattdock.config.sections import EngineMemory, Split
from wattdock.config.sections.measure import Section as CommandSection
from wattdock.config.workload import WorkloadSpec
from wattdock.config.yaml_lines import parse_yaml

__all__ = [
    "CommandSection",
    "ContainerSpec",
    "EngineMemory",
    "ExperimentConfig",
    "ModelSpec",
    "Split",
    "Study",
    "WorkloadSpec",
    "load_study",
    "parse_yaml",
]
