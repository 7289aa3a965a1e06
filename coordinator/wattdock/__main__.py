"""`python -m wattdock` is the `wattdock` command."""

from wattdock.cli.main import main

main()
