"""Sync scores by hand, the sign of offsets, the errors of weights, and the world's own critic."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from avatar_v.critics.layers import augment
from avatar_v.critics.sync import (
    audio_windows,
    distance_table,
    embed_clip,
    mfcc,
    num_windows,
    shifted_is_farther,
    sync_score,
    video_windows,
)
from avatar_v.critics.syncnet import SyncNet
from avatar_v.critics.world_sync import WorldSyncNet, sync_contrastive_loss
from avatar_v.objectives.critic_sync import embed_runs, louder_or_softer, shift_numbers
from avatar_v.objectives.sync_data import SyncClips, SyncData, SyncRuns
from avatar_v_eval.studies.critics import sync_numbers


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small() -> WorldSyncNet:
    torch.manual_seed(0)
    return WorldSyncNet(width=4, num_heads=2, num_features=8, num_dims=16).eval()


@pytest.mark.parametrize("early", [-15, -4, 0, 1, 7, 15])
def test_sound_that_comes_k_frames_early_has_offset_k(early):
    """``audio[i] = video[i + k]``: what window i hears is what window i + k shows."""
    track = torch.randn(400 + 30, 1024, generator=seeded())
    video, audio = track[15:415], track[15 + early : 415 + early]
    score = sync_score(distance_table(video, audio))
    assert score.offset == early
    # the aligned windows differ by torch's 1e-6 in 1024 places, 3.2e-5; |k| of 400 windows at the
    # edge are compared with zero, at a distance of about sqrt(1024) = 32
    assert score.distance == pytest.approx(abs(early) / 400 * 32, rel=0.05, abs=1e-4)
    # all other shifts: sqrt(2) times that, up to the edges
    assert score.confidence == pytest.approx(math.sqrt(2) * 32 - score.distance, rel=0.05)


def test_scores_against_loops():
    video, audio = torch.randn(2, 25, 6, generator=seeded())
    table = distance_table(video, audio, max_shift=3)
    for i in range(25):
        for shift in range(-3, 4):
            j = i + shift
            other = audio[j] if 0 <= j < 25 else torch.zeros(6)
            # the 1e-6 that torch adds to each difference, against none here
            expected = float((video[i] - other).square().sum().sqrt())
            assert float(table[i, shift + 3]) == pytest.approx(expected, abs=1e-5)
    score = sync_score(table)
    means = sorted(table.mean(0).tolist())
    assert score.distance == pytest.approx(means[0])
    assert score.confidence == pytest.approx(means[3] - means[0])  # the middle one of seven
    assert score.by_shift.tolist()[3 - score.offset] == pytest.approx(means[0])


def test_windows_are_counted_as_in_syncnet_python():
    assert num_windows(25, 25 * 640) == 20
    assert num_windows(30, 25 * 640 + 639) == 20  # the shorter one, whole frames alone
    steps = mfcc(torch.zeros(25 * 640) + 0.1)
    assert len(steps) == 99  # one less than 4 a frame, hence five and not four windows less
    assert audio_windows(steps).shape == (20, 20, 13)
    frames = torch.arange(7.0)[:, None, None, None]
    assert video_windows(frames)[2].flatten().tolist() == [2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="got 5 frames and 16000 samples"):
        num_windows(5, 16_000)


def test_a_clip_in_parts_scores_the_same(small):
    frames = torch.randint(0, 256, (24, 3, 64, 64), dtype=torch.uint8, generator=seeded())
    audio = torch.randn(24 * 640, generator=seeded()) * 0.1
    whole, parts, as_floats = (
        sync_score(distance_table(*embed_clip(small, shown, audio, batch_size=num)))
        for shown, num in ((frames, 64), (frames, 3), (frames.float() / 127.5 - 1, 20))
    )
    # the same fp32 numbers in another batch: sums in another order
    torch.testing.assert_close(whole.by_shift, parts.by_shift, rtol=1e-5, atol=1e-5)
    assert as_floats.distance == pytest.approx(whole.distance, rel=1e-5)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "syncnet_v2.model"
    with pytest.raises(ValueError, match=r"syncnet_v2\.model.*robots\.ox\.ac\.uk.*licence"):
        SyncNet.load(path)
    path.write_bytes(b"not tensors")
    with pytest.raises(ValueError, match="not a readable"):
        SyncNet.load(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="expected tensors by name"):
        SyncNet.load(path)
    state = SyncNet().state_dict()
    wrong = {k: v for k, v in state.items() if k != "netfclip.3.bias"}
    torch.save({**wrong, "netfcaud.3.bias": torch.zeros(256), "extra": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"netfclip\.3\.bias is missing.*extra is unknown.*256"):
        SyncNet.load(path)
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save(old, path, _use_new_zipfile_serialization=False)  # the format of the published file
    loaded = SyncNet.load(path)
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in old.items())


def test_the_world_critic_is_small_and_gives_unit_vectors(small):
    assert sum(p.numel() for p in WorldSyncNet().parameters()) < 300_000
    windows = torch.rand(3, 5, 3, 128, 128, generator=seeded()) * 2 - 1
    video, audio = small.embed_video(windows), small.embed_audio(torch.randn(3, 20, 13))
    assert video.shape == audio.shape == (3, 16)
    assert torch.allclose(video.norm(dim=1), torch.ones(3), atol=1e-6)
    assert torch.allclose(audio.norm(dim=1), torch.ones(3), atol=1e-6)


def test_runs_share_frames_and_give_what_windows_give(small):
    images = torch.rand(9, 3, 64, 64, generator=seeded()) * 2 - 1
    sound = torch.randn(36, 13, generator=seeded())
    by_run = small.embed_features(small.frame_features(images)[None])[0]
    # the same fp32 numbers in another batch
    torch.testing.assert_close(by_run, small.embed_video(video_windows(images)), rtol=0, atol=1e-5)
    one_by_one = small.embed_audio(audio_windows(sound))
    torch.testing.assert_close(embed_runs(small, sound[None])[0], one_by_one, rtol=0, atol=1e-5)


def test_gradient_reaches_every_decoded_frame(small):
    frozen = small.requires_grad_(False)
    pixels = (torch.rand(2, 5, 3, 64, 64, generator=seeded()) * 2 - 1).requires_grad_(True)
    sound = frozen.embed_audio(torch.randn(2, 20, 13, generator=seeded()))
    similarity = F.cosine_similarity(frozen.embed_video(pixels), sound)
    (1 - similarity).mean().backward()
    assert pixels.grad is not None
    assert bool((pixels.grad.abs().amax((2, 3, 4)) > 0).all())
    # of a size whose gain, 2e-4 and more, is far above the rounding of sums
    step = 0.05 * pixels.grad / pixels.grad.abs().amax((1, 2, 3, 4), keepdim=True)
    stepped = frozen.embed_video(pixels.detach() - step)
    gain = F.cosine_similarity(stepped, sound) - similarity.detach()
    assert float(gain.min()) > 1e-5


def test_weights_of_the_world_critic_round_trip(small, tmp_path):
    small.save_pretrained(tmp_path)
    loaded = WorldSyncNet.from_pretrained(tmp_path)
    assert loaded.hash() == small.hash()
    assert not any(p.requires_grad for p in loaded.parameters())
    WorldSyncNet(width=8).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "width": 4}))
    with pytest.raises(ValueError, match="do not fit the model"):
        WorldSyncNet.from_pretrained(tmp_path)


def test_contrastive_loss_by_hand():
    """Two clips of three windows, all at right angles: one positive of cosine 1, the rest 0."""
    e = torch.eye(6).reshape(2, 3, 6)
    # of six sounds none is left out: log(e² + 5) - 2; of the clip's own three: log(e² + 2) - 2
    expected = (math.log(math.exp(2) + 5) + math.log(math.exp(2) + 2)) / 2 - 2
    assert float(sync_contrastive_loss(e, e, 0.5, ignore_shift=0)) == pytest.approx(expected)
    # without neighbours the ends of a clip keep one rival of their own, the middle none
    ends = (math.log(math.exp(2) + 4) + math.log(math.exp(2) + 1)) / 2 - 2
    middle = (math.log(math.exp(2) + 3) + math.log(math.exp(2))) / 2 - 2
    loss = sync_contrastive_loss(e, e, 0.5, ignore_shift=1)
    assert float(loss) == pytest.approx((2 * ends + middle) / 3)
    with pytest.raises(ValueError, match="more than 2 windows"):
        sync_contrastive_loss(e[:, :2], e[:, :2], 0.5)


def test_a_voice_that_fits_the_face_alone_does_not_pay():
    """Embeddings that know the clip but not the moment leave the clip's own part at chance."""
    clip = torch.eye(4)[:, None].expand(4, 6, 4)
    knows_all = torch.eye(24).reshape(4, 6, 24)
    assert float(sync_contrastive_loss(clip, clip, 0.05, 0)) == pytest.approx(math.log(6), abs=1e-3)
    assert float(sync_contrastive_loss(knows_all, knows_all, 0.05, 0)) < 1e-3


def test_gain_of_the_sound_is_gain_of_the_first_mfcc():
    audio = torch.randn(6_400, generator=seeded()) * 0.05
    change = mfcc(audio * 2) - mfcc(audio)
    expected = torch.zeros(13)
    expected[0] = 2 * math.log(2)
    # rounding to 16 bits: ±0.5 of 1,600
    assert float((change - expected).abs().max()) < 0.02
    sound = torch.zeros(50, 8, 13)
    drawn = louder_or_softer(sound, seeded())
    assert torch.equal(drawn, louder_or_softer(sound, seeded()))
    assert torch.equal(drawn[..., 1:], sound[..., 1:])
    assert bool((drawn[..., 0] == drawn[:, :1, 0]).all())
    assert 2.0 < float(drawn.abs().max()) <= math.log(10**1.2) + 0.01  # ±12 dB of power


def test_a_clip_is_augmented_in_one_way():
    frame = torch.rand(1, 3, 64, 64, generator=seeded()) * 2 - 1
    x = augment(frame.expand(40, -1, -1, -1), seeded(1), 20).unflatten(0, (2, 20))
    means = x.mean((2, 3, 4))
    # noise of up to 0.08 over 12,288 values moves a mean by less than 1e-3
    assert float(means.std(1).max()) < 2e-3
    assert float((means[0] - means[1]).abs().mean()) > 5e-3


def test_shift_numbers_by_hand():
    e = torch.eye(20)[None]
    assert shift_numbers(e, e) == {"window_top1": 1.0, "clip_offset": 1.0, "pairwise": 1.0}
    late = torch.roll(e, 5, dims=1)
    numbers = shift_numbers(e, late)
    assert numbers["clip_offset"] == 0
    assert numbers["window_top1"] == 0
    same = torch.ones(8, 4)
    assert shifted_is_farther(same, same) == 0.5
    with pytest.raises(ValueError, match="got 5"):
        shifted_is_farther(same[:5], same[:5])


def test_runs_of_a_clip_keep_pictures_and_sound_together():
    """Each picture, MFCC and motion holds the number of its frame."""
    frame = torch.arange(12)
    images = frame.to(torch.uint8)[None, :, None, None, None].expand(3, 12, 3, 4, 4)
    sound = frame.float().repeat_interleave(4)[None, :, None].expand(3, 48, 13)
    motion = frame.float()[None, :, None].expand(3, 12, 16)
    clips = SyncClips(SyncRuns(images, sound, motion), torch.zeros(3, 7, dtype=torch.bool))
    clips.may_start[:, 2] = clips.may_start[:, 5] = True
    data = SyncData(["here"], ["there"], 2, 2, batches_per_epoch=9, num_frames=13)
    assert data.run_frames == 6
    data.train_clips = clips
    loader = data.train_dataloader()
    batches = list(loader)
    starts = {int(run[0, 0, 0, 0]) for batch in batches for run in batch.images}
    assert starts == {2, 5}
    for batch in batches:
        assert batch.sound.shape == (2, 24, 13)
        assert torch.equal(batch.sound[:, ::4, 0], batch.motion[:, :, 0])
        assert torch.equal(batch.images[:, :, 0, 0, 0].float(), batch.motion[:, :, 0])
    second = list(loader)
    assert any(not torch.equal(a.motion, b.motion) for a, b in zip(batches, second, strict=True))
    with pytest.raises(ValueError, match="20 windows a clip need num_frames > 24, got 24"):
        SyncData(["here"], ["there"], 2, 20, batches_per_epoch=1, num_frames=24)


def test_a_perfect_critic_gets_full_marks_and_a_deaf_one_chance():
    tracks = list(torch.randn(8, 68, 32, generator=seeded()))
    perfect = sync_numbers([(track, track) for track in tracks], "", "")
    assert perfect["sync_offset"].value == 1.0
    assert perfect["sync_pairs"].value == 1.0
    assert perfect["sync_own_speech"].value == 1.0
    assert perfect["sync_confidence"].value > 1 + perfect["sync_confidence_other"].value
    noise = list(torch.randn(8, 68, 32, generator=seeded(1)))
    deaf = sync_numbers(list(zip(tracks, noise, strict=True)), "_x", "x")
    assert set(deaf) == {f"{key}_x" for key in perfect}
    assert deaf["sync_pairs_x"].value == pytest.approx(0.5, abs=0.05)  # of 8 x 3,900 pairs
    assert deaf["sync_offset_x"].value <= 0.5  # 3 of 31 shifts are right by chance
