"""The settings of a set of drawn clips, and their ranges. Torch is not imported."""

from dataclasses import dataclass

from avatar_v.base.video_format import checked_rate
from avatar_v.world.splits import RANGES, Split

MAX_SIZE = 2048
"""Pixels of a side: a clip of 101 frames then takes 1.3 GB while it is drawn."""


@dataclass(frozen=True)
class WorldSettings:
    """All that the bytes of a world set depend on."""

    num_clips: int
    split: Split = "train"
    num_frames: int = 101
    size: int | tuple[int, int] = 64  # pixels of a square, or height and width
    clips_per_person: int = 4
    clips_per_shard: int = 64
    seed: int = 0
    close_ups: bool = False  # of the face, at a higher resolution
    raw: bool = False  # sound and video uncompressed: many times the bytes, quick to read
    pictures: bool = True  # False: motion and sound alone, which takes a tenth of the time
    frame_rate_hz: int = 25
    dialogues: bool = False  # each clip is one side of a dialogue with another person

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.num_frames % 4 != 1:
            raise ValueError(f"--frames {self.num_frames}: a clip has 4k + 1 frames (1, 5, 9, …)")
        if self.split == "reserved":
            raise ValueError("the reserved split is never generated, trained or selected on")
        if self.split not in RANGES:
            raise ValueError(f"split is train, validation or test, got {self.split!r}")
        if self.num_clips < 2:
            raise ValueError(f"--clips is at least 2, for a pair, got {self.num_clips}")
        if not 2 <= self.clips_per_person <= self.num_clips:
            raise ValueError(
                f"--clips-per-person is from 2, for pairs, to the {self.num_clips} of --clips, "
                f"got {self.clips_per_person}"
            )
        for side in self.sides:
            if side % 8 or not 32 <= side <= MAX_SIZE:
                raise ValueError(f"--size is a multiple of 8 from 32 to {MAX_SIZE}, got {side}")
        checked_rate(self.frame_rate_hz)
        if self.close_ups and not self.pictures:
            raise ValueError("--close-ups are pictures: drop --motion-only")
        for name, least in {"clips_per_shard": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is at least {least}, got {getattr(self, name)}")

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def num_shards(self) -> int:
        return -(-self.num_clips // self.clips_per_shard)
