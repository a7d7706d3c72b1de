"""What `git clone` leaves of large files without git-lfs, and command lines that name it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from bad_inputs.case import Case

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'4d7a' * 16}\n"
    "size 4294967296\n"
)  # fmt: skip
SAYS = "is a pointer of Git LFS, not the file itself; run `git lfs pull`"
OF_WEIGHTS = (
    "dit/model.safetensors", "vae/model.safetensors", "text/model.safetensors", "dit/config.json",
    "card.json",
)  # fmt: skip


def make_pointers(weights: Path, folder: Path) -> None:
    """Media, a checkpoint, and copies of ``weights``, each with a pointer in a file's place."""
    folder.mkdir()
    for name in ("me.mkv", "me.jpg", "talk.wav", "run.ckpt"):
        (folder / name).write_text(POINTER)
    for name in OF_WEIGHTS:
        copy = folder / name.replace("/", "_")
        shutil.copytree(weights, copy)
        (copy / name).write_text(POINTER)


def pointers() -> Iterator[Case]:
    whole = (
        "avatar-v generate --out out.mp4 --no-face-crop --steps 1 --motion none --device cpu "
        "--reference {} --audio {} --weights FILES/{}"
    )
    me, talk, tiny = "FILES/media/me.mkv", "FILES/media/talk.wav", "weights/tiny"
    at = "FILES/pointers"
    yield Case("pointer: reference", whole.format(f"{at}/me.mkv", talk, tiny), says=SAYS)
    yield Case("pointer: audio", whole.format(me, f"{at}/talk.wav", tiny), says=SAYS)
    yield Case("pointer: image", f"{whole.format(me, talk, tiny)} --image {at}/me.jpg", says=SAYS)
    for name in OF_WEIGHTS:
        command = whole.format(me, talk, f"pointers/{name.replace('/', '_')}")
        yield Case(f"pointer: {name}", command, says=SAYS)
