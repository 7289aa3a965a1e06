"""Make the file of facts about SGLang's source in each version: its arguments' types, and names that the runner uses.

Nothing is imported.

pip download sglang==0.5.23 --no-deps && unzip sglang-0.5.23*.whl 'sglang/*.py' -d versions/0.5.23   # and so on
PYTHONPATH=tests python tests/facts/sglang_source.py versions > tests/facts/sglang.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

from facts.vllm_source import by_name, names, read

# What runners/sglang uses, by file and class of SGLang: "" is the module itself; what ends in brackets is called.
USED = {
    "launch_server.py": {"": "run_server()"},
    "srt/managers/io_struct.py": {"GenerateReqInput": "input_ids sampling_params stream"},
    "srt/plugins/__init__.py": {"": "load_plugins()"},
    "srt/sampling/sampling_params.py": {
        "SamplingParams": "frequency_penalty ignore_eos max_new_tokens min_p presence_penalty repetition_penalty "
        "sampling_seed stop stop_token_ids temperature top_k top_p"
    },
    "srt/server_args.py": {"": "ServerArgs"},
    "srt/utils/common.py": {"": "kill_process_tree()"},
}
# What it asks for and reads by name, and the files of which one must hold that text.
TEXTS = {
    "srt/entrypoints/http_server.py": "/generate /health /server_info internal_states error",
    "srt/managers/scheduler*/*.py srt/managers/scheduler.py": (
        "max_total_num_tokens max_req_input_len effective_max_running_requests_per_dp"
    ),
    "srt/managers/schedule_batch.py": "type abort length stop message status_code",
    "srt/managers/tokenizer_manager.py": "output_ids meta_info finish_reason cached_tokens num_retractions",
    "srt/utils/common.py": "/metrics",
}
ARGUMENTS = "srt/arg_groups/fields/*.py"
# Where they are before 0.5.20, beside classes that are no arguments.
OLD_ARGUMENTS, OLD_CLASS = "srt/server_args.py", "ServerArgs"


def main() -> int:
    """Print the facts; return the exit status."""
    folders = sorted(Path(sys.argv[1]).glob("*/sglang"))
    facts = {
        "versions": [folder.parent.name for folder in folders],
        "arguments": by_name({folder.parent.name: arguments(folder) for folder in folders}),
        "names": by_name({folder.parent.name: names(folder, USED) for folder in folders}),
        "texts": by_name({folder.parent.name: texts(folder) for folder in folders}),
    }
    sys.stdout.write(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return 0


def arguments(folder: Path) -> dict[str, str]:
    """Return the fields of ServerArgs in the version in `folder`, with their types alone."""
    files = sorted(folder.glob(ARGUMENTS))
    modules = [ast.parse(read(file)) for file in files or [folder / OLD_ARGUMENTS]]
    defined = [node for module in modules for node in module.body if isinstance(node, ast.ClassDef)]
    classes = [node for node in defined if files or node.name == OLD_CLASS]
    fields = [node for kind in classes for node in kind.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: _type(node.annotation) for node in fields if isinstance(node.target, ast.Name)}


def _type(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        return ast.unparse(annotation.slice.elts[0] if ast.unparse(annotation.value) == "A" else annotation)
    return ast.unparse(annotation)


def texts(folder: Path) -> dict[str, str]:
    """Return which text that the runner uses is in which file, without those that the version lacks."""
    found: dict[str, str] = {}
    for patterns, wanted in TEXTS.items():
        files = [file for pattern in patterns.split() for file in sorted(folder.glob(pattern))]
        nodes = [node for file in files for node in ast.walk(ast.parse(read(file)))]
        there = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found |= {text: "there" for text in wanted.split() if text in there}
    return found


if __name__ == "__main__":
    sys.exit(main())
