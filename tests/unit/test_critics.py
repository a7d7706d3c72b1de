"""Critics: inputs, weights and their errors, losses against hand-made cases, augmentation."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v.critics.frozen import as_input, weights_hash
from avatar_v.critics.layers import AttentionPool, augment
from avatar_v.critics.motion import MotionMeter
from avatar_v.faces.face import FaceCritic, contrastive_loss, identification
from avatar_v.objectives.critic_motion import MotionTask
from avatar_v.training.perceptual import PerceptualTerms
from avatar_v.types import MOTION_NAMES


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def frames() -> torch.Tensor:
    return torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8, generator=seeded())


@pytest.mark.parametrize("critic", [MotionMeter(8, 2), FaceCritic(8, 2, 16)])
def test_uint8_and_float_frames_read_the_same(critic, frames):
    critic.eval()
    from_bytes = critic.measure(frames)
    from_floats = critic.measure(frames.float() / 127.5 - 1, batch_size=2)
    # the same fp32 numbers in another batch: convolution order differs in the last bits
    assert torch.allclose(from_bytes.values, from_floats.values, atol=1e-5)
    assert from_bytes.critic == critic.name
    assert from_bytes.weights_hash == critic.hash() == from_floats.weights_hash


def test_larger_frames_are_averaged_to_the_input_size():
    small = torch.rand(2, 3, 64, 64, generator=seeded()) * 2 - 1
    large = small.repeat_interleave(2, -1).repeat_interleave(2, -2)
    # bilinear anti-aliasing spans 4 of the doubled pixels, so only means survive exactly
    assert as_input(large, 64).shape == small.shape
    assert float((as_input(large, 64).mean() - small.mean()).abs()) < 1e-3


def test_meter_has_one_output_per_name(frames):
    meter = MotionMeter(8, 2).eval()
    assert meter.measure(frames).values.shape == (5, len(MOTION_NAMES))
    assert torch.equal(meter.mouth_open(frames), meter.measure(frames).values[:, 0])


def test_meter_answers_in_the_units_of_its_training(frames):
    meter = MotionMeter(8, 2).eval()
    plain = meter.measure(frames).values
    meter.center.fill_(3.0)
    meter.scale.fill_(2.0)
    # the same fp32 numbers once scaled: one rounding each
    assert torch.allclose(meter.measure(frames).values, 3 + 2 * plain, atol=1e-6)


def test_weights_round_trip_frozen_with_equal_hash(tmp_path, frames):
    torch.manual_seed(0)
    critic = FaceCritic(8, 2, 16).eval()
    critic.save_pretrained(tmp_path)
    loaded = FaceCritic.from_pretrained(tmp_path)
    assert loaded.hash() == critic.hash()
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not loaded.training
    assert torch.equal(loaded.measure(frames).values, critic.measure(frames).values)


@pytest.mark.parametrize("backbone", ["residual", "convnext"])
def test_a_held_out_critic_scores_but_is_no_objective(tmp_path, frames, backbone):
    critic = FaceCritic(8, 2, 16, backbone, held_out=True).eval()
    critic.save_pretrained(tmp_path)
    loaded = FaceCritic.from_pretrained(tmp_path)
    assert loaded.held_out
    assert torch.equal(loaded.measure(frames).values, critic.measure(frames).values)
    for refuse in (
        lambda: FaceCritic.as_objective(tmp_path),
        lambda: PerceptualTerms(face_critic=str(tmp_path)),
    ):
        with pytest.raises(ValueError, match="held out: it scores and is never a loss or a reward"):
            refuse()


def test_hash_tells_a_changed_value_from_a_changed_order():
    a, b = torch.ones(2), torch.zeros(3)
    assert weights_hash({"a": a, "b": b}) == weights_hash({"b": b, "a": a})
    assert weights_hash({"a": a, "b": b}) != weights_hash({"a": a, "b": b + 1e-7})


def test_wrong_weights_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        MotionMeter.from_pretrained(tmp_path / "nowhere")
    MotionMeter(8, 2).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({**state, "head.2.bias": torch.zeros(9)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"head\.2\.bias"):
        MotionMeter.from_pretrained(tmp_path)
    state.pop("head.2.bias")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"head\.2\.bias"):
        MotionMeter.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        MotionMeter.from_pretrained(tmp_path)


def test_pool_follows_a_feature_that_moves():
    pool = AttentionPool(1, 1)
    torch.nn.init.constant_(pool.logits.weight, 50.0)
    x = torch.zeros(2, 1, 8, 8)
    x[0, 0, 1, 2] = x[1, 0, 6, 5] = 1.0
    value, row, column = pool(x).unbind(1)
    assert torch.allclose(value, torch.ones(2), atol=1e-6)
    assert torch.allclose(row, torch.tensor([1, 6]) / 7 * 2 - 1, atol=1e-6)
    assert torch.allclose(column, torch.tensor([2, 5]) / 7 * 2 - 1, atol=1e-6)


def test_augmentation_is_seeded_bounded_and_not_nothing(frames):
    x = as_input(frames, 64)
    once, again, other = augment(x, seeded(1)), augment(x, seeded(1)), augment(x, seeded(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert float(once.abs().max()) <= 1.0
    assert float((once - x).abs().mean()) > 0.05


def test_contrastive_loss_by_hand():
    # two persons in two scenes, at right angles: each picture has one positive (cosine 1) and two
    # negatives (cosine 0), so the loss is log(e^(1/T) + 2) - 1/T
    e = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    person, scene = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    loss = contrastive_loss(e, person, scene, 0.5)
    assert float(loss) == pytest.approx(math.log(math.exp(2) + 2) - 2, abs=1e-6)
    # a second picture in the same scene counts neither way for its twin
    more = torch.cat([e, e[:1]])
    twin = contrastive_loss(more, torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 1, 0, 1, 0]), 0.5)
    rows = [math.log(math.exp(2) + 2) - 2] * 2  # the twins: their scene-0 twin is left out
    rows.append(math.log(2 * math.exp(2) + 2) - 2)  # scene 1 of person 0 has two positives
    rows += [math.log(math.exp(2) + 3) - 2] * 2  # person 1 has three negatives
    assert float(twin) == pytest.approx(sum(rows) / 5, abs=1e-6)
    with pytest.raises(ValueError, match="another scene"):
        contrastive_loss(e, person, torch.tensor([0, 0, 1, 1]), 0.5)


def test_identification_counts_nearest_and_pairs():
    gallery = torch.eye(3)
    queries = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.2, 0.0, 0.9]])
    nearest, pairwise = identification(queries, gallery)
    assert nearest.tolist() == [True, False, True]
    # the second query is nearer to its own entry (0.1) than to one of the two others (0.9, 0)
    assert pairwise.tolist() == [1.0, 0.5, 1.0]


def test_a_component_counts_by_its_weight():
    stage = MotionTask({"mouth_open": 8.0, "eye_open": 4.0})
    assert float(stage.weights.mean()) == pytest.approx(1)
    weights = dict(zip(MOTION_NAMES, stage.weights.tolist(), strict=True))
    assert weights["mouth_open"] / weights["yaw"] == pytest.approx(8)
    assert weights["eye_open"] / weights["yaw"] == pytest.approx(4)


@pytest.mark.parametrize(
    "weights",
    [{"nose": 2.0}, {"yaw": -1.0}, {"yaw": float("nan")}, dict.fromkeys(MOTION_NAMES, 0.0)],
)
def test_weights_of_no_component_are_refused(weights):
    with pytest.raises(ValueError, match="not negative, one of them above 0, and of mouth_open, "):
        MotionTask(weights)
