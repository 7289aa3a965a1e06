"""Arguments of each command, by topic; what a command needs is imported inside it: `--help` must be quick."""
