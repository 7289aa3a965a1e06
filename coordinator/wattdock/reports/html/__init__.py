"""One self-contained page over stored results: a template, a style sheet and a script, with what they show."""
