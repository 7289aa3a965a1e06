"""Judge several runs of one comparison as one, from the passes they kept: other minutes, GPUs or hosts.

    python benchmarks/pooled.py PASSES.json PASSES.json …

The files are of `bench.py --passes`. Every quadruple counts, and all that were planned have to be there. Ends with 9
where the ratio is not shown to hold, with 2 where the files are not of one comparison.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from figures import HEAD, ratio_row, table
from paired import Claim, log_ratio

from wattdock.errors import ConfigError, ExitCode


def pooled(kept: list[dict[str, Any]]) -> list[Claim]:
    """Return one claim for each comparison that the runs have, over all their quadruples.

    Raises:
        ConfigError: They compared different things, or held them against different limits.
    """
    names = [{name: one["limit"] for name, one in run["comparisons"].items()} for run in kept]
    if any(one != names[0] for one in names):
        raise ConfigError(f"not runs of one comparison: {'; '.join(str(one) for one in names)}")
    claims = []
    for name, limit in names[0].items():
        runs = [run["comparisons"][name] for run in kept]
        planned = sum(one["planned"] for one in runs)
        claims.append(Claim(name, limit, planned, [log_ratio(passes) for one in runs for passes in one["seconds"]]))
    return claims


def main() -> int:
    """Print the table and what the runs were, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    try:
        kept = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args().files]
        claims = pooled(kept)
    except (OSError, ValueError, KeyError, ConfigError) as error:
        sys.stderr.write(f"pooled: {type(error).__name__}: {error}; give files that bench.py --passes wrote\n")
        return ExitCode.CONFIG
    sys.stdout.write(table(HEAD, [ratio_row(claim) for claim in claims]) + "\n\n")
    for run in kept:
        sys.stdout.write(f"- `{run['command']}` at revision {run['revision']}: {run['machine']}\n")
    return ExitCode.OK if all(claim.verdict == "holds" for claim in claims) else ExitCode.REGRESSION


if __name__ == "__main__":
    sys.exit(main())
