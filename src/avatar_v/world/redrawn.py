"""Close-ups of the face: frames of a clip of the world, drawn again at a higher resolution.

The person, the pose and the light are the frame's; its place within the camera's slow sway is not,
and the grain is another.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.faces.face_track import crop, face_windows
from avatar_v.world.person import sample_person
from avatar_v.world.render import SIZE_STEP, Size, render, sides
from avatar_v.world.scene import sample_scene

ENLARGED = 3
"""The whole picture is drawn at so many times the close-up's size: the face is a third of it."""


def close_ups(
    person_id: int, scene_id: int, speech_id: int, motion: Float[Tensor, "k m"], *, size: Size
) -> UInt8[Tensor, "k 3 _h _w"]:
    """The face at these moments of the clip's motion track, in pictures of ``size``."""
    height, width = sides(size)
    if len(motion) == 0:
        return torch.zeros(0, 3, height, width, dtype=torch.uint8)
    large = -(-ENLARGED * min(height, width) // SIZE_STEP) * SIZE_STEP
    # a close-up is reduced anyway
    drawn = render(
        sample_person(person_id),
        sample_scene(scene_id),
        motion,
        size=large,
        seed=derive("clip", person_id, scene_id, speech_id),
        supersample=1,
    )
    windows = face_windows(drawn.face_box, large, large, width / height)
    return crop(drawn.video, windows, (height, width))
