"""What transformers makes and says, once for all runners' tests; runners and what stands in for their engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_PYTHON
from contract.shared_runners import BY_NAME
from contract.subjects import SMALL_UNIFORM, write_config, write_tokenizer
from runners.checkpoints import Reference, make_checkpoint, read_reference, run
from seams.host import build_once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.runner_process import Pass, Runner
    from contract.shared_runners import SharedRunners
    from contract.subjects import Subject
    from runners.checkpoints import Checkpoint

    from wattdock_proto.v1 import runner_pb2 as pb


@pytest.fixture(scope="session")
def reference(common: Path) -> Reference:
    """A checkpoint, and plain transformers' answers, for all processes of the suite."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no PyTorch environment at {PYTORCH_PYTHON}")
    build_once(common / "checkpoint", make_checkpoint, progress=print)
    return read_reference(common / "checkpoint")


@pytest.fixture(scope="session")
def checkpoint(reference: Reference) -> Checkpoint:
    return reference.checkpoint


@pytest.fixture(scope="session")
def drawn_pass(runners: SharedRunners, model_path: Path) -> Pass:
    """What the PyTorch runner generates with WIDE_UNIFORM in float32, as the contract test loads it."""
    runner, _ = runners.loaded("pytorch", model_path, **BY_NAME["pytorch"].load_fields)
    return run(runner)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with a tokenizer and no weights."""
    made = write_config(tmp_path_factory.mktemp("model"))
    write_tokenizer(made)
    return made


@pytest.fixture
def standin(request: pytest.FixtureRequest) -> Subject:
    """Return the backend of a module's tests."""
    subject: Subject = request.module.BACKEND
    return subject


@pytest.fixture
def bare(standin: Subject, runners: SharedRunners) -> Runner:
    """Return the backend's runner with nothing loaded."""
    return runners.bare(standin.name)


@pytest.fixture
def load(standin: Subject, bare: Runner, folder: Path) -> Any:
    """Return what loads the module's model on the backend's GPUs with some settings."""

    def loading(**engine_args: object) -> pb.Loaded:
        order = {"random_weights": SMALL_UNIFORM, "gpu_uuids": standin.gpus}
        return bare.load(folder, engine_args=engine_args, **order)[0]

    return loading


@pytest.fixture
def fault(standin: Subject, runners: SharedRunners) -> Iterator[Path]:
    """Return the file in which the stand-in for an engine reads what goes wrong."""
    file = runners.stand_in(standin.name) / "fault"
    yield file
    file.unlink(missing_ok=True)
