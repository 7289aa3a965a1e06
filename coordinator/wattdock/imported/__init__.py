"""Results that others published: read them, and say what their own figures say for or against them.

In: files of other tools, in the forms that `origins.yaml` lists. Out: rows `Imported`, each as an `AuditedRow` with an
answer to each of the verdict's three questions; never publishable, since wattdock did not measure them.
Must not know: experiments, results, how anything is measured or printed.
"""

from wattdock.imported.checks import AuditedRow, audit_rows
from wattdock.imported.read import Imported, read_rows

__all__ = ["AuditedRow", "Imported", "audit_rows", "read_rows"]
