"""Where trained voice models lie, and how their folders are told. Torch is not imported."""

from pathlib import Path

from avatar_v.weights.card import ASSETS

DEFAULT_ENGINE = "voice"
"""The name of the model that ships."""
TRAINED = "the folder `voice` that a recipe of recipes/voices leaves"
"""Where others are from."""
SPEAKER_FILE = "speaker.safetensors"
"""In the folder of such a model, and of no other."""


def engine_folder(engine: str | Path) -> Path:
    """The folder of an engine: that which ships for its name, else the folder of this name."""
    return ASSETS / engine if str(engine) == DEFAULT_ENGINE else Path(engine)
