"""The language model of voices: transformers' Llama over the tokens of tokens.py, and its codec.

A folder of it holds the Llama as transformers saves it, or its config.json and its weights packed
in ``compressed.safetensors`` (base/packed.py); ``speaker.safetensors`` (the parts that speaker
vectors are made of); and ``codec/`` (codec.py).
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from avatar_v.base.device import without_memory
from avatar_v.base.local_models import load_part, load_whole
from avatar_v.base.packed import compressed, decompressed
from avatar_v.base.states import check_numbers, check_state, read_tensors
from avatar_v.critics.voice import mean_vector, vectors_of
from avatar_v.models.base import COMPRESSED
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.shipped import SPEAKER_FILE
from avatar_v.voices.tokens import (
    END,
    MOST_FRAMES,
    PAD,
    PROMPT_BOOKS,
    SPEAKER_PARTS,
    SPEAKER_SIZE,
    START,
    Vocabulary,
    Voiced,
)

CACHE = "cache"
if CACHE not in inspect.signature(LlamaForCausalLM.forward).parameters:
    CACHE = "past_key_values"  # its name before transformers 5.2x
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FIRST_FRAMES, MORE_FRAMES = 8, 25
"""Of the first piece of sound, which is waited for, and of others."""


def vocabulary_of(codec: VoiceCodec) -> Vocabulary:
    """The tokens of a codec's voices."""
    return Vocabulary(codec.config.num_codebooks, codec.config.codebook_size)


def fresh_llama(
    codec: VoiceCodec, *, width: int, num_layers: int, num_heads: int, seed: int
) -> LlamaForCausalLM:
    """Untrained weights."""
    config = LlamaConfig(
        vocab_size=vocabulary_of(codec).size,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


@dataclass(frozen=True)
class SpeakerParts:
    """Centres of parts of speaker vectors: a vector as eight numbers (product quantisation)."""

    centres: Float[Tensor, "part size d"]

    @classmethod
    def of(cls, vectors: Float[np.ndarray, "n v"], seed: int) -> "SpeakerParts":
        """Centres by k-means of each part; of few vectors some are the same."""
        from scipy.cluster.vq import kmeans2

        rng = np.random.default_rng(seed)
        parts = np.split(vectors, SPEAKER_PARTS, 1)
        centres = [kmeans2(p, SPEAKER_SIZE, minit="++", rng=rng, missing="warn")[0] for p in parts]
        return cls(torch.from_numpy(np.stack(centres)).float())

    def codes(self, vector: Float[np.ndarray, " v"]) -> list[int]:
        parts = torch.from_numpy(vector).float().view(SPEAKER_PARTS, 1, -1)
        return (parts - self.centres).square().sum(2).argmin(1).tolist()


@dataclass(frozen=True)
class PartErrors:
    """How much of the norm of a tensor packing may take."""

    llama: float
    codec: float


@dataclass(frozen=True)
class HeardVoice:
    """What is known of a voice: the codes of a prompt, and the parts of its vector."""

    codes: Int[np.ndarray, "k f"]
    parts: list[int]


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn."""

    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0


class VoiceModel:
    """What says phonemes in the voice of a prompt."""

    def __init__(self, llama: LlamaForCausalLM, speaker: SpeakerParts, codec: VoiceCodec) -> None:
        self.llama, self.speaker, self.codec = llama, speaker, codec
        self.vocabulary = vocabulary_of(codec)
        if llama.config.vocab_size != self.vocabulary.size:
            raise ValueError("the language model was trained on another codec, or other tokens")

    @classmethod
    def load(cls, folder: str | Path, source: str) -> "VoiceModel":
        """ValueError, which says to supply ``source``, for a folder that holds none."""
        folder = Path(folder)
        if (folder / COMPRESSED).is_file():
            llama = _unpacked(folder, source)
        else:
            llama = load_whole(LlamaForCausalLM, folder, source)
        centres = read_tensors(folder / SPEAKER_FILE).get("centres")
        if centres is None or centres.shape[:2] != (SPEAKER_PARTS, SPEAKER_SIZE):
            raise ValueError(f"{folder / SPEAKER_FILE} is not as it should be; expected {source}")
        return cls(llama, SpeakerParts(centres), VoiceCodec.load(folder / "codec"))

    def save(self, folder: Path, errors: PartErrors | None = None) -> None:
        """With ``errors`` packed, each tensor to within that part of its norm."""
        if errors is None:
            self.llama.save_pretrained(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.llama.config.save_pretrained(folder)
            state = {name: value.half() for name, value in _own_state(self.llama).items()}
            save_file(compressed({}, state, errors.llama), folder / COMPRESSED)
        save_file({"centres": self.speaker.centres}, folder / SPEAKER_FILE)
        self.codec.save(folder / "codec", 0.0 if errors is None else errors.codec)

    def hear(self, prompt: Float[Tensor, " s"]) -> HeardVoice:
        """The voice in speech at 16 kHz. ValueError where Resemblyzer is missing."""
        codes = self.codec.encode(prompt[None])[0, :PROMPT_BOOKS].numpy()
        return HeardVoice(codes, self.speaker.codes(vector_of(prompt)))

    def head(self, phonemes: Sequence[str], voice: HeardVoice, asked: Voiced) -> list[int]:
        """The tokens before the speech."""
        return self.vocabulary.head(asked, voice.parts, voice.codes, phonemes)

    def sound(
        self, head: Sequence[int], phonemes: Sequence[str], how: Drawing
    ) -> Iterator[Float[Tensor, " s"]]:
        """Speech in pieces, each made when it is asked for."""
        books, codes, done, wanted = self.vocabulary.num_codebooks, [], 0, FIRST_FRAMES
        for token in self.tokens(head, phonemes, how):
            if self.vocabulary.codes <= token < self.vocabulary.lengths:
                codes.append((token - self.vocabulary.codes) % self.vocabulary.codebook_size)
            num = len(codes) // books
            if token != END and num <= done + wanted:
                continue
            stop = num if token == END else num - 1
            if stop > done:
                whole = torch.tensor(codes[: num * books]).view(num, books).T[None]
                yield self.codec.decode_between(whole, done, stop)[0]
                done, wanted = stop, MORE_FRAMES

    def tokens(self, head: Sequence[int], phonemes: Sequence[str], how: Drawing) -> Iterator[int]:
        """Speech token by token, the end among them: each phoneme in its turn, and whole frames."""
        saying, cache = Saying(self.vocabulary, phonemes, how), self._cache()
        yield saying.tokens[-1]
        waiting = [*head, *saying.tokens]  # which the network has not seen
        while not saying.is_done:
            if (choice := saying.choice) is None:
                saying.go_on()
            else:
                saying.draw(self._logits(self._seen(torch.tensor([waiting]), cache)[0], choice))
                waiting = []
            yield saying.tokens[-1]
            waiting.append(saying.tokens[-1])

    def say_together(
        self,
        heads: Sequence[Sequence[int]],
        phonemes: Sequence[Sequence[str]],
        hows: Sequence[Drawing],
    ) -> "list[Saying]":
        """The same of many heads at once, each as it would be said alone."""
        sayings = [
            Saying(self.vocabulary, said, how) for said, how in zip(phonemes, hows, strict=True)
        ]
        longest = max(map(len, heads))
        rows = [
            [*[PAD] * (longest - len(head)), *head, *saying.tokens]
            for head, saying in zip(heads, sayings, strict=True)
        ]
        first = torch.tensor([longest - len(head) for head in heads])[:, None]
        mask = (torch.arange(longest + 1) >= first).long()
        given, cache = torch.tensor(rows), self._cache()
        while not all(saying.is_done for saying in sayings):
            positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -given.shape[1] :]
            seen = self._seen(given, cache, mask, positions)
            for saying, last in zip(sayings, seen, strict=True):
                if saying.is_done:
                    continue
                if (choice := saying.choice) is None:
                    saying.go_on()
                else:
                    saying.draw(self._logits(last, choice))
            given = torch.tensor([saying.tokens[-1:] for saying in sayings])
            mask = F.pad(mask, (0, 1), value=1)
        return sayings

    def _cache(self) -> DynamicCache:
        return DynamicCache(config=self.llama.config)

    @torch.inference_mode()
    def _seen(
        self,
        given: Int[Tensor, "b t"],
        cache: DynamicCache,
        mask: Int[Tensor, "b s"] | None = None,
        positions: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b d"]:
        """What the network makes of the last of the tokens that are given."""
        at = self.llama.device
        return self.llama.model(
            input_ids=given.to(at), use_cache=True, **{CACHE: cache},
            attention_mask=None if mask is None else mask.to(at),
            position_ids=None if positions is None else positions.to(at),
        ).last_hidden_state[:, -1]  # fmt: skip

    @torch.inference_mode()
    def _logits(self, seen: Float[Tensor, " d"], choice: slice) -> Float[Tensor, " n"]:
        """Of the tokens of a choice alone, on the CPU, whatever the model is on."""
        return F.linear(seen, self.llama.lm_head.weight[choice]).float().cpu()


class Saying:
    """Speech under way: which tokens may come next, and which is drawn."""

    def __init__(self, vocabulary: Vocabulary, phonemes: Sequence[str], how: Drawing) -> None:
        self._vocabulary, self._how = vocabulary, how
        self._words = iter([*vocabulary.of_phonemes(phonemes), END])
        self._generator = torch.Generator().manual_seed(how.seed)
        self._left: int | None = None  # codes of this phoneme; None: its length is drawn next
        self.tokens = [next(self._words)]
        self.are_drawn = [False]
        """Of each token: the model chose it."""

    @property
    def is_done(self) -> bool:
        return self.tokens[-1] == END

    @property
    def choice(self) -> slice | None:
        """Which tokens the next one is drawn from: lengths of the phoneme, or codes of the next
        level; None where it is given, the phoneme that is next or the end."""
        vocabulary, size = self._vocabulary, self._vocabulary.codebook_size
        if self._left is None:
            return slice(vocabulary.lengths, vocabulary.lengths + MOST_FRAMES + 1)
        if self._left:
            first = vocabulary.codes + -self._left % vocabulary.num_codebooks * size
            return slice(first, first + size)
        return None

    def go_on(self) -> None:
        """By the token that is given."""
        self.are_drawn.append(False)
        self.tokens.append(next(self._words))
        self._left = None

    def draw(self, logits: Float[Tensor, " n"]) -> None:
        """Go on by a token of the `choice`, whose logits these are."""
        assert self.choice is not None
        drawn = self._draw(logits)
        self.are_drawn.append(True)
        self.tokens.append(self.choice.start + drawn)
        if self._left is None:
            self._left = drawn * self._vocabulary.num_codebooks
        else:
            self._left -= 1

    def _draw(self, logits: Float[Tensor, " n"]) -> int:
        shares = (logits / max(self._how.temperature, 1e-4)).softmax(0)
        values, order = shares.sort(descending=True)
        kept = values.cumsum(0) - values < self._how.top_p
        return int(order[torch.multinomial(values * kept, 1, generator=self._generator)])


def _unpacked(folder: Path, source: str) -> LlamaForCausalLM:
    """The Llama of a folder with `COMPRESSED`. ValueError for one that does not fit."""
    path, config = folder / COMPRESSED, load_part(LlamaConfig, folder, source)
    state = decompressed({}, read_tensors(path), where=path)
    check_numbers(state, where=path)
    with without_memory():  # the size that a file promises may be any
        expected = _own_state(LlamaForCausalLM(config))
    check_state(expected, state, where=path)
    llama = LlamaForCausalLM(config)
    tied = {HEAD: state[EMBEDDING]} if config.tie_word_embeddings else {}
    llama.load_state_dict({**state, **tied})
    llama.eval().requires_grad_(False)
    return llama.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore


def _own_state(llama: LlamaForCausalLM) -> dict[str, Tensor]:
    """Its weights, each once: a head that is the embedding is left out."""
    is_tied = llama.config.tie_word_embeddings
    return {k: v for k, v in llama.state_dict().items() if not is_tied or k != HEAD}


def vector_of(sound: Float[Tensor, " s"]) -> Float[np.ndarray, " v"]:
    """The vector of the voice in a sound at 16 kHz. ValueError where its network is missing."""
    return mean_vector(vectors_of(sound))
