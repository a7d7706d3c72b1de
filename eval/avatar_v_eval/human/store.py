"""The session store: raters, what each was shown, and every vote, in one SQLite file.

Each call is one committed transaction, so a crash loses no answer that a page has confirmed.
Only its owner reads it: tokens open sessions, and votes are people's.
Duplicates: the first answer stands. The same answer again is accepted as a retry and stored once;
a different one is refused with ``DuplicateVoteError``. Withdrawing deletes all of a rater's votes.
"""

import os
import secrets
import sqlite3
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from urllib.parse import quote

from avatar_v_eval.human.items import Item
from avatar_v_eval.human.votes import Rater, State, Vote

PENDING_HOURS = 24
"""An item that a rater has left open for longer is handed out again."""

_COLUMNS = tuple(field.name for field in fields(Vote))
_QUOTED = ", ".join(f'"{name}"' for name in _COLUMNS)  # case is a word of SQL
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (fingerprint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS raters (
  name TEXT PRIMARY KEY, token TEXT UNIQUE NOT NULL, state TEXT NOT NULL,
  read TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS screens (
  public TEXT PRIMARY KEY, rater TEXT NOT NULL REFERENCES raters(name), position INTEGER NOT NULL,
  item TEXT NOT NULL, role TEXT NOT NULL, second_on_left INTEGER NOT NULL,
  assigned_s REAL NOT NULL, shown_s REAL, answered_s REAL, UNIQUE (rater, item));
CREATE TABLE IF NOT EXISTS media (
  public TEXT PRIMARY KEY, screen TEXT NOT NULL REFERENCES screens(public), place INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS votes (
  {_QUOTED}, UNIQUE (rater, role, kind, "case", first, second, dimension));
"""


class DuplicateVoteError(ValueError):
    """A second, different answer to a question that has one."""


@dataclass(frozen=True)
class Screen:
    """One item as one rater sees it. ``media`` are random ids in the order of ``Item.files``."""

    public: str
    rater: str
    position: int
    item: str
    role: str
    second_on_left: bool
    shown_s: float | None
    answered_s: float | None
    media: tuple[str, ...]


class StudyStore:
    """One study's file. Safe for the threads of one server; other processes may read it."""

    def __init__(self, path: Path | str, fingerprint: str) -> None:
        self.path = Path(path)
        _check_own(self.path)
        _make_private(self.path)
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            self.close()
            raise ValueError(f"{path} cannot be used as a file of votes: {error}") from error
        with self.transaction():
            row = self._db.execute("SELECT fingerprint FROM meta").fetchone()
            if row is None:
                self._db.execute("INSERT INTO meta VALUES (?)", (fingerprint,))
        if row is not None and row["fingerprint"] != fingerprint:
            self.close()
            raise ValueError(
                f"{path} holds votes of another version of the study ({row['fingerprint']}, now "
                f"{fingerprint}); take a new file with --votes, or restore study.yaml"
            )

    def close(self) -> None:
        """Close the file; the store is of no use afterwards."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All inside or nothing, on disk at the end, alone. Nested ones join the outer."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def add_raters(self, num: int) -> list[Rater]:
        """``num`` new raters with a token each."""
        with self.transaction():
            start = self._db.execute("SELECT COUNT(*) FROM raters").fetchone()[0]
            rows = [(f"r{start + i + 1:03d}", secrets.token_urlsafe(16)) for i in range(num)]
            self._db.executemany(
                "INSERT INTO raters (name, token, state) VALUES (?, ?, 'invited')", rows
            )
        return [Rater(name, token, "invited") for name, token in rows]

    def raters(self) -> list[Rater]:
        """All raters in the order of their names."""
        with self._lock:
            return [_rater(row) for row in self._db.execute(_RATERS + " ORDER BY r.name")]

    def rater(self, token: str) -> Rater | None:
        """The rater who holds a token; None for nobody."""
        with self._lock:
            row = self._db.execute(_RATERS + " WHERE r.token = ?", (token,)).fetchone()
        return _rater(row) if row else None

    def set_state(self, rater: str, state: State) -> None:
        with self.transaction():
            self._db.execute("UPDATE raters SET state = ? WHERE name = ?", (state, rater))

    def pages_read(self, rater: str) -> set[str]:
        """Names of the instruction pages that a rater has confirmed."""
        with self._lock:
            row = self._db.execute("SELECT read FROM raters WHERE name = ?", (rater,)).fetchone()
        return set(row["read"].split())

    def mark_read(self, rater: str, page: str) -> None:
        with self.transaction():
            read = " ".join(sorted(self.pages_read(rater) | {page}))
            self._db.execute("UPDATE raters SET read = ? WHERE name = ?", (read, rater))

    def assign(
        self,
        rater: str,
        plan: Callable[[Counter[str]], Sequence[tuple[Item, bool]]],
        *,
        now_s: float | None = None,
    ) -> None:
        """Append the screens of ``plan(load)``; ``load`` counts who has, or will have, each item.

        Reading the load and assigning is one transaction, so two raters who start together do not
        get the same half of a study.
        """
        now_s = time.time() if now_s is None else now_s
        with self.transaction():
            chosen = plan(self._load(now_s))
            start = len(self.screens(rater))
            for position, (item, second_on_left) in enumerate(chosen, start):
                public = secrets.token_urlsafe(12)
                self._db.execute(
                    "INSERT INTO screens VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                    (public, rater, position, item.name, item.role, second_on_left, now_s),
                )
                media = [(secrets.token_urlsafe(12), public, i) for i in range(len(item.files))]
                self._db.executemany("INSERT INTO media VALUES (?, ?, ?)", media)

    def screens(self, rater: str) -> list[Screen]:
        """All screens of a rater in the order of showing."""
        screens = "SELECT * FROM screens WHERE rater = ? ORDER BY position"
        media = """SELECT m.* FROM media m JOIN screens s ON s.public = m.screen
                   WHERE s.rater = ? ORDER BY m.place"""
        with self._lock:
            ids = defaultdict(list)
            for row in self._db.execute(media, (rater,)):
                ids[row["screen"]].append(row["public"])
            rows = self._db.execute(screens, (rater,)).fetchall()
        return [_screen(row, tuple(ids[row["public"]])) for row in rows]

    def media(self, rater: str, public: str) -> tuple[str, int] | None:
        """(item, place in its files) of a media id; None where it is not this rater's."""
        query = """SELECT s.item, m.place FROM media m JOIN screens s ON s.public = m.screen
                   WHERE m.public = ? AND s.rater = ?"""
        with self._lock:
            row = self._db.execute(query, (public, rater)).fetchone()
        return (row["item"], row["place"]) if row else None

    def mark_shown(self, public: str, now_s: float) -> None:
        """Note the first time that an item was shown; later ones do not count."""
        query = "UPDATE screens SET shown_s = ? WHERE public = ? AND shown_s IS NULL"
        with self.transaction():
            self._db.execute(query, (now_s, public))

    def answer(self, screen: Screen, votes: Sequence[Vote], now_s: float) -> bool:
        """Store the votes of one screen, all or none. False where the same were there before."""
        with self.transaction():
            new = [self._insert(vote) for vote in votes]
            query = "UPDATE screens SET answered_s = ? WHERE public = ? AND answered_s IS NULL"
            self._db.execute(query, (now_s, screen.public))
        return any(new)

    def votes(self) -> list[Vote]:
        """Every vote, oldest first. ValueError for rows that somebody else has written wrongly."""
        try:
            with self._lock:
                rows = self._db.execute("SELECT * FROM votes ORDER BY rowid")
                return [_vote(row) for row in rows]
        except (ValueError, sqlite3.Error) as error:
            raise ValueError(f"{self.path}: {error}") from error

    def add_votes(self, votes: Sequence[Vote]) -> int:
        """Import votes, all or none; returns how many were new. Unknown raters count as done."""
        with self.transaction():
            for name in dict.fromkeys(vote.rater for vote in votes):
                query = "INSERT OR IGNORE INTO raters (name, token, state) VALUES (?, ?, 'done')"
                self._db.execute(query, (name, secrets.token_urlsafe(16)))
                row = self._db.execute("SELECT state FROM raters WHERE name = ?", (name,))
                if row.fetchone()["state"] == "withdrawn":
                    raise ValueError(f"rater {name} has withdrawn; the file still holds votes")
            return sum(self._insert(vote) for vote in votes)

    def withdraw(self, rater: str) -> int:
        """Delete a rater's votes and screens for good; returns how many votes there were."""
        with self.transaction():
            num = self._db.execute("DELETE FROM votes WHERE rater = ?", (rater,)).rowcount
            own = "SELECT public FROM screens WHERE rater = ?"
            self._db.execute(f"DELETE FROM media WHERE screen IN ({own})", (rater,))
            self._db.execute("DELETE FROM screens WHERE rater = ?", (rater,))
            self._db.execute("UPDATE raters SET state = 'withdrawn' WHERE name = ?", (rater,))
        return num

    def _insert(self, vote: Vote) -> bool:
        """False for a vote that is there already with the same answer."""
        values = asdict(vote)
        marks = ", ".join(f":{name}" for name in _COLUMNS)
        sql = f"INSERT OR IGNORE INTO votes ({_QUOTED}) VALUES ({marks})"
        if self._db.execute(sql, values).rowcount:
            return True
        where = """rater = ? AND role = ? AND kind = ? AND "case" = ? AND first = ? AND second = ?
                   AND dimension = ?"""
        row = self._db.execute(f"SELECT answer FROM votes WHERE {where}", vote.key).fetchone()
        if row["answer"] != vote.answer:
            raise DuplicateVoteError(
                f"{vote.rater} answered {vote.question} before with {row['answer']!r}; "
                f"{vote.answer!r} is refused"
            )
        return False

    def _load(self, now_s: float) -> Counter[str]:
        query = """SELECT s.item, COUNT(*) AS num FROM screens s JOIN raters r ON r.name = s.rater
                   WHERE r.state NOT IN ('withdrawn', 'failed')
                   AND (s.answered_s IS NOT NULL OR s.assigned_s > ?) GROUP BY s.item"""
        rows = self._db.execute(query, (now_s - 3600 * PENDING_HOURS,))
        return Counter({row["item"]: row["num"] for row in rows})


_RATERS = """SELECT r.*,
  (SELECT COUNT(*) FROM screens s WHERE s.rater = r.name) AS assigned,
  (SELECT COUNT(*) FROM screens s WHERE s.rater = r.name AND s.answered_s NOTNULL) AS answered
  FROM raters r"""


def _check_own(path: Path) -> None:
    """ValueError for a file that is there and holds other tables than those of votes, or none. It
    is not written to, unlike one that is opened as a store."""
    if not path.exists():
        return
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no file"
        raise ValueError(f"{path} cannot be used as a file of votes: it is {kind}")
    if not path.stat().st_size:
        return
    known = {}
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as db:
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                columns = db.execute("SELECT name FROM pragma_table_info(?)", (name,))
                known[name] = {column for (column,) in columns}
    except sqlite3.Error as error:
        raise ValueError(f"{path} cannot be used as a file of votes: {error}") from error
    if known and ("meta" not in known or not known.get("votes", set()) >= set(_COLUMNS)):
        raise ValueError(
            f"{path} cannot be used as a file of votes: it is another database, with the tables "
            f"{', '.join(sorted(known))}"
        )


def _make_private(path: Path) -> None:
    """The file of votes is there, read and written by its owner alone, in a folder that is made so.

    SQLite gives the files that it lays beside it the same rights; those of before are taken back.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            file.chmod(0o600)


def _rater(row: sqlite3.Row) -> Rater:
    return Rater(row["name"], row["token"], row["state"], row["assigned"], row["answered"])


def _screen(row: sqlite3.Row, media: tuple[str, ...]) -> Screen:
    known = {name.name: row[name.name] for name in fields(Screen) if name.name != "media"}
    return Screen(**{**known, "second_on_left": bool(row["second_on_left"]), "media": media})


def _vote(row: sqlite3.Row) -> Vote:
    known = {name: row[name] for name in _COLUMNS}
    return Vote(**{**known, "second_on_left": bool(row["second_on_left"])})
