"""config."""

from wattdock.config.expand import InvalidPoint, Study, without_duplicates
from wattdock.config.experiment import (
    EMBEDDED_MODEL,
    NOT_IDENTITY,
    RANDOM_WEIGHTS,
    ContainerSpec,
    ExperimentConfig,
    GpuCount,
    IdleSpec,
    ModelSpec,
    WarmUpSpec,
)
from wattdock.config.lines import read_yaml
from wattdock.config.load import load_study
from wattdock.config.placement import EngineMemory, Split
from wattdock.config.schema import study_schema
from wattdock.config.sections.base import section_class
from wattdock.config.workload import PromptSpec, WorkloadSpec

__all__ = [
    "EMBEDDED_MODEL",
    "NOT_IDENTITY",
    "RANDOM_WEIGHTS",
    "ContainerSpec",
    "EngineMemory",
    "ExperimentConfig",
    "GpuCount",
    "IdleSpec",
    "InvalidPoint",
    "ModelSpec",
    "PromptSpec",
    "Split",
    "Study",
    "WarmUpSpec",
    "WorkloadSpec",
    "load_study",
    "read_yaml",
    "section_class",
    "study_schema",
    "without_duplicates",
]
