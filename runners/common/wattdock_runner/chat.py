"""Render messages with the chat template of a tokenizer, and refuse a rendering that lacks a message's text.

Transformers is duck-typed: nothing is imported. Must not know: engines, passes.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # Role and text of each message.
    Messages = Sequence[tuple[str, str]]

# A text that every usable template renders whole: templates that escape, or that print a list of content parts, change
# its quotes, signs and lines. And a mark that no prompt holds, for the text's place.
PROBE, PLACE = "How many joules are in a watt-hour?\n\n\t\"1\"  <'2'> & \\", "\0"
TRIAL = f"a text such as {PROBE!r}"
# The module of transformers whose `strftime_now` reads the clock for templates.
TEMPLATES = "transformers.utils.chat_template_utils"


class ChatTemplate:
    """The chat template of a tokenizer, with the form of content that it takes: a text, or a list of parts.

    Args:
        variables: Further variables of the template, such as {"enable_thinking": False}.
        time_s: The present that the template is told, in seconds since 1970; None is the machine's.

    Attributes:
        asked_time: Whether the template has asked for the present.

    Raises:
        InvalidRequest: There are several templates and no default, or the template reads no such variable, or renders a
            text in neither form.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, Any], time_s: int | None) -> None:
        templates = tokenizer.chat_template
        if isinstance(templates, dict) and "default" not in templates:
            raise InvalidRequest(
                f"the tokenizer has the chat templates {', '.join(sorted(templates))}, and none is the default; "
                "name one of them default in the model's folder, or set workload.prompts.chat: false"
            )
        self._tokenizer, self._variables, self._source = tokenizer, variables, str(templates)
        self._now = datetime.now(UTC) if time_s is None else datetime.fromtimestamp(time_s, UTC)
        self.asked_time = False
        if unread := [name for name in variables if not re.search(rf"\b{re.escape(name)}\b", self._source)]:
            raise InvalidRequest(
                f"the chat template reads no variable {unread[0]!r}; correct workload.prompts.chat_template_kwargs"
            )
        probe = [("user", PROBE)]
        self._takes_parts = False
        try:
            rendered = self._whole(probe, TRIAL, "")
        except InvalidRequest as refusal:
            self._takes_parts = True
            try:
                rendered = self._whole(probe, TRIAL, "")
            except InvalidRequest:
                raise refusal from None
        # The template's own words by the roles of a chat: system messages change them.
        self._words: dict[tuple[str, ...], str] = {("user",): rendered.replace(PROBE, PLACE)}

    def render(self, messages: Messages, name: str) -> str:
        """Return the chat up to the answer.

        Args:
            name: What a refusal calls the chat.

        Raises:
            InvalidRequest: The template fails, or leaves out more than whitespace around a message's text.
        """
        roles = tuple(role for role, _ in messages)
        if roles not in self._words:
            # First, since a refusal of these messages says which message, and one of equal texts cannot.
            self._whole(messages, name, "")
            trial = f"{name} with the roles {', '.join(roles)}"
            self._words[roles] = self._whole([(role, PROBE) for role in roles], trial, "").replace(PROBE, PLACE)
        return self._whole(messages, name, self._words[roles])

    def _whole(self, messages: Messages, name: str, words: str) -> str:
        """Return the rendered chat after a check that each text stands in the chat once more than in all the rest."""
        said = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._takes_parts else text}
            for role, text in messages
        ]
        options = {"add_generation_prompt": True, "tokenize": False}
        try:
            with self._fixed_time():
                rendered = str(self._tokenizer.apply_chat_template(said, **options, **self._variables))
        except Exception as error:
            # A template is a foreign program, and jinja's errors are not known here.
            raise _refusal(f"fails on {name}: {type(error).__name__}: {error}", messages) from error
        texts = [text.strip() or text for _, text in messages]
        for i, whole in enumerate(texts):
            # A short text may stand in the template's own words, or in another message.
            rest = PLACE.join([words, *texts[:i], *texts[i + 1 :]])
            if whole and rendered.count(whole) <= rest.count(whole):
                message = name if len(texts) == 1 else f"message {i + 1} of {name}"
                raise _refusal(f"leaves out or changes a part of {message}", messages)
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


def _refusal(problem: str, messages: Messages) -> InvalidRequest:
    line = " ".join(f"the chat template {problem}".split())
    otherwise = "set workload.prompts.chat: false" if len(messages) == 1 else "send messages that it takes"
    return InvalidRequest(f"{line}; fix the template, or {otherwise}")
