"""HTML of the rating page: Jinja templates of our own, guidelines from the study or
``eval/protocols``.

Templates get what a rater may know and nothing else: no system, case or file name is passed in.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt

from avatar_v.base.outside import read_text
from avatar_v_eval.human.questions import AXES, Dimension
from avatar_v_eval.human.session import Page
from avatar_v_eval.human.study import PAIRED, Kind, Study
from avatar_v_eval.human.study_file import MAX_GUIDELINES
from avatar_v_eval.human.votes import CHOICES

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


_CAPTIONS = {
    "mos": "Please rate this one",
    "score": "Please rate this one",
    "ranges": "Please mark the faults of this one",
    "attributes": "Please describe this one",
}


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
        lines=_lines(study, page),
        faults=study.faults,
        num_minutes=_minutes(study),
        instructions=guidelines(study, page.kind) if page.kind else "",
    )


def error(message: str) -> str:
    """A page for a request that leads nowhere."""
    return _environment.get_template("error.html").render(study_title="Rating", message=message)


@cache
def static_file(name: str) -> bytes:
    """Bytes of one of ``STATIC``."""
    return (_HERE / "static" / name).read_bytes()


def guidelines(study: Study, kind: Kind) -> str:
    """What raters read before they qualify, as HTML; raw HTML in it is not rendered."""
    own = dict(study.guidelines).get(kind)
    return _as_html(study.path(own) if own else _protocol(kind))


@cache
def _as_html(file: Path) -> str:
    text = read_text(file, what="guidelines in UTF-8", most=MAX_GUIDELINES)
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def _protocol(kind: Kind) -> Path:
    name = f"{kind}.md"
    file = next((folder / name for folder in _PROTOCOLS if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(f"no rater guidelines {name} in any of {[str(p) for p in _PROTOCOLS]}")
    return file


def _lines(study: Study, page: Page) -> list[tuple[Dimension, tuple[str, ...]]]:
    """The lines of a question with their choices."""
    if page.kind == "mos":
        return [(line, CHOICES["mos"]) for line in study.dimensions]
    if page.kind == "score":
        return [(line, ()) for line in AXES]  # each has a slider
    return [(line, line.values) for line in study.attributes] if page.kind == "attributes" else []


def _videos(page: Page) -> tuple[PlayedVideo, ...]:
    if page.screen is None or page.item is None:
        return ()
    media, count = page.screen.media, len(page.item.videos)
    shown = []
    if page.item.reference:
        shown.append(PlayedVideo("reference", "Reference clip", media[count]))
    if count == 1:
        return (*shown, PlayedVideo("only", _CAPTIONS[page.item.kind], media[0]))
    left, right = (1, 0) if page.screen.second_on_left else (0, 1)
    return (*shown, PlayedVideo("left", "A", media[left]), PlayedVideo("right", "B", media[right]))


def _minutes(study: Study) -> int:
    """A rough length of a session for the welcome page: 20 seconds a choice, 45 where there is more
    to say."""
    seconds = sum(
        task.items_per_rater * (20 if task.kind in PAIRED else 45) for task in study.tasks
    )
    return max(5, 5 * round(seconds / 300))
