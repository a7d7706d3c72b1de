"""What a service refuses: words, and labels that classifiers give to texts and pictures; and what
reads the words of a sound.

A policy is a YAML file, read and checked here, before torch is imported; moderation.py applies it.
Models are folders beside it, or anywhere; their labels are known from config.json.
"""

import dataclasses
import importlib.util
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from avatar_v.base.outside import parse_yaml, read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.base.stored import Within, built, shown
from avatar_v.base.words import listed
from avatar_v.safety.consent import read_bounded

MAX_LABELS = 4096
IGNORED = re.compile(
    "[\u115f\u1160\u17b4\u17b5\u2065\u3164\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point, as far as it is not of the categories Cf and Mn: fillers
of Hangul, and what is set aside."""
TEXT_MODELS = (
    "a text classifier as transformers saves it, with weights in safetensors, for example of "
    "`hf download unitary/toxic-bert --local-dir FOLDER` (Apache-2.0)"
)
PICTURE_MODELS = (
    "a picture classifier as transformers saves it, with weights in safetensors, for example of "
    "`hf download Falconsai/nsfw_image_detection --local-dir FOLDER` (Apache-2.0)"
)
SPEECH_MODELS = (
    "a speech recogniser as transformers saves it, with weights in safetensors, for example of "
    "`hf download openai/whisper-small --local-dir FOLDER` (Apache-2.0)"
)
POCKETSPHINX = "pocketsphinx"
"""In place of the folder of a recogniser: that package, which knows English."""
NO_POCKETSPHINX = "English words need pocketsphinx: pip install 'avatar_v[extract]'"


@dataclass(frozen=True)
class Classifier:
    """A folder, and the labels that are refused: from which probability on."""

    model: str
    refuse: Mapping[str, Annotated[float, Within(0, 1)]]

    def __post_init__(self) -> None:
        if not self.refuse:
            raise ValueError("refuse names no label")


@dataclass(frozen=True)
class PictureClassifier(Classifier):
    """The same of pictures, and how often a generated video is looked at."""

    every_s: Annotated[float, Within(0.04, 3600)] = 1.0


@dataclass(frozen=True)
class Recogniser:
    """The folder of what reads the words of a sound, or `POCKETSPHINX`."""

    model: str


@dataclass(frozen=True)
class ModerationPolicy:
    """All that is refused."""

    words: tuple[str, ...] = ()
    texts: Classifier | None = None
    pictures: PictureClassifier | None = None
    speech: Recogniser | None = None  # whose words are judged as texts are

    def __post_init__(self) -> None:
        for word in self.words:
            if not plain_words(word):
                raise ValueError(f"words: {word!r} has no letter")
        if not (self.words or self.texts or self.pictures):
            raise ValueError("refuses nothing; expected words, texts or pictures")
        if self.speech is not None and not (self.words or self.texts):
            raise ValueError("speech is read for words or texts, and there are neither")


def read_policy(path: str | Path) -> ModerationPolicy:
    """ValueError for a file that is no policy: unknown keys, words without a letter, models that
    are missing or of another kind, and labels that a model does not have."""
    path = Path(path)
    values = parse_yaml(read_bounded(path, "--policy"), where=path, what="policy")
    policy = built(ModerationPolicy, values, where=path, sparse=True)
    rules = {name: _beside(path, name, getattr(policy, name)) for name in ("texts", "pictures")}
    speech = policy.speech
    if speech is not None and speech.model != POCKETSPHINX:
        speech = Recogniser(str(path.parent / speech.model))
    if speech is not None:
        check_recogniser(speech.model, f"{path}: speech")
    return dataclasses.replace(policy, speech=speech, **rules)


def check_recogniser(model: str | Path, where: str) -> str:
    """The class of the model in a folder; "" of `POCKETSPHINX`. ValueError, which says what to
    supply, for a folder without a recogniser, and where that package is not installed."""
    if str(model) == POCKETSPHINX:
        if importlib.util.find_spec(POCKETSPHINX) is None:
            raise ValueError(f"{where}: {NO_POCKETSPHINX}")
        return ""
    kinds = ("ForCTC", "ForConditionalGeneration")
    return check_folder(Path(model), where, kinds, ("tokenizer_config.json",), SPEECH_MODELS)


def plain_words(text: str) -> list[str]:
    """The words of a text, without case, accents, signs and invisible letters. Whatever is no
    letter and no number, "_" as well, stands between words."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return re.findall(r"[^\W_]+", "".join(x for x in text if not _is_unseen(x)))


def _is_unseen(letter: str) -> bool:
    """Whether a letter is an accent, or nothing that is shown."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return True
    # isspace() says yes to some that no page shows as a space
    is_control = unicodedata.category(letter) == "Cc" and letter not in "\t\n\v\f\r"
    return is_control or IGNORED.fullmatch(letter) is not None


def _beside(path: Path, name: str, rule: Classifier | None) -> Classifier | None:
    """The rule ``name`` of the policy in ``path``, with the whole path of its model."""
    if rule is None:
        return None
    folder, where, is_text = path.parent / rule.model, f"{path}: {name}", name == "texts"
    check_folder(
        folder,
        where,
        ("ForSequenceClassification" if is_text else "ForImageClassification",),
        ("tokenizer_config.json" if is_text else "preprocessor_config.json",),
        TEXT_MODELS if is_text else PICTURE_MODELS,
    )
    labels = read_json(folder / "config.json").get("id2label")
    if not isinstance(labels, dict) or not 1 <= len(labels) <= MAX_LABELS:
        raise ValueError(f"{where}: {folder / 'config.json'} names no labels (id2label)")
    known = [str(label) for label in labels.values()]
    if unknown := [label for label in rule.refuse if label not in known]:
        raise ValueError(f"{where}: the model has no label {unknown[0]!r}; it has {listed(known)}")
    return dataclasses.replace(rule, model=str(folder))


def check_folder(
    folder: Path, where: str, kinds: tuple[str, ...], files: tuple[str, ...], source: str
) -> str:
    """The class of the model in a folder of transformers, whose name ends as one of ``kinds``.
    ValueError, which says what to supply, for missing files and another class."""
    missing = [name for name in ("config.json", *files) if not (folder / name).is_file()]
    missing += [] if list(folder.glob("*.safetensors")) else ["model.safetensors"]
    if missing:
        raise ValueError(f"{where}: {folder} lacks {', '.join(missing)}; expected {source}")
    indexed_weights(folder)
    found = read_json(folder / "config.json").get("architectures")
    kind = str(found[0]) if isinstance(found, list) and found else ""
    if not kind.endswith(kinds):
        raise ValueError(f"{where}: {folder} holds {shown(found)}; expected {source}")
    return kind
