"""checks.py, and every number that a recipe can set: what does not fit is one error at once."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from avatar_v.base import checks
from avatar_v.callbacks.ema import EMA
from avatar_v.callbacks.export_vae import ExportVAE
from avatar_v.callbacks.record import Export, LossCurve
from avatar_v.callbacks.samples import Samples
from avatar_v.callbacks.throughput import Throughput
from avatar_v.objectives.a2v import A2V
from avatar_v.objectives.critic import TrainCritic
from avatar_v.objectives.critic_data import CriticFrames
from avatar_v.objectives.critic_face import FaceTask
from avatar_v.objectives.critic_motion import MotionTask
from avatar_v.objectives.critic_sync import SyncTask
from avatar_v.objectives.refiner import Refinement
from avatar_v.objectives.sync_data import SyncData
from avatar_v.objectives.t2v import T2V
from avatar_v.objectives.vae import TrainVAE
from avatar_v.objectives.vae_windows import VAELoss
from avatar_v.shards.datamodule import ShardData
from avatar_v.training.adversarial import Adversarial
from avatar_v.training.continuation import Continuation
from avatar_v.training.motion import MotionTraining
from avatar_v.training.optim import Optim
from avatar_v.training.perceptual import PerceptualTerms
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable

NAN, INF = math.nan, math.inf
OPTIM, OBJECTIVE = Optim(lr=1e-3, num_warmup_steps=1), Objective({0: 4})
LOSS = VAELoss({5: 1.0}, texture_fraction=0.0)
CRITIC = {"recipe": "r", "export": "e", "lr": 1e-3, "weight_decay": 0.0}
FRAMES = {"train": [], "validation": [], "batches_per_epoch": 2}


def optim(**given) -> Optim:
    return Optim(**{"lr": 1e-3, "num_warmup_steps": 1, **given})


def objective(**given) -> Objective:
    return Objective(**{"window_latents": {0: 4}, **given})


def vae_loss(**given) -> VAELoss:
    return VAELoss(**{"window_shares": {5: 1.0}, "texture_fraction": 0.0, **given})


def adversarial(**given) -> Adversarial:
    return Adversarial(**{"weight": {0: 0.0}, **given})


def a2v(face_boost: float = 0.0, mouth_boost: float = 0.0, seed: int = 0) -> A2V:
    return A2V(Models("tiny"), OPTIM, OBJECTIVE, face_boost, mouth_boost, seed)


def vae_stage(seed: int) -> TrainVAE:
    return TrainVAE("tiny", OPTIM, LOSS, seed=seed)


def t2v(seed: int) -> T2V:
    return T2V(Models("tiny"), OPTIM, OBJECTIVE, seed)


def export(**given) -> Export:
    return Export("r", **given)


def shard_data(**given) -> ShardData:
    return ShardData(**{"train": "s", "batch_size": 1, **given})


def critic(kind, given: dict) -> TrainCritic:
    own = {name: given.pop(name) for name in (*CRITIC, "seed") if name in given}
    return TrainCritic(kind(**given), **{**CRITIC, **own})


def motion(**given) -> TrainCritic:
    return critic(MotionTask, {"components": {}, **given})


def face(**given) -> TrainCritic:
    return critic(FaceTask, given)


def sync(**given) -> TrainCritic:
    return critic(SyncTask, given)


def frames(**given) -> CriticFrames:
    return CriticFrames(**{**FRAMES, "persons_per_batch": 2, "scenes_per_person": 2, **given})


def sync_data(**given) -> SyncData:
    sizes = {"clips_per_batch": 2, "windows_per_clip": 8, "num_frames": 13}
    return SyncData(**{**FRAMES, **sizes, **given})


SHARES = (-0.1, 1.1, NAN)
WEIGHTS = (-1.0, NAN, INF, 1e12)
FACTORS = (0.0, *WEIGHTS)
DECAYS = (-0.1, 1.0, NAN)
COUNTS = (0, -7)
SEEDS = (-1, 2**63)
BAD: list[tuple[Callable, str, tuple]] = [
    (optim, "lr", FACTORS),
    (optim, "num_warmup_steps", (-1,)),
    (optim, "final_lr_share", SHARES),
    (optim, "weight_decay", WEIGHTS),
    (optim, "betas", tuple((0.9, x) for x in DECAYS)),
    (optim, "muon_momentum", DECAYS),
    (optim, "muon_lr_scale", FACTORS),
    (optim, "lr_scales", tuple({"audio": x} for x in WEIGHTS)),
    (objective, "window_latents", ({4: 5}, {0: 0}, {0: 4, -3: 4})),
    (objective, "resolution", ({1: 1.0}, {0: 0.0}, {0: 1.0, 9: 2.0}, {0: NAN})),
    (objective, "shift", FACTORS),
    *((objective, name, SHARES) for name in (
        "first_share", "image_share", "suffix_share", "text_dropout", "audio_dropout",
    )),
    (a2v, "face_boost", WEIGHTS),
    (a2v, "mouth_boost", WEIGHTS),
    *((make, "seed", SEEDS) for make in (a2v, t2v, vae_stage, shard_data, motion, frames)),
    *((vae_loss, name, WEIGHTS) for name in (
        "gradient_weight", "temporal_weight", "kl_weight", "face_boost", "mouth_boost",
        "change_boost",
    )),
    (vae_loss, "window_shares", ({}, {5: 0.0}, {5: -1.0}, {5: NAN}, {5: 1.0, 9: INF})),
    (vae_loss, "texture_fraction", DECAYS),
    (Refinement, "sigma", (0.0, 1.1, NAN)),
    (Refinement, "temporal_window", (-1,)),
    *((Refinement, name, SHARES) for name in (
        "one_step_share", "reference_dropout", "motion_dropout",
    )),
    (adversarial, "weight", ({1: 0.0}, {0: -1.0}, {0: 0.0, 5: NAN})),
    (adversarial, "width", COUNTS),
    (adversarial, "num_layers", COUNTS),
    (adversarial, "lr", FACTORS),
    (adversarial, "betas", tuple((x, 0.9) for x in DECAYS)),
    (adversarial, "r1_weight", WEIGHTS),
    (adversarial, "r1_noise", FACTORS),
    *((Personality, name, SHARES) for name in (
        "reference_dropout", "reference_motion_dropout", "motion_dropout",
        "stills_share", "faces_dropout",
    )),
    (MotionTraining, "num_windows", COUNTS),
    (MotionTraining, "style_dropout", SHARES),
    *((PerceptualTerms, name, ({1: 1.0}, {0: -1.0}, {0: NAN}, {0: 0.0, 9: INF})) for name in (
        "identity", "motion", "features", "sync",
    )),
    (PerceptualTerms, "latest_t", (0.0, 1.1, NAN)),
    (PerceptualTerms, "num_latents", COUNTS),
    (PerceptualTerms, "max_samples", COUNTS),
    (Continuation, "anchor_share", SHARES),
    (Continuation, "estimate_share", SHARES),
    (Trainable, "lora_rank", COUNTS),
    (Trainable, "lora_alpha", FACTORS),
    *((make, name, values) for make in (motion, face, sync) for name, values in (
        ("lr", FACTORS), ("weight_decay", WEIGHTS), ("width", COUNTS), ("num_heads", COUNTS),
    )),
    (face, "num_dims", COUNTS),
    (face, "temperature", FACTORS),
    (sync, "num_features", COUNTS),
    (sync, "temperature", FACTORS),
    (sync, "motion_weight", WEIGHTS),
    *((frames, name, COUNTS) for name in (
        "persons_per_batch", "scenes_per_person", "batches_per_epoch", "num_moments",
    )),
    *((sync_data, name, COUNTS) for name in (
        "clips_per_batch", "windows_per_clip", "batches_per_epoch", "num_frames",
    )),
    (shard_data, "batch_size", (*COUNTS, 10**9)),
    (shard_data, "num_workers", (-1, 10**6)),
    (EMA, "decay", DECAYS),
    *((Samples, name, COUNTS) for name in ("num_samples", "num_steps", "num_columns")),
    (Samples, "shift", FACTORS),
    (Samples, "guidance_audio", WEIGHTS),
    (Throughput, "every_num_steps", COUNTS),
    (Throughput, "num_warmup_steps", (-1,)),
    (LossCurve, "flush_every_num_steps", COUNTS),
    (ExportVAE, "num_stats_batches", COUNTS),
    (export, "guidance_audio", WEIGHTS),
    (export, "guidance_motion", WEIGHTS),
    (export, "stills_from_prompt", (-1,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "name", "values"), BAD, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_number_that_does_not_fit_is_refused_by_its_name(
    make: Callable, name: str, values: tuple
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name) as refused:
            make(**{name: value})
        message = str(refused.value)
        assert "\n" not in message
        assert ", got " in message
        assert len(message) < 160


@pytest.mark.parametrize("value", [NAN, INF, -INF, True, None, "1"])
def test_what_is_no_finite_number_fits_no_range(value: object) -> None:
    with pytest.raises(ValueError, match=rf"^x is a finite number, got {value}$"):
        checks.finite("x", value)


def test_both_ends_of_a_range() -> None:
    for value in (0, 1, 0.5):
        checks.share("x", value)
    checks.positive("x", 1e-9)
    checks.decay("x", 0)
    checks.count("x", 1)
    checks.by_step(checks.weight, "x", {0: 0.0, 5: 3})
    with pytest.raises(ValueError, match=r"^x\[5\] is at least 0 and at most 1e\+06, got -1$"):
        checks.by_step(checks.weight, "x", {0: 0.0, 5: -1})
    with pytest.raises(ValueError, match=r"^x is at least 0 and below 1, got 1$"):
        checks.decay("x", 1)
    with pytest.raises(ValueError, match=r"^x is a whole number from 1 to 1,000,000, got 1.0$"):
        checks.count("x", 1.0)


def test_processes_are_at_most_four_a_core_or_64(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, most in ((None, 64), (2, 64), (96, 384)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        checks.at_once("x", most)
        with pytest.raises(ValueError, match=rf"^x is a whole number from 1 to {most}, got"):
            checks.at_once("x", most + 1)


def test_a_folder_is_one_that_can_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks.folder("root", str(tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"root is a folder, but .*file is a file, got .*file/x"):
        checks.folder("root", str(tmp_path / "file" / "x"))
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(ValueError, match=rf"to write to, but {tmp_path} is not, got .*/a/b"):
        checks.folder("root", str(tmp_path / "a" / "b"))
