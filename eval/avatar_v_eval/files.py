"""Files of measurements: their hashes, and pictures for a program to read."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def file_hash(path: Path) -> str:
    """sha256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_png(path: Path, picture: "Tensor") -> None:
    """An uint8 picture "3 h w", exactly."""
    import numpy as np
    from PIL import Image

    Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy())).save(path)
