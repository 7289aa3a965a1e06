"""The class that a backend derives from.

Must not know: protobuf, gRPC.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.process import garbage_collection_suspended
from wattdock_runner.serving import serve
from wattdock_runner.values import REPLICAS, Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.serving import Engine
    from wattdock_runner.values import Finding, LoadedModel, LoadOrder, Prompt, Report, Workload


class Backend:
    """Loads models into an engine. A backend is a subclass; its module must not import the engine.

    All methods are called on the same thread, one at a time. They raise `InvalidRequest`, `WrongState` or `OutOfMemory`
    for what a caller can act on; any other exception counts as a defect of the backend.

    Attributes:
        name: As in `wattdock_<name>.py`.
        framework: The engine's name for itself.
        framework_package: The distribution that has the framework's version.
        packages: Distributions whose versions belong in a result.
        supported_versions: PEP 440 specifier of the framework's versions that the backend was written for, or None.
        engine_module: The module whose `load_engine` makes the engine, imported at the first load; its `release`, if
            any, gives back what engines held.
        gpu_library, gpu_probe: What computes on GPUs, and a Python program that prints the version of CUDA and the
            number of GPUs that it sees as its last two words.
        arrivals: The kinds of arrival that the engine can serve.
        engine_arguments: Valid names, with types where wattdock checks them; None where the engine is not installed.
        needs_folder: Whether a load needs a model's folder.
        can_replicate: Whether several processes may serve a workload, each with its copy (`data_parallel_size`).
        spans_nodes: Whether an engine on each of several nodes may hold a part of the model.
        caveats: Findings that every diagnosis repeats.
        engine: The loaded engine, from `load` to `unload`.
    """

    name: str
    framework: str
    framework_package: str
    engine_module: str = ""
    packages: tuple[str, ...] = ()
    supported_versions: str | None = None
    gpu_library = "torch"
    gpu_probe = "import torch; print(torch.version.cuda, torch.cuda.device_count())"
    arrivals: tuple[Arrival, ...] = tuple(Arrival)
    engine_arguments: Mapping[str, Argument] | None = None
    needs_folder = True
    can_replicate = False
    spans_nodes = False
    caveats: tuple[Finding, ...] = ()
    engine: Engine | None = None

    def ranks(self, order: LoadOrder) -> int:  # noqa: ARG002
        """Return the number of processes that hold the model together, each with a `rank`; 1 is this process alone.

        Raises:
            InvalidRequest: The order's arguments for a split contradict each other.
        """
        return 1

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Load a model into `self.engine`, and return when the accelerators are idle."""
        report(f"importing {self.framework}")
        with garbage_collection_suspended():
            module = importlib.import_module(self.engine_module)
        loaded: LoadedModel
        self.engine, loaded = module.load_engine(order, report)
        return loaded

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run a pass and record it."""
        serve(self.engine, workload, prompts, recorder)

    def unload(self) -> None:
        """Stop the engine, and free the accelerators' memory; harmless when nothing is loaded."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.end()
        # Memory is free only once nothing refers to the engine.
        del engine
        # A runner that has loaded nothing must not import an engine to stop.
        if release := getattr(sys.modules.get(self.engine_module), "release", None):
            release()


def find_backend(name: str) -> Backend:
    """Return an instance of the backend class in module `wattdock_<name>`.

    Raises:
        LookupError: The module does not exist, or does not define exactly one backend class.
    """
    module_name = f"wattdock_{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise LookupError(f"no backend {name!r}: module {module_name} is not on PYTHONPATH") from error
    types = [value for value in vars(module).values() if isinstance(value, type)]
    classes = [kind for kind in types if issubclass(kind, Backend) and kind.__module__ == module_name]
    if len(classes) != 1:
        raise LookupError(f"{module_name} must hold one backend class, and holds {len(classes)}")
    backend: Backend = classes[0]()
    if backend.can_replicate and backend.engine_arguments is not None:
        backend.engine_arguments = {**backend.engine_arguments, REPLICAS: Argument((int,))}
    return backend
