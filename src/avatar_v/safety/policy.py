"""What a service refuses: words, and labels that classifiers give to texts and pictures.

A policy is a YAML file, read and checked here, before torch is imported; moderation.py applies it.
Models are folders beside it, or anywhere; their labels are known from config.json.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.outside import parse_yaml, read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.base.stored import Within, built, converted, shown
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


@dataclass(frozen=True)
class Classifier:
    """A folder, and the labels that are refused: from which probability on."""

    model: str
    refuse: Mapping[str, float]


@dataclass(frozen=True)
class PictureClassifier(Classifier):
    """The same of pictures, and how often a generated video is looked at."""

    every_s: Annotated[float, Within(0.04, 3600)] = 1.0


@dataclass(frozen=True)
class ModerationPolicy:
    """All that is refused."""

    words: tuple[str, ...] = ()
    texts: Classifier | None = None
    pictures: PictureClassifier | None = None


def read_policy(path: str | Path) -> ModerationPolicy:
    """ValueError for a file that is no policy: unknown keys, words without a letter, models that
    are missing or of another kind, and labels that a model does not have."""
    path = Path(path)
    values = parse_yaml(read_bounded(path, "--policy"), where=path, what="policy")
    values = _object(values, path, {"words", "texts", "pictures"})
    words = converted(values.get("words") or [], tuple[str, ...], where=f"{path}: words")
    for word in words:
        if not plain_words(word):
            raise ValueError(f"{path}: words: {word!r} has no letter")
    texts = _classifier(values, "texts", Classifier, path)
    pictures = _classifier(values, "pictures", PictureClassifier, path)
    if not (words or texts or pictures):
        raise ValueError(f"{path} refuses nothing; expected words, texts or pictures")
    return ModerationPolicy(words, texts, pictures)


def plain_words(text: str) -> list[str]:
    """The words of a text, without case, accents, signs and invisible letters. Whatever is no
    letter and no number, "_" as well, stands between words."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return re.findall(r"[^\W_]+", "".join(x for x in text if not _is_unseen(x)))


def _is_unseen(letter: str) -> bool:
    """Whether a letter is an accent, or nothing that is shown."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return True
    is_control = unicodedata.category(letter) == "Cc" and not letter.isspace()
    return is_control or IGNORED.fullmatch(letter) is not None


def _classifier(values: Mapping[str, Any], name: str, kind: Any, path: Path) -> Any:
    """The rule of a ``kind`` under ``name``; None where there is none."""
    if values.get(name) is None:
        return None
    where = f"{path}: {name}"
    optional = {"every_s": PictureClassifier.every_s} if kind is PictureClassifier else {}
    given = _object(values[name], where, {"model", "refuse", *optional})
    refuse = {
        label: converted(least, Annotated[float, Within(0, 1)], where=f"{where}: refuse: {label}")
        for label, least in _object(given.get("refuse"), f"{where}: refuse", None).items()
    }
    rest = {k: v for k, v in {**optional, **given}.items() if k != "refuse"}
    rule = built(kind, rest, where=where, refuse=refuse)
    folder = path.parent / rule.model
    is_text = name == "texts"
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
    if unknown := [label for label in refuse if label not in known]:
        raise ValueError(f"{where}: the model has no label {unknown[0]!r}; it has {listed(known)}")
    return built(kind, {**rest, "model": str(folder)}, where=where, refuse=refuse)


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


def _object(value: Any, where: str | Path, known: set[str] | None) -> dict[str, Any]:
    """A mapping from names to values, without any but the ``known`` ones; not an empty one."""
    if not isinstance(value, dict) or not value or not all(isinstance(k, str) for k in value):
        raise ValueError(f"{where} is an object of names and values, got {shown(value)}")
    if known is not None and (unknown := sorted(set(value) - known)):
        expected = ", ".join(sorted(known))
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; expected {expected}")
    return value
