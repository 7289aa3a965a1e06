"""What a command line asks for and cannot have: one line with the value seen, a documented exit code, nothing begun."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import Cause, ExitCode
from wattdock.files import NewFolder

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from conftest import Called

CONFIG, PREFLIGHT = ExitCode.CONFIG, ExitCode.PREFLIGHT
FAKE = ("--backend", "fake", "--model", "shape:tiny-llama")
LATIN_1 = os.fsdecode(b"caf\xe9")
DRAWN_DRAFT = ("--backend", "vllm", "--set", "vllm.speculative_config.model=shape:tiny-llama")
SHAPE_FP8 = ("--backend", "vllm", "--model", "shape:tiny-llama", "--set", "vllm.quantization=fp8")
SPLIT = ("--set", "pytorch.data_parallel_size=2")


def assert_one_clear_line(done: CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("wattdock: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((*FAKE, "--backend", "pytorhc"), CONFIG, ("pytorhc", "pytorch")),
        ((*FAKE, "--batch-size", "0"), CONFIG, ("--batch-size", "0")),
        ((*FAKE, "--model", "shape:tiny-lama"), CONFIG, ("tiny-lama", "tiny-llama")),
        ((*FAKE, "--gpus", "7"), PREFLIGHT, ("7", "GPU")),
        ((*FAKE, "--gpus", "GPU-none"), PREFLIGHT, ("GPU-none",)),
        ((*FAKE, "--gpus", "count:2"), PREFLIGHT, ("2 GPU",)),
        ((*FAKE, "--accelerator", "cuda"), PREFLIGHT, ("GPU",)),
        ((*FAKE, "--launcher", "docker"), PREFLIGHT, ("docker", "--launcher process")),
        ((*FAKE, "--meter", "nvml"), PREFLIGHT, ("meter: nvml: ", "--meter none")),
        ((*FAKE, "--meter", "zeus"), PREFLIGHT, ("meter: zeus: ", "--meter none")),
        ((*FAKE, "--prompts", "bundled"), CONFIG, ("tokenizer", "synthetic")),
        ((*FAKE, "--set", "workload.seed"), CONFIG, ("NAME=VALUE",)),
        ((*FAKE, "--set", "workload.sede=1"), CONFIG, ("sede", "seed")),
        (SHAPE_FP8, CONFIG, ("vllm.quantization: fp8",)),
        (DRAWN_DRAFT, CONFIG, ("vllm.speculative_config.model: shape:tiny-llama", "with weights")),
        ((*SPLIT, "--set", "workload.batch_size=3"), CONFIG, ("batch_size: 3", "data_parallel_size: 2")),
        ((*SPLIT, "--set", "pytorch.device_map=auto"), CONFIG, ("device_map: auto", "choose one")),
        (("--set", "pytorch.tp_size=2"), CONFIG, ("tp_plan: auto",)),
        (("--set", "workload.arrival=closed"), CONFIG, ("closed", "pytorch", "(batch, single)")),
        (("--backend", "pytorch,vllm"), CONFIG, ("pytorch,vllm", "did you mean")),
        (("--model", "~nobody-here/x"), CONFIG, ("~nobody-here/x: ",)),
        ((*FAKE, "--prompts", "~nobody-here/x.jsonl"), CONFIG, ("~nobody-here/x.jsonl: ",)),
        (("--model", "smollm2"), CONFIG, ("did you mean 'smollm2-135m-instruct'?", "OWNER/NAME")),
        (("mine-1",), CONFIG, ("mine-1: ", "--resume mine-1")),
        # It would stand in the result's settings and say nothing of what was sent.
        (("--backend", "fake", "--input-tokens", "2000"), CONFIG, ("--input-tokens", "--prompts synthetic")),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    called: Called, args: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    """No result is stored, since nothing was attempted."""
    assert_one_clear_line(called("run", *args), code, *words)
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("variable", "args"),
    [
        ("WATTDOCK_HOME", ("run", *FAKE)),
        ("WATTDOCK_LEASES", ("run", *FAKE)),
        ("WATTDOCK_LEASES", ("gpus",)),
        ("WATTDOCK_IMAGES_LOCK", ("images", "pull")),
    ],
)
def test_a_folder_of_a_user_who_is_not_there_is_refused(
    called: Called, monkeypatch: pytest.MonkeyPatch, variable: str, args: tuple[str, ...]
) -> None:
    """A ~ that a shell leaves as it is, since it knows no such user either."""
    monkeypatch.setenv(variable, "~nobody-here/x")
    assert_one_clear_line(called(*args), CONFIG, "~nobody-here/x: ")


@pytest.mark.parametrize(
    "args",
    [
        ("--output-dir", f"{LATIN_1}/r"),
        ("--model", f"./{LATIN_1}/model"),
        ("--model", "./link/model"),
        ("--prompts", f"./{LATIN_1}/p.jsonl"),
        ("--set", "model={path: ./link/model}"),
    ],
)
def test_a_path_that_is_not_utf_8_is_refused_before_anything_starts(called: Called, args: tuple[str, ...]) -> None:
    """Arrow, protobuf and JSON take no other, and would say so after the pass; a link leads to the same path."""
    Path(LATIN_1).mkdir()
    Path("link").symlink_to(LATIN_1)
    done = called("run", *FAKE, "--prompts", "synthetic", *args)
    assert_one_clear_line(done, CONFIG, r"caf\xe9", "is not UTF-8", "set PYTHONUTF8=1")
    assert sorted(file.name for file in Path().iterdir()) == [LATIN_1, "link"]


@pytest.mark.parametrize("variable", ["WATTDOCK_HOME", "TMPDIR", "XDG_RUNTIME_DIR", "PWD"])
def test_a_folder_of_the_environment_that_is_not_utf_8_is_refused_before_anything_starts(
    called: Called, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Also the current folder, which the folder of results is in."""
    place = Path(LATIN_1).absolute()
    place.mkdir(mode=0o700)
    monkeypatch.setenv(variable, str(place))
    # Asked once for each process.
    monkeypatch.setattr(tempfile, "tempdir", str(place) if variable == "TMPDIR" else None)
    if variable == "PWD":
        monkeypatch.chdir(place)
    done = called("run", *FAKE, "--prompts", "synthetic")
    assert_one_clear_line(done, CONFIG, r"/caf\xe9", "is not UTF-8")
    assert not [*place.iterdir()]


@pytest.mark.parametrize(
    ("args", "variables", "shown"),
    [
        (("run", f"{LATIN_1}.yaml"), {}, r"caf\xe9.yaml: this argument"),
        (("run", *FAKE, "--set", f"name={LATIN_1}"), {}, r"name=caf\xe9: this argument"),
        (("show", LATIN_1), {}, r"caf\xe9: this argument"),
        (("results", "query", f"SELECT '{LATIN_1}'"), {}, r"SELECT 'caf\xe9': this argument"),
        (("run", *FAKE), {"OMP_X": LATIN_1}, r"OMP_X=caf\xe9: this variable"),
        (("run", *FAKE), {"HF_HOME": f"/{LATIN_1}"}, r"HF_HOME=/caf\xe9: this variable"),
        (("run", *FAKE), {"EDITOR": LATIN_1}, None),
    ],
)
def test_a_name_that_no_record_can_hold_is_refused_before_anything_starts(
    called: Called,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    variables: dict[str, str],
    shown: str | None,
) -> None:
    """A record holds the settings and the variables that reach a runner; all else that the environment has is left."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = called(*args, *(("--prompts", "synthetic", "--passes", "1") if FAKE[0] in args else ()))
    if shown is None:
        assert done.returncode == ExitCode.OK, done.stderr
    else:
        assert_one_clear_line(done, CONFIG, f"{shown} is not UTF-8")
        assert not Path("results").exists()


@pytest.mark.parametrize(
    ("error", "place", "code", "words"),
    [
        # NFS without a lock daemon; Lustre mounted without `flock`; a file system of a user's program.
        (errno.ENOLCK, "leases", PREFLIGHT, ("WATTDOCK_LEASES",)),
        (errno.EOPNOTSUPP, "leases", PREFLIGHT, ("WATTDOCK_LEASES",)),
        (errno.ENOSYS, "results", ExitCode.STORE, ("--output-dir",)),
        (errno.ENOLCK, "home", PREFLIGHT, ("WATTDOCK_HOME",)),
    ],
)
def test_a_folder_on_a_file_system_without_locks_is_refused_in_one_line(
    called: Called, monkeypatch: pytest.MonkeyPatch, error: int, place: str, code: int, words: tuple[str, ...]
) -> None:
    """Who cannot lock cannot know that nobody else measures, or writes to the same study."""
    folder = Path(place).absolute()
    flock = fcntl.flock

    def without_locks(descriptor: int, how: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(folder):
            raise OSError(error, os.strerror(error))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", without_locks)
    monkeypatch.setenv("WATTDOCK_HOME", str(Path("home").absolute()))
    monkeypatch.setenv("WATTDOCK_LEASES", str(Path("leases").absolute()))
    done = called("run", *FAKE, "--prompts", "synthetic", "--passes", "1", "--quiet")
    assert done.returncode == code, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "no locks" in line]
    assert all(word in line for word in words), line


def test_what_was_cleaned_up_is_told_after_the_errors_of_a_plan(called: Called) -> None:
    """Somebody else's killed command is no reason to read two lines."""
    left = NewFolder.make(Path(tempfile.gettempdir()), "wattdock-run-")
    os.close(left.descriptor)
    assert_one_clear_line(called("run", *FAKE, "--gpus", "7"), PREFLIGHT, "GPU")
    assert not left.path.exists()


@pytest.mark.parametrize(("name", "code"), [("ü", CONFIG), ("u", ExitCode.OK)])
def test_a_locale_that_is_not_utf_8_is_no_reason_to_write_elsewhere(tmp_path: Path, name: str, code: int) -> None:
    """Python has another name for the path than the libraries that write to it."""
    words = ("run", *FAKE, "--prompts", "synthetic", "--runner-python", sys.executable, "--output-dir", f"./{name}")
    environ = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "WATTDOCK_HOME": str(tmp_path / "home")}
    environ["WATTDOCK_RUNNERS"] = str(Path(__file__).parents[1] / "runners")
    command = [sys.executable, "-m", "wattdock", *words]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / name).exists()) == (code, code == ExitCode.OK), done.stderr
    if code:
        assert_one_clear_line(done, code, r"/\xc3\xbc", "set PYTHONUTF8=1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload:\n  batch_sise: 2\n", ("x.yaml:2", "batch_size")),
        ("workload: [\n", ("x.yaml:2", "fix the YAML")),
        ("workload: {batch_size: [1, 4]}\n", ("x.yaml:1", "workload.batch_size", "[1, 4]")),
        ("sweeps: {backend: [fake]}\ndefaults: {}\n", ("x.yaml:1", "did you mean 'sweep'?")),
    ],
)
def test_a_bad_file_is_refused_with_its_line(called: Called, text: str, words: tuple[str, ...]) -> None:
    """Whoever wrote the file finds the place."""
    Path("x.yaml").write_text(text)
    assert_one_clear_line(called("run", "x.yaml"), CONFIG, *words)


def test_a_missing_file_is_told_near_names_only(called: Called) -> None:
    """What merely ends alike, and what stands in the place of a folder, is another study."""
    for name in ("tiny.yaml", "first.yaml", "ablation.yml"):
        Path(name).write_text("backend: fake\n")
    Path("dir.yaml").mkdir()
    for name, said in (
        ("missing.yaml", "missing.yaml: No such file or directory; name a YAML file"),
        ("ablatoin.yaml", "ablatoin.yaml: No such file or directory; did you mean 'ablation.yml'?"),
        ("dir.yaml", "dir.yaml: is not a regular file; name a YAML file"),
    ):
        assert_one_clear_line(called("plan", name), CONFIG, said)


def test_points_that_cannot_be_are_refused_before_anything_is_measured(called: Called) -> None:
    """Neither `plan` nor `run` begins."""
    defaults = {"backend": "fake", "model": "shape:tiny-llama"}
    sweep = {"workload.arrival": ["batch", "single"], "workload.batch_size": [1, 2]}
    Path("x.yaml").write_text(json.dumps({"defaults": defaults, "sweep": sweep}))
    words = ("x.yaml:1", "one request in flight; batch_size is 2")
    for verb in ("run", "plan"):
        assert_one_clear_line(called(verb, "x.yaml"), CONFIG, *words)
    assert not Path("results").exists()


def test_a_plan_starts_nothing_and_says_what_it_could_not_check(called: Called) -> None:
    """Names that only the engine knows are named; not even a folder is made; a person's text is no markup."""
    planned = called("plan", *FAKE, "--set", "fake.step_s=0.01", "--set", "fake.another=1", "--set", "name='[/x] [b]'")
    assert planned.returncode == 0, planned.stderr
    assert "fake.step_s, fake.another, arrival: batch;" in planned.stdout
    assert "[/x] [b]" in planned.stdout
    assert "not checked" not in called("plan", "--backend", "pytorch", "--accelerator", "cpu").stdout
    on_hub = called("plan", *FAKE[:2], "--model", "nobody/nothing").stdout
    assert "nobody/nothing;" in on_hub
    assert list(Path().iterdir()) == []


def test_a_plan_tells_errors_before_tables_and_no_table_where_nothing_can_run(called: Called) -> None:
    """A folder that is there is a folder; an engine's setting that is spelled with hyphens leads to its name."""
    refused = called("plan", "--backend", "vlm")
    assert (refused.returncode, refused.stdout) == (CONFIG, "")
    assert "did you mean 'vllm'?" in refused.stderr
    Path("mine/model").mkdir(parents=True)
    assert "no readable config.json in" in called("plan", *FAKE[:2], "--model", "mine/model").stderr
    spelled = called("plan", "--backend", "vllm", "--set", "vllm.max-model-len=9")
    assert_one_clear_line(spelled, CONFIG, "'max-model-len'", "did you mean 'max_model_len'?")


@pytest.mark.parametrize(
    "words",
    [
        *(f"{verb} absent.yaml" for verb in ("run", "plan", "doctor")),
        *(
            f"{verb} absent"
            for verb in ("show", "report", "scaling", "compare absent", "bundle create", "plot table -o t.md")
        ),
        *(f"{verb} absent.tar" for verb in ("bundle verify", "reproduce")),
        *(f"{verb} --output-dir absent" for verb in ("results list", "results query SELECT", "results export --csv x")),
        *(
            "run --model ./absent",
            "run --prompts absent.jsonl",
            "run --set runner_python=./absent",
            "estimate ./absent",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line_and_exit_code_2(called: Called, words: str) -> None:
    """Whatever it names: a study, results, a bundle, a model, prompts, an interpreter."""
    assert_one_clear_line(called(*words.split()), CONFIG, "absent")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("bundle verify mine", "`wattdock bundle create mine`"),
        ("reproduce mine", "`wattdock bundle create mine`"),
        ("reproduce mine/a", "`wattdock bundle create mine/a`"),
        ("reproduce study.yaml", "`wattdock run study.yaml`"),
        ("plan b.tar", "`wattdock reproduce b.tar`"),
        ("run b.tar", "`wattdock reproduce b.tar`"),
    ],
)
def test_what_another_command_takes_is_refused_with_that_command(called: Called, words: str, remedy: str) -> None:
    """A folder of results and a study are no bundle, a bundle is no study."""
    Path("mine/a").mkdir(parents=True)
    Path("mine/a/result.json").write_text("{}")
    Path("b.tar").write_bytes(b"x" * 2_000_000)
    assert_one_clear_line(called(*words.split()), CONFIG, remedy)


@pytest.mark.parametrize("words", ["show", "report", "plan --model", "bundle verify", "results list --output-dir"])
def test_a_path_that_the_system_refuses_to_look_up_is_one_line_and_exit_code_2(called: Called, words: str) -> None:
    """Too long a name, as a folder of somebody else."""
    assert_one_clear_line(called(*words.split(), f"./{'x' * 300}"), CONFIG, "File name too long; check the path")


def test_a_wrong_command_line_is_one_line_with_the_value_and_the_nearest_name(called: Called) -> None:
    """In the form of every other message."""
    for words, *values in (
        ("pln", "'pln'", "did you mean 'plan'?"),
        ("plan --batch-size 1,4", "--batch-size", "'1,4'", "sweep"),
        ("plan --dtype bf16", "--dtype", "'bf16'", "bfloat16"),
        ("run --bach-size 3", "--bach-size", "did you mean '--batch-size'?"),
        ("run --batch-size x", "--batch-size", "'x'", "see `"),
        ("run --output-dir=", "--output-dir"),
        ("run --output-dir=~nobody-here/results", "~nobody-here/results"),
        ("results query", "'SQL'"),
        ("plot", "'KIND'"),
        ("plot study.tar", "KIND study.tar is not one of intervals, pareto, ", ", table; see `wattdock plot --help`"),
        ("plot pareto", "'RESULTS'"),
        ("run a b", "argument", "b"),
        ("run mine --resume", "mine: "),
        # A setting of the engine.
        ("run --max-model-len 9", "--max-model-len; ", "--set BACKEND.max_model_len=VALUE"),
        ("run --url http://x --save-result", "no such option: --save-result; see"),
        ("estimate --model x", "model stands without --model: `wattdock estimate MODEL`"),
        ("plan --backend llamacpp --dtype q4_0", "--dtype", "'q4_0'", "bfloat16"),
        ("plan --set quality.tasks=[sums] --set quality.folder=taskss", "quality.folder: taskss does not exist; name"),
        ("measure --unit tokens --step-regex x -- true", "set work.unit: steps (--unit steps)"),
        ("show --limit 3 x", "no such option: --limit; see"),
    ):
        refused = called(*words.split())
        assert_one_clear_line(refused, CONFIG, *values)
        assert ("did you mean" in refused.stderr) == any("did you mean" in value for value in values)


@pytest.mark.parametrize("margin", ["0", "200%", "five", "-1%"])
def test_a_margin_that_makes_no_sense_is_refused(called: Called, margin: str) -> None:
    """Before the bundle is looked at."""
    assert_one_clear_line(called("reproduce", "b.tar", f"--margin={margin}"), CONFIG)


@pytest.mark.parametrize(
    ("args", "values"),
    [
        ("gemini", ("'gemini'", "OWNER/NAME")),
        ("smollm2-135m-instruc", ("smollm2-135m?",)),
        ("llama-3.1-8b --gpu-model H1000", ("'H1000'", "H100-80GB?")),
        ("llama-3.1-8b --dtype int3", ("'int3'", "float32")),
        ("llama-3.1-8b --backend vlm", ("vllm",)),
        ("llama-3.1-70b --tp 6", ("6 GPUs", "64 heads")),
    ],
)
def test_an_estimate_of_what_is_not_known_or_cannot_be_is_one_line(
    called: Called, args: str, values: tuple[str, ...]
) -> None:
    """With what is known, or legal."""
    assert_one_clear_line(called("estimate", *args.split()), CONFIG, *values)


def test_with_json_an_error_is_what_its_remedy_and_its_cause(called: Called) -> None:
    """Nothing else on the error stream, for a program to read."""
    Path("x.yaml").write_text("modle: smollm2-135m-instruct\n")
    refused = called("plan", "x.yaml", "--json")
    error = json.loads(refused.stderr)["error"]
    assert (refused.returncode, refused.stdout, error["cause"]) == (2, "", Cause.UNKNOWN_SETTING)
    assert ("x.yaml:1" in error["what"], "model" in error["remedy"]) == (True, True)
