"""The parts of `minutes.py`, what each reads and begins with, and the clips that are drawn."""

from dataclasses import dataclass, field
from typing import Any

STILLS = {"personality": {"stills_share": 1.0}}


@dataclass(frozen=True)
class Set:
    """Clips of the world, and how they are encoded; None: they are read as drawn."""

    clips: int
    frames: int
    validation: int = 32
    seed: int = 0
    persons: int = 4  # clips of each
    motion_only: bool = False
    twice: bool = False  # the size of the others
    encode: dict[str, bool] | None = None


SETS = {
    "vae": Set(1600, 25, seed=7, persons=2),
    "short": Set(960, 81, encode={}),
    "critic": Set(960, 13, seed=21, persons=2),
    "images": Set(4000, 5, seed=21, encode={"stills": True}),
    "long": Set(480, 401, persons=2, encode={"stills": True}),
    "motion": Set(1504, 401, seed=41, persons=2, motion_only=True),
    "refiner": Set(960, 17, seed=3, persons=2, twice=True, encode={"low": 2.0, "bf16": True}),
}


@dataclass(frozen=True)
class Part:
    """One recipe: its share of the time, the sets that it reads, and the parts whose weights it
    begins with, the first that is there."""

    share: float
    sets: tuple[str, ...]
    start: tuple[str, ...] = ()
    leaves: str = "weights"
    again: bool = True  # trained on by a later run; else others stand on it
    own: bool = True  # then from its own weights, where there are some; else its teacher moved on
    model: dict[str, Any] = field(default_factory=dict)


CRITICS = {"face": "short", "motion": "critic", "sync": "short"}
CHAIN = ("3_motion", "3_sft", "3_pictures", "2_a2v", "1_t2v")
PARTS = {
    "0_vae": Part(0.14, ("vae",), leaves="vae", again=False),
    **{
        f"critic_{name}": Part(0.02, (of, "critic"), leaves=name, again=False)
        for name, of in CRITICS.items()
    },
    "1_t2v": Part(0.08, ("short",), again=False),
    "2_a2v": Part(0.16, ("short",), CHAIN[4:], again=False),
    "3_pictures": Part(0.08, ("images",), CHAIN[3:], again=False, model=STILLS),
    "3_sft": Part(0.16, ("long",), CHAIN[2:], model=STILLS),
    "3_motion": Part(0.06, ("motion",), CHAIN[1:]),
    "4a_distill_cfg": Part(0.04, ("long",), CHAIN, own=False, model=STILLS),
    "4b_distill_dmd": Part(0.06, ("long",), ("4a_distill_cfg", *CHAIN), own=False, model=STILLS),
    "4d_causal_forcing": Part(0.05, ("long",), CHAIN, own=False, model=STILLS),
    "4e_self_forcing": Part(0.05, ("long",), CHAIN, own=False, model=STILLS),
    "refiner": Part(0.04, ("refiner",), CHAIN[1:]),
    "refiner_decoder": Part(0.02, ("refiner",), ("0_vae",), leaves="vae"),
}
FEW = {
    "face": {"batches_per_epoch": 2, "persons_per_batch": 2, "scenes_per_person": 2},
    "motion": {"batches_per_epoch": 2, "persons_per_batch": 2, "scenes_per_person": 2},
    "sync": {
        **{"batches_per_epoch": 2, "clips_per_batch": 2},
        **{"windows_per_clip": 8, "num_frames": 13},
    },
}
"""Data of the tiny critics."""


def drawn_sets(size: str, turn: int) -> dict[str, list]:
    """Of size small or tiny: name → settings and folder of its splits, the validation first. A
    later turn draws others."""
    from avatar_v_data.world_settings import WorldSettings

    is_tiny, found = size == "tiny", {}
    for name, of in SETS.items():
        side = (32 if is_tiny else 64) * (2 if of.twice else 1)
        frames = min(of.frames, 33) if is_tiny else of.frames
        found[name] = [
            (
                WorldSettings(
                    num_clips=clips, split=split, num_frames=frames, size=side,
                    clips_per_person=2 if is_tiny else of.persons, raw=True,
                    clips_per_shard=8 if clips > 64 else 4 if clips > 4 else 2,
                    seed=(of.seed + 1000 * turn) if split == "train" else of.seed,
                    pictures=not of.motion_only,
                ),
                f"shards/{name}/{split}",
            )
            for split, clips in (
                ("validation", 4 if is_tiny else of.validation),
                ("train", 8 if is_tiny else of.clips),
            )
        ]  # fmt: skip
    return found


def refused(text: str) -> SystemExit:
    """The end of a command with one line."""
    return SystemExit(f"minutes.py: error: {text}")
