"""The session store: raters, what each was shown, and every vote, in SQLite or PostgreSQL.

Each call is one committed transaction, so a crash loses no answer that a page has confirmed.
Duplicates: the first answer stands. The same answer again is accepted as a retry and stored once;
a different one is refused with ``DuplicateVoteError``. Withdrawing deletes all of a rater's votes.
The tables are in `tables`, what opens them and keeps transactions apart in `database`.
"""

import random
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from avatar_v_eval.human.database import StudyDatabase
from avatar_v_eval.human.items import Item
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.tables import MEDIA, META, RATERS, SCREENS, VOTES
from avatar_v_eval.human.votes import Rater, Role, State, Vote

PENDING_HOURS = 24
"""An item that a rater has left open for longer is handed out again."""
STORE_FILE = "votes.sqlite"
_COLUMNS = tuple(field.name for field in fields(Vote))
_ASKED = ("kind", "case", "first", "second")
_PUBLIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INSERT = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


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
    decided_s: float | None
    media: tuple[str, ...]


class StudyStore(StudyDatabase):
    """One study's votes. Safe for the threads of a server, and for several servers."""

    def add_raters(self, num: int, *, tier: int = 1) -> list[Rater]:
        """``num`` new raters of a tier (2: reviewers) with a token each."""
        return self._add_raters(lambda before: num, tier)

    def fill_raters(self, num: int, *, tier: int = 1) -> None:
        """New raters until there are ``num`` of the tier."""
        self._add_raters(lambda before: num - before, tier)

    def _add_raters(self, missing: Callable[[int], int], tier: int) -> list[Rater]:
        with self.transaction() as db:
            db.execute(sa.select(META).with_for_update())
            mark = "r" if tier == 1 else "v"
            before = list(db.execute(sa.select(RATERS.c.name, RATERS.c.tier)))
            # those that were imported may leave gaps, or have a name of the other tier
            numbers = [int(row.name[1:]) for row in before if re.fullmatch(mark + r"\d+", row.name)]
            start = max(numbers, default=0)
            new = [
                Rater(f"{mark}{start + i + 1:03d}", secrets.token_urlsafe(16), "invited", tier=tier)
                for i in range(missing(sum(row.tier == tier for row in before)))
            ]
            rows = [_row(rater.name, rater.token, rater.state, tier) for rater in new]
            if rows:
                db.execute(RATERS.insert(), rows)
        return new

    def raters(self) -> list[Rater]:
        """All raters in the order of their names, reviewers last."""
        with self._reading() as db:
            rows = db.execute(_RATERS.order_by(RATERS.c.tier, RATERS.c.name)).mappings()
            return [_rater(row) for row in rows]

    def rater(self, token: str) -> Rater | None:
        """The rater who holds a token, items uncounted; None for nobody. Inside of a transaction
        nobody else moves this rater on until its end."""
        if not _PUBLIC.fullmatch(token):
            return None
        query = sa.select(RATERS).where(RATERS.c.token == token)
        if self._open.db is not None:
            query = query.with_for_update()
        with self._reading() as db:
            row = db.execute(query).mappings().first()
        return _rater({**row, **_UNCOUNTED}) if row else None

    def named(self, name: str) -> Rater:
        """The rater of a name, items uncounted."""
        query = sa.select(RATERS).where(RATERS.c.name == name)
        with self._reading() as db:
            return _rater({**db.execute(query).mappings().one(), **_UNCOUNTED})

    def set_state(self, rater: str, state: State, *, only_from: State | None = None) -> None:
        query = RATERS.update().where(RATERS.c.name == rater).values(state=state)
        with self.transaction() as db:
            db.execute(query.where(RATERS.c.state == only_from) if only_from else query)

    def set_calibrated(self, rater: str, time: str) -> None:
        """Audits of answers before ``time`` (`Vote.time`) count no more against a rater."""
        query = RATERS.update().where(RATERS.c.name == rater).values(calibrated=time)
        with self.transaction() as db:
            db.execute(query)

    def pages_read(self, rater: str) -> set[str]:
        """Names of the instruction pages that a rater has confirmed."""
        with self._reading() as db:
            return set(
                db.execute(sa.select(RATERS.c.read).filter_by(name=rater)).scalar_one().split()
            )

    def mark_read(self, rater: str, page: str) -> None:
        with self.transaction() as db:
            read = " ".join(sorted(self.pages_read(rater) | {page}))
            db.execute(RATERS.update().where(RATERS.c.name == rater).values(read=read))

    def assign(
        self,
        rater: str,
        plan: Callable[[Counter[str]], Sequence[tuple[Item, bool]]],
        *,
        now_s: float | None = None,
        role: Role | None = None,
    ) -> None:
        """Append the screens of ``plan(load)``; ``load`` counts who has, or will have, each item.
        ``role`` replaces that of the items.

        Reading the load and assigning is one transaction and excludes others, so two raters who
        start together do not get the same half of a study.
        """
        now_s = time.time() if now_s is None else now_s
        with self.transaction() as db:
            db.execute(sa.select(META).with_for_update())
            chosen = plan(self._load(db, now_s))
            start = len(self.seen(rater))
            screens, media = [], []
            for position, (item, second_on_left) in enumerate(chosen, start):
                public = secrets.token_urlsafe(12)
                draw = random.Random(f"{self.fingerprint}/{rater}/{item.name}").random()
                screens.append(
                    {"public": public, "rater": rater, "position": position, "item": item.name}
                    | {"role": role or item.role, "second_on_left": second_on_left, "draw": draw}
                    | {"assigned_s": now_s}
                )
                media += [
                    {"public": secrets.token_urlsafe(12), "screen": public, "place": place}
                    for place in range(len(item.files))
                ]
            if screens:
                db.execute(SCREENS.insert(), screens)
                db.execute(MEDIA.insert(), media)

    def next_audit(self, reviewer: str, share: float, now_s: float) -> str | None:
        """The item of an answer that was drawn for an audit and has no reviewer yet; None where
        there is none. The draw knows nothing of the answer."""
        recent = SCREENS.c.assigned_s > now_s - 3600 * PENDING_HOURS
        taken = sa.select(SCREENS.c.item).where(
            SCREENS.c.role == "audit",
            SCREENS.c.decided_s.is_not(None) | recent | (SCREENS.c.rater == reviewer),
        )
        query = (
            sa.select(SCREENS.c.item)
            .join(RATERS)
            .where(SCREENS.c.role == "study", SCREENS.c.answered_s.is_not(None))
            .where(SCREENS.c.draw < share, RATERS.c.state.not_in(("withdrawn", "failed")))
            .where(SCREENS.c.item.not_in(taken))
            .order_by(SCREENS.c.draw)
            .limit(1)
        )
        with self._reading() as db:
            return db.execute(query).scalar()

    def screens(self, rater: str, *where: sa.ColumnElement[bool]) -> list[Screen]:
        """All screens of a rater in the order of showing."""
        own = (SCREENS.c.rater == rater, *where)
        screens = SCREENS.select().where(*own).order_by(SCREENS.c.position)
        with self._reading() as db:
            rows = db.execute(screens).mappings().all()
            media = sa.select(MEDIA).order_by(MEDIA.c.place)
            if len(rows) == 1:
                media = media.where(MEDIA.c.screen == rows[0]["public"])
            else:
                media = media.join(SCREENS).where(*own)
            ids = defaultdict(list)
            for row in db.execute(media):
                ids[row.screen].append(row.public)
        return [_screen(row, tuple(ids[row["public"]])) for row in rows]

    def screen(self, rater: str, public: str) -> Screen | None:
        """The screen of an id; None where it is not this rater's."""
        if not _PUBLIC.fullmatch(public):
            return None
        return next(iter(self.screens(rater, SCREENS.c.public == public)), None)

    def next_open(self, rater: str, roles: Collection[Role]) -> Screen | None:
        """The first screen of these roles that is not over; None where all are."""
        query = sa.select(SCREENS.c.public).where(SCREENS.c.rater == rater, _OPEN)
        query = query.where(SCREENS.c.role.in_(roles)).order_by(SCREENS.c.position).limit(1)
        with self._reading() as db:
            public = db.execute(query).scalar()
        return None if public is None else self.screen(rater, public)

    def progress(self, rater: str, roles: Collection[Role]) -> tuple[int, int]:
        """How many screens of these roles are over, and how many there are."""
        open_ = sa.func.sum(sa.case((_OPEN, 1), else_=0))
        query = sa.select(sa.func.count(), open_).where(SCREENS.c.rater == rater)
        with self._reading() as db:
            total, left = db.execute(query.where(SCREENS.c.role.in_(roles))).one()
        return total - (left or 0), total

    def seen(self, rater: str) -> dict[str, Role]:
        """Item → role of all that a rater was given."""
        query = sa.select(SCREENS.c.item, SCREENS.c.role).where(SCREENS.c.rater == rater)
        with self._reading() as db:
            return {item: role for item, role in db.execute(query)}

    def media(self, rater: str, public: str) -> tuple[str, int] | None:
        """(item, place in its files) of a media id; None where it is not this rater's."""
        if not _PUBLIC.fullmatch(public):
            return None
        query = sa.select(SCREENS.c.item, MEDIA.c.place).join_from(MEDIA, SCREENS)
        query = query.where(MEDIA.c.public == public, SCREENS.c.rater == rater)
        with self._reading() as db:
            row = db.execute(query).first()
        return (row.item, row.place) if row else None

    def mark_shown(self, public: str, now_s: float) -> None:
        """Note the first time that an item was shown; later ones do not count."""
        self._mark(public, "shown_s", now_s)

    def answer(self, screen: Screen, votes: Sequence[Vote], now_s: float) -> bool:
        """Store the votes of one screen, all or none. False where the same were there before."""
        with self.transaction() as db:
            num_new = self._insert(db, votes)
            self._mark(screen.public, "answered_s", now_s)
        return num_new > 0

    def decide(self, screen: Screen, labels: Sequence[Vote], now_s: float) -> None:
        """Store the label of an audit, which ends it."""
        with self.transaction() as db:
            self._insert(db, labels)
            self._mark(screen.public, "decided_s", now_s)

    def _mark(self, public: str, column: str, now_s: float) -> None:
        query = SCREENS.update().where(SCREENS.c.public == public, SCREENS.c[column].is_(None))
        with self.transaction() as db:
            db.execute(query.values({column: now_s}))

    def votes(self, **where: str) -> list[Vote]:
        """Every vote, oldest first, or those with the given columns. ValueError for rows that
        somebody else has written wrongly."""
        query = VOTES.select().filter_by(**where).order_by(VOTES.c.id)
        try:
            with self._reading() as db:
                return [_vote(row) for row in db.execute(query).mappings()]
        except (ValueError, SQLAlchemyError) as error:
            raise ValueError(f"{self.place}: {error.__cause__ or error}") from error

    def audited(self, rater: str, since: str) -> list[tuple[Vote, str]]:
        """A rater's votes after ``since`` that have a label, each with the label's answer."""
        label = VOTES.alias()
        same = [VOTES.c[name] == label.c[name] for name in (*_ASKED, "dimension")]
        query = sa.select(VOTES, label.c.answer.label("labelled")).where(
            *same, label.c.role == "label", VOTES.c.role == "study",
            VOTES.c.rater == rater, VOTES.c.time > since,
        )  # fmt: skip
        with self._reading() as db:
            return [(_vote(row), row["labelled"]) for row in db.execute(query).mappings()]

    def add_votes(self, votes: Sequence[Vote], states: Mapping[str, State] | None = None) -> int:
        """Import votes, all or none; returns how many were new. Raters are new ones in the state
        that ``states`` has, or done, and reviewers where they have decided. ValueError for one who
        rates here, or will: a name of another place is another person's."""
        states = states or {}
        reviewers = {vote.rater for vote in votes if vote.role in ("audit", "label")}
        try:
            with self.transaction() as db:
                for name in dict.fromkeys(vote.rater for vote in votes):
                    tier = 2 if name in reviewers else 1
                    new = _INSERT[db.dialect.name](RATERS).on_conflict_do_nothing()
                    state = states.get(name, "done")
                    db.execute(new, [_row(name, secrets.token_urlsafe(16), state, tier)])
                    state = db.execute(sa.select(RATERS.c.state).filter_by(name=name)).scalar_one()
                    if state == "invited" or self.seen(name):
                        raise ValueError(
                            f"rater {name} rates here, and the file's is perhaps another person: "
                            "--prefix puts words before the file's names"
                        )
                    if state == "withdrawn":
                        raise ValueError(f"rater {name} has withdrawn; the file still holds votes")
                return self._insert(db, votes)
        except SQLAlchemyError as error:
            raise ValueError(f"{self.place}: {error.__cause__ or error}") from error

    def withdraw(self, rater: str) -> int:
        """Delete a rater's votes and screens for good; returns how many votes there were."""
        with self.transaction() as db:
            num = db.execute(VOTES.delete().where(VOTES.c.rater == rater)).rowcount
            own = sa.select(SCREENS.c.public).where(SCREENS.c.rater == rater)
            db.execute(MEDIA.delete().where(MEDIA.c.screen.in_(own)))
            db.execute(SCREENS.delete().where(SCREENS.c.rater == rater))
            self.set_state(rater, "withdrawn")
        return num

    def _insert(self, db: sa.Connection, votes: Sequence[Vote]) -> int:
        """How many were new; the others are there already with the same answer."""
        if not votes:
            return 0
        new = _INSERT[db.dialect.name](VOTES).on_conflict_do_nothing()
        num_new = db.execute(new, [asdict(vote) for vote in votes]).rowcount
        for vote in votes if num_new < len(votes) else ():
            key = dict(zip(("rater", "role", *_ASKED, "dimension"), vote.key, strict=True))
            before = db.execute(sa.select(VOTES.c.answer).filter_by(**key)).scalar_one()
            if before != vote.answer:
                raise DuplicateVoteError(
                    f"{vote.rater} answered {vote.question} before with {before!r}; "
                    f"{vote.answer!r} is refused"
                )
        return num_new

    def load(self, now_s: float) -> Counter[str]:
        """How many raters have, or will have, answered each item."""
        with self._reading() as db:
            return self._load(db, now_s)

    def _load(self, db: sa.Connection, now_s: float) -> Counter[str]:
        recent = SCREENS.c.assigned_s > now_s - 3600 * PENDING_HOURS
        query = (
            sa.select(SCREENS.c.item, sa.func.count())
            .join(RATERS)
            .where(RATERS.c.state.not_in(("withdrawn", "failed")), RATERS.c.tier == 1)
            .where(SCREENS.c.answered_s.is_not(None) | recent)
            .group_by(SCREENS.c.item)
        )
        return Counter({item: num for item, num in db.execute(query)})


_OPEN = sa.case((SCREENS.c.role == "audit", SCREENS.c.decided_s), else_=SCREENS.c.answered_s).is_(
    None
)
"""An audit is over when its label stands, all else when it is answered."""


def store_of(study: Study, place: Path | str | None) -> StudyStore:
    """The store of a study at a place; without one, the file beside ``study.yaml``."""
    return StudyStore(place or study.root / STORE_FILE, study.fingerprint)


def _count(*where: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    own = sa.select(sa.func.count()).select_from(SCREENS)
    return own.where(SCREENS.c.rater == RATERS.c.name, *where).scalar_subquery()


_RATERS = sa.select(
    RATERS,
    _count().label("num_assigned"),
    _count(SCREENS.c.answered_s.is_not(None)).label("num_answered"),
)


_UNCOUNTED = {"num_assigned": 0, "num_answered": 0}


def _row(name: str, token: str, state: State, tier: int) -> dict[str, Any]:
    known = {"name": name, "token": token, "state": state, "tier": tier}
    return known | {"read": "", "calibrated": ""}


def _rater(row: Mapping[Any, Any]) -> Rater:
    return Rater(**{field.name: row[field.name] for field in fields(Rater)})


def _screen(row: Mapping[Any, Any], media: tuple[str, ...]) -> Screen:
    known = {name.name: row[name.name] for name in fields(Screen) if name.name != "media"}
    return Screen(**known, media=media)


def _vote(row: Mapping[Any, Any]) -> Vote:
    return Vote(**{name: row[name] for name in _COLUMNS})
