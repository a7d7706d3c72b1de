"""The page of a selection: what each limit leaves, where it lies among the clips, and some clips.

`report.html` and the folder `watch` beside it need no server. A histogram shows all clips, and
darker those that are kept, with the limits drawn in. A few clips that were kept can be watched, and
of those that each limit dropped the nearest to it: whether a limit is right is seen there. Of the
persons those are shown whose clips are least alike: whether each is one person is seen there.
"""

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from avatar_v.base.words import counted
from avatar_v.media.reading import iter_video, read_audio
from avatar_v.media.writer import Mp4Writer
from avatar_v.shards.writer import write_text_atomically
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_data.curation.plan import Limit
from avatar_v_data.curation.select import Clip, Selection, clip_name, is_number
from avatar_v_data.curation.table import CurationResults

NUM_WATCHED = 4
"""Clips that were kept, and that each limit dropped, on a tier's page."""
DROPPED = "Dropped by "
WATCHED_S = 6
WATCHED = "watch"
"""The folder beside the page."""
NUM_PERSONS, NUM_PICTURES = 12, 6
"""Persons on a tier's page, and pictures of each."""
MOST_COMPARED = 2000
"""Clips of a person, evenly taken, among which the two farthest are looked for."""
SIDE = 256
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.15rem .7rem;text-align:left}td.n{text-align:right}
.bar{background:#4477aa;height:.9rem}figure{display:inline-block;margin:.3rem;width:256px}
figure.still{width:160px}img{width:100%}video{width:100%;background:#000}figcaption{font-size:.8rem}svg{max-width:100%;height:auto}"""


def write_report(
    out: Path,
    paths: Mapping[str, Path],
    found: CurationResults,
    selections: Sequence[Selection],
    limits: Mapping[str, Mapping[str, Limit]],
    same_person: Mapping[str, float],
) -> None:
    """`report.html` in ``out``. ``paths``: of the recordings, by their names. ``same_person``: see
    `Grouping`."""
    watched: dict[str, Clip] = {}
    stills: dict[str, Clip] = {}
    parts = [_summary(found)]
    for selection in selections:
        own = limits[selection.tier]
        parts.append(f"<h2>Tier {escape(selection.tier)}</h2>{_funnel(selection)}")
        parts.append(_histograms(found.clips, selection, own))
        for title, clips in _examples(selection).items():
            column = title.removeprefix(DROPPED).split()[0]
            figures = [_figure(clip, watched, column) for clip in clips]
            parts.append(f"<h3>{escape(title)}</h3>{''.join(figures)}")
        parts.append(_persons(selection, same_person, stills))
    _cut(out / WATCHED, paths, watched, stills)
    body = "".join(parts)
    page = f"<!doctype html><meta charset=utf-8><title>Clips</title><style>{STYLE}</style>{body}"
    write_text_atomically(out / "report.html", page)


def _summary(found: CurationResults) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{escape(why)}" for name, why in sorted(found.failed.items())
    )
    left_out = f"<h2>Left out</h2><table>{rows}</table>" if rows else ""
    return (
        f"<h1>{len(found.clips)} clips of {found.footage_s / 60:.1f} minutes of footage</h1>"
        f"{left_out}"
    )


def _funnel(selection: Selection) -> str:
    most = max(selection.steps[0].seconds, 1e-9)
    rows = [
        f"<tr><td>{escape(step.what)}<td class=n>{step.clips or ''}<td class=n>"
        f"{step.seconds / 60:.1f}<td>"
        f"<div class=bar style='width:{20 * step.seconds / most:.2f}rem'></div>"
        for step in selection.steps
    ]
    return f"<table><tr><th>after<th>clips<th>minutes<th>{''.join(rows)}</table>"


def _histograms(clips: Sequence[Clip], selection: Selection, limits: Mapping[str, Limit]) -> str:
    """One panel for each column that a limit names, as SVG."""
    columns = [column for column in limits if clips and column in clips[0]]
    if not columns:
        return ""
    kept = {clip_name(clip) for clip in selection.clips}
    rows = -(-len(columns) // 3)
    figure = Figure(figsize=(11, 2.3 * rows))
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    for panel, column in zip(panels[: len(columns)], columns, strict=True):
        values = [float(clip[column]) for clip in clips]
        chosen = [float(clip[column]) for clip in clips if clip_name(clip) in kept]
        _, edges, _ = panel.hist(values, bins=30, color="#bbccdd")
        panel.hist(chosen, bins=edges, color="#4477aa")
        for bound in (limits[column].min, limits[column].max):
            if bound is not None:
                panel.axvline(bound, color="#cc3311")
        panel.set_title(f"{column} {limits[column]}", fontsize=9)
        panel.set_xlabel(column, fontsize=8)
        panel.set_ylabel("clips", fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    figure.tight_layout()
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    text = picture.getvalue()
    legend = "<p>Dark: kept. Light: dropped, by whichever limit. Red: this column's limits.</p>"
    return legend + text[text.index("<svg") :]


def _examples(selection: Selection) -> dict[str, Sequence[Clip]]:
    """Clips to watch, under what became of them."""
    kept = selection.clips
    shown = {"Kept": kept[:: max(len(kept) // NUM_WATCHED, 1)][:NUM_WATCHED]}
    lost = {f"{DROPPED}{what}": clips[:NUM_WATCHED] for what, clips in selection.lost.items()}
    return {what: clips for what, clips in {**shown, **lost}.items() if clips}


def _figure(clip: Clip, watched: dict[str, Clip], first: str) -> str:
    """With all numbers of the clip, that of the column ``first`` before the others."""
    name = clip_name(clip)
    watched[name] = clip
    file = f"watch/{list(watched).index(name):04d}.mp4"
    columns = [
        column
        for column, value in clip.items()
        if is_number(value) and column not in ("seconds", "start", "stop")
    ]
    columns.sort(key=lambda column: column != first)
    numbers = escape(", ".join(f"{column} {clip[column]:g}" for column in columns))
    words = f"{escape(name)}, {escape(clip['person'])}: {numbers}"
    video = f"<video controls preload=metadata src='{file}'></video>"
    return f"<figure>{video}<figcaption>{words}</figcaption></figure>"


def _persons(
    selection: Selection, same_person: Mapping[str, float], stills: dict[str, Clip]
) -> str:
    """Those whose two farthest clips lie farthest apart: these two, then one of each other scene,
    the sharpest."""
    column, most = next(iter(same_person.items()))
    of_person: dict[str, list[Clip]] = {}
    for clip in selection.clips:
        of_person.setdefault(clip["person"], []).append(clip)
    found: list[tuple[float, str, list[Clip]]] = []
    for person, own in of_person.items():
        some = own[:: -(-len(own) // MOST_COMPARED)]
        vectors = np.array([clip[column] for clip in some], np.float32)
        products = vectors @ vectors.T
        np.fill_diagonal(products, np.inf)
        ends = np.unravel_index(products.argmin(), products.shape)
        one, other = (some[int(end)] for end in ends)
        if one is not other:
            apart = float(np.linalg.norm(np.subtract(one[column], other[column])))
            found.append((apart, person, [one, other]))
    rows = []
    for apart, person, shown in sorted(found, key=lambda row: -row[0])[:NUM_PERSONS]:
        own, scenes = of_person[person], {clip["scene"] for clip in shown}
        for clip in sorted(own, key=lambda clip: -clip["sharpness"]):
            if clip["scene"] not in scenes and len(shown) < NUM_PICTURES:
                scenes.add(clip["scene"])
                shown.append(clip)
        num_scenes = counted(len({clip["scene"] for clip in own}), "scene")
        words = f"{person}: {len(own)} clips, {num_scenes}, {column} at most {apart:.3f} apart"
        rows.append(f"<h4>{escape(words)}</h4>{''.join(_still(clip, stills) for clip in shown)}")
    words = f"Least alike first. Faces up to {most:g} apart count as one person."
    title = f"<h3>Persons</h3><p>{words}</p>"
    return title + "".join(rows) if rows else ""


def _still(clip: Clip, stills: dict[str, Clip]) -> str:
    name = clip_name(clip)
    stills[name] = clip
    file = f"watch/{list(stills).index(name):04d}.jpg"
    words = f"{escape(name)}<br>{escape(clip['scene'].rpartition('-')[2])}"
    return f"<figure class=still><img src='{file}'><figcaption>{words}</figcaption></figure>"


def _cut(
    folder: Path,
    paths: Mapping[str, Path],
    watched: Mapping[str, Clip],
    stills: Mapping[str, Clip],
) -> None:
    """The beginnings of clips as small videos, and the middles of others as pictures, from one pass
    through each of their recordings."""
    folder.mkdir(exist_ok=True)
    numbers: dict[str, list[tuple[int, Clip]]] = {}
    for number, clip in enumerate(watched.values()):
        numbers.setdefault(str(clip["file"]), []).append((number, clip))
    middles: dict[str, dict[int, int]] = {}  # recording → frame → number
    for number, clip in enumerate(stills.values()):
        middle = (clip["start"] + clip["stop"]) // 2
        middles.setdefault(str(clip["file"]), {})[middle] = number
    for file in dict.fromkeys([*numbers, *middles]):
        own, pictured = numbers.get(file, []), middles.get(file, {})
        ends = {n: min(c["stop"], c["start"] + WATCHED_S * FRAME_RATE_HZ) for n, c in own}
        pictures: dict[int, list[Any]] = {n: [] for n in ends}
        for at, frame in enumerate(iter_video(paths[file], max_side=SIDE)):
            if at >= max([*ends.values(), *(middle + 1 for middle in pictured)]):
                break
            if at in pictured:
                picture = Image.fromarray(frame.permute(1, 2, 0).numpy())
                picture.save(folder / f"{pictured[at]:04d}.jpg")
            height, width = (side // 2 * 2 for side in frame.shape[1:])
            for number, clip in own:
                if clip["start"] <= at < ends[number]:
                    pictures[number].append(frame[:, :height, :width])
        audio = read_audio(paths[file]) if own else torch.zeros(0)
        for number, clip in own:
            sound = audio[clip["start"] * SAMPLES_PER_FRAME : ends[number] * SAMPLES_PER_FRAME]
            with Mp4Writer(folder / f"{number:04d}.mp4", sound) as writer:
                writer.write(torch.stack(pictures[number]))
