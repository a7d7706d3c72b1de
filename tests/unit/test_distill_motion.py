"""Motion of few steps: the stage, and generation that follows its card."""

import pytest
import torch

from avatar_v.models.motion_net import MotionNet
from avatar_v.objectives.distill_motion import DistillMotion, MotionMatching
from avatar_v.objectives.matching import FAKE, REAL
from avatar_v.sampling.motion import guided_motion
from avatar_v.training.motion import MotionTraining, get_motion_net
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT
from avatar_v.training.settings import Models, Objective
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.random import make_batch, make_motion_net
from avatar_v.weights.weights import save_pipeline

LENGTH = 5


def stage(**numbers) -> DistillMotion:
    made = DistillMotion(
        Models("tiny", motion_stats="small"),
        Optim(lr=1e-3, num_warmup_steps=1),
        Objective({0: LENGTH}, shift=3.0, text_dropout=0.0, first_share=0.5),
        MotionTraining(num_windows=2, style_dropout=0.0),
        MotionMatching(fake_updates=2, **numbers),
    )
    build_roles = made.build_roles

    def with_network() -> None:
        made.conditioner.motion_net = make_motion_net(made.conditioner.audio_encoder.dim)
        build_roles()

    made.build_roles = with_network
    made.configure_model()
    return made


def test_updates_take_turns_and_move_their_own_network() -> None:
    stage_ = stage()
    moved = []
    nets: dict[str, MotionNet] = {
        STUDENT: get_motion_net(stage_),
        FAKE: stage_.fake,
        REAL: stage_.real,
    }

    def update(role: str, loss: torch.Tensor) -> bool:
        own = list(nets[role].parameters())
        grads = torch.autograd.grad(loss, own, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(own, grads, strict=True):
                p.sub_(1e-4 * (0 if g is None else g))
        stage_.num_backward[role] += 1
        moved.append((role, float(sum(0 if g is None else g.abs().sum() for g in grads))))
        return True

    stage_.update = update
    kept = [p.clone() for p in stage_.real.parameters()]
    batch = make_batch(2, 33, 32, latent_channels=16, has_reference=True)
    prefixes = set()
    for index in range(8):
        begun = stage_.begin(batch, index)
        windows = begun.windows
        prefixes.add(int(windows.prefix[0]))
        assert len(set(windows.prefix.tolist())) == 1
        assert bool(((windows.start > 0) == (windows.prefix == 2)).all())
        loss, logs = stage_.iterate(begun)
    assert [role for role, _ in moved] == [FAKE, STUDENT, FAKE] * 4
    assert all(size > 0 for _, size in moved)
    assert all(torch.equal(p, k) for p, k in zip(stage_.real.parameters(), kept, strict=True))
    assert len(prefixes) > 1
    assert {"dmd", "fake", "energy", "spread"} <= set(logs)
    assert loss > 0


def test_the_real_score_is_the_guided_network_and_the_student_starts_as_it_is() -> None:
    """With one step and scores that agree, the gradient is what guidance adds."""
    stage_ = stage(num_steps=1, guidance_style=3.0)
    batch = make_batch(2, 33, 32, latent_channels=16, has_reference=True)
    begun = stage_.begin(batch, 0)
    made = torch.randn(begun.clean.shape, generator=begun.draws.own)
    assert float(stage_.matching_term(made, begun)) > 0
    noised = stage_.noisy(made, begun)
    x_t, t = noised.x_t, noised.t
    with torch.no_grad():
        plain = stage_.fake(x_t, t, begun.cond)
        guided = guided_motion(stage_.real, begun.cond, audio=1.0, style=1.0)(x_t, t)
    torch.testing.assert_close(plain, guided)
    same = stage(num_steps=1, guidance_style=1.0)
    assert float(same.matching_term(made, begun)) == pytest.approx(0, abs=1e-9)


def test_weights_without_a_network_and_students_are_refused(tmp_path) -> None:
    stage_ = stage()
    assert stage_.card_entries()["motion_steps"] == 2
    can = Capabilities(motion=True, motion_steps=2)
    save_pipeline(tmp_path / "weights", stage_.dit, stage_.conditioner, Card("tiny", can=can))
    stage_.subject.models = Models("tiny", init_from=str(tmp_path / "weights"))
    with pytest.raises(ValueError, match="is a student of 2 steps already"):
        DistillMotion.build_roles(stage_)
    stage_.conditioner.motion_net = None
    with pytest.raises(ValueError, match="has no motion network: start from"):
        DistillMotion.build_roles(stage_)
    with pytest.raises(ValueError, match="num_steps"):
        MotionMatching(num_steps=0)
