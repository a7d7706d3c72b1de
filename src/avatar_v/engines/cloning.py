"""Models that continue a prompt of speech in its voice, from folders (Avatar V §2.3).

One class for each published family, by transformers: CSM (Sesame), Dia (Nari Labs), Higgs Audio 2
(Boson AI), Pocket TTS (Kyutai); and the one that is trained here (voices/). Nothing is downloaded,
and no code of a folder is run. The published ones take no language and no rate of speech: they
follow text and prompt.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.base.outside import read_json
from avatar_v.engines.checks import CLONING, CODEC, ONLY_OURS, OURS, check_engine
from avatar_v.engines.manner import Manner, has_marks, split_manners
from avatar_v.engines.script import split_sentences
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES, SILENT, from_ipa
from avatar_v.voices.shipped import engine_folder

if TYPE_CHECKING:  # transformers is imported with it
    from avatar_v.voices.model import HeardVoice

PLAIN = Manner()
SPEAKER = "0"
"""The name of the one who speaks, in the template of CSM."""
HIGGS_TASK = "Generate audio following instruction."
"""What the system says to Higgs Audio, whose template refuses a conversation without it."""
SPOKEN_SHARE = 0.8
"""Of a recording, in which somebody speaks; the others are pauses."""
MARGIN_S, LETTERS_PER_S = 2.0, 6.0
"""A text may last so long and one second for so many letters: slow speech has ten."""


@dataclass(frozen=True)
class VoicePrompt:
    """What is to be continued: speech and its words."""

    sound: Float[Tensor, " n"]  # in [-1, 1]
    rate_hz: int
    transcript: str


@runtime_checkable
class CloningModel(Protocol):
    """A model and its codec. Draws come from torch's own generator."""

    rate_hz: int  # of its codec

    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        """``text`` in the voice of ``prompt``, whose rate is this model's; empty where the model
        ends at once."""
        ...


def say_pieces(
    model: CloningModel, text: str, prompt: VoicePrompt, manner: Manner = PLAIN
) -> Iterator[Float[Tensor, " n"]]:
    """What `CloningModel.say` gives, in pieces as they are made where the model can do that. All
    draws of torch's generator are made before this returns. ``manner``: of `manners_of`."""
    if isinstance(model, TrainedVoice):
        return model.pieces(text, prompt, manner)
    return iter([model.say(text, prompt)])


def manners_of(model: CloningModel, text: str) -> list[tuple[Manner, str]]:
    """The parts of a text, and how each is to be said. ValueError for a model that cannot follow
    what the text asks for, and for words that ours cannot say."""
    if isinstance(model, TrainedVoice):
        parts = list(split_manners(text))
        for manner, part in parts:
            phonemes_of(part, manner.language)
        return parts
    if has_marks(text):
        raise ValueError(f"--script: {ONLY_OURS}")
    return [(PLAIN, text)]


class CsmVoice:
    """CSM: a Llama over the first of Mimi's codebooks, a small one over the others. Text and prompt
    are turns of a conversation, and its codec is in its own weights."""

    def __init__(self, folder: Path, source: str) -> None:
        from transformers import CsmForConditionalGeneration, CsmProcessor

        self._processor = load_part(CsmProcessor, folder, source)
        self._model = load_whole(CsmForConditionalGeneration, folder, source)
        self.rate_hz = int(self._processor.feature_extractor.sampling_rate)
        self._frames_per_s = self._model.config.codec_config.frame_rate

    @torch.inference_mode()
    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        words = [{"type": "text", "text": prompt.transcript}, {"type": "audio"}]
        turns = [(SPEAKER, words), (SPEAKER, [{"type": "text", "text": text}])]
        inputs = _templated(self._processor, turns, prompt).to(self._model.device)
        num = _most_frames(text, self._frames_per_s)
        codes = self._model.generate(**inputs, max_new_tokens=num, do_sample=True)[0]
        ends = (codes == self._model.config.codebook_eos_token_id).all(-1).nonzero()
        codes = codes[: int(ends[0]) if len(ends) else len(codes)]
        if not len(codes):
            return torch.zeros(0)
        return self._model.codec_model.decode(codes.T[None]).audio_values[0, 0].float().cpu()


class DiaVoice:
    """Dia: text encoder and decoder over DAC's codebooks. The words of the prompt stand before the
    text, its sound before what is made. The codec is a folder of its own, `CODEC`."""

    def __init__(self, folder: Path, source: str) -> None:
        from transformers import (
            DacModel,
            DiaFeatureExtractor,
            DiaForConditionalGeneration,
            DiaProcessor,
            DiaTokenizer,
        )

        extractor = load_part(DiaFeatureExtractor, folder, source)
        tokenizer = load_part(DiaTokenizer, folder, source)
        codec = load_whole(DacModel, folder / CODEC, source)
        self._processor: Any = DiaProcessor(extractor, tokenizer, codec)
        self._model = load_whole(DiaForConditionalGeneration, folder, source)
        self.rate_hz = int(self._processor.feature_extractor.sampling_rate)
        self._frames_per_s = self.rate_hz / self._processor.feature_extractor.hop_length

    @torch.inference_mode()
    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        inputs = self._processor(
            text=[f"[S1] {prompt.transcript.strip()} {text}"],
            audio=prompt.sound.numpy(),
            sampling_rate=prompt.rate_hz,
        )
        length = self._processor.get_audio_prompt_len(inputs["decoder_attention_mask"])
        room = self._model.config.decoder_config.max_position_embeddings - length - 1
        num = min(_most_frames(text, self._frames_per_s), room)
        codes = self._model.generate(
            **inputs.to(self._model.device), max_new_tokens=num, do_sample=True
        )
        delay = max(self._model.config.delay_pattern)
        if codes.shape[1] <= length + delay + 1:
            return torch.zeros(0)
        (sound,) = self._processor.batch_decode(codes, audio_prompt_len=length)
        return torch.atleast_1d(sound).float()


class HiggsVoice:
    """Higgs Audio 2: a Llama with feed-forward layers of their own for sound, over eight codebooks
    that begin one after the other. Prompt and its words are turns of a conversation. The codec is
    `CODEC`."""

    def __init__(self, folder: Path, source: str) -> None:
        from transformers import (
            DacFeatureExtractor,
            HiggsAudioV2ForConditionalGeneration,
            HiggsAudioV2Processor,
            HiggsAudioV2TokenizerModel,
        )

        extractor = load_part(DacFeatureExtractor, folder, source)
        codec = load_whole(HiggsAudioV2TokenizerModel, folder / CODEC, source)
        self._processor = _with_codec(HiggsAudioV2Processor, extractor, codec, folder, source)
        self._model = load_whole(HiggsAudioV2ForConditionalGeneration, folder, source)
        self.rate_hz = int(extractor.sampling_rate)
        self._frames_per_s = codec.config.sample_rate / codec.config.hop_length

    @torch.inference_mode()
    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        turns = [
            ("system", [{"type": "text", "text": HIGGS_TASK}]),
            ("user", [{"type": "text", "text": prompt.transcript}]),
            ("assistant", [{"type": "audio"}]),
            ("user", [{"type": "text", "text": text}]),
        ]
        inputs = _templated(self._processor, turns, prompt, add_generation_prompt=True)
        inputs = inputs.to(self._model.device)
        told, delay = inputs["audio_input_ids"].shape[1], self._model.config.num_codebooks
        num = _most_frames(text, self._frames_per_s) + delay
        codes = self._model.generate(**inputs, max_new_tokens=num, do_sample=True)[:, told:]
        ends = (codes[0] == self._model.config.audio_stream_eos_id).all(-1).nonzero()
        codes = codes[:, : int(ends[0]) if len(ends) else codes.shape[1]]
        if codes.shape[1] <= delay:  # the first says that it begins
            return torch.zeros(0)
        return self._processor.decode(codes).float()


class PocketVoice:
    """Pocket TTS: a small transformer that draws the latents of a Mimi without codebooks, made for
    processors. It follows the prompt's sound and takes no words of it. The codec is `CODEC`."""

    def __init__(self, folder: Path, source: str) -> None:
        from transformers import (
            PocketTTSAudioTokenizerModel,
            PocketTTSFeatureExtractor,
            PocketTTSForConditionalGeneration,
            PocketTTSProcessor,
        )

        extractor = load_part(PocketTTSFeatureExtractor, folder, source)
        codec = load_whole(PocketTTSAudioTokenizerModel, folder / CODEC, source)
        self._processor = _with_codec(PocketTTSProcessor, extractor, codec, folder, source)
        self._model = load_whole(PocketTTSForConditionalGeneration, folder, source)
        self.rate_hz = int(extractor.sampling_rate)

    @torch.inference_mode()
    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        words = [{"type": "text", "text": text}, {"type": "audio"}]
        inputs = _templated(self._processor, [("user", words)], prompt).to(self._model.device)
        num = _most_frames(text, self._model.config.frame_rate)
        made = self._model.generate(**inputs, max_new_tokens=num, return_dict_in_generate=True)
        return self._processor.decode(made.audio_latents, made.audio_latents_mask)[0]


class TrainedVoice:
    """The model of recipes/voices: a Llama over the codes of our own codec. It says English words
    whose pronunciation is known, and other languages by espeak-ng, as fast as the prompt."""

    def __init__(self, folder: Path, source: str) -> None:
        from avatar_v.voices.model import VoiceModel

        self._model = VoiceModel.load(folder, source)
        self._heard: tuple[VoicePrompt, HeardVoice, int] | None = None  # of the last prompt
        self.rate_hz = SAMPLE_RATE_HZ

    def say(self, text: str, prompt: VoicePrompt) -> Float[Tensor, " n"]:
        return torch.cat(list(self.pieces(text, prompt)))

    def pieces(
        self, text: str, prompt: VoicePrompt, manner: Manner = PLAIN
    ) -> Iterator[Float[Tensor, " n"]]:
        """The same while it is made; the only draw of torch's generator is made here."""
        from avatar_v.voices.model import Drawing
        from avatar_v.voices.tokens import Voiced

        if self._heard is None or self._heard[0] is not prompt:
            self._heard = (prompt, self._model.hear(prompt.sound), self._rate_of(prompt))
        _, voice, rate = self._heard
        asked = Voiced(
            LANGUAGES.index(manner.language), EMOTIONS.index(manner.emotion), rate, liveliness=1
        )
        phonemes = phonemes_of(text, manner.language)
        head = self._model.head(phonemes, voice, asked)
        how = Drawing(seed=int(torch.randint(1 << 31, ())))
        return self._model.sound(head, phonemes, how)

    def _rate_of(self, prompt: VoicePrompt) -> int:
        """The class of its rate of speech."""
        from avatar_v.voices.tokens import rate_class

        told = split_manners(prompt.transcript)
        names = [name for own, part in told for name in phonemes_of(part, own.language)]
        spoken_s = SPOKEN_SHARE * len(prompt.sound) / self.rate_hz
        return rate_class(len([name for name in names if name not in SILENT]), spoken_s)


def phonemes_of(text: str, language: str = "en") -> list[str]:
    """The phonemes of a text, with pauses around sentences and where signs ask for one. ValueError
    for English as `script.split_sentences`, for other languages without espeak-ng and for a
    phoneme that no model knows."""
    if language != "en":
        return _foreign_phonemes(text, language)
    found = ["SIL"]
    for one in split_sentences(text):
        for number, word in enumerate(one.words):
            found += word.phonemes
            if number in one.breaks:
                found.append("SIL")
        if found[-1] != "SIL":
            found.append("SIL")
    return found


def _foreign_phonemes(text: str, language: str) -> list[str]:
    from avatar_v.voices import espeak

    found = []
    for sign in espeak.speak(text, language).phonemes:
        name = from_ipa(sign.strip(espeak.STRESS))
        if name is None:
            raise ValueError(f"--script: voices have not learned the sound {sign!r} of {text!r}")
        if name != "SIL" or found[-1:] != ["SIL"]:
            found.append(name)
    return found


_FAMILIES: dict[str, type[CsmVoice | DiaVoice | HiggsVoice | PocketVoice | TrainedVoice]] = {
    "csm": CsmVoice,
    "dia": DiaVoice,
    "higgs_audio_v2": HiggsVoice,
    "pocket_tts": PocketVoice,
    OURS: TrainedVoice,
}


def load_engine(engine: str | Path) -> CloningModel:
    """The model of a name or folder. ValueError, which says what to supply, for one that is none,
    or whose codec or weights are missing or damaged."""
    kind = check_engine(engine)
    return _FAMILIES[kind](engine_folder(engine), CLONING[kind].source)


def engine_rate_hz(engine: str | Path) -> int:
    """The rate of the model's codec, without its weights."""
    from transformers import AutoFeatureExtractor

    kind = check_engine(engine)
    if kind == OURS:
        return SAMPLE_RATE_HZ
    source = CLONING[kind].source
    return int(load_part(AutoFeatureExtractor, engine_folder(engine), source).sampling_rate)


def _with_codec(cls: Any, extractor: Any, codec: Any, folder: Path, source: str) -> Any:
    """A processor whose own loader would look for its codec on the hub."""
    from transformers import AutoTokenizer

    tokenizer = load_part(AutoTokenizer, folder, source)
    known = inspect.signature(cls.__init__).parameters
    told = read_json(folder / "processor_config.json")
    told = {k: v for k, v in told.items() if k in known and isinstance(v, (int, float, str))}
    told["chat_template"] = (folder / "chat_template.jinja").read_text("utf-8")
    try:
        return cls(extractor, tokenizer, codec, **told)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} cannot be loaded ({error}); expected {source}") from error


def _templated(
    processor: Any, turns: list[tuple[str, list[dict]]], prompt: VoicePrompt, **how: bool
) -> Any:
    """The inputs of a model whose folder has a template of conversations."""
    messages = [{"role": role, "content": content} for role, content in turns]
    text = processor.apply_chat_template(messages, tokenize=False, **how)
    return processor(
        text=text,
        audio=[prompt.sound.numpy()],
        sampling_rate=prompt.rate_hz,
        return_tensors="pt",
    )


def _most_frames(text: str, frames_per_s: float) -> int:
    """Of the codec, that a text may last: a model that never ends is ended."""
    return round((MARGIN_S + len(text) / LETTERS_PER_S) * frames_per_s)
