"""A picture of what each limit of a tier leaves."""

from collections.abc import Sequence
from pathlib import Path

from avatar_v_data.curation.select import Selection


def draw_funnel(path: Path, selections: Sequence[Selection]) -> None:
    """Minutes that each limit leaves, one panel a tier."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.8 + 0.4 * sum(len(s.steps) + 1 for s in selections)))
    panels = figure.subplots(
        len(selections), 1, squeeze=False, height_ratios=[len(s.steps) for s in selections]
    )
    for panel, selection in zip(panels[:, 0], selections, strict=True):
        names = [step.what for step in selection.steps]
        values = [step.seconds / 60 for step in selection.steps]
        bars = panel.barh(names, values, color="#4477aa")
        words = [f"{v:.1f} min" + (f", {s.clips} clips" if s.clips else "")
                 for v, s in zip(values, selection.steps, strict=True)]  # fmt: skip
        panel.bar_label(bars, words, padding=3)
        panel.invert_yaxis()
        panel.set_title(f"tier {selection.tier}", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlim(0, 1.3 * max(values[0], 1e-9))
        panel.set_xlabel("minutes that are left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
