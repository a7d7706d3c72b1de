"""critics/video_features on small random video encoders in the published layouts."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.recipe.cli import run_words
from avatar_v.rewards.clip_features import ClipFeatures
from avatar_v.rewards.feature_part import FeaturePart
from avatar_v.rewards.features import Features, FeatureSources
from avatar_v.rewards.preference import Preference, PreferenceModel
from avatar_v.rewards.video_features import VideoFeatures
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v.weights.random import make_batch
from tiny_run import RECIPES, make_video_pair

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
NUM, SIDE = 4, 32
PREPARATION: dict[str, Any] = {
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "resample": 2,
    "size": {"shortest_edge": SIDE},
}


@pytest.fixture(scope="module")
def videomae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import VideoMAEConfig, VideoMAEModel

    torch.manual_seed(0)
    config = VideoMAEConfig(
        **SIZES, image_size=SIDE, patch_size=16, num_frames=NUM, intermediate_size=32
    )
    folder = tmp_path_factory.mktemp("videomae")
    VideoMAEModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return folder


@pytest.fixture(scope="module")
def vjepa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import VJEPA2Config, VJEPA2Model

    torch.manual_seed(0)
    predictor: dict[str, Any] = {"pred_hidden_size": 24, "pred_num_attention_heads": 2}
    config = VJEPA2Config(
        **SIZES,
        **predictor,
        pred_num_hidden_layers=1,
        crop_size=SIDE,
        frames_per_clip=NUM,
    )
    folder = tmp_path_factory.mktemp("vjepa")
    VJEPA2Model(config).save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return folder


def rows(features: FeaturePart, video: Tensor) -> Tensor:
    batch = make_batch(len(video), video.shape[1], 64, has_reference=True)
    reference = batch.reference
    assert reference is not None
    own, portrait = (reference.motion, reference.valid), torch.zeros(len(video), 2, 3, 64, 64)
    return features(video, batch.audio, portrait, *own, torch.arange(len(video)))


@pytest.fixture(scope="module")
def video() -> Tensor:
    return torch.rand(3, 9, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("kind", ["videomae", "vjepa"])
def test_a_row_is_the_mean_of_the_networks_own_tokens(kind: str, video: Tensor, request):
    from transformers import AutoModel

    folder = request.getfixturevalue(kind)
    features = VideoFeatures(str(folder))
    assert (features.num, features.num_frames) == (32, NUM)
    found = rows(features, video)
    model = AutoModel.from_pretrained(folder).eval()
    pictures = (video[1][[0, 3, 5, 8]] + 1) * 127.5
    half = torch.nn.functional.interpolate(pictures, SIDE, mode="bilinear", antialias=True) / 255
    mean, std = (torch.tensor(PREPARATION[f"image_{of}"])[:, None, None] for of in ("mean", "std"))
    name = model.main_input_name
    with torch.no_grad():
        expected = model(**{name: ((half - mean) / std)[None]}).last_hidden_state.mean(1)
    torch.testing.assert_close(found[1:2], expected, atol=1e-5, rtol=1e-4)
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_more_windows_see_more_of_a_clip(videomae: Path, video: Tensor):
    features = VideoFeatures(str(videomae), num_windows=2)
    found = rows(features, video)
    shown = torch.linspace(0, 8, 2 * NUM).round().long()
    once = VideoFeatures(str(videomae))
    halves = [rows(once, video[:, part]) for part in (shown[:NUM], shown[NUM:])]
    torch.testing.assert_close(found, torch.stack(halves).mean(0), atol=1e-5, rtol=1e-4)
    assert features.hash() != once.hash() == VideoFeatures(str(videomae)).hash()


def test_the_preference_model_is_trained_on_it(videomae: Path, tmp_path: Path):
    for split, first in (("train", 0), ("validation", 100)):
        pairs = [encode_pair(make_video_pair(first + i)) for i in range(6)]
        write_shard(tmp_path / split / "a.tar", pairs)
    place = "avatar_v.rewards.video_features.VideoFeatures"
    out = tmp_path / "preference"
    options = {
        "model.init_args.critic.init_args.features": json.dumps(
            [{"class_path": place, "init_args": {"folder": str(videomae)}}]
        ),
        "model.init_args.critic.init_args.axes": "[overall, amplitude]",
        "model.init_args.export": out,
        "data.init_args.train": f"[{tmp_path / 'train'}]",
        "data.init_args.validation": f"[{tmp_path / 'validation'}]",
        "data.init_args.batches_per_epoch": 4,
        "trainer.max_steps": 4,
        "trainer.default_root_dir": tmp_path,
    }
    words = [f"--{key}={value}" for key, value in options.items()]
    assert run_words("run", [str(RECIPES / "critic_preference.yaml"), *words]) == 0
    model = PreferenceModel.from_pretrained(out)
    assert model.sources == FeatureSources("", "", "", str(videomae), NUM, 1)
    assert model.features_hash == VideoFeatures(str(videomae)).hash()
    assert float(model.scale.std()) > 0
    assert json.loads((out / "card.json").read_text())["steps"] == 4


def test_beside_the_critics_it_is_a_reward(videomae: Path, tmp_path: Path, video: Tensor):
    parts = [ClipFeatures(), VideoFeatures(str(videomae))]
    features = Features(parts)
    model = PreferenceModel(
        features.num, 8, sources=features.sources, features_hash=features.hash()
    )
    model.save_pretrained(tmp_path / "preference")
    batch = make_batch(3, 9, 64, has_reference=True)
    said = Preference(str(tmp_path / "preference"))(
        video, batch.audio, batch.reference, batch.motion,
        portrait=torch.zeros(3, 2, 3, 64, 64), condition=torch.arange(3),
    )  # fmt: skip
    with torch.no_grad():
        expected = model(torch.cat([rows(part, video) for part in parts], dim=1))[:, 0]
    torch.testing.assert_close(said, expected)
    with pytest.raises(ValueError, match="each once"):
        Features([parts[1], parts[1]])


def test_other_weights_than_those_of_the_training_are_refused(videomae: Path, tmp_path: Path):
    trained = Features([VideoFeatures(str(videomae))])
    changes = {"preprocessor_config.json": {**PREPARATION, "image_mean": [0.5] * 3}}
    other = copied(videomae, tmp_path / "other", changes)
    moved = dataclasses.replace(trained.sources, video=other)
    model = PreferenceModel(trained.num, 8, sources=moved, features_hash=trained.hash())
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"features {trained.hash()} of .*other, and these"):
        Preference(str(tmp_path))


def copied(folder: Path, to: Path, changes: dict[str, dict | None]) -> str:
    """A copy of a folder with other json files, or without those that are None."""
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    for name, values in changes.items():
        (to / name).unlink(missing_ok=True)
        if values is not None:
            (to / name).write_text(json.dumps(values))
    return str(to)


def test_other_folders_are_one_error_that_says_what_to_supply(videomae: Path, tmp_path: Path):
    from transformers import Dinov2Config, Dinov2Model

    config = json.loads((videomae / "config.json").read_text())
    images = tmp_path / "images"
    Dinov2Model(Dinov2Config(**SIZES, image_size=28, mlp_ratio=2)).save_pretrained(images)
    (images / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    theirs = {**config, "model_type": "theirs", "auto_map": {"AutoModel": "theirs.Model"}}
    cases = [
        (str(tmp_path / "nowhere"), "no config.json"),
        (copied(videomae, tmp_path / "a", {"preprocessor_config.json": None}), "no video_prep"),
        (copied(videomae, tmp_path / "b", {"model.safetensors": None}), "no model.safetensors"),
        (copied(videomae, tmp_path / "c", {"config.json": theirs}), "cannot be loaded"),
        (
            copied(videomae, tmp_path / "d", {"config.json": {**config, "num_hidden_layers": 3}}),
            r"its weights lack encoder\.layer\.2",
        ),
        (str(images), "the config of a dinov2 has no num_frames"),
    ]
    for folder, words in cases:
        with pytest.raises(ValueError, match=rf"{words}.*vjepa2-vitl-fpc64-256 \(MIT\)") as error:
            VideoFeatures(folder)
        assert str(error.value).startswith(folder)
    with pytest.raises(ValueError, match=r"makes no tokens of 6 pictures of 32 x 32"):
        VideoFeatures(str(videomae), num_frames=6)
