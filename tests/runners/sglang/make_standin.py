"""Write a package `sglang` whose server takes what the real one takes and answers as it answers, from the facts file.

Names and types come from `tests/facts`; how it behaves is in `standin/`. It computes nothing: ids are hashes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "facts/sglang.json").read_text("utf-8"))
BEHAVIOUR = Path(__file__).with_name("standin")
GPUS = Path(__file__).parents[1] / "standin/sitecustomize.py"
VERSION = FACTS["versions"][-1]
# Defaults that matter here; others are what their type starts from.
DEFAULTS = {"tp_size": 1, "pp_size": 1, "stream_interval": 1, "kv_cache_dtype": "auto"}
PLAIN = {"bool": False, "int": 0, "float": 0.0, "str": ""}
FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/plugins/__init__.py": "def load_plugins(): pass\n",
    "sglang/srt/utils/__init__.py": "def kill_process_tree(pid, include_parent=True): pass\n",
    f"sglang-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}+standin\n",
}


def types() -> dict[str, str]:
    """Return each server argument's type in the newest version."""
    return {
        name: kind
        for name, kinds in FACTS["arguments"].items()
        for kind, has in kinds.items()
        if has == "all" or VERSION in has
    }


def make_standin(folder: Path) -> Path:
    """Write the package into `folder`, with its metadata; return `folder`."""
    there = types()
    defaults = {name: DEFAULTS.get(name, PLAIN.get(kind)) for name, kind in there.items()}
    fields = "".join(f"    {name}: A[{kind}, 'help'] = None\n" for name, kind in there.items())
    files = FILES | {
        "sglang/srt/arg_groups/fields/all.py": f"class All:\n{fields}",
        "sglang/srt/server_args.py": f"""
class ServerArgs:
    def __init__(self, **given):
        if unknown := given.keys() - {defaults!r}.keys():
            raise TypeError(f"Unexpected keyword argument {{sorted(unknown)}}")
        self.__dict__.update({defaults!r} | given)
""",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    shutil.copy(GPUS, folder)
    shutil.copyfile(BEHAVIOUR / "launch_server.py", folder / "sglang/launch_server.py")
    return folder
