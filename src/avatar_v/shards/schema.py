"""The shard contract: what one clip holds, and its tar members, byte for byte.

A clip `key` in a shard is these members of a plain WebDataset tar:

    key.audio.flac   mono 16-bit, 640 samples a frame, 16 kHz at 25 frames/s; uncompressed:
                     key.audio.npy
    key.close_ups.npz  optional, with video: the face, sharper than the video shows it,
                     pictures "n 3 ch cw" uint8, and frames "n", the frame that each one shows
    key.face.npz     face_box "f 4", mouth_box "f 4", landmarks "f k 2", valid "f", phonemes "f"
    key.faces.npz    optional, with latents: close-ups of the face, latents "n c lh lw" in fp16,
                     each encoded alone by the same VAE, and frames "n", which each one shows
    key.heard.flac   optional: whom the person listens to, as audio.flac; uncompressed:
                     key.heard.npy
    key.json         Meta: ids, text, licence, consent, rates, schema version
    key.latents.npy  optional: normalised VAE latents "l c lh lw", fp16, of the whole clip
    key.low.npy      optional, with latents: those of the clip enlarged from a smaller size, after
                     the VAE (models/refiner.py), in fp16; what the refiner starts from
    key.motion.npy   motion "f m" (MOTION_NAMES), fp32
    key.stills.npz   optional, with latents: whole frames of the clip, as faces.npz holds them
    key.text.npy     optional: the encoding of the caption "n d" without padding, fp16 or fp32
    key.video.mp4    H.264 yuv444p; absent where latents replace it, and of a clip without
                     pictures (height 0); uncompressed: key.video.npy, "f 3 h w" uint8

`Sample` is a decoded clip in its stored precision (uint8, int16, fp16), which is also how it is
cached in memory; `loader.collate` turns samples into the floats of a Batch.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float, Float16, Int, Int16, UInt8
from torch import Tensor

from avatar_v.base.outside import parse_json
from avatar_v.base.stored import Within, built
from avatar_v.base.video_format import checked_rate
from avatar_v.shards.arrays import encode_array, encode_arrays, load_arrays, load_tensor
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

SCHEMA_VERSION = 1
MAX_FRAMES = 25 * 3600
"""Of a clip; what claims to be longer would fill the memory."""
NO_PHONEME = -1
"""Phoneme of a frame where none is known (real video)."""

AUDIO, FACE, META = "audio.flac", "face.npz", "json"
LATENTS, MOTION, VIDEO = "latents.npy", "motion.npy", "video.mp4"
FACES, STILLS, LOW, TEXT = "faces.npz", "stills.npz", "low.npy", "text.npy"
CLOSE_UPS = "close_ups.npz"
HEARD = "heard.flac"
RAW_AUDIO, RAW_HEARD, RAW_VIDEO = "audio.npy", "heard.npy", "video.npy"
"""In place of AUDIO, HEARD and VIDEO: many times the bytes, written and read without PyAV."""
NUM_CLOSE_UPS = 4
"""Of a clip."""


@dataclass(frozen=True)
class Meta:
    """What a clip is, in words and numbers: the JSON member."""

    person: str
    scene: str
    sentence: str
    text: str  # the prompt: what is seen, never how the person moves
    num_frames: Annotated[int, Within(0, MAX_FRAMES)]
    height: int  # 0, like the width: the clip has motion and sound alone
    width: int
    licence: str  # SPDX name, or the user's own words
    consent: str  # how the person shown agreed; "synthetic" where nobody is shown
    source: str  # the file or generator the clip came from
    transcript: str = ""  # the words spoken, where known
    motion_known: tuple[str, ...] = MOTION_NAMES  # the other components are 0, and no target
    habits_known: tuple[str, ...] = MOTION_NAMES  # in the others the person counts as average
    vae_hash: str | None = None  # of the VAE that made the latents
    low_factor: Annotated[float, Within(1, 8)] | None = None  # of LOW; None: none, or twice
    text_hash: str | None = None  # of the encoder that encoded the caption
    frame_rate_hz: int = FRAME_RATE_HZ
    sample_rate_hz: int = SAMPLE_RATE_HZ
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Sample:
    """One decoded clip, unbatched, in stored precision. ``video`` or ``latents`` may be None."""

    key: str
    meta: Meta
    audio: Int16[Tensor, " s"]
    motion: Float[Tensor, "f m"]
    face_box: Float[Tensor, "f 4"]
    mouth_box: Float[Tensor, "f 4"]
    landmarks: Float[Tensor, "f k 2"]
    valid: Bool[Tensor, " f"]
    phonemes: Int[Tensor, " f"]
    video: UInt8[Tensor, "f 3 h w"] | None = None
    close_ups: UInt8[Tensor, "n 3 ch cw"] | None = None  # the face, sharper than in the video
    close_up_frames: Int[Tensor, " n"] | None = None  # with close_ups
    latents: Float16[Tensor, "l c lh lw"] | None = None
    faces: Float16[Tensor, "n c fh fw"] | None = None  # close-ups, each encoded alone
    face_frames: Int[Tensor, " n"] | None = None  # which frame each face is from; with faces
    stills: Float16[Tensor, "q c lh lw"] | None = None  # whole frames, each encoded alone
    still_frames: Int[Tensor, " q"] | None = None  # with stills
    low: Float16[Tensor, "l c lh lw"] | None = None  # enlarged from a smaller size; with latents
    text_states: Float[Tensor, "n d"] | None = None  # the caption, encoded
    heard: Int16[Tensor, " s"] | None = None  # whom the person listens to


def to_int16(audio: Float[Tensor, " s"]) -> Int16[Tensor, " s"]:
    """±1 floats to 16-bit integers; what lies outside is clipped."""
    return (audio.clamp(-1, 1) * 32767).round().to(torch.int16)


def to_float(audio: Int16[Tensor, "*b s"]) -> Float[Tensor, "*b s"]:
    """Inverse of ``to_int16``."""
    return audio.to(torch.float32) / 32767


def encode_sample(sample: Sample, *, raw: bool = False) -> dict[str, bytes]:
    """Tar members of a clip, by extension; ``raw``: sound and video uncompressed. ValueError if its
    parts contradict each other."""
    check_sample(sample)
    track = {
        "face_box": sample.face_box.float().numpy(),
        "mouth_box": sample.mouth_box.float().numpy(),
        "landmarks": sample.landmarks.float().numpy(),
        "valid": sample.valid.numpy(),
        "phonemes": sample.phonemes.to(torch.int16).numpy(),
    }
    members = {
        FACE: encode_arrays(track),
        META: encode_meta(sample.meta),
        MOTION: encode_array(sample.motion.float().numpy()),
    }
    if raw:
        members[RAW_AUDIO] = encode_array(sample.audio.numpy())
        if sample.heard is not None:
            members[RAW_HEARD] = encode_array(sample.heard.numpy())
        if sample.video is not None:
            members[RAW_VIDEO] = encode_array(sample.video.numpy())
    else:
        from avatar_v.media import reading  # PyAV, which raw clips do without
        from avatar_v.shards import codecs

        members[AUDIO] = codecs.encode_flac(sample.audio, sample.meta.sample_rate_hz)
        if sample.heard is not None:
            members[HEARD] = codecs.encode_flac(sample.heard, sample.meta.sample_rate_hz)
        if sample.video is not None:
            members[VIDEO] = reading.encode_video_bytes(
                sample.video, frame_rate_hz=sample.meta.frame_rate_hz
            )
    if sample.close_ups is not None and sample.close_up_frames is not None:
        frames = sample.close_up_frames.to(torch.int32).numpy()
        members[CLOSE_UPS] = encode_arrays({"pictures": sample.close_ups.numpy(), "frames": frames})
    if sample.latents is not None:
        members[LATENTS] = encode_array(sample.latents.numpy())
    if sample.faces is not None and sample.face_frames is not None:
        members[FACES] = encode_pictures(sample.faces, sample.face_frames)
    if sample.stills is not None and sample.still_frames is not None:
        members[STILLS] = encode_pictures(sample.stills, sample.still_frames)
    if sample.low is not None:
        members[LOW] = encode_array(sample.low.numpy())
    if sample.text_states is not None:
        members[TEXT] = encode_array(sample.text_states.numpy())
    return members


def decode_sample(
    key: str, members: dict[str, bytes], *, where: str, decode_video: bool = True
) -> Sample:
    """A clip from its members. ``where`` (the shard's path) and the key go into every ValueError.

    ``decode_video=False`` leaves ``video`` None even where the member is given.
    """
    name = f"{where}, clip {key}"
    needed = (RAW_AUDIO if RAW_AUDIO in members else AUDIO, FACE, META, MOTION)
    missing = [member for member in needed if member not in members]
    if missing:
        raise ValueError(f"{name}: the clip lacks {', '.join(missing)}")
    meta = decode_meta(members[META], name)
    track = load_arrays(members[FACE], f"{name}.{FACE}")
    audio, heard = _decode_sounds(members, meta, name)
    video = _decode_video(members, meta, name) if decode_video else None
    close_ups, close_up_frames = None, None
    if decode_video and CLOSE_UPS in members:
        close_ups, close_up_frames = _decode_close_ups(members[CLOSE_UPS], f"{name}.{CLOSE_UPS}")
    latents, low, text_states = (
        load_arrays(members[member], f"{name}.{member}") if member in members else None
        for member in (LATENTS, LOW, TEXT)
    )
    (faces, face_frames), (stills, still_frames) = (
        decode_pictures(members[member], f"{name}.{member}") if member in members else (None, None)
        for member in (FACES, STILLS)
    )
    try:
        sample = Sample(
            key=key,
            meta=meta,
            audio=audio,
            motion=torch.from_numpy(load_arrays(members[MOTION], f"{name}.{MOTION}")),
            face_box=torch.from_numpy(track["face_box"]),
            mouth_box=torch.from_numpy(track["mouth_box"]),
            landmarks=torch.from_numpy(track["landmarks"]),
            valid=torch.from_numpy(track["valid"]),
            phonemes=torch.from_numpy(track["phonemes"]),
            video=video,
            close_ups=close_ups,
            close_up_frames=close_up_frames,
            latents=None if latents is None else torch.from_numpy(latents),
            faces=faces,
            face_frames=face_frames,
            stills=stills,
            still_frames=still_frames,
            low=None if low is None else torch.from_numpy(low),
            text_states=None if text_states is None else torch.from_numpy(text_states),
            heard=heard,
        )
        check_sample(sample, needs_picture=decode_video)
    except (KeyError, TypeError, ValueError) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name}: {error}") from error
    return sample


def decode_motion(
    key: str, members: dict[str, bytes], *, where: str
) -> tuple[Meta, Float[Tensor, "f m"], Bool[Tensor, " f"]]:
    """Of a clip what it is, its motion and which frames show a face, from its members META, MOTION
    and FACE. Errors as in `decode_sample`."""
    name = f"{where}, clip {key}"
    meta = decode_meta(members[META], name)
    motion, track = (load_arrays(members[member], f"{name}.{member}") for member in (MOTION, FACE))
    try:
        motion, valid = torch.from_numpy(motion), torch.from_numpy(track["valid"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    expected = (meta.num_frames, len(MOTION_NAMES))
    if tuple(motion.shape) != expected or tuple(valid.shape) != expected[:1]:
        shapes = f"{tuple(motion.shape)} and {tuple(valid.shape)}"
        raise ValueError(f"{name}: motion and validity are {shapes}, expected {expected}")
    return meta, motion, valid


def encode_pictures(latents: Float16[Tensor, "k c lh lw"], frames: Int[Tensor, " k"]) -> bytes:
    """The member of close-ups or stills."""
    return encode_arrays({"latents": latents.numpy(), "frames": frames.to(torch.int32).numpy()})


def decode_pictures(
    data: bytes, name: str
) -> tuple[Float16[Tensor, "k c lh lw"], Int[Tensor, " k"]]:
    """Pictures and the frames they show; ValueError if the member ``name`` is damaged."""
    loaded = load_arrays(data, name)
    try:
        return torch.from_numpy(loaded["latents"]), torch.from_numpy(loaded["frames"])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: expected arrays latents and frames ({error})") from error


def _decode_close_ups(
    data: bytes, name: str
) -> tuple[UInt8[Tensor, "n 3 ch cw"], Int[Tensor, " n"]]:
    loaded = load_arrays(data, name)
    try:
        return torch.from_numpy(loaded["pictures"]), torch.from_numpy(loaded["frames"])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: expected arrays pictures and frames ({error})") from error


def encode_meta(meta: Meta) -> bytes:
    """The JSON member."""
    return json.dumps(dataclasses.asdict(meta), sort_keys=True).encode()


def decode_meta(data: bytes, name: str) -> Meta:
    """The JSON member; ValueError for another schema version, and for missing or unknown fields."""
    try:
        fields = parse_json(data, where=name)
        version = fields["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: the json member is damaged ({error!r})") from error
    if version != SCHEMA_VERSION:
        raise ValueError(f"{name}: schema version {version}, this code reads {SCHEMA_VERSION}")
    habits = fields.get("motion_known")  # shards of before have one list
    return built(Meta, {"habits_known": habits, **fields}, where=name, sparse=True)


def check_sample(sample: Sample, *, needs_picture: bool = True) -> None:
    """Lengths and sizes agree with Meta; ValueError says which does not."""
    frames, meta = sample.meta.num_frames, sample.meta
    if "." in sample.key or "/" in sample.key or not sample.key:
        raise ValueError(f"key {sample.key!r}: expected a name without '.' and '/'")
    needs_picture = needs_picture and meta.height > 0
    if needs_picture and sample.video is None and sample.latents is None:
        raise ValueError(f"{sample.key}: neither video nor latents")
    checked_rate(meta.frame_rate_hz)
    if meta.sample_rate_hz != SAMPLES_PER_FRAME * meta.frame_rate_hz:
        raise ValueError(
            f"{sample.key}: {meta.sample_rate_hz} Hz beside {meta.frame_rate_hz} frames a second, "
            f"expected {SAMPLES_PER_FRAME} samples a frame"
        )
    expected = {
        "audio": (frames * SAMPLES_PER_FRAME,),
        "motion": (frames, len(MOTION_NAMES)),
        "face_box": (frames, 4),
        "mouth_box": (frames, 4),
        "landmarks": (frames, *sample.landmarks.shape[1:2], 2),
        "valid": (frames,),
        "phonemes": (frames,),
    }
    found = {name: tuple(getattr(sample, name).shape) for name in expected}
    for name, pictures, shown in (
        ("close_ups", sample.close_ups, sample.close_up_frames),
        ("faces", sample.faces, sample.face_frames),
        ("stills", sample.stills, sample.still_frames),
    ):
        if pictures is not None:
            _check_pictures(sample, name, pictures, shown)
    if sample.low is not None and sample.latents is not None:
        expected["low"], found["low"] = tuple(sample.latents.shape), tuple(sample.low.shape)
    text = sample.text_states
    if text is not None and (text.dim() != 2 or not text.is_floating_point()):
        kind = f"{text.dtype} of {tuple(text.shape)}"
        raise ValueError(f"{sample.key}: its caption is encoded as {kind}, expected tokens x width")
    if sample.heard is not None:
        expected["heard"], found["heard"] = expected["audio"], tuple(sample.heard.shape)
    if sample.video is not None:
        expected["video"] = (frames, 3, meta.height, meta.width)
        found["video"] = tuple(sample.video.shape)
    for name, shape in expected.items():
        if found[name] != shape:
            raise ValueError(f"{sample.key}: {name} has shape {found[name]}, expected {shape}")


def _check_pictures(sample: Sample, name: str, pictures: Tensor, frames: Tensor | None) -> None:
    """Encoded pictures have the size of the latents, and each picture says which frame it shows."""
    latents = sample.latents
    if name != "close_ups" and latents is not None and pictures.shape[1:] != latents.shape[1:]:
        sizes = f"{tuple(pictures.shape[1:])}, its latents of {tuple(latents.shape[1:])}"
        raise ValueError(f"{sample.key}: {name} of {sizes}")
    if frames is None or len(frames) != len(pictures):
        count = None if frames is None else len(frames)
        raise ValueError(f"{sample.key}: {len(pictures)} {name} with {count} frame numbers")
    if name == "stills" and not bool(((frames >= 0) & (frames < sample.meta.num_frames)).all()):
        where = f"{sample.meta.num_frames} frames"
        raise ValueError(f"{sample.key}: stills of frames {frames.tolist()}, the clip has {where}")


def _decode_sounds(
    members: dict[str, bytes], meta: Meta, name: str
) -> tuple[Int16[Tensor, " s"], Int16[Tensor, " t"] | None]:
    """What the person says, and what the person hears, from the members that there are."""

    def decoded(raw: str, flac: str) -> Int16[Tensor, " n"] | None:
        if raw in members:
            return load_tensor(members[raw], np.int16, 1, f"{name}.{raw}")
        if flac not in members:
            return None
        from avatar_v.shards import codecs

        return codecs.decode_flac(members[flac], f"{name}.{flac}", meta.num_frames)

    audio = decoded(RAW_AUDIO, AUDIO)
    assert audio is not None, "decode_sample has looked"
    return audio, decoded(RAW_HEARD, HEARD)


def _decode_video(
    members: dict[str, bytes], meta: Meta, name: str
) -> UInt8[Tensor, "f 3 h w"] | None:
    if RAW_VIDEO in members:
        return load_tensor(members[RAW_VIDEO], np.uint8, 4, f"{name}.{RAW_VIDEO}")
    if VIDEO not in members:
        return None
    from avatar_v.media import reading

    return reading.decode_video_bytes(members[VIDEO], f"{name}.{VIDEO}", most=meta.num_frames)
