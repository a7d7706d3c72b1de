"""The tables of a study's store, for SQLite and PostgreSQL alike. All else is in `store`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from avatar_v_eval.human.votes import Vote

SCHEMA = sa.MetaData()
_TYPES: Mapping[Any, type] = {bool: sa.Boolean, float: sa.Double}

META = sa.Table("meta", SCHEMA, sa.Column("fingerprint", sa.Text, nullable=False))
RATERS = sa.Table(
    "raters",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("token", sa.Text, unique=True, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tier", sa.Integer, nullable=False),
    sa.Column("read", sa.Text, nullable=False),  # instruction pages
    sa.Column("calibrated", sa.Text, nullable=False),  # when last; audits before do not count
)
SCREENS = sa.Table(
    "screens",
    SCHEMA,
    sa.Column("public", sa.Text, primary_key=True),
    sa.Column("rater", sa.Text, sa.ForeignKey("raters.name"), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("item", sa.Text, nullable=False, index=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("second_on_left", sa.Boolean, nullable=False),
    sa.Column("draw", sa.Double, nullable=False),  # 0 to 1: below the share is audited
    sa.Column("assigned_s", sa.Double, nullable=False),
    sa.Column("shown_s", sa.Double),
    sa.Column("answered_s", sa.Double),
    sa.Column("decided_s", sa.Double),  # of an audit: the label stands
    sa.UniqueConstraint("rater", "item"),
)
MEDIA = sa.Table(
    "media",
    SCHEMA,
    sa.Column("public", sa.Text, primary_key=True),
    sa.Column("screen", sa.Text, sa.ForeignKey("screens.public"), nullable=False, index=True),
    sa.Column("place", sa.Integer, nullable=False),
)
VOTES = sa.Table(
    "votes",
    SCHEMA,
    *(sa.Column(f.name, _TYPES.get(f.type, sa.Text)) for f in fields(Vote)),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.UniqueConstraint("rater", "role", "kind", "case", "first", "second", "dimension"),
    sa.Index("votes_asked", "kind", "case", "first", "second"),
)
