"""Compare a converted model with the GGUF file it came from, as transformers reads that; runs where transformers is.

Arguments: the GGUF file, the converted folder. Prints facts as JSON for the test to judge.
"""

from __future__ import annotations

import json
import random
import sys
import unicodedata
from functools import cache
from itertools import groupby
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABC xyz   \t\n",
    "0123456789 .,-+",
    " \n\t",
    "'s't're've !?#$%()[]{}<>|/\\\"`~^_=@&*;:",
    "äöüßéèñçøåÆŁžğИванΩλабв",
    "漢字かなカナ한국어العربيةहिन्दी",
    "½¾²³٣४Ⅷ①",
    "🙂🚀👩‍👩‍👧🇨🇭é́‌\u200b\u00a0\u2028",
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_start", "<empty_output>")
CHAT = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "  And of Italy in 1861?\n"},
]


def strings(count: int) -> list[str]:
    """Return varied strings: each mixes pieces of several alphabets, and sometimes a special token."""
    source = random.Random(0)
    made = ["", " ", "  12", "\n\n 3", "a 1", "x=  7;", "year 2024 was", "Hello, world! It's   me."]
    while len(made) < count:
        pieces = ["".join(source.choices(source.choice(ALPHABETS), k=source.randint(1, 8))) for _ in range(6)]
        if source.random() < 0.3:
            pieces.insert(source.randrange(6), source.choice(SPECIAL))
        made.append("".join(pieces))
    return made


def split_digits(text: str) -> list[str]:
    """Return a text cut before and after each numeric character: what the file's pre-tokenizer does first."""
    runs = groupby(text, key=lambda character: unicodedata.category(character).startswith("N"))
    return [piece for numeric, run in runs for piece in (run if numeric else ["".join(run)])]


def main(source: Path, folder: Path) -> dict[str, object]:
    """Return the facts."""
    reference = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    theirs = {name: value for name, value in reference.state_dict().items() if name != "lm_head.weight"}
    ours = load_file(folder / "model.safetensors")
    gguf_tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def expected(text: str) -> list[int]:
        # transformers' GGUF reader leaves the digit split out, so it gets the pieces one by one.
        return [token for piece in split_digits(text) for token in gguf_tokenizer(piece).input_ids]

    def rendered(tokenizer: object) -> str:
        return tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)  # type: ignore[attr-defined, no-any-return]

    texts = strings(600)
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    question = tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(question, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt.input_ids.shape[1] :]
    same = ("vocab_size", "hidden_size", "head_dim", "bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters")
    return {
        "names_equal": theirs.keys() == ours.keys(),
        "tensors": len(ours),
        "unequal_tensors": [name for name in ours if not torch.equal(theirs[name].half(), ours[name])],
        "not_finite": [name for name, value in ours.items() if not torch.isfinite(value).all()],
        "texts": len(set(texts)),
        "unequal_texts": [text for text in texts if tokenizer(text).input_ids != expected(text)],
        "unlike_gguf_reader": sum(tokenizer(text).input_ids != gguf_tokenizer(text).input_ids for text in texts),
        "not_restored": [text for text in texts if tokenizer.decode(tokenizer(text).input_ids) != text],
        "chat_equal": rendered(tokenizer) == rendered(gguf_tokenizer),
        "config_differs": [name for name in same if getattr(model.config, name) != getattr(reference.config, name)],
        "loading": sorted(str(name) for names in info.values() for name in names),
        "answer": tokenizer.decode(answer, skip_special_tokens=True),
        "coordinator_ids": [tokenizer(text).input_ids for text in texts[:50]],
        "coordinator_texts": texts[:50],
    }


if __name__ == "__main__":
    # transformers reads the file three times, and asks for the same names with each tensor.
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(gguf.GGUFReader), cache(gguf.get_tensor_name_map)
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
