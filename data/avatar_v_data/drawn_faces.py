"""Faces for the face reader: persons of the world, drawn larger than elsewhere and with looks that
speech does not give: gaze to all sides, lids anywhere from shut to wide, raised brows and corners.

Nothing is read from a disk. The same settings draw the same faces.
"""

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from avatar_v.base import checks
from avatar_v.base.progress import track
from avatar_v.base.seeds import derive
from avatar_v.faces.patches import FacePoints
from avatar_v.objectives.critic_reader import DrawnFaces
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.landmarks import LANDMARK_NAMES, NUM_LIP_POINTS
from avatar_v.world.person import sample_person
from avatar_v.world.render import render
from avatar_v.world.scene import sample_scene
from avatar_v.world.splits import RANGES, Split

CLIP_FRAMES = 101  # that the faces of a person are chosen from
SHARE_OF_LIDS = 0.7  # faces whose lids are drawn anew: speech seldom shuts them
SPREADS = {"yaw": 0.1, "pitch": 0.08, "brow": 0.3, "corner_raise": 0.3}
"""Standard deviations of what is added to a face's own value."""
EYE_CORNERS = ("eye_left_outer", "eye_left_inner", "eye_right_inner", "eye_right_outer")


def draw_faces(split: Split, num_persons: int, faces_per_person: int, size: int) -> DrawnFaces:
    """``faces_per_person`` pictures of each of the first persons of a split, ``size`` pixels."""
    ids = RANGES[split]
    images, eyes, mouths, motions = [], [], [], []
    for number in track(range(num_persons), f"drawing faces of {split}"):
        person = ids[number]
        clip = make_clip(
            person, person, person, num_frames=CLIP_FRAMES, size=size, render_video=False
        )
        seed = derive("reader", person)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(CLIP_FRAMES, generator=generator)[:faces_per_person]
        motion = varied(clip.motion[chosen], generator)
        drawn = render(sample_person(person), sample_scene(person), motion, size=size, seed=seed)
        points = drawn.landmarks * size
        images.append(drawn.video)
        eyes.append(torch.stack([points[:, LANDMARK_NAMES.index(n)] for n in EYE_CORNERS], 1))
        mouths.append(points[:, :NUM_LIP_POINTS].mean(1))
        motions.append(motion)
    return DrawnFaces(
        torch.cat(images), FacePoints(torch.cat(eyes), torch.cat(mouths)), torch.cat(motions)
    )


def varied(motion: Float[Tensor, "n m"], generator: torch.Generator) -> Float[Tensor, "n m"]:
    """Rows of motion with looks that speech does not give, and no hand before the face."""
    motion = motion.clone()

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(motion), generator=generator)

    def column(name: str) -> Tensor:
        return motion[:, MOTION_NAMES.index(name)]

    for name in ("gaze_x", "gaze_y"):
        column(name).copy_(uniform(-1.0, 1.0))
    anew = uniform(0.0, 1.0) < SHARE_OF_LIDS
    column("eye_open").copy_(torch.where(anew, uniform(0.0, 1.0), column("eye_open")))
    for name, spread in SPREADS.items():
        moved = column(name) + spread * torch.randn(len(motion), generator=generator)
        column(name).copy_(moved.clamp(-1, 1))
    column("cover").zero_()
    return motion


class FaceData(L.LightningDataModule):
    """Batches of drawn faces, training persons at random; validation goes once through all."""

    def __init__(
        self,
        train_persons: int,
        validation_persons: int,
        batch_size: int,
        batches_per_epoch: int,
        faces_per_person: int = 8,
        size: int = 192,
        seed: int = 0,
    ) -> None:
        super().__init__()
        checks.count("train_persons", train_persons)
        checks.count("validation_persons", validation_persons)
        checks.count("batch_size", batch_size)
        checks.count("batches_per_epoch", batches_per_epoch)
        checks.count("faces_per_person", faces_per_person, most=CLIP_FRAMES)
        checks.seed("seed", seed)
        self.num_persons: dict[Split, int] = {
            "train": train_persons,
            "validation": validation_persons,
        }
        self.batch_size, self.batches_per_epoch = batch_size, batches_per_epoch
        self.faces_per_person, self.size, self.seed = faces_per_person, size, seed

    def setup(self, stage: str) -> None:
        self.train_faces, self.validation_faces = (
            draw_faces(split, num, self.faces_per_person, self.size)
            for split, num in self.num_persons.items()
        )

    def train_dataloader(self) -> RandomLoader:
        return RandomLoader(self._draw, self.batches_per_epoch, self.seed)

    def val_dataloader(self) -> DataLoader:
        faces = self.validation_faces
        parts = torch.arange(len(faces)).split(128)
        return DataLoader([faces[index] for index in parts], batch_size=None)  # pyright: ignore

    def _draw(self, generator: torch.Generator) -> DrawnFaces:
        faces = self.train_faces
        return faces[torch.randint(len(faces), (self.batch_size,), generator=generator)]
