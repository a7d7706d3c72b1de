"""A policy (policy.py) applied to texts, pictures and speech: whatever it refuses is one
`RefusedError`.

Classifiers of transformers run on the CPU, from local folders, with weights in safetensors; no code
of a folder is run. A score that is no number refuses.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.local_models import load_model, load_part
from avatar_v.critics.preparation import read_preparation
from avatar_v.media.sound import Sound, resampled
from avatar_v.safety.heard import heard_in
from avatar_v.safety.policy import (
    PICTURE_MODELS,
    TEXT_MODELS,
    Classifier,
    ModerationPolicy,
    PictureClassifier,
    plain_words,
    read_policy,
)
from avatar_v.types import FRAME_RATE_HZ

MAX_TOKENS = 256
"""Of a part of a text that is judged at once."""
BATCH = 16
"""Pictures that are judged at once."""
OVERLAP = 100
"""Characters that a part shares with the next one, on each side of where they meet."""
HEARD_S, SHARED_S = 30, 5
"""Seconds of a sound that a recogniser hears at once, and that it hears again with the next."""

Frames = UInt8[Tensor, "f 3 h w"]
Scores = Float[Tensor, "n labels"]


class RefusedError(ValueError):
    """Something that the policy refuses. Nothing is kept of such a video."""


class Moderator:
    """``policy`` is its file. ValueError for one that is none, and for models that do not load."""

    def __init__(self, policy: str | Path) -> None:
        self.policy: ModerationPolicy = read_policy(policy)
        self._refused_words = [_joined(word) for word in self.policy.words]
        for rule in (self.policy.texts, self.policy.pictures):
            if rule is not None:
                _model(rule.model, is_text=rule is self.policy.texts)

    def check_texts(self, texts: Mapping[str, str]) -> None:
        """RefusedError for the first text, by its name, that is refused."""
        for name, text in texts.items():
            words = _joined(text)
            for refused in self._refused_words:
                if refused in words:
                    raise RefusedError(f"{name} is refused: it has {refused.strip()!r}")
            if self.policy.texts is not None and text.strip():
                _check(name, text_scores(text, self.policy.texts.model), self.policy.texts)

    def check_speech(self, name: str, sound: Sound, rate_hz: int, num_channels: int = 1) -> None:
        """The same of what is said in each channel of a sound, interleaved, as far as the policy's
        recogniser hears it, half a minute at a time."""
        if self.policy.speech is None:
            return
        second = rate_hz * num_channels
        most, hop = HEARD_S * second, (HEARD_S - SHARED_S) * second
        for start in range(0, max(1, len(sound) - SHARED_S * second), hop):
            part = sound[start : start + most]
            for channel in part.view(-1, num_channels).T.unique(dim=0):
                said = heard_in(resampled(channel, rate_hz), self.policy.speech.model)
                self.check_texts({f"{name} from {start // second} s on": said})

    def check_pictures(self, name: str, frames: Frames) -> None:
        """RefusedError if one of the pictures is refused."""
        rule = self.policy.pictures
        if rule is not None and len(frames):
            _check(name, picture_scores(frames, rule.model), rule)

    def check_video(
        self, name: str, frames: Frames, first: int = 0, frame_rate_hz: int = FRAME_RATE_HZ
    ) -> None:
        """The same of the frames of a video at each of its ``every_s``; ``first`` is the number of
        the first one."""
        if self.policy.pictures is None:
            return
        step = max(1, round(self.policy.pictures.every_s * frame_rate_hz))
        for i in range(-first % step, len(frames), step):
            at_s = (first + i) / frame_rate_hz
            self.check_pictures(f"{name} at {at_s:.1f} s", frames[i : i + 1])


@torch.inference_mode()
def text_scores(text: str, folder: str) -> Scores:
    """The probabilities of all labels, of each part of a text."""
    model, tokenizer = _model(folder, is_text=True)
    parts = _parts(text, tokenizer, min(MAX_TOKENS, tokenizer.model_max_length))
    scores = []
    for part in parts:
        inputs = tokenizer(part, truncation=True, return_tensors="pt")
        taken = {k: v for k, v in inputs.items() if k in tokenizer.model_input_names}
        scores.append(probabilities(model, model(**taken).logits))
    return torch.cat(scores)


@torch.inference_mode()
def picture_scores(frames: Frames, folder: str) -> Scores:
    """The same of each picture."""
    model, prepare = _model(folder, is_text=False)
    parts = [prepare(part.cpu()) for part in frames.split(BATCH)]
    return torch.cat([probabilities(model, model(pixel_values=x).logits) for x in parts])


def read_labels(folder: str, *, is_text: bool) -> list[str]:
    """The labels of a classifier, in the order of its scores."""
    model, _ = _model(folder, is_text=is_text)
    return [str(model.config.id2label[i]) for i in sorted(model.config.id2label)]


def _parts(text: str, tokenizer: Any, most: int) -> list[str]:
    """The text in overlapping parts of at most ``most`` tokens."""
    num = len(tokenizer(text, verbose=False)["input_ids"])
    if num <= most or len(text) < 4:
        return [text]
    middle, shared = len(text) // 2, min(OVERLAP, len(text) // 4)
    halves = text[: middle + shared], text[middle - shared :]
    return [part for half in halves for part in _parts(half, tokenizer, most)]


def probabilities(model: Any, logits: Float[Tensor, "n labels"]) -> Scores:
    """By sigmoid where labels do not exclude each other."""
    config = model.config
    several = config.problem_type == "multi_label_classification" or logits.shape[1] == 1
    return logits.float().sigmoid() if several else logits.float().softmax(1)


def _check(name: str, scores: Scores, rule: Classifier) -> None:
    labels = read_labels(rule.model, is_text=not isinstance(rule, PictureClassifier))
    for label, least in rule.refuse.items():
        score = float(scores[:, labels.index(label)].max())
        if not score < least:
            raise RefusedError(f"{name} is refused: {label} {score:.2f}, from {least:g} on it is")


@cache
def _model(folder: str, *, is_text: bool) -> tuple[Any, Any]:
    """The network of a folder and what prepares its input. ValueError where weights are missing."""
    from transformers import (
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    loader = AutoModelForSequenceClassification if is_text else AutoModelForImageClassification
    source = TEXT_MODELS if is_text else PICTURE_MODELS
    if is_text:
        prepare = load_part(AutoTokenizer, folder, source)
    else:
        prepare = read_preparation(Path(folder) / "preprocessor_config.json", source)
    model, missing = load_model(loader, folder, source)
    if missing:
        raise ValueError(f"{folder} lacks {', '.join(missing[:3])}; expected {source}")
    return model, prepare


def _joined(text: str) -> str:
    return f" {' '.join(plain_words(text))} "
