"""What a clip sounds like: by classifiers of sounds of the user's (Avatar V §5.1.2, synthetic
audio; music, noise)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.critics.frozen import hash_folder
from avatar_v.safety.moderation import probabilities
from avatar_v.safety.policy import check_folder
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer, Waveform

MODELS = (
    "a classifier of sounds as transformers saves it, with weights in safetensors, such as "
    "MIT/ast-finetuned-audioset-10-10-0.4593 (BSD-3-Clause; speech, music and 525 others) or one "
    "that tells synthetic speech, of the Hugging Face hub: download the repository into a folder"
)
KINDS = ("ForAudioClassification", "ForSequenceClassification")
WINDOW_S = 10.0
"""Of what a classifier hears at once."""


@dataclass(frozen=True)
class SoundStage(SoundScorer):
    """``models``: folders of audio classifiers of transformers.

    Columns: ``sound_LABEL`` for each of their labels, the largest probability in parts of 10 s.
    """

    models: tuple[str, ...] = ("weights/sounds",)

    name: ClassVar[str] = "sounds"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("sound_",)

    def weights(self) -> str:
        for folder in self.models:
            needed = ("preprocessor_config.json",)
            check_folder(Path(folder), "sounds", KINDS, needed, MODELS)
        return " ".join(hash_folder(folder) for folder in self.models)

    def score(self, clip: Clip, seen: Seen) -> Result:
        row: Result = {}
        for folder in self.models:
            found = sound_scores(clip.sound(seen.audio), folder)
            if twice := sorted(set(row) & set(found)):
                raise ValueError(f"{folder} and another one have the label {twice[0]!r}")
            row |= found
        return {f"sound_{label}": round(p, 4) for label, p in row.items()}


@torch.inference_mode()
def sound_scores(sound: Waveform, folder: str) -> dict[str, float]:
    """The probabilities of a classifier's labels, the largest of all parts of a sound."""
    model, prepare = _classifier(folder)
    parts = sound.tensor_split(max(round(len(sound) / SAMPLE_RATE_HZ / WINDOW_S), 1))
    scores = []
    for part in parts:
        inputs = prepare(part.numpy(), sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
        logits = model(**inputs.to(model.device)).logits
        scores.append(probabilities(model, logits)[0])
    most = torch.stack(scores).amax(0).tolist()
    return {str(model.config.id2label[n]): p for n, p in enumerate(most)}


@cache
def _classifier(folder: str) -> tuple[Any, Any]:
    from transformers import AutoFeatureExtractor, AutoModelForAudioClassification

    model = load_whole(AutoModelForAudioClassification, folder, MODELS)
    return model, load_part(AutoFeatureExtractor, folder, MODELS)
