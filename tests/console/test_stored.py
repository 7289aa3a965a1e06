"""Commands over stored results: what a name means, what is shown of it, and results that are spoiled."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from make.rows import split_document
from make.stored import store_golden, stored

import wattdock
from wattdock.errors import ExitCode, StoreError
from wattdock.store import COLUMNS

if TYPE_CHECKING:
    from conftest import Called

RESULTS = Path("results")
HOW_TO = Path(__file__).parents[2] / "docs/how-to/data.md"
STUDY = "20260101T000000-two-sizes-0123abcd"
NAMES = [f"20260101T00000{number}-fake-{number}" for number in (1, 2)]

MEASURED = Path(__file__).parents[2] / "docs/measurements/data"
BUNDLE = MEASURED / "smollm2-h200.tar"


@pytest.fixture
def study(called: Called) -> Called:
    """Two results of one study and a third by itself, in the current folder."""
    for number, name in enumerate(NAMES, 1):
        part = {"study_id": STUDY, "attempt": 1}
        stored(RESULTS, name=name, study=part, experiment_id=f"{number}" * 64)
    stored(RESULTS, name="20260101T000003-other-3", experiment_id="3" * 64)
    (RESULTS / "studies" / STUDY).mkdir(parents=True)
    (RESULTS / "studies" / STUDY / "journal.jsonl").touch()
    return called


def test_a_bundle_that_is_named_twice_counts_once(study: Called) -> None:
    """Its results would pass for more restarts, on no other board."""
    assert study("bundle", "create", "two-sizes", "-o", "b.tar").returncode == 0
    shown = json.loads(study("show", "b.tar", "./b.tar", "--json").stdout)
    assert [result["experiment_id"][0] for result in shown] == ["1", "2"]


@pytest.mark.parametrize("named", ["größe & co", "gro\u0308ße & co", "größe", "größe-co-1"])
def test_a_study_of_any_script_is_found_and_bundled_by_the_name_that_it_was_given(called: Called, named: str) -> None:
    """Composed or not, and though its folder has other signs in it than letters and digits."""
    study = "20260101T000000-größe-co-1"
    stored(RESULTS, name=NAMES[0], study={"study_id": study, "attempt": 1})
    (RESULTS / "studies" / study).mkdir(parents=True)
    (RESULTS / "studies" / study / "journal.jsonl").touch()
    assert called("show", named).returncode == 0
    assert called("bundle", "create", named, "-o", "größe 1.tar").returncode == 0
    assert called("bundle", "verify", "größe 1.tar").returncode == 0
    with tarfile.open("größe 1.tar") as bundle:
        assert f"wattdock-{study}/results/studies/{study}/journal.jsonl" in bundle.getnames()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report two-sizes", "2 results"),
        ("show two-sizes", "version three"),
        ("compare two-sizes two-sizes", "nothing else that was recorded differs"),
        ("plot table two-sizes -o t.md", "2 results"),
        ("bundle create two-sizes -o b.tar", "b.tar: whole, "),
    ],
)
def test_the_beginning_of_a_studys_name_means_its_results(study: Called, words: str, said: str) -> None:
    """With its time or without; every command by the same rule."""
    done = study(*words.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_result_is_shown_by_its_name_or_the_beginning(study: Called) -> None:
    """With its time or without."""
    for written in ("20260101T000003-other-3", "20260101T000003", "other"):
        shown = study("show", written, "--json")
        assert shown.returncode == 0, shown.stderr
        assert [result["experiment_id"] for result in json.loads(shown.stdout)] == ["3" * 64]


def test_an_engine_s_settings_are_shown_where_restarts_differ_in_them(called: Called) -> None:
    """vLLM's compilation config, of 2,400 characters, differs in one folder's name."""
    shown = called("show", MEASURED / "precisions-h200.tar", "--checks", "--again").stdout
    differing = [line for line in shown.splitlines() if "environment of the restarts: engine" in line]
    assert len(differing) == 4
    assert all("'cache_dir': '/root/.cache/" in line and "'cache_dir': ''" in line for line in differing)
    assert max(map(len, differing)) < 500


def test_what_is_shown_begins_with_the_verdict(study: Called) -> None:
    """Of one result in its one line; of several what is wrong with each, but for an error; the exit code stays 0."""
    reasons = [
        {"question": question, "name": name, "status": "fail", "found": f"found by {name}"}
        for question, name in (("wrong", "throttling"), ("wrong", "completion"), ("known", "uncertainty"))
    ]
    summary = "not publishable: throttling: found by throttling (and 2 more)"
    audit = {"publishable": False, "summary": summary, "reasons": reasons, "checks": []}
    part = {"study_id": STUDY, "attempt": 1}
    stored(RESULTS, name="20260101T000004-fake-4", study=part, experiment_id="4" * 64, audit=audit)
    one, both = study("show", "20260101T000004"), study("show", "two-sizes")
    assert (one.returncode, both.returncode) == (0, 0)
    first, second, *_ = one.stdout.splitlines()
    # The sample is of a wattdock without a commit.
    by = " (analysed by wattdock 0.1.0, not by this version)"
    assert (first, second.split("  ")[0]) == (summary + by, "version three")
    told = [line.partition(": ")[2] for line in both.stdout.splitlines() if "found by" in line]
    assert told[0] == "something is wrong: throttling: found by throttling"
    assert not any("found by completion" in line for line in told)


def test_results_are_a_list_in_json_however_they_are_named(called: Called) -> None:
    """A script must not meet another form when a study has one result; its own folder may have stayed behind."""
    alone = {"study_id": "20260101T000000-alone-0123abcd", "attempt": 1}
    name = stored(Path("copies"), name="20260101T000001-fake-1", study=alone).name
    for written in ("alone", "2026", "copies", name, "fake-"):
        done = called("show", written, "--output-dir", "copies", "--json")
        assert isinstance(json.loads(done.stdout), list), written


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("report 2 -o x.html", 2, "type one of them: two-sizes-0123abcd (a study), "),
        ("report study.yaml", 2, "study.yaml: is neither a bundle, which ends in .tar, nor a result.json"),
        ("bundle create two-sizes -o missing/deep/b.tar", 7, "there is no folder missing/deep; make it"),
        ("results query SELEC", 2, "the query failed"),
        (f"show {MEASURED}", 2, f"holds no results; name its bundles, as in {MEASURED}/*.tar; or "),
        (
            f"audit {BUNDLE}",
            2,
            "is a bundle, or another file that is no text in UTF-8; give JSON, CSV or YAML in UTF-8; `wattdock show",
        ),
        ("results list --where status=ok", 2, "texts are 'ok', columns: "),
    ],
)
def test_what_a_name_cannot_mean_or_a_command_cannot_do_is_one_line(
    study: Called, words: str, code: int, said: str
) -> None:
    """With its exit code, and nothing is written."""
    Path("study.yaml").write_text("model: shape:tiny-llama\n")
    done = study(*words.split())
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["results", "study.yaml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Links that lead in a circle, also where nothing is written.
        ("report two-sizes -o loop", "cannot write loop: Too many levels of symbolic links"),
        ("plot pareto two-sizes -o loop", "loop: this is written as .pdf or .svg or .png"),
        ("bundle create two-sizes -o loop/b.tar", "loop"),
        ("show loop", "loop"),
        ("compare two-sizes loop/x", "loop/x"),
        ("audit loop", "loop: Too many levels of symbolic links"),
        # The kind decides which files there are.
        ("plot tables two-sizes -o t.md", "KIND tables is not one of intervals, "),
        ("plot table two-sizes -o t.csv", "name such a file; `wattdock results export --csv` writes CSV"),
        ("report two-sizes -o t.pdf", "t.pdf: this is written as .html or .htm"),
        ("form boamps other -o t.md", "t.md: this is written as .json"),
        ("form model-card other -o t.json", "t.json: this is written as .md"),
        ("results export --csv t.parquet", "t.parquet: this is written as .csv"),
        ("results export --parquet t.csv", "t.csv: this is written as .parquet"),
        ("plot table two-sizes -o missing/t.md", "there is no folder missing; make it, or choose another file with -o"),
        ("bundle create two-sizes -o /proc/b.tar", "wattdock: /proc/b.tar: "),
        ("audit two-sizes", "`wattdock show NAME --checks` has the audit of an own result"),
        (f"audit results/{NAMES[0]}/result.json", "`wattdock show NAME --checks` has the audit of an own result"),
        ("show gone --output-dir elsewhere", "`wattdock run --resume gone-1 --output-dir elsewhere`"),
    ],
)
def test_a_mistaken_file_or_kind_is_one_line_that_helps(study: Called, words: str, said: str) -> None:
    """And no traceback."""
    Path("loop").symlink_to("loop")
    Path("s.yaml").write_text("model: shape:tiny-llama\n")
    begun = Path("elsewhere/studies/20260101T000000-gone-1")
    begun.mkdir(parents=True)
    (begun / "journal.jsonl").touch()
    done = study(*words.split())
    assert (done.returncode in (2, 3, 7), done.stderr.count("\n")) == (True, 1), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_file_in_no_folder_has_one_exit_code_whatever_writes_it(study: Called, place: str) -> None:
    """Where the folder is missing or is a file."""
    Path("file").touch()
    for words in (
        "report two-sizes -o PLACE/x.html",
        "plot pareto two-sizes -o PLACE/x.svg",
        "plot table two-sizes -o PLACE/x.md",
        "form model-card other -o PLACE/x.md",
        "results export --csv PLACE/x.csv",
        "results export --parquet PLACE/x.parquet",
        "bundle create two-sizes -o PLACE/x.tar",
        "pair PLACE/x.pem",
    ):
        done = study(*words.replace("PLACE", place).split())
        assert (done.returncode, done.stderr.count("\n")) == (ExitCode.STORE, 1), (words, done.stderr)
        assert f"{place}/x." in done.stderr


def test_scripts_for_a_cluster_are_shown_though_the_folder_of_results_is_a_circle_of_links(called: Called) -> None:
    """Nothing is written here: the folder is the cluster's."""
    Path("loop").symlink_to("loop")
    Path("s.yaml").write_text("model: shape:tiny-llama\nbackend: fake\n")
    shown = called("plan", "s.yaml", "--on", "slurm", "--output-dir", "loop")
    assert (shown.returncode, "loop/studies/" in shown.stdout) == (0, True), shown.stderr


@pytest.mark.parametrize(
    "words",
    ["show", "show --json", "show --checks", "show --again", "compare +", "compare + --json", "cost", "cost --json"],
)
def test_no_answer_about_a_bundle_names_the_folder_that_it_was_unpacked_to(called: Called, words: str) -> None:
    """That folder is gone when the command has ended."""
    verb, *more = words.split()
    Path("b c.tar").symlink_to(BUNDLE)
    done = called(verb, "b c.tar", *(word.replace("+", "b c.tar") for word in more))
    assert (done.returncode, "wattdock-run-" in done.stdout) == (0, False), done.stderr


def test_what_is_shown_of_a_bundle_ends_with_words_that_show_it_again(called: Called) -> None:
    """Its file and its experiment, as a shell takes them."""
    Path("b c.tar").symlink_to(BUNDLE)
    shown = called("show", "b c.tar").stdout
    last = shown.splitlines()[-1]
    assert last == "stored in 'b c.tar:vllm smollm2-135m-instruct closed 160'"
    assert called("show", *shlex.split(last.removeprefix("stored in "))).stdout == shown
    compared = json.loads(called("compare", "b c.tar", "b c.tar", "--json").stdout)
    assert compared["pairs"][0]["a"] == "b c.tar:vllm smollm2-135m-instruct closed 160"


def test_several_bundles_studies_and_results_are_shown_in_one_table(study: Called) -> None:
    """In the order typed, each result once."""
    assert study("bundle", "create", "other", "-o", "other.tar").returncode == 0
    assert study("bundle", "create", "two-sizes", "-o", "sizes.tar").returncode == 0
    ids = {"other.tar": ["3"], "sizes.tar": ["1", "2"], "other": ["3"], "results": ["1", "2", "3"]}
    for words in (("other.tar", "sizes.tar"), ("sizes.tar", "other.tar"), ("other", "sizes.tar"), ("other", "results")):
        shown = study("show", *words, "--json")
        expected = list(dict.fromkeys(number for word in words for number in ids[word]))
        assert [result["experiment_id"][0] for result in json.loads(shown.stdout)] == expected, shown.stderr
    assert "publishable" in study("show", "other.tar", "sizes.tar").stdout


def spoil(folder: Path, kind: str) -> None:
    file, timeline = folder / "result.json", folder / "restarts/0/timeline.parquet"
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:500])
    elif kind == "lost":
        file.unlink()
    elif kind == "deep":
        file.write_text("[" * 100_000 + "]" * 100_000)
    elif kind == "deep record":
        (folder / "restarts/0/record.json").write_text("[" * 100_000 + "]" * 100_000)
    elif kind == "setting":
        text = json.loads(file.read_text())
        text["config"]["workload"]["batch"] = 2
        file.write_text(json.dumps(text))
    elif kind == "gone":
        timeline.unlink()
    elif kind == "column":
        table = pq.ParquetFile(timeline).read()
        names = [name.replace("value", "Value") for name in table.column_names]
        pq.write_table(table.rename_columns(names), timeline)
    else:
        (folder / "restarts/0/requests.parquet").write_text("no parquet\n")


@pytest.mark.parametrize(
    ("kind", "said", "verbs"),
    [
        ("lost", "is missing; restore it", ("show a", "show results/a", "report results")),
        ("cut", "Invalid JSON", ("show a", "report a")),
        ("deep", "Invalid JSON", ("show a", "compare a a", "bundle create a")),
        ("deep record", "nested too deeply", ("show a --again",)),
        (
            "setting",
            "(config.workload.batch: Extra inputs are not permitted)",
            ("bundle create a", "show a", "scaling a", "plot batch a -o b.svg"),
        ),
        ("requests", "does not hold what was measured", ("show a --again",)),
        ("gone", "measured (timeline.parquet: No such file or directory)", ("show a --again",)),
        ("column", "restarts/0 does not hold what was measured", ("show a --again",)),
    ],
)
def test_a_spoiled_result_is_one_line_and_its_file(
    called: Called, kind: str, said: str, verbs: tuple[str, ...]
) -> None:
    """Whatever reads it."""
    spoil(stored(RESULTS, name="a"), kind)
    for verb in verbs:
        done = called(*verb.split())
        assert (done.returncode, done.stderr.count("\n")) == (7, 1), verb
        assert said in done.stderr
        assert "results/a/re" in done.stderr


def test_a_study_with_a_result_that_cannot_be_read_is_refused_with_the_file(study: Called) -> None:
    """One result of two would look like a study of one; each by itself is still to be had."""
    spoil(RESULTS / NAMES[0], "cut")
    for verb in (
        *("show two-sizes", "report two-sizes", f"report results/studies/{STUDY} -o f.html", "scaling two-sizes"),
        *("compare two-sizes other", "plot table two-sizes -o t.md", "bundle create two-sizes -o b.tar"),
    ):
        done = study(*verb.split())
        assert (done.returncode, done.stderr.count("\n")) == (7, 1), verb
        assert f"results/{NAMES[0]}/result.json: " in done.stderr
    assert study("show", NAMES[1]).returncode == 0


def test_scaling_holds_curves_and_the_cheapest_split(called: Called) -> None:
    """As a table and as JSON for a notebook; it says which result is on no curve."""
    made = {
        f"20261121T10000{gpus}-vllm-0000000{gpus}": split_document(
            {"tensor_parallel_size": gpus} if gpus > 1 else {},
            [100.0 * gpus**0.9, 101.0 * gpus**0.9],
            [600.0 * gpus, 601.0 * gpus],
        )
        for gpus in (1, 2, 4)
    }
    made["20261121T100009-vllm-00000009"] = split_document({}, [1.0], [1.0]) | {"status": "failed"}
    for name, result in made.items():
        (RESULTS / name).mkdir(parents=True)
        (RESULTS / name / "result.json").write_text(json.dumps(result))
    done = called("scaling", "results", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["left_out"]) == ["20261121T100009-vllm-00000009"]
    [setting] = found["settings"]
    fewest = setting["fewest_joules"]
    assert (fewest["point"]["split"], fewest["next_best"]["split"]) == ("one GPU", "TP=2")
    assert fewest["point"]["j_per_token"]["value"] == pytest.approx(5.975, rel=1e-3)
    assert "5.975 J/token" in called("scaling", "results").stdout
    assert [point["gpus"] for point in setting["points"]] == [1, 2, 4]
    assert setting["points"][2]["efficiency"]["value"] == pytest.approx(4**-0.1, rel=1e-3)
    failed = called("scaling", "20261121T100009")
    assert (failed.returncode, "status failed" in failed.stderr) == (2, True)


def test_results_are_listed_queried_and_exported(called: Called) -> None:
    """Three ways to look at the same results; whoever averages them can leave failures out."""
    store_golden(RESULTS, "fake-no-room", "fake-load-fails", "fake-plain")
    assert called("results", "list", "--where", "backend = 'fake'").stdout.endswith(
        "1 result; 2 failed: --all shows them\n"
    )
    assert called("results", "list", "--all").stdout.endswith("3 results\n")
    assert called("results", "list", "--all", "--where", "status = 'failed'").stdout.endswith("2 results\n")
    for condition in ("status = 'failed'", "STATUS <> 'ok'", "error_cause IS NOT NULL"):
        listed = called("results", "list", "--where", condition).stdout
        assert (listed.count("  failed  "), listed.endswith("2 results\n")) == (2, True), listed
    assert len(json.loads(called("results", "list", "--json", "--limit", "1").stdout)) == 1
    sql = "SELECT name, error_cause FROM results WHERE name = 'asked'"
    [asked] = json.loads(called("results", "query", sql, "--json").stdout)
    assert asked["error_cause"] == "KV cache too small"
    sql = "SELECT count(*) AS n FROM results JOIN passes USING (folder)"
    [joined] = json.loads(called("results", "query", sql, "--json").stdout)
    assert joined["n"] > 0
    assert called("results", "export", "--csv", "all.csv").stdout == "3 results written to all.csv\n"
    assert len(Path("all.csv").read_text().splitlines()) == 4


def test_whoever_reads_a_list_can_write_a_condition(study: Called) -> None:
    """Each column's name for `--where` stands below, in the order of the headings."""
    heading, *_, names, _ = study("results", "list").stdout.splitlines()
    names = names.partition("): ")[2]
    headings = [COLUMNS[name].heading for name in names.split(", ")]
    assert re.sub(" +", " ", heading.strip()) == " ".join(headings)
    for condition in ("batch_size > 0", "folder LIKE '%other-3'", f"study_id LIKE '%{STUDY[16:]}'", "name IS NOT NULL"):
        assert study("results", "list", "--where", condition).stdout != "no result\n", condition
    for words in (("list",), ("export", "--csv", "x.csv")):
        refused = study("results", *words, "batch_size > 0")
        assert (refused.returncode, "--where" in refused.stderr) == (ExitCode.CONFIG, True)


def test_a_condition_on_an_unknown_column_is_refused_with_the_names_of_the_list(study: Called) -> None:
    """Its headings are shorter."""
    refused = study("results", "list", "--where", "batch = 8")
    assert (refused.returncode, refused.stdout) == (2, "")
    names = ("name", "batch_size", "energy_per_output_token_j")
    assert all(word in refused.stderr for word in ('"batch"', "DESCRIBE results", *names))


def test_a_list_has_on_each_line_the_name_that_commands_take(study: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any width: what does not fit is left out from the right, which is said; of names that are alike, the time."""
    stored(RESULTS, name="20260102T000003-other-3", experiment_id="4" * 64)
    wide = study("results", "list").stdout.splitlines()
    for columns in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        heading, *rows, left_out, _, count = study("results", "list").stdout.splitlines()
        assert max(map(len, [heading, *rows])) <= columns
        assert [row.split()[0] for row in rows] == [row.split()[0] for row in wide[1:5]]
        assert "J/output token" in heading
        assert left_out.startswith("no room here for ")
        assert left_out.endswith("; --json has every column")
        assert count == "4 results"
    for row in rows:
        assert study("show", row.split()[0]).returncode == 0
    names = [row.split()[0] for row in rows]
    assert names == ["20260102T000003-other-3", "20260101T000003-other-3", "fake-2", "fake-1"]
    assert "two-sizes" in wide[3]


def test_what_failed_without_records_stands_beside_what_is_analysed_again(called: Called) -> None:
    """As without --again; a result that was measured and has lost its records is still refused."""
    [folder] = store_golden(RESULTS, "fake-full")
    was = json.loads((folder / "result.json").read_text())
    other = RESULTS / "other"
    shutil.copytree(folder, other)
    shutil.rmtree(other / "restarts")
    for status, code in (("failed", 0), ("ok", 7)):
        (other / "result.json").write_text(json.dumps(was | {"status": status, "experiment_id": "1" * 64}))
        done = called("report", RESULTS, "--again")
        assert done.returncode == code, done.stderr


def test_a_stored_verdict_is_audited_again_and_stays_as_it_was_stored(called: Called) -> None:
    """By the records, whatever result.json says; without them there is nothing to audit."""
    [folder] = store_golden(RESULTS, "fake-full")
    content = (folder / "result.json").read_text()
    was = json.loads(content)
    of_another_version = {**was, "audit": {**was["audit"], "publishable": True, "reasons": []}}
    (folder / "result.json").write_text(json.dumps(of_another_version))
    assert json.loads(called("show", folder, "--again", "--json").stdout) == [was]
    assert json.loads(called("show", folder, "--json").stdout) == [of_another_version]
    (folder / "restarts").rename(folder / "elsewhere")
    refused = called("show", folder, "--again")
    assert (refused.returncode, refused.stdout) == (7, "")
    assert f"{folder.name}/restarts " in refused.stderr


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"0": None}, "restarts missing or incomplete: 0"),
        ({"1": None}, "restarts missing or incomplete: 1"),
        ({"0": "2"}, "restarts too many: 0"),
        ({"1": None, "0": "1"}, "restarts missing or incomplete: 1; restarts too many: 0"),
    ],
)
def test_restarts_other_than_those_of_the_result_are_refused(
    called: Called, moved: dict[str, str | None], said: str
) -> None:
    """One that is gone with its folder would leave a figure of fewer restarts, and one too many would count twice."""
    [folder] = store_golden(RESULTS, "fake-full")
    restarts = folder / "restarts"
    for name, copy in moved.items():
        shutil.copytree(restarts / name, restarts / copy, dirs_exist_ok=True) if copy else shutil.rmtree(
            restarts / name
        )
    assert called("show", folder).returncode == 0
    error = f"{restarts} is not what result.json was made from ({said}); restore it from a copy"
    for command in (f"show {folder}", f"report {folder}", f"compare {folder} {folder}", "results list"):
        assert error in called(*command.split(), "--again").stderr, command
    with pytest.raises(StoreError) as raised:
        wattdock.load(folder, again=True)
    assert str(raised.value) == error
    with pytest.raises(StoreError):
        wattdock.load(folder)[0].requests()


@pytest.mark.parametrize("part", ["passes", "spans"])
def test_a_record_that_lost_a_pass_or_a_span_is_refused(called: Called, part: str) -> None:
    """Its tables have their rows by position, and would not all notice."""
    [folder] = store_golden(RESULTS, "fake-full")
    file = folder / "restarts/1/record.json"
    plain = json.loads(file.read_text())
    del plain[part][-1]
    file.write_text(json.dumps(plain))
    done = called("show", folder, "--again")
    assert (done.returncode, done.stdout) == (7, "")
    assert "restarts missing or incomplete: 1" in done.stderr


def test_clocks_of_a_run_are_shown(called: Called) -> None:
    """In a report, the restart that went on after a reboot."""
    [rebooted] = store_golden(RESULTS, "fake-other-boot")
    assert called("report", rebooted, "-o", "report.html").returncode == 0
    assert "1, resumed" in Path("report.html").read_text()


def test_the_documented_query_compares_the_tokens_of_two_results(called: Called) -> None:
    """A result generated the same as itself, request by request."""
    [folder] = store_golden(RESULTS, "fake-replicas")
    sql = next(line for line in HOW_TO.read_text().splitlines() if "b.output_ids" in line).split('"')[1]
    sql = sql.replace("%-pytorch-%", f"%{folder.name}").replace("%-vllm-%", f"%{folder.name}")
    [counts] = json.loads(called("results", "query", sql, "--json").stdout)
    assert counts["requests"] == counts["identical"] > 0
