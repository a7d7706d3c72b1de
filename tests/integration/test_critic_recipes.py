"""The recipes of the critics run as they are, on a handful of clips, and leave loadable critics."""

import csv
import json
from math import nan
from pathlib import Path

import pytest

from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_reader import READ, FaceReader
from avatar_v.models.vae import VideoVAE
from avatar_v.objectives.critic_face import FaceTask
from avatar_v.recipe.cli import run_words
from avatar_v.rewards.clip_features import ClipFeatures
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.shards.encode import encode_folder
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v_data.world_set import write_world
from avatar_v_data.world_settings import WorldSettings
from tiny_run import make_video_pair

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
FEW = [
    "--trainer.max_steps=2",
    "--data.init_args.batches_per_epoch=2",
    "--trainer.enable_progress_bar=false",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 persons in 2 scenes each."""
    folder = tmp_path_factory.mktemp("critic_shards")
    for split in ("train", "validation"):
        settings = WorldSettings(8, split=split, num_frames=13, clips_per_person=2)
        write_world(settings, folder / split)
    return folder


PERSONS_AND_SCENES = (
    "--data.init_args.persons_per_batch=4",
    "--data.init_args.scenes_per_person=2",
)
SHORT_RUNS = (
    "--data.init_args.clips_per_batch=2",
    "--data.init_args.windows_per_clip=8",  # more than 5 frames apart, for the validation numbers
    "--data.init_args.num_frames=13",
)


def run(
    recipe: str,
    folder: Path,
    shards: Path,
    *options: str,
    small: tuple[str, ...] = PERSONS_AND_SCENES,
) -> Path:
    """Runs a recipe in ``folder``; returns where it leaves its critic."""
    name = recipe.split("_")[1]
    out = folder / recipe / name
    data = [f"--data.init_args.{split}=['{shards / split}']" for split in ("train", "validation")]
    paths = [f"--model.init_args.export={out}", f"--trainer.default_root_dir={folder}"]
    words = [str(RECIPES / f"{recipe}.yaml"), *data, *small, *paths, *FEW, *options]
    assert run_words("run", words) == 0
    return out


def test_the_motion_meter_is_trained_on_plain_and_decoded_frames(shards, tmp_path):
    vae, latents = tmp_path / "vae", tmp_path / "latents"
    VideoVAE.tiny().save_pretrained(vae)
    encode_folder(shards / "train", latents, vae, drop_video=True)
    more = [f"--data.init_args.train+={latents}", f"--data.init_args.vae={vae}"]
    folder = run("critic_motion", tmp_path, shards, *more)
    meter = MotionMeter.from_pretrained(folder)
    card = json.loads((folder / "card.json").read_text())
    assert (card["weights_hash"], card["steps"]) == (meter.hash(), 2)
    rows = list(csv.DictReader((folder / "log.csv").open()))
    assert [row["step"] for row in rows if row["loss"]] == ["0", "1"]
    assert rows[-1]["r2_mouth_open"] == f"{float(rows[-1]['r2_mouth_open']):.6g}"


def test_the_face_critic_is_trained(shards, tmp_path):
    folder = run("critic_face", tmp_path, shards)
    critic = FaceCritic.from_pretrained(folder)
    card = json.loads((folder / "card.json").read_text())
    assert card["critic"] == critic.name
    assert 0 <= card["validation"]["top1"] <= 1


def test_the_face_reader_is_trained_on_faces_that_it_draws(tmp_path):
    few = [f"--data.init_args.{name}=2" for name in ("train_persons", "validation_persons")]
    out = tmp_path / "reader"
    words = [*few, f"--model.init_args.export={out}", f"--trainer.default_root_dir={tmp_path}"]
    assert run_words("run", [str(RECIPES / "critic_reader.yaml"), *words, *FEW]) == 0
    reader = FaceReader.from_pretrained(out)
    card = json.loads((out / "card.json").read_text())
    assert (card["weights_hash"], card["steps"]) == (reader.hash(), 2)
    assert set(card["validation"]) == {f"r_{name}" for name in READ}


def test_the_sync_critic_is_trained_and_repeats_itself(shards, tmp_path):
    folders = [
        run("critic_sync", tmp_path / name, shards, small=SHORT_RUNS) for name in ("one", "two")
    ]
    critics = [WorldSyncNet.from_pretrained(folder) for folder in folders]
    assert critics[0].hash() == critics[1].hash()
    card = json.loads((folders[0] / "card.json").read_text())
    assert (card["critic"], card["steps"]) == ("sync", 2)
    assert 0 <= card["validation"]["pairwise"] <= 1
    assert (folders[0] / "model.safetensors").stat().st_size < 1.5e6
    rows = list(csv.DictReader((folders[0] / "log.csv").open()))
    assert [row["step"] for row in rows if row["loss"]] == ["0", "1"]


def test_the_preference_model_is_trained_and_says_how_often_it_is_right(tmp_path, monkeypatch):
    shards = tmp_path / "pairs"
    for split, first in (("train", 0), ("validation", 100)):
        pairs = [encode_pair(make_video_pair(first + i)) for i in range(6)]
        write_shard(shards / split / "a.tar", pairs)
    axes = ("--model.init_args.critic.init_args.axes=[overall, amplitude]",)
    kept = f"--data.init_args.kept={tmp_path / 'kept'}"
    folder = run("critic_preference", tmp_path, shards, kept, small=axes)
    model = PreferenceModel.from_pretrained(folder)
    monkeypatch.setattr(ClipFeatures, "__call__", None)  # nothing is read again
    again = run("critic_preference", tmp_path / "again", shards, kept, small=axes)
    assert PreferenceModel.from_pretrained(again).hash() == model.hash()
    assert model.axes == ("overall", "amplitude")
    card = json.loads((folder / "card.json").read_text())
    assert (card["critic"], card["weights_hash"], card["steps"]) == ("preference", model.hash(), 2)
    said = card["validation"]
    assert said["accuracy_low"] <= said["accuracy"] <= said["accuracy_high"]
    assert (said["num_pairs"], said["num_persons"]) == (5, 3)  # one of six is a tie
    rows = list(csv.DictReader((folder / "log.csv").open()))
    assert [row["step"] for row in rows if row["loss"]] == ["0", "1"]
    with pytest.raises(ValueError, match=r"axes of this model are overall; got \['amplitude'\]"):
        run("critic_preference", tmp_path / "one", shards, small=())


def test_clips_too_short_for_a_run_are_named(shards, tmp_path):
    with pytest.raises(ValueError, match=r"expected pictures of 65 frames, got 13 frames"):
        run("critic_sync", tmp_path, shards, small=())


def test_steps_that_end_between_validations_are_refused(shards, tmp_path):
    with pytest.raises(ValueError, match="max_steps 3 is no multiple of batches_per_epoch 2"):
        run("critic_face", tmp_path, shards, "--trainer.max_steps=3")
    assert not (tmp_path / "critic_face").exists()


def test_a_loss_that_is_not_finite_exports_no_critic(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(FaceTask, "loss", lambda _, net, x: net.model(x.inputs).sum() * nan)
    with pytest.raises(ValueError, match="step 1: not finite: loss nan; nothing is exported"):
        run("critic_face", tmp_path, shards)
    assert not (tmp_path / "critic_face").exists()
