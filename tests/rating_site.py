"""The rating server as a stranger meets it, and what an honest rater would do there.

The attacks are in rating_attacks.py.
"""

import re
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from attacking import Answer, Target

MOS = ("identity", "lip_sync", "motion_naturalness", "motion_consistency", "artifacts", "visual")


@dataclass
class Site:
    """The server, and what the raters know of it who were invited."""

    target: Target
    folder: Path
    tokens: list[str]
    memory_mib: float
    tried: int = 0
    through: list[str] = field(default_factory=list)  # by attack and name
    asked: dict[str, tuple[str, str, dict]] = field(default_factory=dict)  # by token

    def rows(self, query: str) -> list[tuple]:
        """Of the database, read as an onlooker."""
        with sqlite3.connect(f"file:{self.folder}/votes.sqlite?mode=ro", uri=True) as db:
            return db.execute(query).fetchall()

    @property
    def votes(self) -> list[tuple]:
        return self.rows("SELECT * FROM votes ORDER BY rowid")

    @property
    def me(self) -> str:
        return self.tokens[0]

    def question(self, token: str) -> tuple[str, str, dict]:
        """(item, a media id, an answer that fits) of the question that a rater is at."""
        if token not in self.asked:
            self.target.ask("POST", f"/r/{token}/consent")
            self.asked[token] = self._due(token)
        return self.asked[token]

    def advance(self, token: str, kind: str) -> None:
        """A rater answers honestly until a question of this kind is due."""
        while kind not in self.question(token)[2]:
            item, _, answer = self.asked.pop(token)
            sent = {"item": item, "answer": RIGHT.get(next(iter(answer)), answer)}
            assert self.target.ask("POST", f"/r/{token}/answer", sent).status == 200

    def _due(self, token: str) -> tuple[str, str, dict]:
        base = f"/r/{token}"
        page = self.target.ask("GET", base).body.decode()
        for action in re.findall(rf'action="({base}/read/\w+)"', page):
            self.target.ask("POST", action)
        page = self.target.ask("GET", base).body.decode()
        found = re.search(r'data-item="([^"]+)" data-kind="(\w+)"', page)
        media = re.search(rf'src="{base}/m/([^"]+)"', page)
        assert found, page
        assert media, page
        if found[2] == "attributes":
            return found[1], media[1], {"attributes": True}
        answers = {"mos": dict.fromkeys(MOS, 1), "ranges": {"ranges": []}}
        return found[1], media[1], answers.get(found[2], {"choice": "left"})


RIGHT = {"ranges": {"ranges": [{"fault": "teeth", "start": 0.1, "stop": 0.4}]}}
"""The known answer of the practice, by the first key of an answer."""


def vote(site: Site, path: str, item: object, answer: object) -> Answer:
    return site.target.ask("POST", path, {"item": item, "answer": answer})
