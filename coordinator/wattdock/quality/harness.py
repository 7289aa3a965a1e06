"""Tasks of lm-evaluation-harness, whose prompts, filters and metrics are its own; the engine's answers are ours.

Nothing is fetched: data come from a folder or from what the Hugging Face cache holds.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError, WattdockError
from wattdock.files import expanded
from wattdock.quality.bundled import drawn, questions
from wattdock.quality.task import Prompt, Score, Task
from wattdock.text import json_text, nearest, strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.quality.task import Engine

# Items of a task in a group are numbered from a multiple of this.
MOST_ITEMS = 1_000_000
# Keys of a document that name its part of the task.
CATEGORIES = ("category", "subject", "subtask")
# Kinds of tasks: those that generate, and those that need probabilities of given answers, which these backends tell.
GENERATES, NEEDS_LIKELIHOODS = "generate_until", ("loglikelihood", "multiple_choice")
TELL_LIKELIHOODS = ("pytorch", "vllm")


@dataclass(frozen=True)
class HarnessTask(Task):
    """A task, or a group of tasks, that the harness has loaded.

    Attributes:
        loaded: What its `TaskManager.load` returned.
        samples: Which documents are asked, by task.
        seed: Draws the examples.
    """

    loaded: Mapping[str, Any]
    samples: Mapping[str, list[int]]
    seed: int
    chat: bool
    max_output_tokens: int

    @classmethod
    def of(cls, name: str, config: ExperimentConfig) -> HarnessTask:
        """Load a task and its data.

        Raises:
            ConfigError: The harness is not installed, has no such task, or cannot load it or its data; or the task
                asks for what no engine here gives.
        """
        spec = config.quality
        assert spec
        with _harness(f"quality.tasks: {name}"):
            loaded, digest = _loaded(name, spec.folder and expanded(spec.folder).absolute(), spec.few_shot)
            leaves = loaded["tasks"].values()
            for kind in {task.OUTPUT_TYPE for task in leaves} - {GENERATES}:
                _require_likelihoods(kind, config)
        samples = {leaf: drawn(len(task.eval_docs), spec.limit, spec.seed) for leaf, task in loaded["tasks"].items()}
        return cls(
            name=name,
            version=", ".join([*sorted({str(task.VERSION) for task in leaves}), digest]),
            few_shot=max(task.get_config("num_fewshot") for task in leaves),
            items=sum(map(len, samples.values())),
            runs_code=False,
            loaded=loaded,
            samples=samples,
            seed=spec.seed,
            chat=spec.chat,
            max_output_tokens=spec.max_output_tokens,
        )

    def evaluate(self, engine: Engine) -> list[Score]:
        """Ask the engine every item, and score its answers by the first metric of the task's first filter."""
        with _harness(f"quality.tasks: {self.name}"):
            import lm_eval

            asked, answering = dict[tuple[str, int], list[tuple[int, int]]](), _model(self, engine)
            # Each restart draws the same examples.
            for task in self.loaded["tasks"].values():
                task.set_fewshot_seed(seed=self.seed)
            found = lm_eval.evaluate(
                lm=answering,
                task_dict=self.loaded,
                samples=dict(self.samples),
                apply_chat_template=self.chat,
                fewshot_as_multiturn=self.chat,
                bootstrap_iters=0,
            )
            for leaf, task in self.loaded["tasks"].items():
                for instance in task.instances:
                    place = (leaf, self.samples[leaf][instance.doc_id])
                    asked.setdefault(place, []).extend(answering.requests[id(instance)])
            return [
                Score(
                    number * MOST_ITEMS + each["doc_id"],
                    self._category(leaf, each["doc"]),
                    _value(self.loaded["tasks"][leaf], each),
                    tuple(asked[leaf, each["doc_id"]]),
                )
                for number, (leaf, of_leaf) in enumerate(found["samples"].items())
                for each in of_leaf
                if each["filter"] == of_leaf[0]["filter"]
            ]

    def _category(self, leaf: str, document: Mapping[str, Any]) -> str:
        of_document = (str(document[key]) for key in CATEGORIES if document.get(key))
        return leaf if len(self.samples) > 1 else next(of_document, leaf)


def _value(task: Any, sample: Mapping[str, Any]) -> float:
    name = sample["metrics"][0]
    value = sample[name]
    rises = task.higher_is_better().get(name) is not False
    if not rises or not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise ConfigError(f"its metric {name} gives no item a value from 0, wrong, to 1, right", "take another task")
    return float(value)


def _model(task: HarnessTask, engine: Engine) -> Any:
    """Return the harness's view of an engine.

    Source: lm_eval 0.4.13, `api.model.LM`; that a chat template may leave messages for later is `JsonChatStr` of its
    `models.api_models`.
    """
    from lm_eval.api.model import LM

    class Answering(LM):  # type: ignore[misc, unused-ignore]
        """Answers what the harness asks; `requests` holds where each instance's answers are."""

        requests = defaultdict[int, list[tuple[int, int]]](list)  # noqa: RUF012

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            if not add_generation_prompt:
                raise ConfigError(
                    "it begins the model's answer, which chat templates cannot", "set quality.chat: false"
                )
            return json_text(chat_history)

        @property
        def tokenizer_name(self) -> str:
            return "the runner's"

        def generate_until(self, requests: list[Any]) -> list[str]:
            groups, said = defaultdict[tuple[str, ...], list[int]](list), dict[int, str]()
            for at, request in enumerate(requests):
                groups[_stops(request.args[1])].append(at)
            for stops, places in groups.items():
                prompts = [_prompt(task, *requests[at].args) for at in places]
                for at, answer in zip(places, engine.generate(prompts, stops), strict=True):
                    said[at] = answer.said
                    self.requests[id(requests[at])].append(answer.request)
            return [said[at] for at in range(len(requests))]

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            found = engine.likelihoods([request.args for request in requests])
            for request, each in zip(requests, found, strict=True):
                self.requests[id(request)].append(each.request)
            return [(each.logarithm, each.is_greedy) for each in found]

        def loglikelihood_rolling(self, _: list[Any]) -> list[float]:
            raise NotImplementedError

    return Answering()


def _require_likelihoods(kind: str, config: ExperimentConfig) -> None:
    """Refuse a task that needs what cannot be told of given answers."""
    if kind not in NEEDS_LIKELIHOODS or config.backend not in TELL_LIKELIHOODS:
        what = f"it needs probabilities of given texts ({kind}), which {config.backend} does not tell"
        raise ConfigError(what, "take a task that generates, such as gsm8k")
    if config.quality and config.quality.chat:
        raise ConfigError(
            "it needs probabilities of given answers, and chat templates hide them", "quality.chat: false"
        )


def _stops(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what ends an answer; refuse answers that are drawn."""
    if settings.get("do_sample") and settings.get("temperature", 1.0):
        raise ConfigError("it draws its answers at random, and here they are greedy", "take another task")
    until = settings.get("until") or ()
    return tuple(text for text in ([until] if isinstance(until, str) else until) if text)


def _prompt(task: HarnessTask, context: str, settings: Mapping[str, Any]) -> Prompt:
    limit = min(settings.get("max_gen_toks") or task.max_output_tokens, task.max_output_tokens)
    if not task.chat:
        return Prompt(context, limit)
    return Prompt(tuple((turn["role"], turn["content"]) for turn in strict_json(context)[0]), limit)


@cache
def _manager(folder: Path | None) -> Any:
    """Return what knows the tasks of a folder, or without one those of the harness, which takes many seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=folder and str(folder), include_defaults=folder is None)


@cache
def _loaded(name: str, folder: Path | None, few_shot: int | None) -> tuple[Mapping[str, Any], str]:
    """Return a task or group with its data, and a hash of its items, loaded once: no GPU waits for that."""
    own = _manager(folder)
    manager = own if name in own.all_tasks else _manager(None)
    if name not in manager.all_tasks:
        near = nearest(name, [*questions(), *own.all_tasks, *manager.all_tasks])
        write = f"write {near}" if near else "see `lm-eval ls tasks`, or set quality.folder"
        raise ConfigError("lm-evaluation-harness has no such task", write)
    with _data_in(folder) if folder and manager is own else nullcontext():
        found: Mapping[str, Any] = manager.load([name])
    items = hashlib.sha256()
    for leaf, task in found["tasks"].items():
        documents = [*task.eval_docs]
        # A function counts by what it makes of the items.
        parts = (task.config.doc_to_text, task.config.doc_to_target, task.config.doc_to_choice)
        made = [list(map(part, documents)) if callable(part) else part for part in parts]
        items.update(repr((leaf, documents, made, str(task.config.description))).encode())
        if task.get_config("unsafe_code") or getattr(task, "UNSAFE_CODE", False):
            raise ConfigError(f"quality.tasks: {leaf} runs code outside of a sandbox", "take the task code")
        if task.get_config("num_fewshot") is None or few_shot is not None:
            task.set_config(key="num_fewshot", value=few_shot or 0)
    return found, items.hexdigest()[:8]


@contextmanager
def _data_in(folder: Path) -> Iterator[None]:
    """Have data that tasks of a folder name looked for in that folder alone: a bundle holds it."""
    import datasets

    load = datasets.load_dataset

    def load_inside(path: str, name: str | None = None, **more: Any) -> Any:
        for key in more.keys() & {"data_files", "data_dir"}:
            more[key] = _inside(folder, more[key])
        return load(path, name, **more)

    datasets.load_dataset = load_inside
    try:
        yield
    finally:
        datasets.load_dataset = load


def _inside(folder: Path, names: Any) -> Any:
    """Return the paths of names of data, which are relative to a folder or begin with its name."""
    if isinstance(names, Mapping):
        return {key: _inside(folder, name) for key, name in names.items()}
    if isinstance(names, list | tuple):
        return [_inside(folder, name) for name in names]
    parts = PurePath(str(names)).parts
    if names and (PurePath(str(names)).is_absolute() or ".." in parts):
        raise ConfigError(
            f"it names {names}, and data lie in quality.folder", "put them there, and write a relative path"
        )
    return names and str(folder.joinpath(*parts[parts[:1] == (folder.name,) :]))


@contextmanager
def _harness(what: str) -> Iterator[None]:
    """Let the harness do something without a network and without its own words; what goes wrong is told in one line."""
    for name in ("HF_DATASETS_OFFLINE", "TQDM_DISABLE"):
        os.environ.setdefault(name, "1")
    try:
        # First: `wattdock.__main__` lets nobody import pandas before.
        import lm_eval  # noqa: F401, I001
        import datasets
        import huggingface_hub.constants as hub
    except ImportError as error:
        missing = f"{what} is no bundled task, and lm-evaluation-harness is not installed ({error})"
        raise ConfigError(missing, f"pip install 'wattdock[quality]', or write {' or '.join(questions())}") from error
    before, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    datasets.config.HF_HUB_OFFLINE = True
    datasets.disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error.what}" if what not in error.what else error.what, error.remedy) from error
    except WattdockError:
        raise
    except Exception as error:  # a task is code of its own, which may raise anything
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"{what}: cannot be loaded or scored ({line})", "see the task's file; its data must be here already"
        ) from error
    finally:
        hub.HF_HUB_OFFLINE = before
