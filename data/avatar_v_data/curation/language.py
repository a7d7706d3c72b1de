"""The language of a clip (Avatar V §5.1.2, language identification): by a Whisper of the user's."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.critics.frozen import hash_folder
from avatar_v.safety.policy import check_folder
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v_data.curation.stages import Clip, Result, Seen, SoundScorer, Waveform

SOURCE = (
    "a Whisper of several languages as transformers saves it, for example of "
    "`hf download openai/whisper-small --local-dir FOLDER` (Apache-2.0)"
)


@dataclass(frozen=True)
class LanguageStage(SoundScorer):
    """``model``: the folder of a Whisper of transformers that knows several languages.

    Columns: ``language``, a code such as "en", of the clip's first 30 s; ``language_confidence``,
    its probability among all languages.
    """

    model: str = "weights/whisper"

    name: ClassVar[str] = "language"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    numbers: ClassVar[tuple[str, ...]] = ("language_confidence",)
    texts: ClassVar[tuple[str, ...]] = ("language",)

    def weights(self) -> str:
        kinds, needed = ("WhisperForConditionalGeneration",), ("generation_config.json",)
        check_folder(Path(self.model), "language", kinds, needed, SOURCE)
        return hash_folder(self.model)

    def score(self, clip: Clip, seen: Seen) -> Result:
        sure = languages(clip.sound(seen.audio), self.model)
        code = max(sure, key=sure.__getitem__)
        return {"language": code, "language_confidence": round(sure[code], 4)}


@torch.inference_mode()
def languages(sound: Waveform, folder: str) -> dict[str, float]:
    """The probability of each language. ValueError for a Whisper of English alone."""
    model, prepare = _whisper(folder)
    asked = model.generation_config
    inputs = prepare(sound.numpy(), sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
    start = torch.tensor([[asked.decoder_start_token_id]], device=model.device)
    features = inputs.input_features.to(model.device)
    logits = model(input_features=features, decoder_input_ids=start).logits[0, -1].float()
    codes = asked.lang_to_id
    sure = logits[list(codes.values())].softmax(0).tolist()
    return {code.strip("<|>"): p for code, p in zip(codes, sure, strict=True)}


@cache
def _whisper(folder: str) -> tuple[Any, Any]:
    from transformers import AutoFeatureExtractor, WhisperForConditionalGeneration

    model = load_whole(WhisperForConditionalGeneration, folder, SOURCE)
    if not vars(model.generation_config).get("lang_to_id"):
        raise ValueError(f"{folder} knows one language; expected {SOURCE}")
    return model, load_part(AutoFeatureExtractor, folder, SOURCE)
