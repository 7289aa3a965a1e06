"""`wattdock run` from outside, with everything real but the engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from command import SMALL

if TYPE_CHECKING:
    from command import Command

KEYS = set(
    "schema_version config status error environment energy performance compute statistics multi_gpu audit spans".split()
)
TWO, THREE = {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": "hidden"}, {"NCCL_NTHREADS": "3"}


def test_a_run_stores_one_whole_result_and_shows_it(wattdock: Command) -> None:
    """Folder, every key, right counts; a person's text is no markup."""
    done = wattdock("run", *SMALL, "--max-output-tokens", "7", "--set", "name='[/x] [bold]'")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("launcher: process (")
    assert "[/x] [bold]" in done.stdout
    [result] = wattdock.results()
    assert result.keys() >= KEYS
    assert result["status"] == "ok"
    assert (result["performance"]["requests"], result["performance"]["output_tokens"]) == (4, 4 * 7)
    assert (result["energy"]["total_j"], bool(result["energy"]["reason"])) == (None, True)
    assert (result["environment"]["gpu_count"], bool(result["environment"]["launcher_reason"])) == (0, True)
    assert result["audit"]["publishable"] is False
    [folder] = (wattdock.folder / "results").glob("2*")
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "restarts/0/record.json",
        "restarts/0/requests.parquet",
        "restarts/0/timeline.parquet",
        "result.json",
        "runner.log",
    ]
    restart = folder / "restarts/0"
    assert pq.read_table(restart / "requests.parquet")["output_tokens"].to_pylist() == [7] * 4
    tokens = pq.read_table(restart / "timeline.parquet", filters=[("series", "=", "output_tokens")])
    assert tokens["value"].to_pylist()[-1] == 28
    shown = wattdock("show", folder).stdout
    reasons = [reason.partition(": ") for reason in result["audit"]["reasons"]]
    assert all(f'"{name}": {figure}' in shown for name, _, figure in reasons)
    assert '"counter, not integrated power": no source' in shown


def test_json_on_standard_output_is_the_stored_result_and_nothing_else(wattdock: Command) -> None:
    """Progress goes to standard error; prompts that came again, which a cache could have served, are audited."""
    done = wattdock("run", *SMALL, "--json", "--min-duration-s", "0.5", "--set", "workload.prompts.count=2")
    assert json.loads(done.stdout) == wattdock.results()
    [result] = wattdock.results()
    assert result["energy"]["passes"][0]["prompt_repeats"] > 0
    assert [check["status"] for check in result["audit"]["checks"] if check["name"] == "prompts fresh"] == ["warn"]


def test_prompts_that_do_not_fit_fail_their_own_experiment_only(wattdock: Command) -> None:
    """The others of the load group are measured; the run's last line names the study, and can be typed."""
    (wattdock.folder / "large.jsonl").write_text('{"token_ids": [1, 99999999]}\n')
    (wattdock.folder / "x.yaml").write_text(
        "defaults: {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}}\n"
        "experiments: [{name: a}, {name: b, workload: {prompts: large.jsonl}}, {name: c, workload: {seed: 1}}]\n"
    )
    done = wattdock("run", "x.yaml")
    assert done.returncode == 2
    results = {result["config"]["name"]: result for result in wattdock.results()}
    assert {name: result["status"] for name, result in results.items()} == {"a": "ok", "b": "failed", "c": "ok"}
    assert "99999999" in results["b"]["error"]["message"]
    [said] = [line for line in done.stdout.splitlines() if "; draw: wattdock " in line]
    drawn = wattdock(*said.split("; draw: wattdock ")[1].split(), "-o", "study.html")
    assert (drawn.returncode, drawn.stdout.startswith("3 results in study.html")) == (0, True), drawn.stderr


def test_engine_settings_of_the_environment_are_stored_shown_and_one_set_in_a_study(wattdock: Command) -> None:
    """They decide how an engine runs as much as its arguments do; a secret is not stored."""
    assert wattdock("run", *SMALL, env=TWO).returncode == 0
    [folder] = (wattdock.folder / "results").glob("2*")
    stored = (folder / "result.json").read_text()
    found = json.loads(stored)["environment"]["variables"]
    assert {name: found[name] for name in TWO} == {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": "set"}
    assert "hidden" not in stored
    assert "NCCL_NTHREADS=2" in wattdock("show", folder).stdout
    for given, words in ((THREE, "variables.NCCL_NTHREADS 2 → 3"), ({}, "variables.NCCL_NTHREADS 2 → None")):
        refused = wattdock("run", *SMALL, "--resume", env=given)
        assert (refused.returncode, words in refused.stderr) == (3, True), refused.stderr
    assert wattdock("run", *SMALL, "--resume", env=TWO).returncode == 0
