"""How far an encoder of sound by windows is from the same encoder over the whole recording.

For each length of windows and look-ahead: the root mean square of the difference of features, as a
share of that of the features about their mean; all layers weigh the same, as before training. And
the time of the encoder for a second of sound, which windows encode many times. The sounds are
sentences of TEST persons, or the files of ``--audio``, each cut to ``--seconds``.

Without ``--encoder`` it is wav2vec 2.0 with random weights and the layers of the base model, some
of them narrower: it shows that windows go over to the whole recording, not how fast those of
trained weights do. For them: ``--encoder weights/wav2vec2-base-960h``.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.media.reading import read_audio
from avatar_v.media.sound import prepared
from avatar_v.models.audio import HiddenStateAudioEncoder
from avatar_v.models.base import hash_folder
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, TEMPORAL_FACTOR
from avatar_v_eval.cases import drawn_clips
from avatar_v_eval.intervals import mean_interval, median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(precision="fp32")
    add = parser.add_argument
    add("--encoder", type=Path, help="folder of transformers (default: random weights)")
    add("--audio", type=Path, nargs="+", help="files of speech (default: sentences of the world)")
    add("--persons", type=int, default=4, help="of the world, where no files are given")
    add("--seconds", type=float, default=6.0, help="of each sound")
    add("--windows", type=int, nargs="+", default=[6, 12, 24], help="latents, the last its own")
    add("--look-aheads", type=int, nargs="+", default=[0, 1, 2], help="latents")


def measure(options: argparse.Namespace) -> Findings:
    torch.set_num_threads(1)
    num_sounds = options.persons if options.audio is None else len(options.audio)
    checks.count("--persons" if options.audio is None else "--audio", num_sounds, least=2)
    checks.number("--seconds", options.seconds, least=1, most=30)
    for window in options.windows:
        checks.count("--windows", window)
    for ahead in options.look_aheads:
        checks.number("--look-aheads", ahead, least=0, most=16)
    latents = int(options.seconds * FRAME_RATE_HZ) // TEMPORAL_FACTOR
    num_frames = TEMPORAL_FACTOR * latents + 1
    with tempfile.TemporaryDirectory() as made:
        folder = options.encoder or random_wav2vec2(Path(made))
        encoder, weights = HiddenStateAudioEncoder(folder), hash_folder(folder)
    for window, ahead in itertools.product(options.windows, options.look_aheads):
        encoder.hear(ahead, window)  # refuses what it cannot hear, before anything is encoded
    sounds = read_sounds(options, num_frames)
    numbers: dict[str, Number] = {}
    encoder.look_ahead = None
    whole, numbers["cost_whole"] = encoded(encoder, sounds, "the whole recording")
    for window, ahead in itertools.product(options.windows, options.look_aheads):
        encoder.hear(ahead, window)
        words = f"windows of {window} latents, {ahead} ahead"
        found, cost = encoded(encoder, sounds, words)
        errors = np.array([distance(a, b) for a, b in zip(found, whole, strict=True)])
        key = f"w{window}_a{ahead}"
        numbers[f"error_{key}"] = mean_interval(errors).described(
            f"difference of features: {words}"
        )
        numbers[f"cost_{key}"] = cost
    kind = "random weights" if options.encoder is None else options.encoder.name
    return Findings(
        f"Sound by windows against whole recordings, {encoder.kind}, {kind}",
        numbers,
        weights={"encoder": weights},
        notes=[
            f"{len(sounds)} sounds of {num_frames / FRAME_RATE_HZ:.2f} s; n counts them",
            f"a latent is {TEMPORAL_FACTOR / FRAME_RATE_HZ} s; two frames more are heard behind it",
        ],
    )


def random_wav2vec2(folder: Path) -> Path:
    """wav2vec 2.0 base with random weights, in ``folder``; its layers are a quarter as wide."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    torch.manual_seed(0)
    config = Wav2Vec2Config(
        hidden_size=192, num_attention_heads=12, intermediate_size=768, conv_dim=(128,) * 7
    )
    Wav2Vec2Model(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


def read_sounds(options: argparse.Namespace, num_frames: int) -> list[Float[Tensor, "1 s"]]:
    """As models take it. ValueError for a file that is too short."""
    size = num_frames * SAMPLES_PER_FRAME
    if options.audio is None:
        clips = drawn_clips("test", options.persons, num_frames=num_frames, video=False)
        return [prepared(clip.audio)[None] for clip in clips]
    sounds = [read_audio(path)[:size] for path in options.audio]
    for path, sound in zip(options.audio, sounds, strict=True):
        if len(sound) < size:
            raise ValueError(f"{path} has {len(sound) / SAMPLE_RATE_HZ:.1f} s, give --seconds less")
    return [prepared(sound)[None] for sound in sounds]


@torch.inference_mode()
def encoded(
    encoder: HiddenStateAudioEncoder, sounds: list[Float[Tensor, "1 s"]], words: str
) -> tuple[list[Tensor], Number]:
    """The features of each sound, and the processor time of a second of sound."""
    found, times = [], []
    for sound in sounds:
        begin = time.process_time()
        found.append(encoder(sound)[0])
        times.append((time.process_time() - begin) * SAMPLE_RATE_HZ / sound.shape[1])
    label = f"processor time of the encoder for a second of sound: {words}"
    return found, median_of_repeats(times).described(label, unit="s")


def distance(found: Float[Tensor, "f d"], whole: Float[Tensor, "f d"]) -> float:
    """Root mean square of the difference, as a share of that of ``whole`` about its mean."""
    spread = (whole - whole.mean(0)).square().mean().sqrt()
    return float((found - whole).square().mean().sqrt() / spread)
