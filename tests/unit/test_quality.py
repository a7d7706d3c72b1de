"""critics/quality: pictures are ranked as eyes rank them; Q-Align on small weights of its own."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.quality import Flicker, QAlign, Sharpness
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES

ID = RANGES["validation"][0]

MODEL_CODE = '''
import torch
from transformers import PretrainedConfig, PreTrainedModel


class RaterConfig(PretrainedConfig):
    model_type = "small_rater"


class Rater(PreTrainedModel):
    """Q-Align's outer face: `score(images, task_, input_)`."""

    config_class = RaterConfig

    def __init__(self, config):
        super().__init__(config)
        self.level = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.post_init()

    def score(self, images, task_="quality", input_="image"):
        assert input_ == "image"
        means = torch.tensor([sum(image.getpixel((0, 0))) / 765 for image in images])
        return self.level[0 if task_ == "quality" else 1] + means
'''


@pytest.fixture(scope="module")
def video() -> Tensor:
    clip = make_clip(ID, ID + 1, ID + 2, num_frames=13, size=64)
    assert clip.video is not None
    return clip.video


def blurred(video: Tensor) -> Tensor:
    return F.avg_pool2d(video.float(), 3, 1, 1).round().byte()


def test_a_blurred_picture_is_less_sharp(video: Tensor) -> None:
    critic = Sharpness()
    sharp, soft = critic.measure(video), critic.measure(blurred(video))
    assert sharp.values.shape == (13,)
    assert bool((sharp.values > 2 * soft.values).all())
    assert (sharp.critic, sharp.weights_hash) == ("sharpness", "none")


def test_noise_in_time_flickers_and_motion_does_not(video: Tensor) -> None:
    critic = Flicker()
    noise = torch.randint(-8, 9, video.shape, generator=torch.Generator().manual_seed(0))
    noisy = (video.int() + noise).clamp(0, 255).byte()
    calm = critic.measure(video).values
    assert calm.shape == (13,)
    assert bool((critic.measure(noisy).values > calm + 2).all())
    ramp = torch.arange(9).view(9, 1, 1, 1).expand(9, 3, 8, 8).byte() * 20
    assert critic.measure(ramp).values.eq(0).all(), "steady change is no flicker"
    assert critic.measure(video[:2]).values.eq(0).all()


@pytest.fixture
def rater(tmp_path: Path) -> Path:
    """A folder as `from_pretrained` reads it, with code of its own."""
    (tmp_path / "rater.py").write_text(MODEL_CODE)
    (tmp_path / "config.json").write_text(
        '{"model_type": "small_rater", "architectures": ["Rater"], "auto_map": '
        '{"AutoConfig": "rater.RaterConfig", "AutoModelForCausalLM": "rater.Rater"}}'
    )
    torch.save({"level": torch.tensor([2.0, 3.0])}, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_q_align_rates_through_its_own_code(rater: Path) -> None:
    frames = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    frames[4] = 255
    quality, aesthetics = QAlign(rater), QAlign(rater, "aesthetics")
    score = quality.measure(frames, batch_size=2)
    assert score.values.tolist() == pytest.approx([2, 2, 2, 2, 3])
    assert score.critic == "qalign_quality"
    assert len(score.weights_hash) == 12
    assert aesthetics.measure(frames).values.tolist() == pytest.approx([3, 3, 3, 3, 4])


@pytest.mark.parametrize("missing", ["config.json", "pytorch_model.bin"])
def test_missing_weights_are_one_error_with_their_source(rater: Path, missing: str) -> None:
    (rater / missing).unlink()
    with pytest.raises(ValueError, match="q-future/one-align"):
        QAlign(rater)
