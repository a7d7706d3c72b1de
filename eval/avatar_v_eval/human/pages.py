"""HTML of the rating page: Jinja templates of our own, instructions from ``eval/protocols``.

Templates get what a rater may know and nothing else: no system, case or file name is passed in.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt

from avatar_v_eval.human.session import Page
from avatar_v_eval.human.study import Kind, Study

_HERE = Path(__file__).resolve().parent
_PROTOCOLS = (_HERE.parents[1] / "protocols", _HERE.parent / "protocols")  # checkout, wheel

STATIC = {"rate.css": "text/css", "rate.js": "text/javascript"}
"""The files that are served to everyone, with their types."""

_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class PlayedVideo:
    """One player: its caption and its random id."""

    side: str  # left, right, only or reference
    caption: str
    public: str


def render(study: Study, token: str, page: Page) -> str:
    """The HTML of a page."""
    template = _environment.get_template(f"{page.name}.html")
    return template.render(
        study_title=study.title,
        base=f"/r/{token}",
        page=page,
        videos=_videos(page),
        dimensions=study.dimensions,
        num_minutes=_minutes(study),
        instructions=protocol(page.kind) if page.kind else "",
    )


def error(message: str) -> str:
    """A page for a request that leads nowhere."""
    return _environment.get_template("error.html").render(study_title="Rating", message=message)


@cache
def static_file(name: str) -> bytes:
    """Bytes of one of ``STATIC``."""
    return (_HERE / "static" / name).read_bytes()


@cache
def protocol(kind: Kind) -> str:
    """The instructions of one kind as HTML; the file is trusted, raw HTML in it is not rendered."""
    name = {"mos": "mos.md", "pair": "pairwise.md", "turing": "turing.md"}[kind]
    file = next((folder / name for folder in _PROTOCOLS if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(f"no rater instructions {name} in any of {[str(p) for p in _PROTOCOLS]}")
    text = file.read_text(encoding="utf-8")
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def _videos(page: Page) -> tuple[PlayedVideo, ...]:
    if page.screen is None or page.item is None:
        return ()
    media, count = page.screen.media, len(page.item.videos)
    shown = []
    if page.item.reference:
        shown.append(PlayedVideo("reference", "Reference clip", media[count]))
    if count == 1:
        return (*shown, PlayedVideo("only", "Please rate this one", media[0]))
    left, right = (1, 0) if page.screen.second_on_left else (0, 1)
    return (*shown, PlayedVideo("left", "A", media[left]), PlayedVideo("right", "B", media[right]))


def _minutes(study: Study) -> int:
    """A rough length of a session for the welcome page: 20 seconds a choice, 45 a MOS item."""
    seconds = sum(task.items_per_rater * (45 if task.kind == "mos" else 20) for task in study.tasks)
    return max(5, 5 * round(seconds / 300))
