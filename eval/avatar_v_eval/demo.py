"""The README's first picture and its numbers: ``python -m avatar_v_eval.demo``.

Runs ``avatar-v demo`` as a user does, times the whole command, and keeps its contact sheet
(``eval/results/demo_sheet.png``) and what it printed (``eval/results/demo.json``). One person and
one sentence: a picture to look at. What the weights can do is measured by learning.py.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from avatar_v.generate.showcase import NUM_SHUFFLES
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command
from avatar_v_eval.rollout import AVATAR_V

MAX_COMMAND_S = 180


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="shipped name or folder")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    parser.add_argument("options", nargs="*", help="further options of avatar-v demo, behind --")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    with tempfile.TemporaryDirectory() as folder:
        words = ["demo", "--out", folder, "--weights", options.weights, *options.options]
        start_s = time.perf_counter()
        subprocess.run([*AVATAR_V, *words], check=True)
        wall_s = time.perf_counter() - start_s
        record = json.loads((Path(folder) / "out.json").read_text(encoding="utf-8"))
        out.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(folder) / "sheet.png", out / "demo_sheet.png")
    result = records.make_result(
        "demo",
        "avatar-v demo",
        numbers(record, wall_s),
        weights={"pipeline": record["weights_hash"], "motion": record["meter_hash"]},
        notes=["one person, one sentence, one run"],
    )
    print(records.write_result(result, out))


def numbers(record: dict[str, Any], wall_s: float) -> dict[str, Number]:
    """What out.json says, as numbers; ``wall_s`` is that of the whole command."""
    sync, timing = record["lip_sync"], record["timing"]
    mean, std = sync["shuffled_mean"], sync["shuffled_std"]
    return {
        "length": Number(record["num_frames"] / FRAME_RATE_HZ, 1).described(
            "demo: length of the video", unit="s", target="≥ 8"
        ),
        "sync": Number(sync["generated"], 1).described("demo: mouth against its own speech, r"),
        "sync_shuffled": Number(mean, NUM_SHUFFLES, mean - std, mean + std).described(
            "demo: mouth against shuffled speech, r (± a deviation)"
        ),
        "sync_true": Number(sync["true_video"], 1).described("demo: the true video's r"),
        "wall": Number(wall_s, 1).described(
            "demo: whole command, 2 cores", unit="s", target=f"< {MAX_COMMAND_S}"
        ),
        "first_frame": Number(timing["first_frame_s"], 1).described(
            "demo: first frame after loading", unit="s"
        ),
    }


if __name__ == "__main__":
    as_command(main)
