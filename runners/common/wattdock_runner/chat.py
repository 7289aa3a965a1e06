"""Render a user's text with the chat template of a tokenizer, and refuse a rendering that lacks the text.

Transformers is duck-typed: nothing is imported. Must not know: engines, passes.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A text that every usable template renders whole, and a mark that no prompt holds, for the text's place.
PROBE, PLACE = "How many joules are in a watt-hour?", "\0"
TRIAL = f"a text such as {PROBE!r}"
# A content part that a template printed as it is, in place of its text.
PRINTED_PART = re.compile(r"""["']type["']\s*:\s*["']text["']""")
# The module of transformers whose `strftime_now` reads the clock for templates.
TEMPLATES = "transformers.utils.chat_template_utils"
QUOTED_CHARACTERS = 40


class ChatTemplate:
    """The chat template of a tokenizer, with the form of content that it takes: a text, or a list of parts.

    Args:
        variables: Further variables of the template, such as {"enable_thinking": False}.
        time_s: The present that the template is told, in seconds since 1970; None is the machine's.

    Attributes:
        asked_time: Whether the template has asked for the present.

    Raises:
        InvalidRequest: The template reads no such variable, or renders a text in neither form.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, Any], time_s: int | None) -> None:
        self._tokenizer, self._variables, self._source = tokenizer, variables, str(tokenizer.chat_template)
        self._now = datetime.now(UTC) if time_s is None else datetime.fromtimestamp(time_s, UTC)
        self.asked_time = False
        if unread := [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", self._source)]:
            raise InvalidRequest(
                f"the chat template reads no variable {unread[0]!r}; correct workload.prompts.chat_template_kwargs"
            )
        self._takes_parts, self._around = False, ""
        self._around = self._rendered_probe().replace(PROBE, PLACE)

    def render(self, text: str, name: str) -> str:
        """Return the chat in which the user says `text`, up to the answer.

        Args:
            name: What a refusal calls the text.

        Raises:
            InvalidRequest: The template fails, or leaves out more than whitespace around the text.
        """
        content = [{"type": "text", "text": text}] if self._takes_parts else text
        said, options = [{"role": "user", "content": content}], {"add_generation_prompt": True, "tokenize": False}
        try:
            with self._fixed_time():
                rendered = str(self._tokenizer.apply_chat_template(said, **options, **self._variables))
        except Exception as error:
            # A template is a foreign program, and jinja's errors are not known here.
            raise _refusal(f"fails on {name}: {type(error).__name__}: {error}") from error
        whole = text.strip() or text

        def lacks(length: int) -> bool:
            # A short text may stand in the template's own words.
            return rendered.count(whole[:length]) <= self._around.count(whole[:length])

        if whole and lacks(len(whole)):
            kept = bisect_left(range(1, len(whole) + 1), True, key=lacks)
            missing = whole[kept : kept + QUOTED_CHARACTERS]
            raise _refusal(f"leaves out {missing!r} of {name}, from character {kept + 1} of {len(whole)} on")
        return rendered

    def _rendered_probe(self) -> str:
        """Return the rendered probe, and settle in which form the template takes content."""
        try:
            return self.render(PROBE, TRIAL)
        except InvalidRequest:
            self._takes_parts = True
            rendered = self.render(PROBE, TRIAL)
        if PRINTED_PART.search(rendered):
            raise _refusal("prints a list of content parts in place of their text")
        return rendered

    @contextmanager
    def _fixed_time(self) -> Iterator[None]:
        """Let `strftime_now` read its time here; transformers 5.24 turns functions among the variables into text."""
        if "strftime_now" not in self._source:
            yield
            return
        templates: Any = sys.modules[TEMPLATES]
        machine = templates.datetime
        templates.datetime = self
        try:
            yield
        finally:
            templates.datetime = machine

    def now(self) -> datetime:
        """Return the present that the template is told."""
        self.asked_time = True
        return self._now


def _refusal(problem: str) -> InvalidRequest:
    line = " ".join(f"the chat template {problem}".split())
    return InvalidRequest(f"{line}; fix the template, or set workload.prompts.chat: false")
