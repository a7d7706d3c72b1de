"""A study's SQLite file or PostgreSQL, which avatar_v's web/database.py opens, and transactions.

What is read and written in them is in `store`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import sqlalchemy as sa

from avatar_v.web.database import open_engine, writing
from avatar_v_eval.human.tables import META, SCHEMA


class _Open(threading.local):
    db: sa.Connection | None = None


class StudyDatabase:
    """The opened tables of one study; those of another version of it are refused."""

    def __init__(self, place: Path | str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._engine = open_engine(place, SCHEMA, what="a file of votes")
        url = self._engine.url
        self.place = str(place) if url.database == str(place) else url.render_as_string()
        self._open = _Open()
        is_file = self._engine.dialect.name == "sqlite"
        self._alone = threading.RLock() if is_file else nullcontext()  # threads wait in a row
        with self.transaction() as db:
            row = db.execute(sa.select(META.c.fingerprint)).scalar()
            if row is None:
                db.execute(META.insert().values(fingerprint=fingerprint))
        if row not in (None, fingerprint):
            self.close()
            raise ValueError(
                f"{self.place} holds votes of another version of the study ({row}, now "
                f"{fingerprint}); take another place with --votes, or restore study.yaml"
            )

    def close(self) -> None:
        """Close all connections; the store is of no use afterwards."""
        self._engine.dispose()

    @contextmanager
    def transaction(self, *, is_durable: bool = True) -> Iterator[sa.Connection]:
        """All inside or nothing, on disk at the end unless it may be lost in a power cut. Nested
        ones join the outer.

        In SQLite it is alone; in PostgreSQL `rater` and `assign` lock what they are about.
        """
        if self._open.db is not None:
            yield self._open.db
            return
        with self._alone, writing(self._engine, is_durable=is_durable).begin() as db:
            self._open.db = db
            try:
                yield db
            finally:
                self._open.db = None

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        if self._open.db is not None:
            yield self._open.db
            return
        with self._engine.connect() as db:
            yield db
