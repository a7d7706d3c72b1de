"""Pictures that measurements write for a program to read."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor


def write_png(path: Path, picture: Tensor) -> None:
    """An uint8 picture "3 h w", exactly."""
    Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy())).save(path)
