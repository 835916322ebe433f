"""The two ways a command can end badly, each with its exit code.

`InputError` is the user's to mend (exit 2); `RunError` is a run that started and failed (exit 1).
Both carry one line that names the file, row or field and says what to do.
"""

from __future__ import annotations


class InputError(Exception):
    """Bad input or usage: one line naming what is wrong and the fix. Exit code 2."""


class RunError(Exception):
    """A run started and failed: one line naming the rank or step and where its log is. Exit code 1."""
