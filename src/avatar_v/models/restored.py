"""The tensors of a part's folder, also where they are stored as what they change in a base.

``compressed.safetensors`` stands in place of ``model.safetensors``, in the form of base/packed.py.
Of weights that have a base (base.py) a tensor that it does not name is the base's.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from avatar_v.base.packed import decompressed
from avatar_v.base.states import check_numbers, read_tensors
from avatar_v.models.base import COMPRESSED, checked_base, read_base


def restored(folder: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a part's folder: what ``read`` gives of it, or what is compressed there.

    ValueError for a base that is not there, or is another (base.py), and for a damaged file.
    """
    file = folder / COMPRESSED
    if not file.is_file():
        return read(folder)
    base: dict[str, Tensor] = {}
    if read_base(folder.parent) is not None:
        base = restored(checked_base(folder.parent) / folder.name, read)
    state = decompressed(base, read_tensors(file), where=file)
    check_numbers(state, where=file)
    return state
