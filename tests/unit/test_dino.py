"""critics/dino.py on a small random DINOv2 in the published layout."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from avatar_v.critics.dino import Dino
from avatar_v.scoring.clip import Footage
from avatar_v.scoring.registry import build, find_scorers
from bench_cases import judged, pixels
from face_files import PREPARATION, dino_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dino_folder(tmp_path_factory.mktemp("dino"))


def test_pictures_are_prepared_as_the_folder_says(folder: Path):
    frames = torch.full((2, 3, 64, 48), 255, dtype=torch.uint8)
    ready = Dino(folder).prepare(frames)
    assert ready.shape == (2, 3, 28, 28)
    for channel in range(3):
        mean, std = (PREPARATION[f"image_{name}"][channel] for name in ("mean", "std"))
        white = torch.full((2, 28, 28), (1 - mean) / std)
        torch.testing.assert_close(ready[:, channel], white)


def test_the_class_token_is_the_networks_own(folder: Path):
    from transformers import AutoModel

    critic = Dino(folder)
    frames = torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8)
    model = AutoModel.from_pretrained(folder).eval()
    tokens = model(pixel_values=critic.prepare(frames)).last_hidden_state[:, 0]
    expected = torch.nn.functional.normalize(tokens, dim=-1)
    torch.testing.assert_close(critic.measure(frames).values, expected)
    assert len(critic.hash()) == 12


def test_the_scene_image_itself_has_similarity_1(folder: Path):
    weights = {"dino": str(folder)}
    metric = build(find_scorers(["dino"], weights, "drawn")[0][0], weights)
    clip = judged(0, num_frames=50)
    still = Footage.of(clip.image[None].repeat(50, 1, 1, 1), clip.video.audio)
    same = metric.score(replace(clip, video=still)).values
    assert same == pytest.approx({"dino": 1.0, "dino_drift": 0.0}, abs=1e-5)
    noise = torch.randint(0, 256, pixels(still).shape, dtype=torch.uint8)
    other = metric.score(replace(clip, video=Footage.of(noise, still.audio))).values
    assert other["dino"] < 0.99


def test_what_is_missing_is_named(folder: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"config.json is missing.*facebook/dinov2-base.*Apache"):
        Dino(tmp_path)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match="does not say how pictures are prepared"):
        Dino(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks encoder\.layer\.2"):
        Dino(tmp_path)
