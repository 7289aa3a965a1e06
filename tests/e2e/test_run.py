"""`wattdock run` from outside, with everything real but the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from command import SMALL
from inputs.hub_server import serve
from make import models as tiny
from seams.inputs import shape_config

if TYPE_CHECKING:
    from command import Command
    from conftest import Called

KEYS = set("schema_version config status error environment energy performance compute multi_gpu audit spans".split())
ENGINE_SETTINGS = {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": "hidden"}


def test_a_run_stores_one_whole_result_and_shows_it(wattdock: Command) -> None:
    """Folder, every key, right counts; a person's text is no markup, and a secret is not stored."""
    words = ("--max-output-tokens", "7", "--set", "name='[/x] [bold]'", "--require-publishable")
    done = wattdock("run", *SMALL, *words, env=ENGINE_SETTINGS)
    assert done.returncode == 8, done.stderr
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
        "SHA256SUMS",
        "restarts/0/record.json",
        "restarts/0/requests.parquet",
        "restarts/0/steps.parquet",
        "restarts/0/timeline.parquet",
        "result.json",
        "runner.log",
    ]
    restart = folder / "restarts/0"
    assert pq.read_table(restart / "requests.parquet")["output_tokens"].to_pylist() == [7] * 4
    assert sum(pq.read_table(restart / "steps.parquet")["decoded_tokens"].to_pylist()) == 4 * 6
    tokens = pq.read_table(restart / "timeline.parquet", filters=[("series", "=", "output_tokens")])
    assert tokens["value"].to_pylist()[-1] == 28
    assert "hidden" not in (folder / "result.json").read_text()
    variables = result["environment"]["variables"]
    assert {name: variables.get(name) for name in ENGINE_SETTINGS} == {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": None}
    shown = wattdock("show", folder).stdout
    assert "NCCL_NTHREADS=2" in shown
    reasons = result["audit"]["reasons"]
    assert {"meter", "measured window", "weights", "software"} <= {reason["name"] for reason in reasons}
    assert len(reasons) <= 5
    assert f" no; failed: {reasons[0]['name']}, " in shown
    checked = wattdock("show", folder, "--checks").stdout
    assert all(f"{reason['name']}: {reason['found'][:30]}" in checked for reason in reasons)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"wattdock: not publishable: {len(reasons)} reasons, the first: something is wrong: ")
    assert f"{reasons[0]['name']}: {reasons[0]['found']}" in last


def test_json_on_standard_output_is_the_stored_result_and_nothing_else(wattdock: Command) -> None:
    """Progress goes to standard error; prompts that came again, which a cache could have served, are audited."""
    done = wattdock("run", *SMALL, "--json", "--min-duration-s", "0.5", "--set", "workload.prompts.count=2")
    assert json.loads(done.stdout) == wattdock.results()
    [result] = wattdock.results()
    assert result["energy"]["passes"][0]["prompt_repeats"] > 0
    [cached] = [check for check in result["audit"]["checks"] if check["name"] == "cached prompts"]
    assert cached["status"] == "pass"
    assert "with a prompt that the pass had sent before" in cached["figure"]


def test_prompts_that_do_not_fit_fail_their_own_experiment_only(called: Called) -> None:
    """The others of the load group are measured; the run's last line names the study, and can be typed."""
    Path("large.jsonl").write_text('{"token_ids": [1, 99999999]}\n')
    Path("x.yaml").write_text(
        "defaults: {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}}\n"
        "experiments: [{name: a}, {name: b, workload: {prompts: large.jsonl, batch_size: 1}},\n"
        " {name: c, workload: {seed: 1}}]\n"
    )
    done = called("run", "x.yaml")
    assert done.returncode == 2
    stored = (json.loads(file.read_text()) for file in Path("results").glob("2*/result.json"))
    results = {result["config"]["name"]: result for result in stored}
    assert {name: result["status"] for name, result in results.items()} == {"a": "ok", "b": "failed", "c": "ok"}
    assert "99999999" in results["b"]["error"]["message"]
    [said] = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    _, report, retry = said.split(", wattdock ")
    drawn = called(*report.split(), "-o", "study.html")
    assert (drawn.returncode, drawn.stdout.startswith("3 results in study.html")) == (0, True), drawn.stderr
    again = called(*retry.split())
    assert (retry, again.returncode) == ("run --retry-failed x-1", 2), again.stderr
    assert "x-1: 2 experiments done before; left: 1 of 3 passes" in again.stderr


def test_a_plan_and_a_result_say_what_of_a_prompts_file_is_not_used(called: Called) -> None:
    """Arrival times are replayed as a trace, and else named as ignored."""
    record = {"input_tokens": 16, "output_tokens": 4}
    Path("t.jsonl").write_text("".join(f"{json.dumps(record | {'arrival_s': at_s})}\n" for at_s in (0.0, 0.5)))
    words = (*SMALL, "--prompts", "t.jsonl", "--min-requests", "2")
    for more, told in (("--set", "workload.arrival=trace"), "2 requests per pass in 0.5 s"), ((), "ignored: arrival_s"):
        planned = called("plan", *words, *more)
        assert planned.returncode == 0, planned.stderr
        [said] = [line for line in planned.stdout.splitlines() if line.startswith("t.jsonl: ")]
        assert told in said
    assert called("run", *words).returncode == 0
    [stored] = [json.loads(file.read_text()) for file in Path("results").glob("2*/result.json")]
    environment = stored["environment"]
    assert (environment["dataset_format"], environment["dataset_ignored"]) == ("wattdock's lengths", ["arrival_s"])


def test_every_line_of_a_prompts_file_is_measured_unless_a_number_is_asked_for(called: Called) -> None:
    """A hundred lines are a hundred requests in each pass, one in flight; `--num-prompts` takes as many of them."""
    Path("p.jsonl").write_text("".join(f"{json.dumps({'token_ids': [1, 2, number]})}\n" for number in range(100)))
    for more, requests, said in (((), 100, "; 100 prompts"), (("--num-prompts", "7"), 7, "; 7 of 100 prompts")):
        given = (*SMALL, "--batch-size", "1", "--passes", "1", "--prompts", "p.jsonl", *more)
        assert said in called("plan", *given).stdout
        assert called("run", *given, "--output-dir", f"r{requests}").returncode == 0
        [stored] = [json.loads(file.read_text()) for file in Path(f"r{requests}").glob("2*/result.json")]
        assert stored["performance"]["requests"] == requests


def test_a_hub_is_asked_for_each_model_before_anything_is_downloaded_or_started(wattdock: Command) -> None:
    """Missing, gated, or too large for this machine by what its config makes: one line, and no folder of results."""
    models = ("shape:tiny-llama", "owner/large", "owner/missing", "owner/gated")
    header = {"w": {"dtype": "F16", "shape": [10**11], "data_offsets": [0, 2 * 10**11]}}
    with serve() as hub:
        config = json.dumps(shape_config("llama-3.1-70b")).encode()
        large = {"config.json": config, "model.safetensors": tiny.with_header(header)}
        hub.files |= {"owner/large": large, "owner/gated": tiny.files()}
        hub.gated.add("owner/gated")
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(wattdock.home / "hf"), "no_proxy": "127.0.0.1"}
        file = wattdock.write(json.dumps({"defaults": {"backend": "pytorch"}, "sweep": {"model": models}}))
        assert wattdock("plan", file, env=env).returncode == 0
        assert hub.requests == []
        planned = wattdock("plan", file, "--online", env=env)
        assert planned.returncode == 3
        said = [line for line in planned.stderr.splitlines() if line.startswith("wattdock: ")]
        reasons = ("282.2 GB of weights", f"owner/missing is not on {hub.url}", "owner/gated is gated; accept its te")
        assert [reason in line for reason, line in zip(reasons, said, strict=True)] == [True] * 3, said
        run = wattdock("run", file, env=env)
        assert (run.returncode, run.stderr.count("\n")) == (3, 1), run.stderr
        assert all(
            "model.safetensors" not in path for verb, path, _ in hub.requests if verb == "GET" and "gated" in path
        )
    assert not (wattdock.folder / "results").exists()


def test_without_a_network_a_plan_looks_a_model_up_where_the_run_does(wattdock: Command) -> None:
    """Under HF_HUB_OFFLINE the cache alone is asked, which needs no `--online`."""
    words, env = ("--backend", "fake", "--model", "owner/name"), {"HF_HUB_OFFLINE": "1"}
    planned, run = wattdock("plan", *words, env=env), wattdock("run", *words, env=env)
    told = "owner/name at 'main' is not in "
    assert (planned.returncode, run.returncode) == (3, 3), planned.stderr
    assert planned.stderr.partition(told)[1:] == run.stderr.partition(told)[1:] != ("", "")
