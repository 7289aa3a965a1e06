"""Thirty secrets in the hands of a real unprivileged user: none stands in what a run leaves, shows or starts."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import REPO, SMALL, Command, wait_for
from make.served import served
from unprivileged import give_to_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Called

# Each text, and the part of it that may be nowhere. None of these has ever been anybody's.
IN_VALUES = {
    "ray://:pw-of-ray-1@head:6379": "pw-of-ray-1",
    "https://tok-of-host-2@host/simple": "tok-of-host-2",
    "https://me:pw-of-index-3@index.example/simple": "pw-of-index-3",
    "https://host.example/v1?token=tok-in-query-4": "tok-in-query-4",
    "https://host.example/callback#access_token=frag-5-abcdef": "frag-5-abcdef",
    "https://index.example/toK6in9PatH6x7/simple": "toK6in9PatH6x7",
    "postgresql://app:pw/with@signs-7@db.example:5432/x": "with@signs-7",
    "https://hooks.slack.com/services/T00000000/B00000000/slack-hook-8": "slack-hook-8",
    "https://discord.com/api/webhooks/123456789/discord-hook-9": "discord-hook-9",
    "https://bucket.s3.example/w?X-Amz-Credential=AKX&X-Amz-Signature=amz-signed-10": "amz-signed-10",
    "AccountName=x;AccountKey=azure-account-11==;EndpointSuffix=core.example": "azure-account-11",
    "Endpoint=sb://x.example;SharedAccessKey=azure-bus-12=": "azure-bus-12",
    "sv=2024&se=2026&sig=azure-sas-13%3D": "azure-sas-13",
    "Server=db;Uid=me;Pwd=odbc-word-14;": "odbc-word-14",
    "password=plain-words-15": "plain-words-15",
    "Authorization: Bearer bearer-words-16": "bearer-words-16",
    "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm1234": "QwErTyUiOpAsDfGhJkLzXcVbNm1234",
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8": "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "sk-" + "proj-0123456789abcdefghijKLMNOP": "0123456789abcdefghijKLMNOP",
    "AKIA" + "IOSFODNN7EXAMPL0": "IOSFODNN7EXAMPL0",
    "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q": "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "xoxb-" + "123456789012-slackbot": "123456789012-slackbot",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9." + "c2lnbmF0dXJl": "c2lnbmF0dXJl",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANpem24\n-----END PRIVATE KEY-----": "MIIEvQIBADANpem24",
    "x7Kq9ZbW2mTfV4nLpR8sYcD3": "x7Kq9ZbW2mTfV4nLpR8sYcD3",
}
# Words that are secrets by their variable's name only.
BY_NAME = {
    "VLLM_API_KEY": "word of vllm 26",
    "HF_TOKEN": "word-of-hub-27",
    "NCCL_SECRET_OF_MINE": "word-of-nccl-28",
    "RAY_REDIS_PASSWORD": "word-of-redis-29",
    "AZURE_CLIENT_SECRET": "word-of-azure-30",
}
SECRETS = (*IN_VALUES.values(), *BY_NAME.values())
# The caller's environment: families of variables that reach engines and results.
PLANTED = BY_NAME | {
    f"{family}_SETTING_{number}": text
    for number, (family, text) in enumerate(
        zip(("VLLM", "NCCL", "TORCH", "CUDA", "HF", "NVIDIA", "RAY", "UCX", "WATTDOCK") * 9, IN_VALUES, strict=False)
    )
}
# Of those families, what a result holds: no variable that a login or a key was in.
RECORDED = {
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVICE": "https://index.example/…",
    "LD_LIBRARY_PATH": "/opt/models--Qwen--Qwen2.5-7B-Instruct-GPTQ-Int4/lib",
    "VLLM_SETTING_0": None,
    "NVIDIA_SETTING_5": None,
}
# An engine that has read a file of the caller's: it prints, reports and says in an error whatever it found.
LEAKY = f"""
import json, os, sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(REPO / "tests/runners/fake")!r})
import wattdock_fake
FOUND = json.loads((Path(os.environ["HOME"]) / "found.json").read_text())

class LeakyBackend(wattdock_fake.FakeBackend):
    name = "leaky"

    def load(self, order, report):
        for text in FOUND:
            print("engine:", text, file=sys.stderr, flush=True)
            report("reads " + text)
        print(dict(os.environ), file=sys.stderr, flush=True)
        if order.engine_args.get("load_fault") == "raise":
            raise RuntimeError("cannot read " + " ".join(FOUND))
        loaded = super().load(order, report)
        told = {{"found": FOUND, "by_name": {{"api_key": "word of vllm 26", "hf_token": "word-of-hub-27"}}}}
        return replace(loaded, effective_engine_args={{**loaded.effective_engine_args, **told}}, warnings=tuple(FOUND))
"""


@pytest.fixture
def leaky(wattdock: Command) -> Command:
    """A user whose environment holds the secrets, and whose engine finds them."""
    folder = wattdock.home / "runners" / "leaky"
    folder.mkdir(parents=True)
    (folder / "wattdock_leaky.py").write_text(LEAKY)
    (wattdock.home / "found.json").write_text(json.dumps([*IN_VALUES, *(f"{k}={v}" for k, v in BY_NAME.items())]))
    for path in (folder.parent, folder, *folder.iterdir(), wattdock.home / "found.json"):
        give_to_user(path)
    return wattdock


def environment(leaky: Command) -> dict[str, str]:
    plain = {"OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": "/opt/models--Qwen--Qwen2.5-7B-Instruct-GPTQ-Int4/lib"}
    service = {"VLLM_SERVICE": "https://index.example/toK6in9PatH6x7/simple"}
    return PLANTED | plain | service | {"WATTDOCK_RUNNERS": f"{leaky.home}/runners:{REPO}/tests/runners"}


def files(leaky: Command) -> Iterator[tuple[str, bytes]]:
    """Yield all that the runs left in the working folder and in WATTDOCK_HOME; what a bundle holds, too."""
    paths = [*leaky.folder.rglob("*"), *(leaky.home / "wattdock").rglob("*")]
    for path in filter(_is_file, paths):
        yield str(path), path.read_bytes()
        if path.suffix == ".tar":
            with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    content = tar.extractfile(member)
                    assert content is not None
                    yield f"{path}: {member.name}", content.read()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def found_in(content: bytes | str) -> list[str]:
    text = content if isinstance(content, str) else content.decode(errors="replace")
    forms = {secret: {secret, json.dumps(secret)[1:-1], secret.replace("@", "%40")} for secret in SECRETS}
    return [secret for secret, written in forms.items() if any(form in text for form in written)]


def test_thirty_secrets_stand_in_nothing_that_runs_leave_or_show(leaky: Command) -> None:
    """Results, logs, journals, events, error rows, bundles with logs, reports, the live page; both streams of each."""
    env = environment(leaky)
    assert len(SECRETS) == len(set(SECRETS)) == 30
    shown = {}
    words = ("run", "--backend", "leaky", *SMALL[2:])
    measured = shown["run"] = leaky(*words, "--progress-json", env=env)
    failed = shown["failed run"] = leaky(*words, "--set", "leaky.load_fault=raise", env=env)
    assert (measured.returncode, failed.returncode) == (0, 5), measured.stderr + failed.stderr
    made = shown["bundle"] = leaky("bundle", "create", "results", "--logs", "--output", "b.tar", env=env)
    assert made.returncode == 0, made.stderr
    shown["report"] = leaky("report", "results", "--output", "page.html", env=env)
    assert shown["report"].returncode == 0, shown["report"].stderr
    for result in sorted((leaky.folder / "results").glob("2*")):
        shown[f"show {result.name}"] = leaky("show", result, "--json", env=env)
    shown["plan"] = leaky("plan", *words[1:], env=env)
    with served(leaky, env=env) as server:
        pages = {path: server.get(path).text for path in ("/", "/metrics")}
        pages["/events"] = json.dumps(server.now())
    leaks = {f"{name} on its streams": found_in(done.stdout + done.stderr) for name, done in shown.items()}
    leaks |= {name: found_in(content) for name, content in files(leaky)}
    leaks |= {f"page {path}": found_in(text) for path, text in pages.items()}
    assert {name: found for name, found in leaks.items() if found} == {}
    # What was looked through, and what is left to read in it.
    names = " ".join(leaks)
    assert all(part in names for part in ("result.json", "journal.jsonl", "runner.log", "b.tar: ", "page.html"))
    [log, other] = (leaky.folder / "results").glob("2*/runner.log")
    assert "ray://head:6379" in log.read_text()
    assert "https://hooks.slack.com/…\n" in other.read_text()
    rows = {row["status"]: row for row in leaky.results()}
    assert "ray://head:6379 https://host/… https://index.example/… " in rows["failed"]["error"]["message"]
    assert rows["ok"]["environment"]["runner"]["engine_args"]["found"][0] == "ray://head:6379"
    variables = rows["ok"]["environment"]["variables"]
    assert {name: variables.get(name) for name in RECORDED} == RECORDED
    assert not variables.keys() & BY_NAME.keys()


def test_no_command_line_of_a_run_holds_a_secret(leaky: Command) -> None:
    """Any user of the machine can read them; environments are their owner's."""
    slow = ("--set", "leaky.step_s=0.5", "--max-output-tokens", "60")
    with leaky.start(
        "run", "--backend", "leaky", *SMALL[2:], *slow, "--progress-json", env=environment(leaky), stderr=-1
    ) as run:
        wait_for(run, "TokensSeen")
        lines = leaky.running()
        live = b"".join(path.read_bytes() for path in leaky.folder.rglob("events.jsonl"))
        leaky.interrupt(15)
        assert run.stderr is not None
        run.stderr.read()
    assert len(lines) >= 3
    assert found_in("\n".join(lines)) == []
    assert b"TokensSeen" in live
    assert found_in(live) == []


SBATCH = """#!/bin/sh
[ "$1" = --version ] && exit
for word; do echo "$word" >> "$HOME/work/submitted"; done
cat "$word" >> "$HOME/work/submitted"
echo 7
"""


def test_what_a_cluster_is_given_and_what_its_task_leaves_hold_no_secret(leaky: Command) -> None:
    """Slurm's commands are stand-ins that write down their words; scripts and journals lie where others can read."""
    programs = leaky.home / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    leaky.write(json.dumps({"defaults": {"backend": "leaky", "leaky": {"load_fault": "raise"}, "accelerator": "cpu"}}))
    env = environment(leaky) | {"PATH": f"{programs}:{os.environ['PATH']}"}
    queued = leaky("run", "x.yaml", "--on", "slurm", "--model", "shape:tiny-llama", env=env)
    assert "wattdock run --on slurm --resume x-1" in queued.stderr
    [study] = (leaky.folder / "results/studies").iterdir()
    done = leaky("fleet", "task", study, "0", env=env)
    assert done.returncode == 5, done.stderr
    leaks = {name: found_in(content) for name, content in files(leaky)}
    leaks |= {"streams": found_in(queued.stdout + queued.stderr + done.stdout + done.stderr)}
    assert {name: found for name, found in leaks.items() if found} == {}
    assert "#SBATCH --job-name" in (leaky.folder / "submitted").read_text()


@pytest.mark.parametrize(
    ("study", "flags", "place"),
    [
        ({}, ("--set", "vllm.hf_token=word-of-hub-27"), "--set vllm.hf_token"),
        ({}, ("--set", "fake.url=https://tok-of-host-2@host/x"), "--set fake.url"),
        ({"workload": {"prompts": {"chat_template_kwargs": {"password": "plain-words-15"}}}}, (), "x.yaml:1"),
        ({"fleet": {"setup": ["export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"]}, "defaults": {}}, (), "x.yaml:1"),
        ({"fleet": {"more": ["--export=ALL,AWS_SECRET_ACCESS_KEY=abcdefgh1"]}, "defaults": {}}, (), "x.yaml:1"),
        ({"name": "word-of-azure-30"}, (), "x.yaml:1"),
        ({"workload": {"prompts": {"chat_template_kwargs": {"password": 12345678}}}}, (), "x.yaml:1"),
        ({"fleet": {"setup": ["curl -u anna:word-of-hub-27 x"]}, "defaults": {}}, (), "x.yaml:1"),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused_in_one_line(
    called: Called, monkeypatch: pytest.MonkeyPatch, study: dict[str, object], flags: tuple[str, ...], place: str
) -> None:
    """It would stand in results, the journal, the live page and a cluster's scripts; the line does not repeat it."""
    for name, text in PLANTED.items():
        monkeypatch.setenv(name, text)
    model = {"backend": "fake", "model": "shape:tiny-llama"}
    written = study | {"defaults": model} if "defaults" in study else study or model
    Path("x.yaml").write_text(json.dumps(written))
    done = called("run", "x.yaml", *flags)
    assert (done.returncode, done.stderr.count("\n"), found_in(done.stderr + done.stdout)) == (2, 1, [])
    assert done.stderr.startswith(f"wattdock: {place}: holds what looks like a key or password")
    assert not Path("results").exists()
