"""`python -m wattdock` is the `wattdock` command."""

from wattdock.cli import main

main()
