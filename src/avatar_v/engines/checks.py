"""What can be said of a script and its voice before torch is imported."""

from pathlib import Path

from avatar_v.base.outside import read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.engines.script import read_script, split_sentences
from avatar_v.engines.voices import DRAWN, drawn_number, is_drawn

KINDS = ("vits",)
"""Of text-to-speech models in a folder (stored_voice.py), as their config.json names them."""
WHERE_FROM = (
    "a text-to-speech model as transformers saves it, for example of `hf download "
    "facebook/mms-tts-eng --local-dir FOLDER` (CC BY-NC 4.0) or kakao-enterprise/vits-ljs"
)


def check_script(script: str, voice: str) -> None:
    """ValueError for a script that cannot be read or said, and for a voice that is none."""
    text = read_script(script)
    if is_drawn(voice):
        drawn_number(voice)
        split_sentences(text)
    else:
        check_folder(voice)


def check_folder(voice: str) -> str:
    """The kind of the model in a folder. ValueError, which says what is expected and from where,
    for a name that is no folder, files that are missing, and another kind of model."""
    folder = Path(voice)
    if not folder.is_dir():
        raise ValueError(
            f"no voice {voice!r}: expected {DRAWN}, {DRAWN}:N, or a folder with {WHERE_FROM}"
        )
    weights = list(folder.glob("*.safetensors"))
    found = {
        **{name: (folder / name).is_file() for name in ("config.json", "tokenizer_config.json")},
        "model.safetensors": bool(weights),
    }
    if missing := [name for name, is_there in found.items() if not is_there]:
        raise ValueError(f"--voice {voice} lacks {', '.join(missing)}; expected {WHERE_FROM}")
    indexed_weights(folder)
    kind = read_json(folder / "config.json").get("model_type")
    if kind not in KINDS:
        raise ValueError(
            f"--voice {voice} holds a model of the kind {kind!r}, expected {' or '.join(KINDS)}: "
            f"{WHERE_FROM}"
        )
    return kind
