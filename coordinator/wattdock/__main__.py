"""The `wattdock` command, which is `python -m wattdock` too."""

import sys

if __name__ == "__main__":
    # With `python -m wattdock`, Python would look for modules in the working folder, where others may have put them.
    sys.path[:] = sys.path if sys.flags.safe_path else sys.path[1:]

from typing import NoReturn

from wattdock.console.main import main as run


class WithoutPandas:
    """Among Python's finders of modules, says that there is no pandas.

    Only lm-evaluation-harness uses it, where a run asks its tasks, and wandb asks after it; but pyarrow imports it to
    make any array: a third of the CPU time of a short command, and 40 MB between the passes of a measurement.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Refuse pandas, unless one of these two is there, and leave all else to the other finders."""
        if name == "pandas" and not {"lm_eval", "wandb"} & sys.modules.keys():
            raise ModuleNotFoundError("wattdock's commands do without pandas", name=name)


def main() -> NoReturn:
    """Run the command of this process."""
    sys.meta_path.insert(0, WithoutPandas)
    run()


if __name__ == "__main__":
    main()
