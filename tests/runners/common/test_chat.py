"""What is sent holds what was asked: chat templates of every kind, with real tokenizers of each transformers here."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, VLLM_FOLDER, VLLM_PYTHON, printed_by
from contract.subjects import write_config, write_tokenizer
from seams.config import OWN_TEMPLATE_KWARGS

if TYPE_CHECKING:
    Case = dict[str, Any]

pytestmark = pytest.mark.slow
ENVIRONMENTS = {"pytorch": (PYTORCH_PYTHON, PYTORCH_FOLDER), "vllm": (VLLM_PYTHON, VLLM_FOLDER)}
QUESTION = "What is a watt?"
LONG = "one two three four five six seven eight nine ten. " * 20
# 3 February 2001, 23:59:59 UTC; at the runner's place it is the 4th.
BEGUN_S = 981_244_799

TEXT = "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}<answer>"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}<answer>"
)
# After templates of the hub, in their ways and not in their words.
LLAMA_3 = (
    "{{ bos_token }}{% if date_string is not defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}{% set date_string = '26 Jul 2024' %}{% endif %}"
    "{% endif %}<system>Today is {{ date_string }}{% for m in messages %}<{{ m.role }}>\n\n{{ m.content | trim }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
QWEN_3 = (
    "{% set ns = namespace(last=messages|length - 1) %}{% for m in messages %}{% if m.content is string %}"
    "{% set content = m.content %}{% else %}{% set content = '' %}{% endif %}<{{ m.role }}>\n{{ content }}\n"
    "{% endfor %}"
    "<assistant>\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}"
    "{% endif %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{% if m.content is string %}"
    "{{ m.content | trim }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
    "{% else %}{{ p.text | trim }}{% endif %}{% endfor %}{% endif %}</turn>\n{% endfor %}<turn>model\n"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set said = messages[1:] %}{% else %}{% set said = messages %}{% endif %}"
    "{{ bos_token }}{% for m in said %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
SMOLVLM = (
    "{{ bos_token }}{% for m in messages %}{{ m.role | capitalize }}{% if m.content[0].type == 'image' %}:{% else %}: "
    "{% endif %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'image' %}<image>"
    "{% endif %}{% endfor %}<end>\n{% endfor %}Assistant:"
)
PARTS_ONLY = (
    "{% if messages[0].content is string %}{{ raise_exception('content must be a list') }}{% endif %}"
    "{{ messages[0].content[0].text }}"
)
# After Qwen 2.5: a system message takes the place of the template's own, whose words the message may repeat.
QWEN_2 = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% set said = messages[1:] %}"
    "{% else %}<system>You are Q. You are a helpful assistant.{% set said = messages %}{% endif %}"
    "{% for m in said %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [["system", "You are a helpful assistant."], ["user", "yes"], ["assistant", "no"], ["user", "yes"]]
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEXT
TRUNCATED = "truncated"
CASES: dict[str, Case] = {
    "text": {"template": TEXT},
    "parts": {"template": PARTS},
    "llama 3": {"template": LLAMA_3, "time_s": BEGUN_S},
    "llama 3, a date of its own": {"template": LLAMA_3, "variables": {"date_string": "1 May 2000"}},
    "qwen 3": {"template": QWEN_3},
    "qwen 3, no thinking": {"template": QWEN_3, "variables": {"enable_thinking": False}},
    "gemma": {"template": GEMMA},
    "mistral": {"template": MISTRAL},
    "smolvlm": {"template": SMOLVLM},
    "parts only": {"template": PARTS_ONLY},
    "trims": {"template": "<u>{{ messages[0].content | trim }}", "prompts": ["  \n a watt \n "]},
    "short words of the template": {"template": TEXT, "prompts": ["user", "e", "</s>", "answer"]},
    "named templates": {"template": {"default": TEXT, "tool_use": "tools"}},
    "no default": {"template": {"tool_use": TEXT, "rag": TEXT}},
    "drops": {"template": "<user>{% for m in messages %}{% endfor %}<answer>"},
    "cuts": {"template": "<user>{{ messages[0].content[:60] }}", "prompts": [QUESTION, LONG]},
    "cuts parts": {"template": "{{ messages[0].content[0].text | truncate(60) }}", "prompts": [LONG]},
    "cuts the beginning": {"template": "{{ messages[0].content[-60:] }}", "prompts": [LONG]},
    "drops short texts": {
        "template": "<u>{% if messages[0].content|length > 9 %}{{ messages[0].content }}{% endif %}",
        "prompts": ["u"],
    },
    "trims all": {"template": "<u>{{ messages[0].content | trim }}", "prompts": [" \n "]},
    "rewrites": {"template": "{{ messages[0].content | upper }}"},
    "joins lines": {"template": "{{ messages[0].content.split() | join(' ') }}"},
    "joins spaces": {"template": "{{ messages[0].content | replace('  ', ' ') }}"},
    "escapes": {"template": "{{ messages[0].content | e }}"},
    "escapes as JSON": {"template": "{{ messages[0].content | tojson }}"},
    "cuts all": {"template": "{{ messages[0].content[:5] }}"},
    "raises": {"template": "{{ raise_exception('no\nuser is welcome') }}"},
    "reaches for Python": {"template": TEXT + "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
    "reaches for files": {"template": TEXT + "{% include '/etc/passwd' %}"},
    "calls itself": {"template": TEXT + "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
    "raises late": {
        "template": "{% if messages[0].content | length > 99 %}{{ raise_exception('too long') }}{% endif %}"
        "{{ messages[0].content }}",
        "prompts": [QUESTION, LONG],
    },
    "is malformed": {"template": "{% for m in messages %}{{ m.content }}"},
    "prints parts": {"template": "{% if messages[0].content is not string %}{{ messages[0].content }}{% endif %}"},
    "prints parts as JSON": {
        "template": "{% if messages[0].content is not string %}{{ messages[0].content | tojson }}{% endif %}"
    },
    "unknown variable": {"template": QWEN_3, "variables": {"enable_thinkin": False}},
    "no template": {"template": None, "variables": {"enable_thinking": False}},
    "no chat": {"template": QWEN_3, "chat": False},
    "the present, its own clock": {"template": LLAMA_3, "time_s": None},
    "truncates": {"folder": TRUNCATED, "template": TEXT, "prompts": [LONG, QUESTION]},
    "a BOS in the text": {"chat": False, "prompts": ["<s>a watt"]},
    **{
        f"messages, {name}": {"template": template, "prompts": [QUESTION, CHAT, CHAT[3:]]}
        for name, template in {"text": TEXT, "qwen 2": QWEN_2, "qwen 3": QWEN_3}.items()
    },
    "messages, parts": {"template": PARTS, "prompts": [CHAT]},
    "refused messages, no system": {"template": NO_SYSTEM, "prompts": [QUESTION, CHAT]},
    "refused messages, drops the system": {"template": TEXT.replace("messages", "messages[1:]"), "prompts": [CHAT]},
    "refused messages, first and last": {
        "template": "{{ messages[0].content }}|{{ messages[-1].content }}",
        "prompts": [QUESTION, CHAT],
    },
    "refused messages, cuts": {
        "template": "{% for m in messages %}<{{ m.role }}>{{ m.content[:60] }}{% endfor %}",
        "prompts": [[["system", LONG], ["user", QUESTION]]],
    },
    "refused messages, no template": {"template": None, "prompts": [CHAT]},
    "refused messages, no chat": {"template": TEXT, "chat": False, "prompts": [CHAT]},
    "two texts": {"template": TEXT, "prompts": ["a b", "c"]},
    "two other texts": {"template": TEXT, "prompts": ["a", "b c"]},
}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what one environment says of all cases."""
    python, folder = ENVIRONMENTS[request.param]
    if not python.exists():
        pytest.skip(f"no {request.param} environment at {python}")
    model, truncated = (write_config(tmp_path_factory.mktemp("model")) for _ in range(2))
    for path in (model, truncated):
        write_tokenizer(path)
    file = truncated / "tokenizer.json"
    limits = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": limits}))
    folders = {TRUNCATED: truncated}
    cases = [
        {"prompts": [QUESTION, LONG], **case, "folder": str(folders.get(case.get("folder", ""), model))}
        for case in CASES.values()
    ]
    told: dict[str, Any] = json.loads(
        printed_by(Path(__file__).with_name("in_chat.py"), python=python, folder=folder, stdin=json.dumps(cases))
    )
    return told | dict(zip(CASES, told["outcomes"], strict=True))


@pytest.mark.parametrize(
    "name",
    [name for name in CASES if name.startswith(("text", "parts", "llama", "qwen", "gemma", "mistral", "smolvlm"))],
)
def test_a_prompt_is_whole_in_what_is_sent(answer: dict[str, Any], name: str) -> None:
    """Each template gets content in the form that it takes, and no list of parts is printed."""
    short, long = answer[name]["texts"]
    assert QUESTION in short
    assert LONG.strip() in long
    assert "'type'" not in short
    assert short.count("<s>") <= 1


@pytest.mark.parametrize("name", ["text", "qwen 2", "qwen 3"])
def test_messages_are_rendered_as_transformers_renders_them(answer: dict[str, Any], name: str) -> None:
    """System, user, assistant, user, in order; a single message of a user is the same as its text."""
    case = answer[f"messages, {name}"]
    assert case["ids"][1:] == case["transformers"]
    places = [case["texts"][1].index(text) for text in ("helpful assistant.", "yes", "no")]
    assert places == sorted(places)
    assert case["texts"][1].count("yes") == 2
    packed = [array("I", [len(ids), *ids]).tobytes() for ids in case["ids"]]
    assert case["sha256"] == hashlib.sha256(b"".join(packed)).hexdigest()


def test_messages_reach_a_template_that_takes_parts(answer: dict[str, Any]) -> None:
    """Each content is a list of one part."""
    assert answer["messages, parts"]["texts"] == [
        "<system>You are a helpful assistant.<user>yes<assistant>no<user>yes<answer>"
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no system", ["fails on prompt 1: ", "no system role", "or send messages that it"]),
        ("drops the system", ["leaves out"]),
        ("first and last", ["leaves out", "of message 2 of prompt 1"]),
        ("cuts", ["of message 1 of prompt 0"]),
        ("no template", ["prompt 0 is a list of messages", "this tokenizer has none"]),
        ("no chat", ["prompt 0 is a list of messages", "workload.prompts.chat is false"]),
    ],
)
def test_messages_that_would_not_all_be_sent_are_refused_in_one_line(
    answer: dict[str, Any], name: str, words: list[str]
) -> None:
    """The line says which message of which prompt."""
    refusal = answer[f"refused messages, {name}"]["refused"]
    assert [word for word in words if word not in refusal] == []
    assert "\n" not in refusal


def test_words_of_the_template_and_trimmed_whitespace_are_no_loss(answer: dict[str, Any]) -> None:
    """A text that stands in the template's own words, too, is there once more; whitespace around it may go."""
    assert answer["short words of the template"]["texts"][0] == "<s><user>user</s><answer>"
    assert answer["trims"]["texts"] == ["<u>a watt"]
    assert answer["named templates"]["texts"] == answer["text"]["texts"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("drops", ["leaves out", "How many joules"]),
        ("cuts", ["prompt 1"]),
        ("cuts parts", ["prompt 0"]),
        ("cuts the beginning", ["prompt 0"]),
        ("drops short texts", ["prompt 0"]),
        ("trims all", ["prompt 0"]),
        ("rewrites", ["leaves out"]),
        ("joins lines", ["a text such as"]),
        ("joins spaces", ["a text such as", "leaves out"]),
        ("escapes", ["a text such as"]),
        ("escapes as JSON", ["a text such as"]),
        ("cuts all", ["a text such as", "leaves out"]),
        ("raises", ["fails on a text", "no user is welcome"]),
        ("raises late", ["fails on prompt 1", "too long"]),
        ("reaches for Python", ["SecurityError: access to attribute '__class__' of 'str' object is unsafe"]),
        ("reaches for files", ["no loader"]),
        ("calls itself", ["RecursionError"]),
        ("is malformed", ["fails on a text", "TemplateSyntaxError"]),
        ("prints parts", ["leaves out", "How many"]),
        ("prints parts as JSON", ["leaves out", "How many"]),
    ],
)
def test_a_template_that_loses_text_is_refused_in_one_line(answer: dict[str, Any], name: str, words: list[str]) -> None:
    """The line says which prompt, and what to do."""
    refusal = answer[name]["refused"]
    assert [word for word in words if word not in refusal] == []
    assert refusal.endswith("; fix the template, or set workload.prompts.chat: false")
    assert "\n" not in refusal


def test_several_templates_without_a_default_are_named_with_what_to_do(answer: dict[str, Any]) -> None:
    """Any choice among them would be wattdock's own."""
    assert answer["no default"]["refused"] == (
        "the tokenizer has the chat templates rag, tool_use, and none is the default; name one of them default in the "
        "model's folder, or set workload.prompts.chat: false"
    )


def test_the_present_is_the_study_s_begin_and_is_told(answer: dict[str, Any]) -> None:
    """A template that prints today's date prints the date that it was given, and only such a template asked."""
    assert answer["llama 3"]["texts"][0].startswith("<s><system>Today is 03 Feb 2001")
    assert answer["llama 3"]["asked_time"] is True
    assert "26 Jul 2024" not in answer["the present, its own clock"]["texts"][0]
    assert answer["the present, its own clock"]["texts"] != answer["llama 3"]["texts"]
    assert "1 May 2000" in answer["llama 3, a date of its own"]["texts"][0]
    assert [name for name in ("llama 3, a date of its own", "qwen 3", "text") if answer[name]["asked_time"]] == []


def test_variables_reach_the_template_or_are_refused(answer: dict[str, Any]) -> None:
    """Thinking is switched off; a name that the template does not read, or no template at all, is an error."""
    assert answer["qwen 3, no thinking"]["texts"][0].endswith("<assistant>\n<think>\n\n</think>\n\n")
    assert answer["qwen 3"]["texts"][0].endswith("<assistant>\n")
    assert "'enable_thinkin'" in answer["unknown variable"]["refused"]
    assert "chat_template_kwargs" in answer["no template"]["refused"]


def test_a_tokenizer_s_own_limit_cuts_no_prompt(answer: dict[str, Any]) -> None:
    """`truncation` in tokenizer.json is for whoever trains; ids are those without it, with a single BOS."""
    assert len(answer["truncates"]["ids"][0]) > 100
    assert LONG in answer["truncates"]["texts"][0]
    assert answer["truncates"]["ids"][1] == answer["text"]["ids"][0]
    assert answer["no chat"]["ids"][0][:1] == answer["text"]["ids"][0][:1] == [1]
    assert 1 not in answer["no chat"]["ids"][0][1:] + answer["text"]["ids"][0][1:]
    assert answer["a BOS in the text"]["texts"] == ["<s>a watt"]


def test_the_hash_is_of_each_prompts_ids_in_order(answer: dict[str, Any]) -> None:
    """Anybody can compute it anew; ids that move from one prompt to the next change it."""
    for name in ("text", "parts", "two texts"):
        packed = [array("I", [len(ids), *ids]).tobytes() for ids in answer[name]["ids"]]
        assert answer[name]["sha256"] == hashlib.sha256(b"".join(packed)).hexdigest()
    same = ("text", "parts", "qwen 3", "qwen 3, no thinking", "llama 3", "the present, its own clock", "no chat")
    assert len({answer[name]["sha256"] for name in same}) == len(same)
    assert answer["two texts"]["sha256"] != answer["two other texts"]["sha256"]


def test_settings_cannot_name_what_transformers_itself_takes(answer: dict[str, Any]) -> None:
    """Every parameter of `apply_chat_template` is reserved, whichever transformers a runner has."""
    assert set(answer["parameters"]) - {"self", "kwargs"} <= OWN_TEMPLATE_KWARGS
