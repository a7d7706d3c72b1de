"""FaceReader: reads lids, gaze, brows and mouth of any face from upright patches of it.

Trained on drawn faces alone, under augmentation strong enough that it reads filmed people too
(recipes/critic_reader.yaml). Which patches it sees are landmarks' to say, so a face must be found;
the pose of the head is read from the landmarks themselves (motion/landmarks.py).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.stored import Count
from avatar_v.critics.frozen import Critic
from avatar_v.critics.look import Faces, Video, cut, in_pixels
from avatar_v.faces.patches import SIZE, FacePoints, face_patches, from_68, patch_squares

EYES = ("eye_open", "gaze_x", "gaze_y", "brow")
MOUTH = (
    "mouth_open",
    "mouth_width",
    "mouth_round",
    "corner_raise",
    "teeth",
    "tongue",
    "jaw",
)
READ = EYES + MOUTH
"""What it reads, in this order; scales of types.MOTION_NAMES."""
GAZE = EYES.index("gaze_x")


class PatchNetwork(nn.Module):
    """Four convolutions and two layers over all places of a patch, whose brightness and contrast
    are those of the patch itself."""

    def __init__(self, width: int, num_hidden: int, num_out: int) -> None:
        super().__init__()
        sizes = ((3, width, 5, 2), (width, 2 * width, 3, 1), (2 * width, 3 * width, 3, 2))
        layers: list[nn.Module] = []
        for num_in, num, kernel, stride in (*sizes, (3 * width, 3 * width, 3, 2)):
            layers += [nn.Conv2d(num_in, num, kernel, stride, kernel // 2, bias=False)]
            layers += [nn.BatchNorm2d(num), nn.SiLU()]
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            nn.Dropout(0.2),
            nn.Linear(3 * width * (SIZE // 8) ** 2, num_hidden),
            nn.SiLU(),
            nn.Linear(num_hidden, num_out),
        )

    def forward(self, patches: Float[Tensor, "b 3 s s"]) -> Float[Tensor, "b k"]:
        mean = patches.mean((1, 2, 3), keepdim=True)
        spread = patches.std((1, 2, 3), keepdim=True).clamp_min(0.05)
        return self.head(self.body((patches - mean) / spread)).float()


class FaceReader(Critic):
    """Frames and the landmarks in them to the components `READ`."""

    name = "reader"
    by_face = True
    reads = READ
    center: Tensor
    scale: Tensor

    def __init__(self, width: Count = 12, num_hidden: Count = 64, held_out: bool = False) -> None:
        sizes = {"width": width, "num_hidden": num_hidden}
        super().__init__({**sizes, "held_out": held_out})
        self.eye = PatchNetwork(width, num_hidden, len(EYES))
        self.mouth = PatchNetwork(width, num_hidden, len(MOUTH))
        self.register_buffer("center", torch.zeros(len(READ)))
        self.register_buffer("scale", torch.ones(len(READ)))

    def forward(
        self, eyes: Float[Tensor, "b 2 3 s s"], mouths: Float[Tensor, "b 3 s s"]
    ) -> tuple[Float[Tensor, "b 2 _k"], Float[Tensor, "b _l"]]:
        """Readings of patches in [-1, 1], in units of ``center`` and ``scale``; of either eye as
        of a left one."""
        return self.eye(eyes.flatten(0, 1)).unflatten(0, (-1, 2)), self.mouth(mouths)

    @torch.no_grad()
    def measure(
        self, frames: Float[Tensor, "f 3 h w"], points: FacePoints, *, batch_size: int = 128
    ) -> Float[Tensor, "f r"]:
        """The components `READ` of frames in [-1, 1]: of the eyes, what both say."""
        parts = []
        for start in range(0, len(frames), batch_size):
            some = slice(start, start + batch_size)
            some_points = FacePoints(points.eyes[some], points.mouth[some])
            parts.append(self._values(*face_patches(frames[some], some_points)))
        return torch.cat(parts)

    def look(self, video: Video, faces: Faces | None) -> Float[Tensor, "b f 3 3 s s"]:
        """Patches of the left eye, the right one and the mouth."""
        assert faces is not None
        assert faces.landmarks is not None
        landmarks = in_pixels(faces.landmarks.flatten(0, 1).float(), *video.shape[3:])
        pictures = video.float().clamp(-1, 1).flatten(0, 1)
        squares = patch_squares(from_68(landmarks))
        patches = torch.stack([cut(pictures, square, SIZE) for square in squares], dim=1)
        return patches.unflatten(0, video.shape[:2])

    def read(self, patches: Float[Tensor, "n 3 3 s s"]) -> Float[Tensor, "n r"]:
        """The components `READ`, differentiable."""
        left, right, mouth = patches.unbind(1)
        return self._values(torch.stack([left, right.flip(3)], dim=1), mouth)

    def _values(
        self, eyes: Float[Tensor, "b 2 3 s s"], mouths: Float[Tensor, "b 3 s s"]
    ) -> Float[Tensor, "b r"]:
        seen, mouth = self(eyes, mouths)
        return torch.cat([self._of_eyes(seen), self._of_mouth(mouth)], dim=1)

    def _of_eyes(self, eyes: Float[Tensor, "b 2 k"]) -> Float[Tensor, "b k"]:
        """The mean of both eyes, of which the right one was seen in a mirror."""
        values = eyes * self.scale[: len(EYES)] + self.center[: len(EYES)]
        values = torch.cat([values[..., :GAZE], _unmirrored(values), values[..., GAZE + 1 :]], -1)
        return values.mean(1)

    def _of_mouth(self, mouths: Float[Tensor, "b l"]) -> Float[Tensor, "b l"]:
        return mouths * self.scale[len(EYES) :] + self.center[len(EYES) :]


def _unmirrored(values: Float[Tensor, "b 2 k"]) -> Float[Tensor, "b 2 1"]:
    return values[..., GAZE : GAZE + 1] * torch.tensor([1.0, -1.0])[:, None].to(values)
