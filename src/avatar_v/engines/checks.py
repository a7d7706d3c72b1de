"""What can be said of a script and its voice before torch is imported."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from avatar_v.base.outside import read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.engines.manner import has_marks
from avatar_v.engines.script import read_script, split_sentences
from avatar_v.engines.voices import DRAWN, drawn_number, is_drawn, is_voice_file
from avatar_v.safety import policy
from avatar_v.voices.shipped import DEFAULT_ENGINE, SPEAKER_FILE, TRAINED, engine_folder

WHERE_FROM = (
    "a text-to-speech model as transformers saves it, for example of `hf download "
    "facebook/mms-tts-eng --local-dir FOLDER` (CC BY-NC 4.0) or kakao-enterprise/vits-ljs"
)
TEXT_MODELS = (
    "a causal language model with a chat template as transformers saves it, with weights in "
    "safetensors, for example of `hf download Qwen/Qwen2.5-1.5B-Instruct --local-dir FOLDER` "
    "(Apache-2.0)"
)
OURS = "llama"
"""The kind of the model that recipes/voices train, beside its codec and speakers."""
CODEC = "codec"
"""The folder, in that of a model, of a codec that is a model of its own."""


@dataclass(frozen=True)
class Kind:
    """A kind of text-to-speech model: the files of its folder besides weights, and where it is
    from."""

    files: tuple[str, ...]
    source: str
    package: str = ""  # that transformers needs for it, and that is not installed with this library


VITS = {"vits": Kind(("config.json", "tokenizer_config.json"), WHERE_FROM)}
"""Models with a voice of their own (stored_voice.py), as their config.json names them."""
_PROCESSED = ("config.json", "tokenizer_config.json", "processor_config.json")
CLONING = {
    "csm": Kind(
        (*_PROCESSED, "chat_template.jinja"),
        "CSM as transformers saves it: `hf download sesame/csm-1b --local-dir FOLDER` (Apache-2.0)",
    ),
    "dia": Kind(
        ("config.json", "tokenizer_config.json", "preprocessor_config.json",
         f"{CODEC}/config.json"),
        "Dia as transformers saves it, and its codec: `hf download nari-labs/Dia-1.6B-0626 "
        f"--local-dir FOLDER` (Apache-2.0), `hf download descript/dac_44khz --local-dir "
        f"FOLDER/{CODEC}` (MIT)",
    ),
    "higgs_audio_v2": Kind(
        (*_PROCESSED, "chat_template.jinja", f"{CODEC}/config.json"),
        "Higgs Audio 2 as transformers saves it, and its codec: `hf download "
        "bosonai/higgs-audio-v2-generation-3B-base --local-dir FOLDER`, `hf download "
        f"bosonai/higgs-audio-v2-tokenizer --local-dir FOLDER/{CODEC}` (Boson AI's own licence)",
        package="torchaudio",
    ),
    "pocket_tts": Kind(
        (*_PROCESSED, "chat_template.jinja", f"{CODEC}/config.json"),
        "Pocket TTS as transformers saves it, of Kyutai's kyutai/pocket-tts (CC BY 4.0), and its "
        f"audio tokenizer as FOLDER/{CODEC}",
    ),
    OURS: Kind(
        ("config.json", SPEAKER_FILE, f"{CODEC}/config.json"),
        TRAINED,
    ),
}  # fmt: skip
"""Models that continue a prompt (cloning.py)."""


ONLY_OURS = (
    "languages and emotions, as in [de] or [sad], are followed by a .voice of a model of "
    "recipes/voices alone"
)


def check_script(script: str, voice: str, engine: str | None = None) -> None:
    """ValueError for a script that cannot be read or said, and for a voice that is none."""
    text = read_script(script)
    check_voice(voice, engine)
    if has_marks(text) and not is_voice_file(voice):
        raise ValueError(f"--script: {ONLY_OURS}")
    if is_drawn(voice):
        split_sentences(text)


def check_voice(voice: str, engine: str | None = None) -> None:
    """ValueError for a name, file or folder that is no voice, and for a model that clones none."""
    if is_voice_file(voice):
        if not Path(voice).is_file():
            raise ValueError(f"--voice {voice}: no such file; make one with avatar-v voice")
        if engine is not None:
            check_engine(engine)
        return
    if engine is not None:
        raise ValueError(f"--engine says a --voice of a file that ends in .voice, not {voice}")
    if is_drawn(voice):
        drawn_number(voice)
    else:
        check_folder(voice)


def check_folder(voice: str) -> None:
    """ValueError, which says what is expected and from where, for a name that is no folder, files
    that are missing, and another kind of model."""
    if not Path(voice).is_dir():
        raise ValueError(
            f"no voice {voice!r}: expected {DRAWN}, {DRAWN}:N, a file of `avatar-v voice`, or a "
            f"folder with {WHERE_FROM}"
        )
    _check_kind(Path(voice), f"--voice {voice}", VITS, WHERE_FROM)


def check_engine(engine: str | Path) -> str:
    """The kind of the model that clones, by its name or in a folder. ValueError as
    `check_folder`."""
    folder, source = engine_folder(engine), "; or ".join(kind.source for kind in CLONING.values())
    if not folder.is_dir():
        raise ValueError(
            f"--engine {engine}: no such folder; expected {DEFAULT_ENGINE}, which ships, or a "
            f"folder with {source}"
        )
    return _check_kind(folder, f"--engine {folder}", CLONING, source)


def check_text_model(folder: str | Path, where: str = "the text model") -> None:
    """ValueError, which says what is expected and from where, for a folder without one."""
    files = ("tokenizer.json", "tokenizer_config.json")
    policy.check_folder(Path(folder), where, ("ForCausalLM",), files, TEXT_MODELS)


def _check_kind(folder: Path, where: str, kinds: dict[str, Kind], source: str) -> str:
    """The kind of the model in a folder, which has all its files."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{where} lacks config.json; expected {source}")
    kind = read_json(folder / "config.json").get("model_type")
    if kind not in kinds:
        raise ValueError(
            f"{where} holds a model of the kind {kind!r}, expected {' or '.join(kinds)}: {source}"
        )
    files, source = kinds[kind].files, kinds[kind].source
    missing = [name for name in files if not (folder / name).is_file()]
    parts = [folder, *((folder / CODEC,) if f"{CODEC}/config.json" in files else ())]
    for part in parts:
        if not list(part.glob("*.safetensors")):
            missing.append((part / "model.safetensors").relative_to(folder).as_posix())
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}; expected {source}")
    for part in parts:
        indexed_weights(part)
    package = kinds[kind].package
    if package and find_spec(package) is None:
        raise ValueError(f"{where}: {kind} needs {package}: pip install {package}")
    return kind
