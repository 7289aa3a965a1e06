"""`wattdock run`, `plan` and `show` from outside, with everything real but the engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from command import SMALL

if TYPE_CHECKING:
    from command import Command

CONFIG = 2
KEYS = set(
    "schema_version config status error environment energy performance compute statistics multi_gpu audit spans".split()
)


def test_a_run_stores_one_whole_row_and_shows_it(wattdock: Command) -> None:
    """Table, folder, every key, right counts."""
    done = wattdock("run", *SMALL, "--max-output-tokens", "7")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("launcher: process (")
    [result] = wattdock.results()
    assert result.keys() >= KEYS
    assert result["status"] == "ok"
    assert result["performance"]["requests"] == 4
    assert result["performance"]["output_tokens"] == 4 * 7
    assert result["energy"]["total_j"] is None
    assert result["energy"]["reason"]
    assert result["environment"]["gpu_count"] == 0
    assert result["environment"]["launcher_reason"]
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
    assert shown.count("output tokens/s") == 1
    assert all(reason in shown for reason in result["audit"]["reasons"])
    assert "counter, not integrated power: no source" in shown


def test_json_on_standard_output_is_the_stored_result_and_nothing_else(wattdock: Command) -> None:
    """Progress goes to standard error, so that a script can read the rest."""
    done = wattdock("run", *SMALL, "--json")
    assert json.loads(done.stdout) == wattdock.results()


def test_quantised_weights_that_are_to_be_drawn_are_refused_before_anything_starts(wattdock: Command) -> None:
    """No engine loads them, so neither a plan nor a run gets as far as one."""
    asked = ("--backend", "vllm", "--model", "shape:tiny-llama", "--set", "vllm.quantization=fp8")
    for verb in ("plan", "run"):
        done = wattdock(verb, *asked)
        assert done.returncode == CONFIG
        assert "vllm.quantization: fp8 needs weights to read, and a shape's are drawn at random" in done.stderr


def test_plan_shows_what_would_run_and_starts_nothing(wattdock: Command) -> None:
    """Not even a folder is made."""
    done = wattdock("plan", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "shape:tiny-llama" in done.stdout
    assert list(wattdock.folder.iterdir()) == []


def test_prompts_that_do_not_fit_fail_their_own_row_only(wattdock: Command) -> None:
    """The others of the load group are measured."""
    (wattdock.folder / "large.jsonl").write_text('{"token_ids": [1, 99999999]}\n')
    (wattdock.folder / "x.yaml").write_text(
        "defaults: {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}}\n"
        "experiments:\n"
        "- {name: one}\n"
        "- {name: two, workload: {prompts: large.jsonl}}\n"
        "- {name: three, workload: {seed: 1}}\n"
    )
    assert wattdock("run", "x.yaml").returncode == 2
    rows = {row["config"]["name"]: row for row in wattdock.results()}
    assert {name: row["status"] for name, row in rows.items()} == {"one": "ok", "two": "failed", "three": "ok"}
    assert "99999999" in rows["two"]["error"]["message"]


def test_prompts_that_came_again_are_told_and_audited(wattdock: Command) -> None:
    """An engine's cache could have served them."""
    done = wattdock("run", *SMALL, "--min-duration-s", "0.5", "--set", "workload.prompts.count=2")
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert row["energy"]["passes"][0]["prompt_repeats"] > 0
    assert [check["status"] for check in row["audit"]["checks"] if check["name"] == "prompts fresh"] == ["warn"]


def test_a_name_with_brackets_is_shown_as_it_is(wattdock: Command) -> None:
    """A person's text is no markup."""
    done = wattdock("run", *SMALL, "--set", "name='[/x] [bold]'")
    assert done.returncode == 0, done.stderr
    assert "[/x] [bold]" in done.stdout
    assert "[/x] [bold]" in wattdock("plan", *SMALL, "--set", "name='[/x] [bold]'").stdout


def test_two_runs_at_once_keep_both_rows(wattdock: Command) -> None:
    """One waits for the other; each has its own socket, log and folder."""
    first, second = (wattdock.start("run", *SMALL, "--quiet", "--wait", "50") for _ in range(2))
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert len(wattdock.results()) == 2
