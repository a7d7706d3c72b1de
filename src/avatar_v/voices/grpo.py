"""Alignment of the language model of voices, by trl's GRPOTrainer (recipes/voices/grpo.yaml).

Of each head several speeches are drawn, as the model speaks when it is used; rewards.py scores
their sound, and those that are better than the others of their head are made likelier. Tokens that
are given (phonemes, the end) are not learned.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from avatar_v.base import checks
from avatar_v.base.seeds import derive, stream
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.model import Drawing, SpeakerParts, VoiceModel
from avatar_v.voices.rewards import REWARDS
from avatar_v.voices.sequences import encode_voices, sequence
from avatar_v.voices.shipped import TRAINED, engine_folder
from avatar_v.voices.trl_runs import (
    MODEL,
    encoding_bar,
    finished,
    folder_of,
    number_tokenizer,
    trl_config,
)


@dataclass(frozen=True)
class GrpoRecipe:
    """What a recipe says. Folders are relative to the working directory."""

    corpus: str  # whose voices speak, and whose sentences are said
    model: str
    out: str
    rewards: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REWARDS, 1.0))
    every: int = 1  # one file of the corpus in so many gives heads: few steps need few
    passes: int = 1  # heads made of each sentence, each with another prompt
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := self.rewards.keys() - REWARDS.keys():
            raise ValueError(f"no reward {sorted(unknown)[0]!r}; known are {', '.join(REWARDS)}")
        for name, weight in self.rewards.items():
            checks.weight(name, weight)
        checks.count("passes", self.passes)
        checks.count("every", self.every)


def train(recipe: GrpoRecipe, *, resume: bool = False) -> Path:
    """Train, and return the folder of the model. Errors as of `sft.train`."""
    torch.manual_seed(recipe.seed)
    out = folder_of(recipe.out, resume=resume)
    model = VoiceModel.load(engine_folder(recipe.model), TRAINED)
    asked = {
        "reward_weights": [float(weight) for weight in recipe.rewards.values()],
        "max_completion_length": model.llama.config.max_position_embeddings,
    }
    config = trl_config(GRPOConfig, out, recipe.seed, asked | recipe.trainer)
    with warnings.catch_warnings():  # rollout_func is trl's, and may change: the version is pinned
        warnings.filterwarnings("ignore", message=".*rollout_func.*")
        trainer = GRPOTrainer(
            model=model.llama.train().requires_grad_(True),
            args=config,
            reward_funcs=[*map(_reward, recipe.rewards)],  # pyright: ignore[reportArgumentType]
            train_dataset=_heads(recipe, model),
            processing_class=number_tokenizer(model.vocabulary),
            rollout_func=Rollouts(model.speaker, model.codec, recipe.seed),
        )
    trainer.train(resume_from_checkpoint=resume or None)
    return finished(out / MODEL, model)


@dataclass
class Rollouts:
    """Speeches of heads, for trl: `rollout_func`."""

    speaker: SpeakerParts
    codec: VoiceCodec
    seed: int

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        llama = trainer.accelerator.unwrap_model(trainer.model)
        model = VoiceModel(llama.eval(), self.speaker, self.codec)
        heads = [[int(token) for token in prompt.split()] for prompt in prompts]
        phonemes = [model.vocabulary.said_after(head) for head in heads]
        seeds = [
            derive("rollouts", self.seed, trainer.state.global_step, n) for n in range(len(heads))
        ]
        hows = [Drawing(temperature=trainer.temperature, top_p=1.0, seed=seed) for seed in seeds]
        sayings = model.say_together(heads, phonemes, hows)
        llama.train()
        found = [model.vocabulary.codes_of(saying.tokens) for saying in sayings]
        sounds = [self.codec.decode(torch.from_numpy(codes)[None])[0] for codes, _ in found]
        return {
            "prompt_ids": heads,
            "completion_ids": [saying.tokens for saying in sayings],
            "logprobs": [[0.0] * len(saying.tokens) for saying in sayings],  # of vLLM alone
            "env_mask": [[int(own) for own in saying.are_drawn] for saying in sayings],
            "sound": sounds,
            "phonemes": phonemes,
            "spans": [spans for _, spans in found],
            "num_frames": [codes.shape[1] for codes, _ in found],
        }


def _reward(name: str) -> Callable[..., list[float]]:
    def score(completions: list[str], **columns: Any) -> list[float]:
        rows = [
            {key: values[n] for key, values in columns.items() if isinstance(values, list)}
            for n in range(len(completions))
        ]
        return [REWARDS[name](row | {"vector": np.array(row["vector"])}) for row in rows]

    score.__name__ = name
    return score


def _heads(recipe: GrpoRecipe, model: VoiceModel) -> Dataset:
    """Heads of English sentences, which PocketSphinx hears, with what their speech is scored by."""
    rng = stream("voice heads", recipe.seed)
    rows: dict[str, list[Any]] = {"prompt": [], "vector": [], "expected": []}
    with encoding_bar("encoding heads") as shown:
        for voice in encode_voices(recipe.corpus, model.codec, shown, every=recipe.every):
            parts = model.speaker.codes(voice.vector)
            for at in [*range(len(voice.sentences))] * recipe.passes:
                if voice.sentences[at].asked.language != 0:
                    continue
                head, _ = sequence(model.vocabulary, voice, at, parts, rng)
                rows["prompt"].append(" ".join(map(str, head)))
                rows["vector"].append(voice.vector.tolist())
                rows["expected"].append(float(voice.sentences[at].codes.shape[1]))
    if not rows["prompt"]:
        raise ValueError(f"{recipe.corpus} has no English sentence")
    return Dataset.from_dict(rows)
