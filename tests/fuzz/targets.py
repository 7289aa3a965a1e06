"""What is fuzzed: valid files as wattdock makes them, what reads them, and what of them is changed.

A target's `run` gets a folder of changed files and must end with a result or with a `WattdockError`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.commands import REFUSALS, chosen, command, content_of, run_virtual
from fuzz.folders import (
    TOKENIZER_FILES,
    config_seeds,
    run_config,
    run_tokenizer,
    run_weights,
    tokenizer_seeds,
    weight_seeds,
)
from fuzz.mutators import Files, files
from fuzz.scripted import run_runner, runner_seeds
from hypothesis import strategies as st
from make import models as tiny
from make.machine import VirtualMachine, experiment, study
from make.snapshot import Snapshot
from make.stored import bundled, store_golden, unpacked
from seams.live import exposition
from seams.publish import sums_of
from seams.study import PassFinished
from wattdock_llamacpp_weights import weights_of

from wattdock.files import locked
from wattdock.live import Feed
from wattdock.study import events
from wattdock.text import json_text
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import SearchStrategy


HERE = Path(__file__).parent
# Small ones, of every kind.
GOLDEN = ("fake-plain", "fake-full", "fake-replicas", "fake-interrupted-1", "fake-load-fails", "fake-strangers")


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        seeds: Makes valid inputs in an empty folder.
        run: Reads an input that lies in a folder.
        changed: Names of the files to change; see `mutators.files`.
    """

    seeds: Callable[[Path], list[Files]]
    run: Callable[[Path], None]
    changed: Sequence[str] = ()

    def inputs(self, seeds: Sequence[Files]) -> SearchStrategy[Files]:
        """Return the strategy of changed inputs."""
        # Drawn, not given: a failure's message would hold all of them.
        return st.builds(lambda: (seeds, self.changed)).flatmap(lambda given: files(*given))


# ---- Studies


def study_seeds(folder: Path) -> list[Files]:
    """A file of each of the examples' kinds, with prompts of its own."""
    prompts = b'{"token_ids": [3]}\n{"token_ids": [1, 2], "max_output_tokens": 3}\n'
    texts = [path.read_bytes() for path in sorted((HERE.parents[1] / "examples").glob("*.yaml"))]
    own = {"backend": "fake", "workload": {"prompts": "prompts.jsonl", "batch_size": 2}}
    replayed = {**own, "workload": {"prompts": "trace.jsonl", "arrival": "trace", "min_requests": 2}}
    swept = {"defaults": own, "sweep": {"workload.batch_size": [1, 2], "fake.step_s": [0.1]}, "order": "shuffled"}
    lengths = ((5, 3, 2), (6.5, 4, 1))
    trace = b"".join(
        _json(dict(zip(("arrival_s", "input_tokens", "output_tokens"), of, strict=True))) + b"\n" for of in lengths
    )
    files = {"prompts.jsonl": prompts, "trace.jsonl": trace}
    return [{"study.yaml": text, **files} for text in (*texts, *map(_json, (own, replayed, swept)))]


def _json(plain: object) -> bytes:
    return json.dumps(plain).encode()


def run_study(folder: Path) -> None:
    command(folder, "plan", "study.yaml", "--launcher", "process", *chosen(folder, [(), ("--json",)]))


# ---- Results


def result_seeds(folder: Path) -> list[Files]:
    """Results as the store writes them."""
    for place in store_golden(folder / "results", *GOLDEN):
        shutil.rmtree(place / "restarts")
    stored = content_of(folder)
    results = [name for name in stored if name.endswith("result.json")]
    # One is changed; the other stays beside it.
    return [{"results/a/result.json": stored[name], "results/b/result.json": stored[results[0]]} for name in results]


def run_result(folder: Path) -> None:
    command(folder, "show", "results/a")
    command(folder, "results", "list")
    words = (
        ("show", "results/a", "--json"),
        ("show", "results"),
        ("compare", "results/a", "results/b"),
        ("scaling", "results"),
        ("results", "query", "SELECT * FROM results, passes"),
        ("results", "export", "--parquet", "x.parquet"),
        ("report", "results", "-o", "x.html"),
        ("plot", "intervals", "results", "-o", "x.svg"),
        ("plot", "pareto", "results", "-o", "x.svg"),
        ("plot", "table", "results", "-o", "x.tex"),
    )
    command(folder, *chosen(folder, words))


# ---- Records of restarts


def record_seeds(folder: Path) -> list[Files]:
    """A result with the records of its restarts."""
    places = store_golden(folder / "results", *GOLDEN)
    return [{f"results/a/{name}": data for name, data in content_of(place).items()} for place in places]


RECORDS = ("record.json", "record.json", "requests.parquet", "steps.parquet", "timeline.parquet")


def run_records(folder: Path) -> None:
    command(folder, "show", "results/a", "--again")
    words = (
        ("results", "query", "SELECT count(*), max(value) FROM timeline"),
        ("results", "query", "SELECT * FROM requests, steps LIMIT 100"),
        ("report", "results", "-o", "x.html"),
        ("plot", "timeline", "results", "-o", "x.svg"),
        ("bundle", "create", "results/a", "-o", "x.tar"),
    )
    command(folder, *chosen(folder, words))


# ---- A study that is resumed

PAIR = study(*(experiment(f"{step}", fake={"step_s": step}, repeats={"restarts": 2}) for step in (0.5, 1.0)))


def journal_seeds(folder: Path) -> list[Files]:
    """A study that was killed after its third pass, one that is done, and one with a failure."""
    killed, failed = VirtualMachine(folder / "killed"), VirtualMachine(folder / "failed", load_fault="die")
    copy = folder / "copy"
    killed.run(PAIR, on=Snapshot(killed, PassFinished, 6, copy))
    failed.run(PAIR)
    stored = [content_of(place / "results") for place in (copy, killed.folder, failed.folder)]
    return [{f"results/{name}": data for name, data in files.items()} for files in stored]


def run_journal(folder: Path) -> None:
    run_virtual(VirtualMachine(folder), PAIR, resume=True, retry_failed=chosen(folder, [True, False]))


# ---- Bundles


def bundle_seeds(folder: Path) -> list[Files]:
    """A bundle of one result, as a file and unpacked."""
    [place] = store_golden(folder / "results", GOLDEN[0])
    bundled(place, folder / "b.tar")
    top = unpacked(folder / "b.tar", folder / "out")
    return [{"b.tar": (folder / "b.tar").read_bytes()}, {f"b/{k}": v for k, v in content_of(top).items()}]


def run_bundle(folder: Path) -> None:
    what = "b.tar" if (folder / "b.tar").exists() else "b"
    if what == "b" and (folder / "b").is_dir():
        # Whoever changes a file can change the list, too.
        inside = {name: data for name, data in content_of(folder / "b").items() if name != "SHA256SUMS"}
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in inside.items()}
        (folder / "b/SHA256SUMS").write_text(sums_of(hashes), encoding="utf-8", errors="surrogateescape")
    command(folder, "bundle", "verify", what)
    command(folder, *chosen(folder, [("report", what, "-o", "x.html"), ("show", what)]))


# ---- Models


def gguf_seeds(folder: Path) -> list[Files]:
    """A model as small as one can be, for the runner's reader."""
    return [{"x.gguf": tiny.gguf_file(folder / "x.gguf").read_bytes()}]


def run_gguf(folder: Path) -> None:
    if (folder / "x.gguf").exists():
        try:
            weights_of(folder / "x.gguf")
        except InvalidRequest as error:
            REFUSALS.append(str(error))


# ---- Prompts


def prompt_seeds(folder: Path) -> list[Files]:
    """A file of each form: JSON lines and a JSON array, of texts, ids, messages and lengths."""
    messages = [{"role": "user", "content": "a"}]
    records: list[list[dict[str, Any]]] = [
        [{"prompt": "a"}, {"prompt": "b c", "max_output_tokens": 3}],
        [{"token_ids": [3]}, {"token_ids": [1, 2]}],
        [{"messages": messages}],
        [{"arrival_s": 0, "input_tokens": 700, "output_tokens": 2}],
    ]
    files = [b"\n".join(map(_json, rows)) for rows in records]
    files += [_json(records[0]), _json(records[3])]
    own = {"backend": "fake", "workload": {"prompts": "prompts.jsonl", "batch_size": 1}}
    return [{"study.yaml": _json(own), "prompts.jsonl": content} for content in files]


def run_prompts(folder: Path) -> None:
    command(folder, "plan", "study.yaml", "--launcher", "process")


# ---- Events of another user's run

STUDY_OF_EVENTS = "results/studies/20260101T000000-s-1"
EVENT_LOG = f"{STUDY_OF_EVENTS}/records/events.jsonl"


def event_seeds(folder: Path) -> list[Files]:
    """What a run writes for those who watch it, whole and begun."""
    happened = (
        events.StudyStarted("s-1", None, 0, 2, 2, "9 s"),
        events.RestartStarted("batch 8", 1, 3, 2, 2, "9 s", ("GPU-1",)),
        events.IdleStarted("idle-loaded-before", 30),
        events.PassStarted("pass 1/2", 10.0, 4000),
        events.TokensSeen("pass 1/2", 10, 1.0, {"GPU-1": 300.0, "GPU-2": None}),
        events.ExperimentFailed("batch 8", "pass 2/2", "RunnerError", "it died", None),
        events.ResultStored("batch 8", "ab", "failed", Path("results/x")),
    )
    lines = [json_text(events.as_line(event), default=str).encode() + b"\n" for event in happened]
    return [{EVENT_LOG: b"".join(lines)}, {EVENT_LOG: b"".join(lines[:5])}]


def run_events(folder: Path) -> None:
    (folder / STUDY_OF_EVENTS).mkdir(parents=True, exist_ok=True)
    with locked(folder / STUDY_OF_EVENTS / ".lock"):
        # Not at GPUs, which takes most of the time.
        feed = Feed(folder / "results", _asked_s=float("inf"))
        feed.look()
    update, scraped = json_text(feed.now()), exposition(feed)
    assert (len(feed.runs), len(update) < 2_000_000, len(scraped) < 100_000) == (1, True, True)


TARGETS = {
    "study": Target(study_seeds, run_study),
    "result": Target(result_seeds, run_result, ["results/a/result.json"]),
    "records": Target(record_seeds, run_records, [f"results/a/restarts/0/{name}" for name in RECORDS]),
    "journal": Target(journal_seeds, run_journal),
    "bundle": Target(bundle_seeds, run_bundle),
    "config": Target(config_seeds, run_config, ["m/config.json"] * 4 + ["m/generation_config.json"]),
    "weights": Target(weight_seeds, run_weights),
    "tokenizer": Target(tokenizer_seeds, run_tokenizer, TOKENIZER_FILES),
    "gguf": Target(gguf_seeds, run_gguf),
    "prompts": Target(prompt_seeds, run_prompts, ["prompts.jsonl"]),
    "events": Target(event_seeds, run_events, [EVENT_LOG]),
    "runner": Target(runner_seeds, run_runner),
}
