"""The command line: arguments in, a call of other rooms, a table or JSON and an exit code out.

In: the words after `wattdock`. Out: an exit code of `errors.ExitCode`, and one line for every error a user can meet.
A verb is a function here and its name in `main`. Rooms are imported inside the calls that need them, so that `--help`
stays quick; modules with verbs do not postpone annotations, which typer reads.
Progress, which Python's users see too, has a door of its own, `wattdock.console.progress`.
Must not know: how anything is measured, analysed or drawn.
"""
