"""Reading energy on the host, while a runner works, into a timeline."""
