"""Supervised training of the language model of voices, by trl's SFTTrainer
(recipes/voices/sft.yaml)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset, load_from_disk
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from avatar_v.base import checks
from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_folder
from avatar_v.base.seeds import stream
from avatar_v.base.states import read_tensors
from avatar_v.models.base import hash_folder
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.corpus import corpus_files
from avatar_v.voices.model import (
    SpeakerParts,
    VoiceModel,
    fresh_llama,
    vocabulary_of,
)
from avatar_v.voices.sequences import EncodedVoice, encode_voices, sequence
from avatar_v.voices.shipped import SPEAKER_FILE, TRAINED, engine_folder
from avatar_v.voices.tokens import Vocabulary
from avatar_v.voices.trl_runs import (
    MODEL,
    encoding_bar,
    finished,
    folder_of,
    number_tokenizer,
    trl_config,
)

SEQUENCES = "sequences"
MADE_OF = "made_of.json"


@dataclass(frozen=True)
class VoiceSizes:
    """Of the Llama."""

    width: int = 320
    num_layers: int = 4
    num_heads: int = 5

    def __post_init__(self) -> None:
        checks.count("width", self.width)
        checks.count("num_layers", self.num_layers)
        checks.count("num_heads", self.num_heads)
        if self.width % (2 * self.num_heads):
            raise ValueError(f"width is a multiple of 2 · num_heads, got {self.width}")


@dataclass(frozen=True)
class SftRecipe:
    """What a recipe says. Folders are relative to the working directory."""

    corpus: str
    validation: str
    out: str
    codec: str | None = None  # None: that of init_from
    init_from: str | None = None  # a model to go on from; its parts of speakers stay
    model: VoiceSizes = field(default_factory=VoiceSizes)  # of a fresh one
    passes: int = 1  # sequences made of each sentence, each with another prompt
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.codec is None) == (self.init_from is None):
            raise ValueError("a recipe has codec, or init_from, whose codec is taken")


class VoiceTrainer(SFTTrainer):
    """On a processor the head scores what is learned alone. trl's own scores prompts and padding as
    well there, and takes half as long again for a step (not on GPUs)."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        is_plain = isinstance(model, LlamaForCausalLM) and model.device.type == "cpu"
        if return_outputs or not is_plain:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self.accelerator.autocast():
            total, num = loss_of_learned(model, inputs)
        return total / (num if num_items_in_batch is None else num_items_in_batch)


def loss_of_learned(model: LlamaForCausalLM, inputs: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross-entropies of labels that are not -100, and how many they are."""
    labels = inputs["labels"][:, 1:]
    is_learned = labels != -100
    hidden = model.model(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False
    ).last_hidden_state[:, :-1]
    logits = model.lm_head(hidden[is_learned]).float()
    total = F.cross_entropy(logits, labels[is_learned], reduction="sum")
    return total, int(is_learned.sum())


def train(recipe: SftRecipe, *, resume: bool = False) -> Path:
    """Train, and return the folder of the model. ``resume``: from the last checkpoint. ValueError
    for a recipe that does not fit trl, its folders, or a folder that holds a run."""
    torch.manual_seed(recipe.seed)
    out, before = folder_of(recipe.out, resume=resume), None
    if recipe.init_from is not None:
        before = VoiceModel.load(engine_folder(recipe.init_from), TRAINED)
        codec = before.codec
    else:
        assert recipe.codec is not None
        codec = VoiceCodec.load(recipe.codec)
    asked = {"completion_only_loss": True, "max_length": None}
    config = trl_config(SFTConfig, out, recipe.seed, asked | recipe.trainer)
    speaker, data = _sequences(recipe, codec, None if before is None else before.speaker)
    sizes = recipe.model
    if before is None:
        llama = fresh_llama(
            codec, width=sizes.width, num_layers=sizes.num_layers, num_heads=sizes.num_heads,
            seed=recipe.seed,
        )  # fmt: skip
    else:
        llama = before.llama.train().requires_grad_(True)
    trainer = VoiceTrainer(
        model=llama,
        args=config,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=number_tokenizer(vocabulary_of(codec)),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return finished(out / MODEL, VoiceModel(llama, speaker, codec))


def _sequences(
    recipe: SftRecipe, codec: VoiceCodec, speaker: SpeakerParts | None
) -> tuple[SpeakerParts, dict[str, Dataset]]:
    """Sequences of both folders, and the parts of speakers that they are of; kept in the run's
    folder, since encoding takes minutes. ValueError where those that are kept were made of
    something else."""
    folder, made_of = Path(recipe.out) / SEQUENCES, _made_of(recipe, codec)
    if not folder.is_dir():
        encoded = {
            name: _encoded(path, codec, name)
            for name, path in (("train", recipe.corpus), ("validation", recipe.validation))
        }
        if speaker is None:
            vectors = np.stack([voice.vector for voice in encoded["train"]])
            speaker = SpeakerParts.of(vectors, recipe.seed)
        with whole_folder(folder) as partial:
            for name, voices in encoded.items():
                passes = recipe.passes if name == "train" else 1
                rows = _rows(vocabulary_of(codec), voices, speaker, passes, recipe.seed)
                rows.save_to_disk(partial / name)
            save_file({"centres": speaker.centres}, partial / SPEAKER_FILE)
            (partial / MADE_OF).write_text(json.dumps(made_of, indent=1), "utf-8")
    if read_json(folder / MADE_OF) != made_of:
        raise ValueError(
            f"{folder} was made of another codec, corpus, seed, passes or tokens: remove it, or "
            "choose another --out"
        )
    data = {name: load_from_disk(str(folder / name)) for name in ("train", "validation")}
    centres = read_tensors(folder / SPEAKER_FILE)["centres"]
    return SpeakerParts(centres), data  # pyright: ignore[reportReturnType]


def _made_of(recipe: SftRecipe, codec: VoiceCodec) -> dict[str, Any]:
    """What decides the sequences."""
    init = recipe.init_from and hash_folder(engine_folder(recipe.init_from))
    corpora = {
        name: {path.name: path.stat().st_size for path in corpus_files(folder)}
        for name, folder in (("train", recipe.corpus), ("validation", recipe.validation))
    }
    return {
        "corpora": corpora,
        "codes": codec.codes_hash(),
        "init_from": init,
        "tokens": vocabulary_of(codec).size,
        "seed": recipe.seed,
        "passes": recipe.passes,
    }


def _encoded(path: str, codec: VoiceCodec, name: str) -> list[EncodedVoice]:
    with encoding_bar(f"encoding {name}") as shown:
        return list(encode_voices(path, codec, shown))


def _rows(
    vocabulary: Vocabulary,
    voices: list[EncodedVoice],
    speaker: SpeakerParts,
    passes: int,
    seed: int,
) -> Dataset:
    rng, rows = stream("voice sequences", seed), {"input_ids": [], "completion_mask": []}
    for voice in voices:
        parts = speaker.codes(voice.vector)
        for at in [*range(len(voice.sentences))] * passes:
            head, said = sequence(vocabulary, voice, at, parts, rng)
            rows["input_ids"].append([*head, *said])
            rows["completion_mask"].append([0] * len(head) + [1] * len(said))
    return Dataset.from_dict(rows)
