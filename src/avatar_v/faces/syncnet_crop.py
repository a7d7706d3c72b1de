"""Where SyncNet's own pipeline cuts a face: what the network was trained and is reported on."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from scipy.signal import medfilt
from torch import Tensor

from avatar_v.faces.face_track import Boxes, Frame, Frames

CROP_SCALE, CROP_SIDE, CROP_MEDIAN, CROP_GREY = 0.40, 224, 13, 110


class CropPlan:
    """Where syncnet_python's ``crop_video`` cuts a face: 224 x 224, scale 0.40, median of 13.

    ``boxes`` are fractions of pictures of this height and width. Beyond the picture all is grey
    110. Resized without antialiasing, as cv2's default does.
    """

    def __init__(self, boxes: Boxes, height: int, width: int) -> None:
        x0, y0, x1, y1 = (boxes * torch.tensor([width, height] * 2)).double().numpy().T
        self.sides = medfilt(np.maximum(x1 - x0, y1 - y0) / 2, CROP_MEDIAN)
        self.xs = medfilt((x0 + x1) / 2, CROP_MEDIAN)
        self.ys = medfilt((y0 + y1) / 2, CROP_MEDIAN)

    def __call__(self, frames: Frames, first: int) -> UInt8[Tensor, "f 3 224 224"]:
        """The faces of frames that belong to the boxes from number ``first`` on. ValueError for a
        box without size."""
        return torch.stack([self._cut(x, first + i) for i, x in enumerate(frames)])

    def _cut(self, frame: Frame, index: int) -> UInt8[Tensor, "3 224 224"]:
        half, x, y = self.sides[index], self.xs[index], self.ys[index]
        pad = int(half * (1 + 2 * CROP_SCALE))
        if pad < 1:
            raise ValueError("the face box has no size")
        around = F.pad(frame, (pad, pad, pad, pad), value=CROP_GREY)
        rows = slice(int(y + pad - half), int(y + pad + half * (1 + 2 * CROP_SCALE)))
        columns = slice(
            int(x + pad - half * (1 + CROP_SCALE)), int(x + pad + half * (1 + CROP_SCALE))
        )
        part = around[:, rows, columns][None].float()
        part = F.interpolate(part, (CROP_SIDE, CROP_SIDE), mode="bilinear", align_corners=False)
        return part[0].round().clamp(0, 255).to(torch.uint8)
