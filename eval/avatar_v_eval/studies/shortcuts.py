"""Shortcuts on the world: the mouth from loudness alone, identity from mean colour, style from one
frame; beside each the full signal.

A claim shown on the world counts only where the shortcut fails. The readers are small networks and
ridge regressions, fitted on TRAIN persons, scored on TEST persons and thrown away; nothing here is
a model of the product.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.models.audio import log_mel, mel_filters
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.lexicon import PHONEMES
from avatar_v.world.person import sample_person
from avatar_v.world.render import Rendered, render
from avatar_v.world.scene import sample_scene
from avatar_v.world.splits import persons, scenes
from avatar_v.world.style import STYLE_NAMES, sample_style, style_vector
from avatar_v_eval.cases import drawn_clips
from avatar_v_eval.intervals import jackknife, mean_of, pearson, rate
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

NUM_FRAMES = 101
NUM_FRAMES_LONG = 501  # 20 s of motion, to read a style from
SIZE = 64
_CONTEXT = 4  # frames on each side


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="world_shortcuts")
    parser.add_argument("--train", type=int, default=300, help="persons to fit the readers on")
    parser.add_argument("--test", type=int, default=64, help="persons to score them on")


def measure(options: argparse.Namespace) -> Findings:
    return Findings(
        "How far shortcuts get on the world",
        mouth_numbers(options.train, options.test)
        | identity_numbers(options.test)
        | style_numbers(options.train, options.test),
        notes=[
            f"fitted on {options.train} TRAIN persons, scored on {options.test} TEST persons",
            f"{NUM_FRAMES} frames of speech a person; intervals over persons",
            "r pools all frames of all persons; amplitude is personal and not in the sound",
        ],
    )


def mouth_numbers(num_train: int, num_test: int) -> dict[str, Number]:
    """Mouth opening and phonemes from sound: loudness of 1 frame, of 9 frames, all of log-mel."""
    train = drawn_clips("train", num_train, num_frames=NUM_FRAMES, video=False)
    test = drawn_clips("test", num_test, num_frames=NUM_FRAMES, video=False)
    truth = opening(test)
    numbers = {}
    predictions = {
        "loudness_frame": ("mouth from one frame's loudness", loudness(test)[..., _CONTEXT]),
        "loudness_window": ("mouth from 9 frames of loudness", _read(loudness, train, test, 64)),
        "log_mel": ("mouth from 9 frames of log-mel, for comparison", _read(mel, train, test, 256)),
    }
    for key, (label, predicted) in predictions.items():
        pooled = _pooled_r(predicted.double().numpy(), truth.double().numpy())
        numbers[f"mouth_{key}"] = pooled.described(f"{label}: r")
    spoken = torch.stack([clip.phonemes for clip in test])
    known = torch.stack([clip.phonemes for clip in train])
    said = _fit(mel(train), known, mel(test), 256, len(PHONEMES)).argmax(-1)
    right = (said == spoken).double().mean(dim=1).numpy()
    most = int(known.flatten().bincount().argmax())
    majority = (spoken == most).double().mean(dim=1).numpy()
    numbers["phonemes"] = mean_of(right).described("phoneme of a frame from log-mel: right")
    numbers["phonemes_majority"] = mean_of(majority).described("the most frequent phoneme")
    return numbers


def identity_numbers(num_test: int) -> dict[str, Number]:
    """Finding a person among all in another scene by mean colour, of the picture or the face."""
    ids, places = persons("test", num_test), scenes("test", 2 * num_test)
    here = [one_frame(i, places[k], i) for k, i in enumerate(ids)]
    there = [one_frame(i, places[num_test + k], i + num_test) for k, i in enumerate(ids)]
    numbers = {}
    for key, label, look in (
        ("identity_picture", "mean colour of the picture", mean_color),
        ("identity_face", "mean colour of the face box", mean_face_color),
    ):
        query, gallery = (torch.stack([look(r) for r in frames]) for frames in (here, there))
        distance = torch.cdist(query, gallery)
        own = distance.diagonal()
        right = int((distance.argmin(dim=1) == torch.arange(num_test)).sum())
        nearer = (own[:, None] < distance).double().sum(dim=1) / (num_test - 1)
        numbers[key] = rate(right, num_test).described(
            f"{label} finds the person in another scene, of {num_test}"
        )
        pairs = mean_of(nearer.numpy())
        numbers[f"{key}_pairs"] = pairs.described(f"{label}, against one other person")
    return numbers


def style_numbers(num_train: int, num_test: int) -> dict[str, Number]:
    """R² of all habits from one frame's pixels, one frame's motion, and 20 s of motion."""
    know, ask = persons("train", num_train), persons("test", num_test)
    train, test = (
        torch.from_numpy(np.stack([style_vector(sample_style(i)) for i in ids]))
        for ids in (know, ask)
    )
    numbers = {}
    for key, label, read in (
        ("style_pixels", "style from the pixels of one frame", _pixels),
        ("style_frame", "style from the true motion of one frame", _frame_motion),
        ("style_track", "style from 20 s of true motion, for comparison", _motion_statistics),
    ):
        predicted = ridge(_stack(read, know), train, _stack(read, ask))
        numbers[key] = _r2(predicted, test).described(f"{label}: mean R² of {len(STYLE_NAMES)}")
    return numbers


def opening(clips: list[WorldClip]) -> Float[Tensor, "n f"]:
    return torch.stack([clip.motion[:, MOTION_NAMES.index("mouth_open")] for clip in clips])


def loudness(clips: list[WorldClip]) -> Float[Tensor, "n f window"]:
    """Log power of each video frame with its neighbours."""
    audio = torch.stack([clip.audio for clip in clips])
    power = audio.unfold(-1, SAMPLES_PER_FRAME, SAMPLES_PER_FRAME).square().mean(dim=-1)
    return _windows((power + 1e-7).log()[..., None])


def mel(clips: list[WorldClip]) -> Float[Tensor, "n f window"]:
    """40 log-mel bands, four spectra a frame, with the neighbours of each frame."""
    filters = mel_filters(40)
    spectra = torch.cat([log_mel(clip.audio[None], filters) for clip in clips])
    return _windows(spectra.unflatten(1, (-1, 4)).flatten(2))


def one_frame(person_id: int, scene_id: int, speech_id: int) -> Rendered:
    """A random frame of the clip of these ids."""
    moving = make_clip(
        person_id, scene_id, speech_id, num_frames=NUM_FRAMES, size=SIZE, render_video=False
    )
    at = moving.seed % NUM_FRAMES
    frame = moving.motion[at : at + 1]
    person, scene = sample_person(person_id), sample_scene(scene_id)
    return render(person, scene, frame, size=SIZE, seed=moving.seed)


def mean_color(frame: Rendered) -> Float[Tensor, "3"]:
    return frame.video[0].float().mean(dim=(1, 2)) / 255


def mean_face_color(frame: Rendered) -> Float[Tensor, "3"]:
    x0, y0, x1, y1 = (frame.face_box[0] * SIZE).round().clamp(0, SIZE).int().tolist()
    face = frame.video[0, :, y0:y1, x0:x1]
    return face.float().mean(dim=(1, 2)) / 255 if face.numel() else mean_color(frame)


def ridge(
    x: Float[Tensor, "n d"], y: Float[Tensor, "n k"], asked: Float[Tensor, "q d"]
) -> Float[Tensor, "q k"]:
    """Ridge regression; the penalty is the best of five on a fifth of the given rows held out."""
    mean, std = x.mean(dim=0), x.std(dim=0) + 1e-4
    x, asked = (x - mean) / std, (asked - mean) / std
    held = torch.arange(len(x)) % 5 == 0

    def solve(x: Tensor, y: Tensor, asked: Tensor, penalty: float) -> Tensor:
        center = y.mean(dim=0)
        kernel = x @ x.T + penalty * len(x) * torch.eye(len(x))
        return asked @ x.T @ torch.linalg.solve(kernel, y - center) + center

    def error(penalty: float) -> float:
        return float((solve(x[~held], y[~held], x[held], penalty) - y[held]).square().mean())

    return solve(x, y, asked, min((0.01, 0.1, 1.0, 10.0, 100.0), key=error))


def _windows(values: Float[Tensor, "n f d"]) -> Float[Tensor, "n f window"]:
    padded = F.pad(values.transpose(1, 2), (_CONTEXT, _CONTEXT), mode="replicate")
    return padded.unfold(-1, 2 * _CONTEXT + 1, 1).permute(0, 2, 1, 3).flatten(2)


def _read(features, train: list[WorldClip], test: list[WorldClip], width: int) -> Tensor:
    return _fit(features(train), opening(train), features(test), width, 1)[..., 0]


def _fit(x: Tensor, y: Tensor, asked: Tensor, width: int, num_out: int) -> Tensor:
    """A small network, fitted for eight passes: squared error, or cross entropy for classes."""
    generator = torch.Generator().manual_seed(0)
    mean, std = x.flatten(0, 1).mean(dim=0), x.flatten(0, 1).std(dim=0) + 1e-3
    rows, targets = ((x - mean) / std).flatten(0, 1), y.flatten()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Linear(rows.shape[1], width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, num_out),
        )
    criterion = F.cross_entropy if y.dtype == torch.int64 else F.mse_loss
    num_steps = 8 * (len(rows) // 256)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, num_steps)
    for _ in range(num_steps):
        some = torch.randint(0, len(rows), (256,), generator=generator)
        out = net(rows[some])
        loss = criterion(out if num_out > 1 else out[:, 0], targets[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return net((asked - mean) / std)


def _stack(read, ids: list[int]) -> Float[Tensor, "n d"]:
    return torch.stack([read(i) for i in ids])


def _pixels(person_id: int) -> Float[Tensor, "d"]:
    frame = one_frame(person_id, person_id, person_id).video.float() / 255
    return F.avg_pool2d(frame, 4).flatten()


def _frame_motion(person_id: int) -> Float[Tensor, "d"]:
    clip = _moving(person_id, NUM_FRAMES)
    frame = clip.motion[clip.seed % NUM_FRAMES]
    return torch.cat([frame, frame.abs(), frame.square()])


def _motion_statistics(person_id: int) -> Float[Tensor, "d"]:
    motion = _moving(person_id, NUM_FRAMES_LONG).motion
    speed = motion.diff(dim=0)
    parts = (motion.mean(dim=0), motion.std(dim=0), speed.std(dim=0), motion.abs().amax(dim=0))
    return torch.cat([*parts, motion.quantile(0.9, dim=0)])


def _moving(person_id: int, num_frames: int) -> WorldClip:
    ids = (person_id, person_id, person_id)
    return make_clip(*ids, num_frames=num_frames, size=SIZE, render_video=False)


def _pooled_r(predicted: Float[np.ndarray, "n f"], truth: Float[np.ndarray, "n f"]) -> Number:
    def r(index: np.ndarray) -> float:
        return pearson(predicted[index].ravel(), truth[index].ravel())

    return jackknife(r, len(truth))


def _r2(predicted: Float[Tensor, "n k"], truth: Float[Tensor, "n k"]) -> Number:
    wrong = (predicted - truth).double().square().numpy()
    spread = truth.double().numpy()

    def r2(index: np.ndarray) -> float:
        around = np.square(spread[index] - spread[index].mean(axis=0)).sum(axis=0)
        return float(np.mean(1 - wrong[index].sum(axis=0) / around))

    return jackknife(r2, len(truth))
