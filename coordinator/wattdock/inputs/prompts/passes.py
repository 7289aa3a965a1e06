"""The prompts of one pass: pick them from a source, draw token ids and output limits."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError
from wattdock.inputs.prompts.draws import arrival_instants, conversations, mean_gap, with_ids
from wattdock.inputs.prompts.source import PromptSummary, Source, read_source
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from wattdock.config import ExperimentConfig, WorkloadSpec
    from wattdock.inputs.prompts.formats import Item

# What is drawn for a pass: each number seeds a generator of its own.
IDS, LENGTHS, LIMITS, ARRIVALS, HISTORY, SAMPLING = range(6)

# The restart and the pass of a draw, and more numbers that tell draws apart.
Draw = tuple[int, ...]


class Lengths(NamedTuple):
    """Tokens of a pass's prompts, or of its answers at most."""

    mean: float
    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.mean:.0f} ({self.least} to {self.most})"


@dataclass(frozen=True)
class PromptSet:
    """What one pass sends, in order.

    Attributes:
        items: Text, a chat, or token ids.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        first_output_tokens: Limits of the pass's first requests, in place of their items' own; empty without a
            staggered start. Once, however often the items repeat.
        sha256: Of the whole source, not of this selection: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        arrivals_ns: When each request of an open loop arrives, from the pass's start; empty for other kinds.
        repeated_tokens: Per item, how many tokens at its start an earlier item of a conversation held; None without
            conversations.
        means: Mean tokens of a prompt and of an answer's limit, over the whole source or of what they are drawn from;
            None for prompts of text.
        context_tokens: Mean over answers, likewise, of the positions before each of its tokens but the first; None
            where prompts are text or conversations.
        gap_s: Mean time between arrivals over a whole trace, at its speed; None without a trace.
        declares_answers: Limits are the lengths that answers are to have, as those of a trace or a distribution.
        seed: With which an engine samples the answers, below 2**31.
        first_line, lines: Place of the first item in the order in which passes go through a file or the bundled set,
            its neighbours follow it; and how many places that order has, None where prompts are synthetic.
    """

    items: tuple[Item, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str
    means: tuple[float | None, float]
    context_tokens: float | None = None
    gap_s: float | None = None
    declares_answers: bool = False
    seed: int = 0
    arrivals_ns: tuple[int, ...] = ()
    repeated_tokens: tuple[int, ...] | None = None
    first_output_tokens: tuple[int, ...] = ()
    first_line: int = 0
    lines: int | None = None

    @property
    def texts_sha256(self) -> str:
        """Hash of the texts and chats among the items, in order."""
        texts = [item for item in self.items if not isinstance(item, array)]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def cacheable_tokens(self, requests: int) -> int | None:
        """Return how many prompt tokens of the first requests a prefix cache is meant to hold; None if it is not.

        When the list repeats, as much as the first time, though a cache then holds all: that is not what was declared.
        """
        if (repeated := self.repeated_tokens) is None:
            return None
        rounds, rest = divmod(requests, len(repeated))
        return rounds * sum(repeated) + sum(repeated[:rest])

    def due(self, after_ns: int) -> int | None:
        """Return how many requests of an open loop have arrived by an instant after the pass's start; else None."""
        return bisect_right(self.arrivals_ns, after_ns) if self.arrivals_ns else None

    @staticmethod
    def lengths(config: ExperimentConfig) -> tuple[Lengths | None, Lengths]:
        """Return how long prompts and answers are, as a file or the settings say; None for prompts of text.

        Raises:
            ConfigError: The file cannot be read.
        """
        return _lengths(config, read_source(config, None))

    @staticmethod
    def least_requests(config: ExperimentConfig) -> int:
        """Return the least number of requests in a pass.

        Raises:
            ConfigError: The file cannot be read.
        """
        return _least_requests(config.workload, read_source(config, None))

    @staticmethod
    def summary(config: ExperimentConfig) -> PromptSummary:
        """Return what an experiment will send, without drawing ids.

        Raises:
            ConfigError: The source cannot be read or used.
        """
        work, source = config.workload, read_source(config, None)
        requests = _least_requests(work, source)
        arrivals_ns = _arrivals(work, source, (0, 0), requests, work.min_duration_s)
        requests, at_least = len(arrivals_ns) or requests, bool(work.min_duration_s and not arrivals_ns)
        sent = f"{'at least ' if at_least else ''}{pluralize(requests, 'request')} per pass"
        if arrivals_ns:
            span_s = arrivals_ns[-1] / NS_PER_S
            sent += f" in {span_s:.5g} s" + (f" ({requests / span_s:.3g} per s)" if span_s else "")
        if source is None:
            return PromptSummary(sent)
        _, picked = _picked(work, source, 0, (0, 0), arrivals=len(arrivals_ns), vocab_size=None)
        prompts, count = len({*picked}), len(source.items)
        of_all = f"{prompts:,} of " if prompts < count else ""
        parts = [sent, f"{of_all}{pluralize(count, 'prompt')} (format: {source.format})"]
        if not at_least and requests > prompts:
            parts.append(f"each is sent {requests / prompts:.3g} times in a pass")
        if source.ignored:
            parts.append(f"ignored: {', '.join(source.ignored)}")
        return PromptSummary("; ".join(parts), source.format, source.ignored)


def load_prompts(
    config: ExperimentConfig,
    *,
    pass_index: int,
    restart: int = 0,
    vocab_size: int | None = None,
    min_requests: int = 1,
    min_duration_s: float | None = None,
) -> PromptSet:
    """Return the prompts of one pass with their output limits and arrivals; equal arguments give equal prompts.

    No pass of a restart repeats another's prompts while the source has unused ones: passes take consecutive slices of
    one seeded permutation of a bundled set or a file, and differently seeded draws of ids. Each restart draws for
    itself; texts and files are the same in all. Warm-up passes, which follow the measured ones, all draw the same
    lengths and arrivals, so that their work is the same.

    Args:
        pass_index: From 0; every pass that must not see another's prompts has its own, warm-up included.
        restart: From 0. Experiments with equal settings and seeds draw the same in restarts of one number.
        vocab_size: Ids are below it; needed for synthetic prompts, and checked against where a file holds ids.
        min_requests, min_duration_s: Of the pass; an open loop has as many arrivals as these need.

    Raises:
        ConfigError: The source cannot be read or used; the message names file and line.
    """
    work, draw = config.workload, (restart, min(pass_index, config.repeats.passes))
    source = read_source(config, vocab_size)
    arrivals_ns = _arrivals(work, source, draw, min_requests, min_duration_s)
    prompt_lengths, answer_lengths = _lengths(config, source)
    context_tokens = _context_tokens(work, source)
    gap_s = mean_gap(source.arrivals_s) / (work.trace_speed or 1) if source and work.arrival == "trace" else None
    lines = len(source.items) if source else None
    source, picked = _picked(work, source, pass_index, draw, arrivals=len(arrivals_ns), vocab_size=vocab_size)
    # A trace begins anew in each pass, another list goes on.
    first_line = pass_index * len(picked) % lines if lines and work.arrival != "trace" else 0
    limits, first_limits = output_limits([source.max_output_tokens[i] for i in picked], work, draw)
    items, repeated = _with_ids(config, source, picked, limits, (restart, pass_index), vocab_size=vocab_size)
    is_trace = config.prompts.file is not None and all(isinstance(item, int) for item in source.items)
    return PromptSet(
        items=items,
        max_output_tokens=limits,
        sha256=source.sha256,
        name=source.name,
        means=(prompt_lengths.mean if prompt_lengths else None, answer_lengths.mean),
        context_tokens=context_tokens,
        gap_s=gap_s,
        declares_answers=is_trace or not isinstance(work.max_output_tokens, int),
        seed=int(_generator(work, (restart, pass_index), SAMPLING).integers(1 << 31)),
        arrivals_ns=arrivals_ns,
        repeated_tokens=repeated,
        first_output_tokens=first_limits,
        first_line=first_line,
        lines=lines,
    )


def _least_requests(work: WorkloadSpec, source: Source | None) -> int:
    return len(source.items) if source and work.sends_whole_file else work.requests_per_pass


def _picked(
    work: WorkloadSpec, source: Source | None, pass_index: int, draw: Draw, *, arrivals: int, vocab_size: int | None
) -> tuple[Source, Sequence[int]]:
    """Return a source, drawn for the pass where prompts are synthetic, and which of its items the pass sends."""
    count = work.prompts.count or arrivals or work.prompts_per_pass
    if source and work.sends_whole_file:
        count = len(source.items)
    if source is None:
        length = work.prompts.input_tokens
        tokens = length if isinstance(length, int) else length.model_dump(mode="json")
        # Ids are uniform over the whole vocabulary.
        recipe = {"ids": "uniform", "generator": "PCG64", "seed": work.seed, "vocab_size": vocab_size, "tokens": tokens}
        items = tuple(work.prompts.input_lengths.draw(count, _generator(work, draw, LENGTHS)))
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        return Source(items, (None,) * count, digest, f"synthetic-{length}"), range(count)
    if work.arrival == "trace":
        return source, [i % len(source.items) for i in range(arrivals)]
    order = np.random.Generator(np.random.PCG64(work.seed)).permutation(len(source.items))
    return source, [int(order[i % len(order)]) for i in range(pass_index * count, (pass_index + 1) * count)]


def _with_ids(
    config: ExperimentConfig,
    source: Source,
    picked: Sequence[int],
    limits: Sequence[int | None],
    draw: Draw,
    *,
    vocab_size: int | None,
) -> tuple[tuple[Item, ...], tuple[int, ...] | None]:
    """Return a pass's prompts with ids in place of lengths, and how many of their tokens earlier prompts held."""
    work = config.workload
    if config.section.caches_prefixes:
        # The prefix cache of a shared runner must not serve one experiment what it computed for another.
        settings = [config.workload.model_dump(mode="json"), config.section.model_dump(mode="json")]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).digest()
        draw = (*draw, int.from_bytes(digest[:4], "big"))
    items: Sequence[Item | int] = [source.items[i] for i in picked]
    prompts = with_ids(items, _generator(work, draw, IDS), vocab_size)
    if not work.prompts.repeats_tokens:
        return prompts, None
    answers = [limit or work.output_lengths.max for limit in limits]
    history: Any = with_ids([work.prompts.shared_prefix_tokens, *answers], _generator(work, draw, HISTORY), vocab_size)
    said: Any = list(zip(prompts, history[1:], strict=True))
    # Twice as many conversations abreast as requests are in flight: a turn rarely waits for the turn before it.
    return conversations(said, history[0], turns=work.prompts.turns, abreast=2 * work.batch_size)


def _lengths(config: ExperimentConfig, source: Source | None) -> tuple[Lengths | None, Lengths]:
    work = config.workload
    new, answers = (
        Lengths(each.mean_tokens, each.min, each.max) for each in (work.prompts.input_lengths, work.output_lengths)
    )
    if source is None:
        turns, prefix = work.prompts.turns, work.prompts.shared_prefix_tokens
        prompts = Lengths(
            prefix + new.mean * (turns + 1) / 2 + answers.mean * (turns - 1) / 2,
            prefix + new.least,
            prefix + new.most * turns + answers.most * (turns - 1),
        )
        return prompts, answers
    known, limits = source.prompt_tokens, source.max_output_tokens
    answers = Lengths(
        fmean(answers.mean if limit is None else limit for limit in limits),
        min(answers.least if limit is None else limit for limit in limits),
        max(answers.most if limit is None else limit for limit in limits),
    )
    return Lengths(fmean(known), min(known), max(known)) if known else None, answers


def _context_tokens(work: WorkloadSpec, source: Source | None) -> float | None:
    """Return the mean over answers of p · (o − 1) + o · (o − 1) ÷ 2, at p tokens of a prompt and o of an answer."""
    prompts, answers = work.prompts.input_lengths, work.output_lengths
    if work.prompts.repeats_tokens:
        return None
    pairs: list[tuple[float, int | None]] = [(prompts.mean_tokens, None)]
    if source:
        known = source.prompt_tokens
        pairs = list(zip(known, source.max_output_tokens, strict=True)) if known else []
    each = []
    for prompt, limit in pairs:
        mean, square = (answers.mean_tokens, answers.mean_square) if limit is None else (limit, limit**2)
        each.append(prompt * (mean - 1) + (square - mean) / 2)
    return fmean(each) if each else None


def _arrivals(
    work: WorkloadSpec, source: Source | None, draw: Draw, min_requests: int, min_duration_s: float | None
) -> tuple[int, ...]:
    return arrival_instants(
        work,
        source.arrivals_s if source else (),
        min_requests=min_requests,
        min_duration_s=min_duration_s or 0.0,
        generator=_generator(work, draw, ARRIVALS),
    )


def output_limits(
    own: Sequence[int | None], work: WorkloadSpec, draw: Draw
) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """Return the output limit of each prompt of a pass, None for the workload's, and those of a staggered start.

    Equal arguments give equal limits.

    Args:
        own: What the source says of each prompt; None is drawn.

    Returns:
        A limit for each prompt, and one for each of the first requests: an even share of its prompt's limit, 1 at
        least, in a drawn order.
    """
    if isinstance(work.max_output_tokens, int) and not work.staggered_start:
        return tuple(own), ()
    generator = _generator(work, draw, LIMITS)
    drawn = work.output_lengths.draw(len(own), generator)
    limits = tuple(length if limit is None else limit for limit, length in zip(own, drawn, strict=True))
    if not work.staggered_start:
        return limits, ()
    shares = (generator.permutation(work.batch_size) + 1) / work.batch_size
    return limits, tuple(max(1, round(limits[i % len(limits)] * share)) for i, share in enumerate(shares.tolist()))


def check_prompts(config: ExperimentConfig, *, has_tokenizer: bool = True, vocab_size: int | None = None) -> str | None:
    """Check the source of an experiment's prompts before anything is started.

    Args:
        has_tokenizer: Whether the model can take text.
        vocab_size: As in `load_prompts`; None leaves ids unchecked.

    Returns:
        The SHA-256 of a prompts file; None where prompts come from no file.

    Raises:
        ConfigError: The source cannot be read, or holds text that the model cannot take, or an open loop's arrivals
            cannot be had, or a pass has too few requests for its batch.
    """
    work = config.workload
    source = read_source(config, vocab_size)
    _arrivals(work, source, (0, 0), work.requests_per_pass, work.min_duration_s)
    if source and not has_tokenizer and any(isinstance(item, (str, tuple)) for item in source.items):
        raise ConfigError(
            f"prompts {source.name!r} are text and the model has no tokenizer", "set workload.prompts.source: synthetic"
        )
    few, batch = _least_requests(work, source), work.batch_size
    if few < batch and work.loop in ("batch", "closed") and not work.min_duration_s:
        what = f"workload.batch_size: {batch} cannot be in flight, a pass has {pluralize(few, 'request')}"
        remedy = f"set workload.min_requests: {batch}, which sends prompts again, or workload.batch_size: {few}"
        raise ConfigError(what, remedy)
    return source.sha256 if source and config.prompts.file else None


def _generator(work: WorkloadSpec, draw: Draw, purpose: int) -> Generator:
    return np.random.Generator(np.random.PCG64([work.seed, *draw, purpose]))
