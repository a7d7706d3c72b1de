"""The words in a sound: as PocketSphinx hears them, whose English model lies in its package, or a
speech recogniser of transformers in a folder."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.local_models import load_model, load_part
from avatar_v.safety.policy import SPEECH_MODELS, check_recogniser
from avatar_v.shards.schema import to_int16
from avatar_v.types import SAMPLE_RATE_HZ


@torch.inference_mode()
def heard_in(sound: Float[Tensor, " s"], recogniser: str | Path, where: str = "speech") -> str:
    """The words in a sound of 16 kHz, at most 30 s, as what `check_recogniser` knows hears them;
    ValueError as there."""
    kind = check_recogniser(recogniser, where)
    if not kind:
        hypothesis = decoded(sound).hyp()
        return "" if hypothesis is None else hypothesis.hypstr
    is_ctc = kind.endswith("ForCTC")
    model, processor = _recogniser(str(recogniser), is_ctc=is_ctc)
    inputs = processor(sound.numpy(), sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt")
    tokens = model(**inputs).logits.argmax(-1) if is_ctc else model.generate(**inputs)
    return processor.batch_decode(tokens, skip_special_tokens=True)[0].strip()


def decoded(sound: Float[Tensor, " s"]) -> Any:
    """PocketSphinx's decoder, which has heard a sound of 16 kHz and nothing before."""
    decoder = _decoder()
    decoder.reinit_feat()  # which forgets the noise of the sound before
    decoder.start_utt()
    decoder.process_raw(to_int16(sound).numpy().tobytes(), full_utt=True)
    decoder.end_utt()
    return decoder


@cache
def _decoder() -> Any:
    from pocketsphinx import Decoder  # pyright: ignore[reportMissingImports]

    # with cmn="live" a sound's words would depend on the loudness of those before it
    return Decoder(samprate=SAMPLE_RATE_HZ, cmn="batch", loglevel="FATAL")


@cache
def _recogniser(folder: str, *, is_ctc: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForCTC, AutoModelForSpeechSeq2Seq, AutoProcessor

    loader = AutoModelForCTC if is_ctc else AutoModelForSpeechSeq2Seq
    model, _ = load_model(loader, folder, SPEECH_MODELS)
    return model, load_part(AutoProcessor, folder, SPEECH_MODELS)
