"""A store of a local web server: SQLite or PostgreSQL, opened the same way and written alike.

SQLite is the embedded default: one file, read and written by its owner alone. PostgreSQL takes many
servers. The tables are the caller's.
"""

import os
import sqlite3
import stat
from collections.abc import Set
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

WAIT_S = 30
"""For another process that writes to the same file."""


def open_engine(place: Path | str, schema: sa.MetaData, *, what: str) -> sa.Engine:
    """Of a file for SQLite, made private, or of a ``postgresql://`` address, with the tables there.

    ValueError, which names it ``what`` ("a file of votes"), for what cannot be one, or holds other
    tables by these names; it is left as it is.
    """
    if "://" in str(place):
        engine = _postgresql(str(place), what)
        told = engine.url.render_as_string(hide_password=True)
    else:
        told, path = str(place), Path(place)
        _check_file(path, schema, what)
        _make_private(path)
        engine = _sqlite(path)
    try:
        with writing(engine).begin() as db:
            if db.dialect.name == "postgresql":  # two servers that start together make them once
                db.execute(sa.text("SELECT pg_advisory_xact_lock(20535)"))
                _check_tables(db, told, schema, what)
            schema.create_all(db)
    except SQLAlchemyError as error:
        engine.dispose()
        raise ValueError(f"{told} cannot be used as {what}: {_first(error)}") from error
    except ValueError:
        engine.dispose()
        raise
    return engine


def writing(engine: sa.Engine, *, is_durable: bool = True) -> sa.Engine:
    """The same for transactions that write: SQLite locks out other writers from the beginning. A
    durable one waits for the disk, so that what was confirmed survives a power cut."""
    begins = _BEGINS[engine.dialect.name]
    return engine.execution_options(begins=(begins[is_durable], *begins[2:]))


_BEGINS = {
    "sqlite": ("PRAGMA synchronous=NORMAL", "PRAGMA synchronous=FULL", "BEGIN IMMEDIATE"),
    "postgresql": ("SET LOCAL synchronous_commit=off", "SET LOCAL synchronous_commit=on"),
}
"""Statements that begin what writes: without and with waiting for the disk, then others."""


def _begin(db: sa.Connection) -> None:
    first = ("BEGIN",) if db.dialect.name == "sqlite" else ()
    for statement in db.get_execution_options().get("begins", first):
        db.exec_driver_sql(statement)


def _postgresql(address: str, what: str) -> sa.Engine:
    try:
        url = sa.make_url(address)
        if url.drivername not in ("postgresql", "postgres"):
            raise ValueError(
                f"{what} is a file, or lies at postgresql://…, got {url.drivername}://"
            )
        url = url.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url, pool_pre_ping=True, max_overflow=20)
    except ArgumentError as error:
        raise ValueError(f"the address of {what} is malformed: {_first(error)}") from error
    except ImportError as error:
        raise ValueError(f"PostgreSQL needs pip install 'avatar_v[postgres]': {error}") from error
    event.listen(engine, "begin", _begin)
    return engine


def _sqlite(path: Path) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_S}, max_overflow=40)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the next listener begins transactions, not the driver
        connection.execute("PRAGMA journal_mode=WAL")

    event.listen(engine, "begin", _begin)
    return engine


def _check_file(path: Path, schema: sa.MetaData, what: str) -> None:
    """ValueError for a file that is there and is no store, or of another version."""
    if not path.exists():
        return
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no file"
        raise ValueError(f"{path} cannot be used as {what}: it is {kind}")
    if not path.stat().st_size:
        return
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    engine = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(uri, uri=True))
    try:
        with engine.connect() as db:
            _check_tables(db, str(path), schema, what)
    except SQLAlchemyError as error:
        raise ValueError(f"{path} cannot be used as {what}: {_first(error)}") from error
    finally:
        engine.dispose()


def _check_tables(db: sa.Connection, told: str, schema: sa.MetaData, what: str) -> None:
    """All of the tables are there with their columns, or none; a file holds no others alone."""
    inspector = sa.inspect(db)
    found: Set[str] = set(inspector.get_table_names())
    own = found & set(schema.tables)
    if not own and (db.dialect.name == "postgresql" or not found):
        return
    for name, table in schema.tables.items():
        columns = {c["name"] for c in inspector.get_columns(name)} if name in found else set()
        if not columns >= set(table.columns.keys()):
            raise ValueError(
                f"{told} cannot be used as {what}: it is another database, or of another version; "
                f"its tables are {', '.join(sorted(found))}"
            )


def _make_private(path: Path) -> None:
    """The file is there, read and written by its owner alone, in a folder that is made so.

    SQLite gives the files that it lays beside it the same rights; those of before are taken back.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            file.chmod(0o600)


def _first(error: Exception) -> str:
    """The first line of what a database says, without SQLAlchemy's own."""
    return str(error.__cause__ or error).strip().partition("\n")[0]
