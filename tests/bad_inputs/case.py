"""One command line of the table, and how it has to end."""

import shlex
from dataclasses import dataclass

REFUSED, WARNED, ACCEPTED = "refused", "warned", "accepted"


@dataclass(frozen=True)
class Case:
    """One command line. ``says`` are words that the error or warning must hold."""

    name: str
    command: str
    end: str = REFUSED
    says: str = ""

    def words(self, files: str) -> list[str]:
        """The words of the command, with the folder of files filled in."""
        words = shlex.split(self.command.replace("FILES", files))
        return [word.replace("<NUL>", "\0").replace("<LONG>", "x" * 100_000) for word in words]
