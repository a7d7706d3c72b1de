"""How far a run has come, by its stored results, and how fast, by what its leader last wrote. The
leader holds the run's lock: where nobody does, it has ended."""

import time

from rich.table import Table

from avatar_v.base.outside import read_json
from avatar_v.base.progress import results_console
from avatar_v.base.words import counted
from avatar_v_data.curation.curated import Curated
from avatar_v_data.curation.engine import STATUS_FILE


def print_status(run: Curated) -> None:
    """A table of the stages, and one sentence about the run."""
    console, finished = results_console(), run.store.finished()
    heads = ("stage", "made", "failed", "not reached", "missing", "seconds each")
    table = Table(*heads, title=str(run.folder))
    for stage in run.plan.stages:
        keys = [task.key for task in run.tasks if task.stage is stage]
        costs = run.store.costs(stage.name, keys)
        missing = sum(key not in finished for key in keys)
        tried = costs.made + costs.failed
        each = f"{costs.seconds / tried:.2f}" if tried else ""
        rest = (str(num or "") for num in (costs.failed, costs.not_reached, missing))
        table.add_row(stage.name, str(costs.made), *rest, each)
    console.print(table)
    path = run.folder / STATUS_FILE
    if not path.is_file():
        console.print("no leader has begun")
        return
    words = read_json(path)
    ago = time.time() - float(words["updated"])
    runs = run.store.is_led()
    left = f", {words['left_s'] / 3600:.1f} h left" if words["left_s"] and runs else ""
    console.print(
        f"{'runs' if runs else 'ended'}, last heard of {ago:.0f} s ago: {words['done']} of "
        f"{words['total']} passes, {words['per_hour']:.0f} an hour{left}; "
        f"{counted(words['workers'], 'worker')}, busy {words['busy']:.0%}, {words['deaths']} died",
        soft_wrap=True,
    )
