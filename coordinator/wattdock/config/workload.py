"""What is asked of an engine in each pass, as a person writes it: prompts, lengths, arrivals."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, NonNegativeFloat, PositiveFloat, model_validator

from wattdock.config.lengths import Length, LengthSpec, Positive, StrictSettings
from wattdock.files import expanded

if TYPE_CHECKING:
    from pathlib import Path

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Instant = Annotated[
    datetime, Field(strict=False), AfterValidator(lambda at: at if at.tzinfo else at.replace(tzinfo=UTC))
]

# Prompts of a pass that only time ends, in batches: from the least to the most, as far as so many tokens reach (64 MB).
LEAST_BATCHES, MOST_BATCHES, MOST_PROMPT_TOKENS = 32, 256, 1 << 24
# Which kinds of arrival have a setting.
ARRIVAL_KEYS = {"rate_per_s": ("poisson", "gamma"), "burstiness": ("gamma",), "trace_speed": ("trace",)}
# What a runner itself gives to a chat template, and the parameters of transformers' `apply_chat_template`.
OWN_TEMPLATE_KWARGS = {
    *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations", "documents"),
    *("max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"),
    *("sanitize_control_tokens", "strftime_now", "tokenize", "tokenizer_kwargs", "tools", "truncation"),
}


def prompts_mapping(value: Any) -> Any:
    """Return the mapping that a plain string stands for under `prompts:`; anything else as it is."""
    return {"source": value} if isinstance(value, str) else value


class PromptSpec(StrictSettings):
    """Where prompts come from.

    Attributes:
        source: "bundled", "synthetic" (token ids), or a JSONL or JSON file of prompts or lengths; None is bundled
            text, or synthetic for a shape, which has no tokenizer.
        count: Prompts per pass; None takes what the workload's minima need, or without them a whole file.
        input_tokens: Length of each synthetic prompt: a number, or a distribution that each is drawn from (seeded).
        chat: Wrap text in the model's chat template, where it has one.
        chat_template_kwargs: Variables for the chat template, such as `enable_thinking: false`.
        chat_time_utc: The present for a chat template that asks for it, ISO 8601; None is when the study began.
        turns: Of a conversation: each request's prompt is all that was said before it and `input_tokens` more. Needs
            synthetic prompts and `enable_prefix_caching`, as does:
        shared_prefix_tokens: With which every conversation of a pass begins, such as a system prompt.
    """

    source: str | None = None
    count: Positive | None = None
    input_tokens: Length = 512
    chat: bool = True
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    chat_time_utc: Instant | None = None
    turns: Positive = 1
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return prompts_mapping(value)

    @model_validator(mode="after")
    def _template_gets_its_variables(self) -> Self:
        if reserved := sorted(self.chat_template_kwargs.keys() & OWN_TEMPLATE_KWARGS):
            raise ValueError(f"chat_template_kwargs: {reserved[0]} is wattdock's own; leave it out")
        if self.chat_template_kwargs and not self.chat:
            raise ValueError("chat_template_kwargs needs chat: true; leave one of the two out")
        return self

    @property
    def repeats_tokens(self) -> bool:
        """Whether prompts begin with what earlier prompts of the pass held, on purpose."""
        return self.turns > 1 or self.shared_prefix_tokens > 0

    @property
    def input_lengths(self) -> LengthSpec:
        """Tokens of synthetic prompts, as a distribution."""
        return LengthSpec.of(self.input_tokens)

    @property
    def file(self) -> Path | None:
        """The file; None where prompts come from no file."""
        return None if self.source in (None, "bundled", "synthetic") else expanded(self.source)


class WorkloadSpec(StrictSettings):
    """What is asked of the engine in each pass.

    Attributes:
        batch_size: Requests in flight.
        max_output_tokens: A number, or a distribution that each prompt's limit is drawn from (seeded), so that requests
            do not end together; a prompt file's own limits stay.
        arrival: How requests arrive; see the wire's `Arrival`. `poisson`, `gamma` and `trace` are open loops.
        rate_per_s: Mean arrival rate, of `poisson` and `gamma`.
        burstiness: Shape of the gamma distribution of gaps; 1 is Poisson, less is burstier.
        trace_speed: Speed of `trace`: 2 replays a trace's arrivals in half the time.
        min_duration_s, min_requests: A pass goes on until both are met.
        ignore_eos: Never stop early; None is: with random weights only, where an end means nothing.
        temperature: 0 is greedy.
        staggered_start: A pass's first `batch_size` requests get evenly spread shares of their limits, so that the
            engine's slots are out of step from the start.
    """

    prompts: PromptSpec = PromptSpec()
    batch_size: Positive = 4
    max_output_tokens: Length = 64
    arrival: Literal["batch", "closed", "poisson", "gamma", "trace", "single"] = "batch"
    rate_per_s: PositiveFloat | None = None
    burstiness: Annotated[float, Field(ge=0.01, le=1000)] | None = None
    trace_speed: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    min_duration_s: PositiveFloat | None = None
    min_requests: Positive | None = None
    seed: Seed = 0
    ignore_eos: bool | None = None
    temperature: NonNegativeFloat = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Positive | None = None
    staggered_start: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, kinds in ARRIVAL_KEYS.items():
            if (value := getattr(self, name)) is not None and self.arrival not in kinds:
                raise ValueError(
                    f"{name}: {value:g} is for arrival: {' or '.join(kinds)}, and arrival is {self.arrival}"
                )
        if self.arrival in ARRIVAL_KEYS["rate_per_s"] and self.rate_per_s is None:
            raise ValueError(
                f"arrival: {self.arrival} needs rate_per_s, requests per second on average, such as rate_per_s: 2"
            )
        if self.arrival == "gamma" and self.burstiness is None:
            raise ValueError("arrival: gamma needs burstiness, such as burstiness: 0.5; 1 is Poisson, less is burstier")
        if self.arrival == "trace" and self.prompts.file is None:
            raise ValueError("arrival: trace needs prompts.source, a file of lengths with arrival times")
        if self.staggered_start and self.arrival != "closed":
            raise ValueError(f"staggered_start is for arrival: closed, and arrival is {self.arrival}")
        if self.arrival == "single" and self.batch_size != 1:
            raise ValueError(f"arrival: single has one request in flight; batch_size is {self.batch_size}")
        return self

    @property
    def loop(self) -> str:
        """What a runner has to serve: "open" where requests come whatever it does, else `arrival`."""
        return "open" if self.arrival in ("poisson", "gamma", "trace") else self.arrival

    @property
    def has_rounds(self) -> bool:
        """Whether requests begin together, once those before them have finished."""
        return self.arrival in ("batch", "single")

    @property
    def output_lengths(self) -> LengthSpec:
        """Most tokens of answers, as a distribution."""
        return LengthSpec.of(self.max_output_tokens)

    @property
    def sends_whole_file(self) -> bool:
        """Whether a pass sends each prompt of a file once, since no setting says how many requests it has."""
        is_limited = self.prompts.count or self.min_requests or self.min_duration_s or self.loop == "open"
        return self.prompts.file is not None and not is_limited

    @property
    def prompts_per_pass(self) -> int:
        """Prompts sent for one pass; many where only time ends the pass, so that prompts are seldom repeated.

        An open loop without a `count` gets as many as arrive, which is this number on average.
        """
        if self.rate_per_s and self.min_duration_s and not self.prompts.count:
            return max(self.min_requests or 1, math.ceil(self.rate_per_s * self.min_duration_s))
        fitting = MOST_PROMPT_TOKENS // (self.batch_size * self.prompts.input_lengths.max)
        batches = min(max(fitting, LEAST_BATCHES), MOST_BATCHES) if self.min_duration_s else 2
        if self.min_requests and not self.min_duration_s:
            return min(self.prompts.count or self.min_requests, self.min_requests)
        return self.prompts.count or max(self.min_requests or 0, batches * self.batch_size)

    @property
    def requests_per_pass(self) -> int:
        """The least number of requests in a pass."""
        return self.min_requests or (self.batch_size if self.min_duration_s else self.prompts_per_pass)

    @property
    def requests_per_warm_up(self) -> int:
        """Requests of a warm-up pass: two rounds of the passes' own batch size, of which the first compiles."""
        return 2 * self.batch_size if self.min_duration_s else min(2 * self.batch_size, self.requests_per_pass)

    @property
    def most_in_flight(self) -> int:
        """Requests that run at once; fewer than `batch_size` only where a pass has fewer."""
        return self.batch_size if self.min_duration_s else min(self.batch_size, self.requests_per_pass)


class SloSpec(StrictSettings):
    """How long a request may take to count as served well; at least one limit. Nothing that is measured depends on it.

    Attributes:
        ttft_ms, tpot_ms, e2e_ms: Longest time to the first token, per output token after the first, and to the last
            token.
    """

    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.limits_s:
            raise ValueError("give at least one of ttft_ms, tpot_ms and e2e_ms, such as ttft_ms: 500")
        return self

    @property
    def limits_s(self) -> dict[str, float]:
        """The limits given, in seconds, by "ttft", "tpot" and "e2e"."""
        limits_ms: dict[str, float] = self.model_dump(exclude_none=True)
        return {name.removesuffix("_ms"): limit_ms / 1e3 for name, limit_ms in limits_ms.items()}
