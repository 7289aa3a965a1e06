"""Judge several runs of one comparison as one, from what they kept: other minutes, GPUs or hosts.

    python benchmarks/pooled.py PASSES.json PASSES.json …

The files are of `bench.py --passes`, and which runs belong together has to be decided before they are seen. Every
quadruple counts, and all that were planned have to be there. Each run's own ratio stands beside the pool's: where hosts
differ by more than their quadruples scatter, the bound is too good. Ends with 9 where something is not shown to hold,
with 2 where the files are not runs of one comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench import unmet
from figures import HEAD, ratio_row, table
from paired import Claim

from wattdock.errors import ConfigError, ExitCode

# What two runs of one comparison have in common; passes per block follow a machine's speed.
SAME = ("on", "requests")


def pooled(runs: list[dict[str, Any]]) -> dict[str, list[Claim]]:
    """Return the claims of each comparison over all quadruples of all runs, by the comparison's name.

    Raises:
        ConfigError: They compared different things, held them against different limits, or are the same run.
    """
    kinds = [
        {
            name: (*(one[key] for key in SAME), {what: claim["limit"] for what, claim in one["claims"].items()})
            for name, one in run["comparisons"].items()
        }
        for run in runs
    ]
    if other := next((one for one in kinds if one != kinds[0]), None):
        raise ConfigError(f"not runs of one comparison: {kinds[0]} and {other}")
    texts = [json.dumps(run["comparisons"]) for run in runs]
    if len(set(texts)) < len(texts):
        raise ConfigError("the same run twice")
    return {name: [_claim(runs, name, what) for what in one["claims"]] for name, one in runs[0]["comparisons"].items()}


def _claim(runs: list[dict[str, Any]], name: str, what: str) -> Claim:
    kept = [run["comparisons"][name]["claims"][what] for run in runs]
    values = [value for one in kept for value in one["log_ratios"]]
    void = next((one["void"] for one in kept if one.get("void")), None)
    return Claim(what, kept[0]["limit"], sum(one["planned"] for one in kept), values, void)


def main() -> int:
    """Print the pool and each run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    try:
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args().files]
        claims = pooled(runs)
        parts = [pooled([run]) for run in runs]
    except (OSError, ValueError, KeyError, ConfigError) as error:
        sys.stderr.write(f"pooled: {type(error).__name__}: {error}; give files that bench.py --passes wrote\n")
        return int(ExitCode.CONFIG)
    sys.stdout.write(rows(claims) + "\n")
    for run, part in zip(runs, parts, strict=True):
        sys.stdout.write(f"\n`{run['command']}` at revision {run['revision']}: {run['machine']}\n\n{rows(part)}\n")
    return int(ExitCode.REGRESSION if unmet(claims) else ExitCode.OK)


def rows(claims: dict[str, list[Claim]]) -> str:
    """Return a table of all claims."""
    return table(HEAD, [ratio_row(claim) for found in claims.values() for claim in found])


if __name__ == "__main__":
    sys.exit(main())
