"""A tiny stage of every kind, whose every part is on, and clips with all that one may ask for."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from untrained import untrained_critics

import aligning
from avatar_v.models.causal import as_causal
from avatar_v.models.guided import with_guidance_inside
from avatar_v.objectives.align_dpo import DPO, AlignDPO
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.align_video_dpo import AlignVideoDPO
from avatar_v.objectives.causal_forcing import Blocks, CausalForcing
from avatar_v.objectives.distill_cfg import DistillCFG, GuidanceRanges
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distill_motion import DistillMotion, MotionMatching
from avatar_v.objectives.distribution_matching import Matching
from avatar_v.objectives.motion_prior import MotionPrior
from avatar_v.objectives.preferences import Preferences
from avatar_v.objectives.refiner import Refinement, Refiner
from avatar_v.objectives.refiner_adversarial import AdversarialRefiner
from avatar_v.objectives.self_forcing import CausalStudent, SelfForcing
from avatar_v.objectives.sft import SFT
from avatar_v.rewards.terms import RewardTerm
from avatar_v.training.adversarial import Adversarial
from avatar_v.training.chunk_rollout import SelfRollout
from avatar_v.training.continuation import Continuation
from avatar_v.training.engine import Engine
from avatar_v.training.motion import MotionTraining
from avatar_v.training.optim import Optim
from avatar_v.training.perceptual import TERMS, PerceptualTerms
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.types import Batch, PreferencePairs, PreferenceVideos
from avatar_v.weights.card import Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import save_pipeline

MODELS = Models("tiny", motion_stats="small")
OPTIM = Optim(lr=1e-3, num_warmup_steps=0)
OBJECTIVE = Objective({0: 5}, first_share=0.5, image_share=0.5)
RANGES = ((1.0, 2.0), (1.0, 3.0), (1.0, 2.0))
SHOWN = Personality(motion_dropout=0.0, reference_dropout=0.3, reference_motion_dropout=0.5)
NUMBERS = Refinement(temporal_window=1, motion_dropout=0.0)


def sft(folder: Path) -> Engine:
    numbers: dict[str, Any] = {name: {0: 1.0} for name in TERMS} | untrained_critics(folder)
    terms = PerceptualTerms(**numbers, latest_t=1.0)
    anchored = Continuation(anchor_share=0.5)
    return SFT(MODELS, OPTIM, OBJECTIVE, 1.0, 1.0, SHOWN, anchored, terms, Trainable())


def distill_cfg(folder: Path) -> Engine:
    ranges = GuidanceRanges(*RANGES)
    return DistillCFG(
        MODELS, OPTIM, OBJECTIVE, 0.0, 1.0, SHOWN, Continuation(), ranges, Trainable()
    )


def distill_dmd(folder: Path) -> Engine:
    matching = Matching(fake_updates=1, regression={0: 1.0}, teacher_steps=4, adversarial={0: 0.1})
    ranges = GuidanceRanges(*RANGES)
    made = DistillDMD(
        MODELS, OPTIM, OBJECTIVE, 0.0, 1.0, SHOWN, matching, SelfRollout({0: 2}), ranges,
        Trainable(),
    )  # fmt: skip
    build_roles = made.build_roles

    def with_guidance() -> None:
        made.dit = with_guidance_inside(made.dit, RANGES)
        build_roles()

    made.build_roles = with_guidance
    return made


def causal_forcing(folder: Path) -> Engine:
    return CausalForcing(
        MODELS, OPTIM, OBJECTIVE, 0.0, 1.0, SHOWN, Continuation(), Blocks(length=3, window=1),
        Trainable(),
    )  # fmt: skip


def self_forcing(folder: Path) -> Engine:
    """Its scores look at 3 latents of 5, and the real one is guided by two passes."""
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    for name, network in (("scores", dit), ("student", as_causal(dit, block=3, window=1))):
        save_pipeline(folder / name, network, conditioner, Card(preset="tiny"))
    return SelfForcing(
        Models("tiny", init_from=str(folder / "scores")), OPTIM, OBJECTIVE, 0.0, 1.0, SHOWN,
        CausalStudent(str(folder / "student"), 3),
        Matching(fake_updates=1, real_guidance={"audio": 2.0}),
        SelfRollout({0: 2}, prompt_share=0.5, image_share=0.5), Trainable(),
    )  # fmt: skip


def refiner(folder: Path) -> Engine:
    return Refiner(MODELS, OPTIM, OBJECTIVE, 1.0, 4.0, NUMBERS)


def adversarial(folder: Path) -> Engine:
    return AdversarialRefiner(MODELS, OPTIM, OBJECTIVE, 1.0, 4.0, NUMBERS, Adversarial({0: 0.5}))


def motion_prior(folder: Path) -> Engine:
    return MotionPrior(MODELS, OPTIM, OBJECTIVE, MotionTraining(num_windows=2, style_dropout=0.3))


def distill_motion(folder: Path) -> Engine:
    models = Models("tiny", init_from=aligning.make_weights(folder))
    training = MotionTraining(num_windows=2, style_dropout=0.0)
    return DistillMotion(models, OPTIM, OBJECTIVE, training, MotionMatching(fake_updates=1))


def dpo(folder: Path) -> Engine:
    models = Models("tiny", init_from=aligning.make_weights(folder))
    return AlignDPO(models, OPTIM, OBJECTIVE, MotionTraining(num_windows=2), DPO(beta=100.0))


def dpo_of_video(folder: Path) -> Engine:
    models = Models("tiny", init_from=aligning.make_weights(folder))
    objective = dataclasses.replace(OBJECTIVE, first_share=1.0, suffix_share=0.0)
    return AlignVideoDPO(models, OPTIM, objective, Preferences(beta=1.0))


def brightness(frames, audio, reference, motion, **columns) -> Tensor:
    return frames.mean((1, 2, 3, 4))


def grpo_of_motion(folder: Path) -> Engine:
    return aligning.make_stage(aligning.make_weights(folder))


def grpo_of_video(folder: Path) -> Engine:
    reward = RewardTerm(f"{__name__}.brightness", credit=("mouth",))
    return aligning.make_stage(aligning.make_weights(folder), reward, policy="video")


def clips() -> Batch:
    """With everything that a stage may ask for."""
    batch = make_batch(2, 33, 32, latent_channels=16, has_reference=True)
    assert batch.latents is not None
    shown = make_batch(2, 33, 32).video
    assert shown is not None
    videos = PreferenceVideos(shown, 0.5 * shown, shown[:, :2], torch.ones(2, 2, dtype=torch.bool))
    winner, axis = torch.tensor([0, 1]), ("overall",) * 2
    judged = PreferencePairs(batch.motion, 0.5 * batch.motion, winner, axis, videos)
    return dataclasses.replace(batch, low=0.9 * batch.latents, preferences=judged)


def losses_of(stage: Engine, batch: Batch, index: int = 1) -> list[Tensor]:
    """The losses of a step, each with its backward pass."""
    losses = []

    def update(role: str, loss: Tensor) -> bool:
        loss.backward()
        stage.num_backward[role] += 1
        losses.append(loss)
        return True

    stage.update = update
    if stage.automatic_optimization or isinstance(stage, AlignGRPO):
        update("student", stage.loss_at(batch, index)[0])
    else:
        stage.iterate(stage.begin(batch, index))
    return losses
