"""Batches: their contents, their order, and that resuming changes nothing."""

import dataclasses
import shutil
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from shard_clips import VAE_HASH, make_sample, write_clips
from torch import Tensor

from avatar_v.media.sound import prepared
from avatar_v.shards.buckets import Bucket
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.loader import collate, fit_sample, read_clip, read_folder
from avatar_v.shards.writer import write_shard
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, Batch


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """14 clips of 4 persons, each in a scene of its own, in 3 shards."""
    return str(write_clips(tmp_path_factory.mktemp("shards"), 14))


def fingerprint(batch: Batch) -> tuple:
    assert batch.reference is not None
    return batch.key, batch.reference.key, float(batch.audio.sum()), float(batch.motion.sum())


def data(folder: str, **options) -> ShardData:
    options = {"batch_size": 4, "pairs": True, "decode_video": False, "seed": 3, **options}
    return ShardData(folder, **options)


def test_a_batch_is_in_the_units_of_the_project(shards: str) -> None:
    batch = next(iter(data(shards, decode_video=True).train_dataloader()))
    assert batch.video is not None
    assert batch.video.shape == (4, 5, 3, 32, 32)
    assert batch.video.dtype == batch.audio.dtype == torch.float32
    assert -1 <= batch.video.min() < -0.5  # uint8 0 … 255 becomes -1 … 1
    assert 0.5 < batch.video.max() <= 1
    assert batch.audio.shape == (4, 5 * 640)
    stored = 100 / 32768 * torch.arange(5.0).repeat_interleave(640)  # one step a frame
    expected = prepared(stored).clamp(-1, 1)
    assert (batch.audio - expected).abs().max() < 1e-4  # 16 bits
    assert batch.latents is not None
    assert batch.latents.dtype == torch.float32
    assert batch.latents[:, 0, 0, 0, 0].tolist() == [int(key[-3:]) for key in batch.key]
    assert batch.valid.tolist() == [[True, False, True, True, True]] * 4
    assert batch.text == tuple(f"clip {int(key[-3:])}" for key in batch.key)


def test_references_are_the_same_person_in_another_scene(shards: str) -> None:
    for batch in data(shards).train_dataloader():
        assert batch.reference is not None
        assert batch.reference.person == batch.person
        assert all(a != b for a, b in zip(batch.reference.scene, batch.scene, strict=True))
        assert batch.video is None  # decode_video False
        assert batch.latents is not None


def test_persons_without_a_pair_are_left_out_and_said(tmp_path: Path) -> None:
    folder = str(write_clips(tmp_path, 5))  # persons 1, 2 and 3 have one clip each
    with pytest.warns(UserWarning, match=r"3 clips have no other clip of their person in another"):
        batch = next(iter(data(folder).train_dataloader()))
    assert set(batch.person) == {"person0"}
    write_shard(tmp_path / "000.tar", [make_sample(n, scene="one") for n in (0, 4)])
    with pytest.raises(ValueError, match="all 2 clips have no other clip"):
        data(folder).setup()
    same = next(iter(data(folder, same_scene_pairs=True, batch_size=2).train_dataloader()))
    assert same.reference is not None
    assert sorted(same.reference.key) == sorted(same.key) == ["clip000", "clip004"]


@pytest.mark.parametrize(
    ("options", "num_begun"),
    [({}, 3), ({"num_workers": 2}, 3), ({"echo": 3}, 4), ({"echo": 3, "ahead": 2}, 6)],
)
def test_resuming_gives_the_batches_of_the_uninterrupted_run(
    shards: str, options: dict[str, int], num_begun: int
) -> None:
    echo = options.get("echo", 1)
    loader = data(shards, echo=echo).train_dataloader()
    uninterrupted = [[fingerprint(batch) for batch in loader] for _ in range(3)]
    assert len(uninterrupted[0]) == len(loader) == 4 * echo
    assert len(set(uninterrupted[0])) == 4
    assert uninterrupted[0] != uninterrupted[1] != uninterrupted[2]

    first = data(shards, **options)
    iterator = iter(first.train_dataloader())
    begun = [fingerprint(next(iterator)) for _ in range(num_begun)]
    state = first.state_dict()  # workers have already read ahead of this
    second = data(shards, **options)
    second.load_state_dict(state)
    resumed = second.train_dataloader()
    assert begun + [fingerprint(batch) for batch in resumed] == uninterrupted[0]
    assert [fingerprint(batch) for batch in resumed] == uninterrupted[1]

    finished = data(shards, **options)
    finished.load_state_dict({**state, "num_done": len(loader)})
    assert [fingerprint(batch) for batch in finished.train_dataloader()] == uninterrupted[1]


class Recorder(L.LightningModule):
    """A module that learns nothing and remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.seen.append(fingerprint(batch))
        return self.weight * 0

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, _: int) -> Batch:
        return batch.to(device)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: str, out: Path, max_steps: int, resume: Path | None = None) -> list[tuple]:
    module = Recorder()
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        max_epochs=-1,
        callbacks=[ModelCheckpoint(out, save_top_k=-1, every_n_train_steps=1, filename="{step}")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data(folder), ckpt_path=None if resume is None else str(resume))
    return module.seen


def test_lightning_resumes_within_and_at_the_end_of_an_epoch(shards: str, tmp_path: Path) -> None:
    whole = fit(shards, tmp_path, 10)  # an epoch has 4 steps
    assert len(set(whole)) == 10
    for step in (3, 4, 6, 8):
        resumed = fit(shards, tmp_path / "again", 10, tmp_path / f"step={step}.ckpt")
        assert resumed == whole[step:], f"resumed after step {step}"


def test_changed_data_cannot_be_continued_and_says_so(shards: str) -> None:
    first = data(shards)
    next(iter(first.train_dataloader()))
    second = data(shards, batch_size=2)
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match=r"batch_size.*\(4, 2\).*beginning of epoch 1"):
        second.train_dataloader()


def test_validation_keeps_its_order_and_its_last_short_batch(shards: str) -> None:
    loader = data(shards, validation=shards, pairs=False).val_dataloader()
    epochs = [[batch.key for batch in loader] for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert [len(keys) for keys in epochs[0]] == [4, 4, 4, 2]
    assert data(shards).val_dataloader() == []


def test_cached_clips_are_not_read_again(shards: str, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    shutil.copytree(shards, folder)
    loader = data(str(folder), cache=True).train_dataloader()
    fresh = data(shards).train_dataloader()
    assert [fingerprint(b) for b in loader] == [fingerprint(b) for b in fresh]
    for path in folder.glob("*.tar"):
        path.unlink()
    assert [fingerprint(b) for b in loader] == [fingerprint(b) for b in fresh]


def test_a_caption_that_the_text_encoder_does_not_take_is_named(shards: str) -> None:
    data(shards).require_captions(7)  # "clip 17" has seven bytes
    with pytest.raises(ValueError, match=r"clip clip000: its caption has 6 bytes, .* takes 5"):
        data(shards).require_captions(5)


def test_pictures_of_part_of_a_token_and_clips_of_two_rates_are_refused(
    shards: str, tmp_path: Path
) -> None:
    data(shards).require_tokens(16)
    with pytest.raises(ValueError, match="pictures of 32 x 32 pixels are no whole tokens of 24"):
        data(shards).require_tokens(24)
    data(shards).require_one_rate()
    rate = {"frame_rate_hz": 30, "sample_rate_hz": 30 * SAMPLES_PER_FRAME}
    samples = [make_sample(n) for n in (0, 4)]
    fast = [dataclasses.replace(x, meta=dataclasses.replace(x.meta, **rate)) for x in samples]
    write_shard(tmp_path / "000.tar", fast)
    with pytest.raises(ValueError, match="one rate"):
        data(shards, validation=str(tmp_path)).require_one_rate()


def test_latents_of_another_vae_are_refused(shards: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"clip clip000: .* VAE {VAE_HASH}, expected other"):
        data(shards, vae_hash="other").setup()
    with pytest.raises(ValueError, match="expected other"):
        data(shards).require_vae("other")
    data(shards).require_vae(VAE_HASH)
    write_clips(tmp_path, 3)
    write_shard(tmp_path / "more.tar", [make_sample(9, vae_hash="f" * 16)])
    with pytest.raises(ValueError, match=r"more\.tar, clip clip009: .* expected 0123456789abcdef"):
        data(str(tmp_path)).setup()


def test_latents_alone_need_latents_and_video_needs_video(tmp_path: Path) -> None:
    write_clips(tmp_path / "video", 8, vae_hash=None)
    with pytest.raises(ValueError, match=r"clip000: no latents; make them with"):
        data(str(tmp_path / "video")).setup()
    assert (
        next(iter(data(str(tmp_path / "video"), decode_video=True).train_dataloader())).latents
        is None
    )
    samples = [
        read_clip(c, decode_video=False) for c in read_folder(write_clips(tmp_path / "b", 8))
    ]
    write_shard(tmp_path / "latents" / "a.tar", samples)
    with pytest.raises(ValueError, match=r"a\.tar, clip clip000: no video"):
        data(str(tmp_path / "latents"), decode_video=True).setup()
    data(str(tmp_path / "latents")).setup()


def test_settings_that_contradict_each_other_are_refused(shards: str) -> None:
    with pytest.raises(ValueError, match="num_workers 2, expected 0"):
        data(shards, cache=True, num_workers=2)
    with pytest.raises(ValueError, match="without pairs"):
        data(shards, pairs=False, same_scene_pairs=True)
    with pytest.raises(ValueError, match="batch_size"):
        data(shards, batch_size=0)
    with pytest.raises(ValueError, match="no finished shards"):
        data(shards + "/nowhere").setup()


def test_cut_clips_keep_sound_picture_and_motion_together() -> None:
    sample = make_sample(0, num_frames=21, vae_hash=None)
    starts = set()
    for seed in range(40):
        part = fit_sample(sample, Bucket(32, 32, 9), np.random.default_rng(seed))
        start = int(part.motion[0, 0])
        starts.add(start)
        assert part.meta.num_frames == 9
        assert part.motion[:, 0].tolist() == list(range(start, start + 9))
        assert part.audio[::640].tolist() == [100 * n for n in range(start, start + 9)]
        assert part.video is not None
        assert sample.video is not None
        assert torch.equal(part.video, sample.video[start : start + 9])
        assert collate([part]).audio.shape == (1, 9 * 640)
    assert starts == {0, 4, 8, 12}


@pytest.mark.parametrize("name", ["motion_known", "habits_known"])
def test_a_batch_says_what_is_known_of_motion(name: str) -> None:
    whole = make_sample(0, num_frames=9)
    assert getattr(collate([whole, whole]), name) is None
    some = dataclasses.replace(
        whole, meta=dataclasses.replace(whole.meta, **{name: ("jaw", "yaw")})
    )
    known = getattr(collate([whole, some]), name)
    assert known[0].all()
    assert [MOTION_NAMES[i] for i in known[1].nonzero()[:, 0]] == ["jaw", "yaw"]


def test_clips_with_latents_are_cut_at_their_beginning() -> None:
    sample = make_sample(0, num_frames=21)
    part = fit_sample(sample, Bucket(32, 32, 9), np.random.default_rng(1))
    assert part.motion[0, 0] == 0
    assert part.latents is not None
    assert part.latents.shape[0] == 3


def test_buckets_cut_reduce_and_report(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [make_sample(n, num_frames=9, size=64) for n in range(4)])
    write_shard(tmp_path / "b.tar", [make_sample(n, num_frames=5) for n in range(4, 8)])
    buckets = [Bucket(32, 32, 9)]
    options = {"decode_video": True, "pairs": False, "buckets": buckets}
    with pytest.warns(UserWarning, match="4 clips fit none of the buckets"):
        batch = next(iter(data(str(tmp_path), **options).train_dataloader()))
    assert batch.video is not None
    assert batch.video.shape == (4, 9, 3, 32, 32)
    assert batch.latents is None  # made at another size


def test_faces_come_with_the_latents_of_a_reference(tmp_path: Path) -> None:
    folder = str(write_clips(tmp_path, 8, num_faces=3))
    batch = next(iter(data(folder).train_dataloader()))
    reference = batch.reference
    assert reference is not None
    assert reference.faces is not None
    assert reference.faces_valid is not None
    numbers = torch.tensor([float(key[-3:]) for key in reference.key])
    expected = numbers[:, None] + 0.1 * torch.arange(3)
    # fp16 keeps three digits
    torch.testing.assert_close(reference.faces[:, :, 0, 0, 0], expected, atol=5e-3, rtol=0)
    assert reference.faces.shape == (4, 3, 4, 4, 4)
    assert reference.faces_valid.all()
    video = read_clip(read_folder(folder)[0], use_latents=False)
    assert video.faces is None  # made by a VAE that may be another one


def test_stills_come_with_their_frames_and_are_cut_with_them(tmp_path: Path) -> None:
    folder = str(write_clips(tmp_path, 8, num_frames=9, num_stills=7))
    whole = next(iter(data(folder).train_dataloader())).reference
    cut = next(iter(data(folder, buckets=[Bucket(32, 32, 5)]).train_dataloader())).reference
    for reference, num in ((whole, 7), (cut, 5)):
        assert reference is not None
        assert reference.stills is not None
        assert reference.stills_valid is not None
        assert reference.still_frames is not None
        assert reference.stills.shape == (4, num, 4, 4, 4)
        assert reference.stills_valid.all()
        assert reference.still_frames.tolist() == [list(range(num))] * 4
    video = read_clip(read_folder(folder)[0], use_latents=False)
    assert video.stills is None


def test_missing_faces_are_filled_up_as_invalid() -> None:
    batch = collate([make_sample(n, num_faces=num) for n, num in ((0, 3), (1, 0), (2, 1))])
    assert batch.faces is not None
    assert batch.faces_valid is not None
    assert batch.faces.shape[:2] == (3, 3)
    assert batch.faces_valid.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert collate([make_sample(0, num_faces=2), make_sample(1)]).faces is None
    nobody = collate([make_sample(0, num_faces=0)])
    assert nobody.faces is not None
    assert nobody.faces.shape[:2] == (1, 0)


def test_a_clip_cut_short_keeps_its_faces() -> None:
    sample = make_sample(0, num_frames=9, num_faces=3)
    short = fit_sample(sample, Bucket(num_frames=5, height=32, width=32), np.random.default_rng(0))
    assert short.faces is not None
    assert len(short.faces) == 3


def test_landmarks_are_there_where_all_clips_have_those_of_filmed_faces() -> None:
    drawn = make_sample(0)
    points = torch.rand(drawn.meta.num_frames, 68, 2)
    filmed = dataclasses.replace(drawn, landmarks=points)
    found = collate([filmed, filmed]).landmarks
    assert found is not None
    assert torch.equal(found[1], points)
    assert collate([filmed, drawn]).landmarks is None


def test_what_persons_hear_comes_with_the_batch(tmp_path: Path) -> None:
    """As the person's own sound does; who listens to nobody hears silence."""
    pair = [make_sample(n, num_frames=9, vae_hash=None) for n in (0, 1)]
    pair[1] = dataclasses.replace(pair[1], heard=pair[1].audio)
    write_shard(tmp_path / "a.tar", pair)
    options = {"batch_size": 2, "pairs": False, "pictures": False, "buckets": [Bucket(32, 32, 5)]}
    batch = next(iter(data(str(tmp_path), **options).train_dataloader()))
    assert batch.heard is not None
    assert batch.heard.shape == batch.audio.shape == (2, 5 * 640)
    (listens,) = (number for number, key in enumerate(batch.key) if key == pair[1].key)
    assert torch.equal(batch.heard[listens], batch.audio[listens])
    assert not batch.heard[1 - listens].any()
    assert collate([pair[0], pair[0]]).heard is None
