"""A picture of both worlds side by side.

python -m people3d.sheet WORK_DIR    # WORK_DIR/sheet.png: drawn people above, others below
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

_COLUMNS, _ROWS, _FRAMES = 4, 2, (3, 9, 15, 21)


def main() -> None:
    """Four by four pictures of 128 px, at twice their size."""
    work = Path(sys.argv[1])
    rows = []
    for world in ("drawn", "people"):
        video = np.load(work / f"{world}.npz")["video"]
        for row in range(_ROWS):
            first = 16 + row * _COLUMNS if len(video) > 24 else row * _COLUMNS
            pictures = [video[first + k, _FRAMES[k]] for k in range(_COLUMNS)]
            rows.append(np.concatenate(pictures, 2))
    sheet = np.concatenate(rows, 1).transpose(1, 2, 0)
    picture = Image.fromarray(sheet)
    picture.resize((picture.width * 2, picture.height * 2), Image.Resampling.NEAREST).save(
        work / "sheet.png"
    )


if __name__ == "__main__":
    main()
