"""A trained voice model in fewer bytes, for `avatar-v weights slim`."""

from collections.abc import Mapping
from pathlib import Path

from avatar_v.base.paths import whole_folder
from avatar_v.models.base import COMPRESSED
from avatar_v.voices.model import PartErrors, VoiceModel
from avatar_v.voices.shipped import TRAINED

PARTS = ("llama", "codec")


def make_slim_voice(folder: str | Path, out: str | Path, errors: Mapping[str, float]) -> None:
    """Write the model in ``folder`` to ``out``, each tensor to within the error of its part
    (``llama``, ``codec``; 0 where none is given) relative to its norm.

    ValueError for a folder that holds no such model, or one that is compressed already, and for an
    ``out`` that exists.
    """
    if (Path(folder) / COMPRESSED).is_file():
        raise ValueError(f"{folder} is compressed already")
    if Path(out).exists():
        raise ValueError(f"{out} exists")
    model = VoiceModel.load(folder, TRAINED)
    with whole_folder(Path(out)) as new:
        model.save(new, PartErrors(errors.get("llama", 0.0), errors.get("codec", 0.0)))
        VoiceModel.load(new, TRAINED)  # as whoever takes it will
