"""A picture of both worlds side by side.

python -m people3d.sheet DRAWN.npz OUT.png    # drawn people above; the same clips in 3-D below
"""

import sys

import numpy as np
import torch
from PIL import Image

from people3d.clips import people_frames

_CLIPS, _FRAMES = ((16, 17, 19, 23), (20, 22, 25, 30)), (3, 9, 15, 21)


def main() -> None:
    """Four by four pictures of 128 px, at twice their size; those in 3-D are drawn now."""
    drawn = np.load(sys.argv[1])
    torch.set_num_threads(1)
    video, motion, ids = drawn["video"], torch.from_numpy(drawn["motion"]), drawn["id"].tolist()
    above, below = [], []
    for clips in _CLIPS:
        places = list(zip(clips, _FRAMES, strict=True))
        above.append(np.concatenate([video[i, f] for i, f in places], 2))
        new = [people_frames(ids[i], motion[i, f : f + 1], 0)[0][0].numpy() for i, f in places]
        below.append(np.concatenate(new, 2))
    picture = Image.fromarray(np.concatenate(above + below, 1).transpose(1, 2, 0))
    size = picture.width * 2, picture.height * 2
    picture.resize(size, Image.Resampling.NEAREST).save(sys.argv[2])


if __name__ == "__main__":
    main()
