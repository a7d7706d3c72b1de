"""The shard contract: what is written comes back, and what is broken says where."""

import dataclasses
import io
import json
import time

import av
import numpy as np
import pytest
import torch
from shard_clips import make_sample

from avatar_v.shards.arrays import encode_array
from avatar_v.shards.schema import (
    AUDIO,
    FACE,
    FACES,
    HEARD,
    LATENTS,
    META,
    MOTION,
    RAW_HEARD,
    SCHEMA_VERSION,
    STILLS,
    VIDEO,
    check_sample,
    decode_sample,
    encode_sample,
    to_float,
    to_int16,
)


def test_a_clip_comes_back_as_it_was() -> None:
    sample = make_sample(3, num_frames=9)
    back = decode_sample(sample.key, encode_sample(sample), where="x.tar")
    assert back.meta == sample.meta
    for name in ("audio", "motion", "face_box", "mouth_box", "landmarks", "valid", "latents"):
        assert torch.equal(getattr(back, name), getattr(sample, name)), name
    assert torch.equal(back.phonemes.long(), sample.phonemes)
    assert back.video is not None
    assert sample.video is not None
    # H.264 at crf 8 on smooth pictures: one to two grey levels on average.
    assert (back.video.float() - sample.video.float()).abs().mean() < 3


def test_without_decoding_video_the_rest_is_the_same() -> None:
    sample = make_sample(3)
    back = decode_sample(sample.key, encode_sample(sample), where="x.tar", decode_video=False)
    assert back.video is None
    assert torch.equal(back.audio, sample.audio)


def test_bytes_do_not_depend_on_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    first = encode_sample(make_sample(0))
    later = time.time() + 1e7
    monkeypatch.setattr(time, "time", lambda: later)
    assert encode_sample(make_sample(0)) == first


def test_sixteen_bits_of_audio() -> None:
    audio = torch.tensor([-2.0, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0])
    back = to_float(to_int16(audio))
    # half a step of 16 bits, inside the range
    assert (back - audio.clamp(-1, 1)).abs().max() <= 0.5 / 32767 + 1e-7


def test_meta_says_rates_rights_and_version() -> None:
    fields = json.loads(encode_sample(make_sample(0))[META])
    assert fields["schema_version"] == SCHEMA_VERSION
    assert (fields["frame_rate_hz"], fields["sample_rate_hz"]) == (25, 16_000)
    assert {"licence", "consent", "person", "scene", "sentence"} <= fields.keys()


def broken(member: str, data: bytes) -> dict[str, bytes]:
    return {**encode_sample(make_sample(0)), member: data}


@pytest.mark.parametrize("member", [AUDIO, FACE, LATENTS, META, MOTION, VIDEO])
@pytest.mark.parametrize("data", [b"", b"nonsense" * 20])
def test_a_damaged_member_is_named(member: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a/b\.tar, clip k.*(json|" + member + ")"):
        decode_sample("k", broken(member, data), where="a/b.tar")


def test_a_member_is_no_longer_than_its_clip() -> None:
    """Silence and a still picture are small however long they last."""
    longer = encode_sample(make_sample(0, num_frames=101))
    for member in (AUDIO, VIDEO):
        with pytest.raises(
            ValueError, match=rf"k\.{member}: longer than the \d+ frames of its clip"
        ):
            decode_sample("k", broken(member, longer[member]), where="x.tar")
    fields = json.loads(longer[META])
    for length in (-1, 10**9, "5", 5.0, True):
        data = json.dumps({**fields, "num_frames": length}).encode()
        with pytest.raises(ValueError, match="num_frames is a whole number from 0 to 90,000, got"):
            decode_sample("k", broken(META, data), where="x.tar")


def test_half_of_the_audio_is_not_taken_for_the_whole() -> None:
    whole = encode_sample(make_sample(0, num_frames=101))[AUDIO]
    members = {**encode_sample(make_sample(0, num_frames=101)), AUDIO: whole[: len(whole) // 2]}
    with pytest.raises(ValueError, match=r"b\.tar, clip k"):
        decode_sample("k", members, where="b.tar")


def test_another_schema_version_is_refused() -> None:
    fields = json.loads(encode_sample(make_sample(0))[META])
    data = json.dumps({**fields, "schema_version": SCHEMA_VERSION + 1}).encode()
    with pytest.raises(ValueError, match=r"clip k: schema version 2, this code reads 1"):
        decode_sample("k", broken(META, data), where="b.tar")


@pytest.mark.parametrize("change", [{"extra": 1}, {"text": None}])
def test_unknown_and_missing_meta_fields_are_refused(change: dict) -> None:
    fields = json.loads(encode_sample(make_sample(0))[META]) | change
    fields = {k: v for k, v in fields.items() if v is not None}
    with pytest.raises(ValueError, match=r"(unknown|missing) keys \['"):
        decode_sample("k", broken(META, json.dumps(fields).encode()), where="b.tar")


def test_a_missing_member_is_named() -> None:
    members = encode_sample(make_sample(0))
    del members[MOTION]
    with pytest.raises(ValueError, match=r"clip k: the clip lacks motion\.npy"):
        decode_sample("k", members, where="b.tar")


def test_parts_that_contradict_each_other_are_refused() -> None:
    sample = make_sample(0)
    with pytest.raises(ValueError, match="motion has shape"):
        check_sample(dataclasses.replace(sample, motion=torch.zeros(5, 15)))
    with pytest.raises(ValueError, match="video has shape"):
        check_sample(dataclasses.replace(sample, video=torch.zeros(5, 3, 8, 8, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="without"):
        check_sample(dataclasses.replace(sample, key="a.b"))
    with pytest.raises(ValueError, match="neither video nor latents"):
        check_sample(dataclasses.replace(sample, video=None, latents=None))


def test_members_are_what_other_tools_read() -> None:
    members = encode_sample(make_sample(0))
    with av.open(io.BytesIO(members[VIDEO])) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 25)
        assert stream.codec_context.pix_fmt == "yuv444p"
    assert np.load(io.BytesIO(members[LATENTS])).dtype == np.float16
    assert set(np.load(io.BytesIO(members[FACE])).files) == {
        "face_box", "mouth_box", "landmarks", "valid", "phonemes",
    }  # fmt: skip


@pytest.mark.parametrize("num_faces", [0, 3])
def test_pictures_come_back_as_they_were(num_faces: int) -> None:
    sample = make_sample(3, num_faces=num_faces, num_stills=num_faces + 1)
    members = encode_sample(sample)
    for member in (FACES, STILLS):
        assert set(np.load(io.BytesIO(members[member])).files) == {"latents", "frames"}
    back = decode_sample(sample.key, members, where="x.tar")
    for name in ("faces", "face_frames", "stills", "still_frames"):
        assert torch.equal(getattr(back, name), getattr(sample, name)), name
    assert not {FACES, STILLS} & set(encode_sample(make_sample(3)))


def test_faces_that_fit_nothing_are_refused() -> None:
    sample = make_sample(3, num_faces=2)
    with pytest.raises(ValueError, match="2 faces with None frame numbers"):
        check_sample(dataclasses.replace(sample, face_frames=None))
    for frame in (-1, 5):
        frames = torch.tensor([0, frame], dtype=torch.int32)
        beyond = dataclasses.replace(make_sample(3, num_stills=2), still_frames=frames)
        with pytest.raises(ValueError, match=rf"stills of frames \[0, {frame}\], the clip has 5"):
            check_sample(beyond)
    larger = dataclasses.replace(sample, latents=torch.zeros(2, 4, 8, 8, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"faces of \(4, 4, 4\), its latents of \(4, 8, 8\)"):
        encode_sample(larger)
    members = encode_sample(sample)
    for damaged in (members[FACES][:50], members[LATENTS]):
        with pytest.raises(ValueError, match=r"x\.tar, clip clip003\.faces\.npz"):
            decode_sample("clip003", {**members, FACES: damaged}, where="x.tar")


@pytest.mark.parametrize("raw", [False, True])
def test_what_a_person_hears_comes_back_as_it_was(raw: bool) -> None:
    sample = make_sample(3)
    heard = dataclasses.replace(sample, heard=sample.audio.flip(0))
    members, without = encode_sample(heard, raw=raw), encode_sample(sample, raw=raw)
    assert members.keys() - without.keys() == {RAW_HEARD if raw else HEARD}
    assert {name: members[name] for name in without} == without
    back = decode_sample("k", members, where="x.tar")
    assert back.heard is not None
    assert torch.equal(back.heard, sample.audio.flip(0))
    assert torch.equal(back.audio, sample.audio)
    assert decode_sample("k", without, where="x.tar").heard is None


def test_a_heard_sound_that_fits_no_clip_is_refused() -> None:
    members = encode_sample(make_sample(3))
    shorter, longer = (encode_sample(make_sample(0, num_frames=n))[AUDIO] for n in (1, 101))
    for member, data, why in (
        (HEARD, b"nonsense" * 20, "damaged"),
        (HEARD, longer, "longer than the 5 frames"),
        (RAW_HEARD, encode_array(np.zeros(3200, np.float32)), "expected one array of int16"),
        (RAW_HEARD, encode_array(np.zeros((3200, 2), np.int16)), "expected one array of int16"),
    ):
        with pytest.raises(ValueError, match=rf"x\.tar, clip k\.{member}: .*{why}"):
            decode_sample("k", {**members, member: data}, where="x.tar")
    with pytest.raises(ValueError, match=r"x\.tar, clip k: .*heard"):
        decode_sample("k", {**members, HEARD: shorter}, where="x.tar")
