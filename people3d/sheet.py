"""A picture of both worlds side by side.

python -m people3d.sheet WORK_DIR    # WORK_DIR/sheet.png: drawn people above, others below
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

_CLIPS, _FRAMES = ((16, 17, 19, 23), (20, 22, 25, 30)), (3, 9, 15, 21)


def main() -> None:
    """Four by four pictures of 128 px, at twice their size."""
    work = Path(sys.argv[1])
    rows = []
    for world in ("drawn", sys.argv[2]):
        video = np.load(work / f"{world}.npz")["video"]
        for clips in _CLIPS:
            pictures = [video[i, f] for i, f in zip(clips, _FRAMES, strict=True)]
            rows.append(np.concatenate(pictures, 2))
    sheet = np.concatenate(rows, 1).transpose(1, 2, 0)
    picture = Image.fromarray(sheet)
    picture.resize((picture.width * 2, picture.height * 2), Image.Resampling.NEAREST).save(
        work / "sheet.png"
    )


if __name__ == "__main__":
    main()
