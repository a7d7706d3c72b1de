"""recipes/all_stages.mk at its tiny size: stopped, killed, gone on with; whole by `make chain`."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.models.base import hash_folder
from avatar_v.weights.card import read_card
from avatar_v.weights.weights import load_pipeline
from tiny_run import RECIPES, losses

MAKE = ["make", "-f", str(RECIPES / "all_stages.mk")]
ASSETS = Path(__file__).resolve().parents[2] / "src" / "avatar_v" / "assets"
NO_PART = re.compile(r"small|tiny|minutes|own_face.*|.*_held_out|5b_dpo.*|critic_preference|wan.*")
"""Overlays, what a user trains, and recipes that make no weights that ship."""
NO_ASSET = re.compile(r"critics/(face|motion|sync)_held_out/.*|.*/log\.csv")
"""Critics that judge and that nothing is trained against, and logs of trainings."""


def test_every_recipe_is_a_part_of_the_chain(tmp_path: Path) -> None:
    said = chain(tmp_path, "-n")
    assert not (tmp_path / "work").exists()
    runs = re.findall(r"avatar-v run \S+/(\w+)\.yaml", said)
    recipes = {path.stem for kind in ("*", "voices/*") for path in RECIPES.glob(f"{kind}.yaml")}
    assert sorted(runs) == sorted(name for name in recipes if not NO_PART.fullmatch(name))
    assert runs.index("1_t2v") < runs.index("2_a2v") < runs.index("3_sft")  # what it begins with
    assert runs.index("codec") < runs.index("codec_decoder") < runs.index("sft")
    assert "2_a2v" not in chain(tmp_path, "-n", "1_t2v")


def test_an_unknown_size_or_part_is_refused(tmp_path: Path) -> None:
    for word, why in (
        ("SIZE=huge", "SIZE is small or tiny, got huge"),
        ("1_t2", "No rule to make target '1_t2'"),
    ):
        words = [*MAKE, word]
        env = environment(tmp_path)
        done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2
        assert why in done.stderr
        assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_the_chain_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    work, last = tmp_path / "work", "1_t2v"
    stop_when(tmp_path, lambda: any(work.glob("*/*/*/train/.made")), signal.SIGTERM)
    before = rows(work)
    assert len(before) == 1

    run = work / "runs/tiny/1_t2v"
    stop_when(tmp_path, lambda: any(run.glob("checkpoints/*.ckpt")), signal.SIGKILL)
    assert not (run / "weights").exists()
    before = rows(work)

    assert "--ckpt_path last" in chain(tmp_path, last)
    assert len(losses(run)) == 8
    assert rows(work)[: len(before)] == before  # nothing that was finished is made again
    parts = [row["part"] for row in rows(work)]
    assert len(parts) == len(set(parts))
    assert parts[-1] == last

    before, begin = rows(work), time.monotonic()
    chain(tmp_path, last)
    assert rows(work) == before
    assert time.monotonic() - begin < 20  # no part's imports alone; 1 s where nothing else runs


@pytest.mark.chain
def test_the_whole_chain_makes_all_that_ships(tmp_path: Path) -> None:
    chain(tmp_path)
    folder = tmp_path / "work" / "assets"
    missing = files(ASSETS) - files(folder)
    assert {path for path in missing if not NO_ASSET.fullmatch(path.as_posix())} == set()
    for name in ("small", "small_causal", "small_refiner", "small_student"):
        load_pipeline(folder / name)
    assert load_pipeline(folder / "small_student")[0].config.has_guidance_inside
    beside = [read_card(folder / f"small_{name}").base for name in ("causal", "refiner", "student")]
    assert {base and (base.folder, base.hash) for base in beside} == {
        ("small", hash_folder(folder / "small"))
    }
    for kind, name in ((FaceCritic, "face"), (MotionMeter, "motion"), (WorldSyncNet, "sync")):
        kind.from_pretrained(folder / "critics" / name)


def files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def environment(tmp_path: Path) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    path = os.pathsep.join([scripts, os.environ["PATH"]])
    words = {"SIZE": "tiny", "WORK": str(tmp_path / "work"), "WORKERS": "1", "PATH": path}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **words}


def chain(tmp_path: Path, *words: str) -> str:
    done = subprocess.run(
        [*MAKE, *words], env=environment(tmp_path), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def stop_when(tmp_path: Path, is_so: Callable[[], bool], how: signal.Signals) -> None:
    """Begin with 1_t2v, and end it once ``is_so``: make alone, or killed with all it began."""
    process = subprocess.Popen(
        [*MAKE, "1_t2v"], env=environment(tmp_path), cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not is_so():
            assert process.poll() is None, "the chain ended by itself"
            time.sleep(0.02)
        if how == signal.SIGTERM:
            time.sleep(1)  # inside the next part
            process.terminate()
            assert process.wait(60) != 0
            with pytest.raises(ProcessLookupError):  # nothing that it began goes on
                os.killpg(process.pid, 0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(1)  # what it began is dead too


def rows(work: Path) -> list[dict[str, str]]:
    with open(work / "times.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
