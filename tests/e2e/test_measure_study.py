"""`wattdock measure` in studies: what is gone on with, what is refused, what is swept."""

from __future__ import annotations

import json
import textwrap
from subprocess import PIPE
from typing import TYPE_CHECKING

from command import WATTDOCK, on_gpus, wait_for
from fake_nvml import FakeGpu, FakeProcess, constant, uuid_of
from unprivileged import run_as_user

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command


def test_an_interrupted_command_goes_on_by_the_line_that_it_ends_with(wattdock: Command) -> None:
    """The run under way ends first; no run is measured twice."""
    running = wattdock.start("measure", "--restarts", "2", "--", "sh", "-c", "echo beg''un; sleep 2", stderr=PIPE)
    wait_for(running, "begun")
    wattdock.interrupt()
    said = running.communicate(timeout=60)[1]
    assert running.returncode == 130, said
    again = said.rpartition("to go on: wattdock ")[2].split()
    assert again == ["run", "--resume", "measure-1"]
    done = run_as_user([WATTDOCK, *again], env=wattdock.env(), cwd=wattdock.folder, timeout=240)
    assert (done.returncode, done.stderr.splitlines().count("begun")) == (0, 1), done.stderr
    assert wattdock.results()[-1]["work"]["count"] == 2


def test_a_finished_study_of_two_scripts_is_shown_again_and_one_that_changed_is_named(wattdock: Command) -> None:
    """Each command is held against its own files."""
    for name in ("one.sh", "two.sh"):
        (wattdock.folder / name).write_text(f"echo {name}")
    study = wattdock.write("experiments: [{measure: {command: sh one.sh}}, {measure: {command: sh two.sh}}]")
    words: list[str | Path] = [WATTDOCK, "run", study]
    env = wattdock.env()
    for more in ([], ["--resume"]):
        done = run_as_user([*words, *more], env=env, cwd=wattdock.folder, timeout=240)
        assert (done.returncode, len(wattdock.results())) == (0, 2), done.stderr
    (wattdock.folder / "two.sh").write_text("echo another")
    done = run_as_user([*words, "--resume"], env=env, cwd=wattdock.folder, timeout=240)
    assert done.returncode == ExitCode.CONFIG
    assert "two.sh has changed" in done.stderr
    assert "one.sh" not in done.stderr.rpartition("wattdock: ")[2]


def test_what_cannot_be_measured_is_refused_in_one_line_before_anything_runs(wattdock: Command) -> None:
    for words, said in (
        (("--", "no-such-program"), "no-such-program: no such program"),
        (("--set", "measure.folder=/nowhere", "--", "true"), "/nowhere: no such folder"),
        (("--set", "workload.batch_size=2", "--", "true"), "workload is for engines"),
        (("--unit", "steps", "--step-regex", "(", "--", "true"), "'(' is no regular expression"),
        (("--unit", "steps", "--step-regex", "x", "--within", "epoch", "--", "true"), "too late for work.within"),
        (("--", "seq 3 | wc -l"), "a pipeline needs sh -c"),
        (("--count", "5", "--", "true"), "set work.unit (--unit)"),
        ((), "missing argument"),
    ):
        done = wattdock("measure", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert said in done.stderr
    assert wattdock.results() == []


def test_a_step_regex_that_is_found_nowhere_is_warned_of(wattdock: Command) -> None:
    """The last line stands beside it; one that is found, also in a line without an end, warns of nothing."""
    for regex, steps in (("nomatch", None), ("hel", 1)):
        wattdock("measure", "--unit", "steps", "--step-regex", regex, "--", "printf", "hello")
        result = wattdock.results()[-1]
        warning = "no line of the output matches step_regex 'nomatch', so that no step is counted; the output's last "
        warnings = [f"{warning}line is 'hello'"] if steps is None else []
        assert (result["work"]["count"], result["environment"]["runner"]["warnings"]) == (steps, warnings)


def test_a_study_sweeps_arguments_and_numbers_of_gpus(wattdock: Command) -> None:
    """Each run sees its GPUs alone, and prints them; lines of output count as steps, a progress bar's too."""
    idle = (FakeProcess(0, memory_bytes=0),)
    two = [FakeGpu(uuid=uuid_of(number), profile=(constant(300.0),), processes=idle) for number in (1, 2)]
    env = on_gpus(wattdock, *two)
    study = """
    defaults:
      measure:
        command: [sh, -c, 'for i in `seq {steps}`; do
            printf "\\rstep $i on $CUDA_VISIBLE_DEVICES, {gpus} $LR"; sleep .2; done']
        args: {steps: 4, lr: 0.1}
        env: {LR: "{lr}"}
        work: {unit: steps}
        step_regex: ^step
    sweep:
      gpus: [{count: 1}, {count: 2}]
      measure.args.steps: [4, 6]
    """
    # No interpreter of an engine's is named.
    done = run_as_user(
        [WATTDOCK, "run", wattdock.write(textwrap.dedent(study))],
        env=wattdock.env(env),
        cwd=wattdock.folder,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    results = wattdock.results()
    assert sorted((result["environment"]["gpu_count"], result["work"]["count"]) for result in results) == [
        (1, 4),
        (1, 6),
        (2, 4),
        (2, 6),
    ]
    assert all(f"step 1 on {text}" in done.stderr for text in ("0, 1 0.1", "0,1, 2 0.1")), done.stderr
    rows = json.loads(wattdock("results", "list", "--json").stdout)
    assert {(row["unit"], row["output_tokens"], row["energy_per_output_token_j"]) for row in rows} == {
        ("steps", None, None)
    }
    assert min(row[name] for row in rows for name in ("energy_per_unit_j", "units_per_s")) > 0
    folders = [str(path) for path in sorted(wattdock.folder.glob("results/2*"))]
    scaled, compared = wattdock("scaling", *folders).stdout, wattdock("compare", *folders[:2]).stdout
    assert all(text in scaled for text in ("steps/s", "J/step", "2 GPUs", "J/step; next is")), scaled
    assert "J/step" in compared
    assert "token" not in (scaled + compared).replace("prompts, and leave out", "")
    for kind, has in (("pareto", "measure, sh -c"), ("scaling", "measure, steps=4")):
        wattdock("plot", kind, *folders, "-o", f"{kind}.svg")
        drawn = (wattdock.folder / f"{kind}.svg").read_text()
        assert (has in drawn, ">None" in drawn, "none" in drawn.replace('"none"', "").replace(": none", "")) == (
            True,
            False,
            False,
        ), kind
