"""`generate --refiner`: a stream of chunks refined as the whole video would be, and its files."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v import cli
from avatar_v.generate import refine as refine_module
from avatar_v.generate.generator import LatentChunk
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.refine import TrainedRefiner, refine_chunks
from avatar_v.generate.run import run
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.person import EncodedPerson
from avatar_v.media.reading import read_video
from avatar_v.models.refiner import as_refiner
from avatar_v.models.vae import VideoVAE
from avatar_v.request.output_files import kept_folder, num_kept
from avatar_v.request.request import LIVE, Request, Weights
from avatar_v.weights.average import replace_decoder
from avatar_v.weights.card import Capabilities, Card, read_card
from avatar_v.weights.weights import load_pipeline, save_pipeline
from generating import carry_out, sound
from page_desk import desk_of, form_of, made
from random_models import make_reference, randomise

# fp32: rotary positions count from the start of a pass, so angles of the same difference are
# rounded elsewhere; values are of order 1.
TOLERANCE = 1e-4
CHUNKS = (5, 3, 3, 2)
"""New latents of each chunk; the last frames of the last one are cut."""


@pytest.fixture(scope="module")
def refiner_folder(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dit, conditioner = load_pipeline(weights)
    dit = as_refiner(dit, sigma=0.6, temporal_window=1)
    with torch.no_grad():
        randomise(dit)
    folder = tmp_path_factory.mktemp("refiner") / "tiny"
    save_pipeline(
        folder, dit, conditioner, Card("tiny", can=Capabilities(reference=True, motion=True))
    )
    return folder


@pytest.fixture(scope="module")
def refiner(refiner_folder: Path, weights: Path) -> TrainedRefiner:
    return TrainedRefiner.from_pretrained(refiner_folder, load_pipeline(weights)[1])


def chunks(refiner: TrainedRefiner, sizes: tuple[int, ...] = CHUNKS) -> list[LatentChunk]:
    config, draw = refiner.dit.config, torch.Generator().manual_seed(1)
    parts = []
    for index, size in enumerate(sizes):
        frames = 4 * size - 3 * (index == 0) - 2 * (index == len(sizes) - 1)
        tokens = (1, size, config.num_audio_tokens, config.audio_dim)
        parts.append(
            LatentChunk(
                torch.randn(1, size, 16, 4, 4, generator=draw),
                torch.randn(640 * frames, generator=draw),
                frames,
                index,
                torch.randn(tokens, generator=draw),
                torch.randn(1, size, config.motion_dim, generator=draw),
            )
        )
    return parts


def refined(
    refiner: TrainedRefiner, parts: list[LatentChunk], seed: int = 0, **how
) -> list[LatentChunk]:
    person = how.pop("person", EncodedPerson(torch.zeros(3, 64, 64)))
    return list(refine_chunks(refiner, person, "a room", iter(parts), seed=seed, **how))


def latents(parts: list[LatentChunk]) -> Tensor:
    return torch.cat([part.latents for part in parts], dim=1)


def test_a_stream_equals_one_pass_over_the_whole(refiner: TrainedRefiner) -> None:
    """With the reach of all layers as context, and no reference (whose distance is that to the
    start of a pass)."""
    parts = chunks(refiner)
    reach = refiner.dit.config.num_layers * 1
    streamed, whole = refined(refiner, parts, context=reach), refined(refiner, parts, context=99)
    assert len(whole) == 1
    assert len(streamed) == len(CHUNKS) + 1
    assert latents(whole).shape == (1, sum(CHUNKS), 16, 8, 8)
    torch.testing.assert_close(latents(streamed), latents(whole), atol=TOLERANCE, rtol=TOLERANCE)
    less = refined(refiner, parts, context=0)
    assert (latents(less) - latents(whole)).abs().max() > 1e-3, "borders do not matter: blind"


@pytest.mark.parametrize("context", [0, 2, 99])
def test_every_frame_has_its_sound(refiner: TrainedRefiner, context: int) -> None:
    parts = chunks(refiner)
    made = refined(refiner, parts, context=context)
    assert sum(p.num_frames for p in made) == sum(p.num_frames for p in parts)
    sound = torch.cat([p.sound for p in made])
    assert torch.equal(sound, torch.cat([p.sound for p in parts]))
    assert all(len(p.sound) == 640 * p.num_frames for p in made)
    first, *rest = [(p.latents.shape[1], p.num_frames) for p in made]
    assert first[1] == 4 * first[0] - 3 or context == 99
    assert all(frames == 4 * num for num, frames in rest[:-1])


def test_memory_is_that_of_a_chunk(
    refiner: TrainedRefiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, original = [], refine_module.predict_tiled

    def spy(dit, x_t, *args, **kwargs):
        lengths.append(x_t.shape[1])
        return original(dit, x_t, *args, **kwargs)

    monkeypatch.setattr(refine_module, "predict_tiled", spy)
    refined(refiner, chunks(refiner, (5, *[3] * 8)), context=2)
    assert set(lengths[1:-1]) == {2 + 3 + 2}
    assert max(lengths) <= 3 + 2 * 2


def test_noise_is_of_the_seed_and_the_chunk(refiner: TrainedRefiner) -> None:
    parts = chunks(refiner)
    one, again, other = (latents(refined(refiner, parts, seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert (one - other).abs().max() > 1e-3
    shorter = refined(refiner, parts[:2])
    # all but what waits for the next chunk, and what sees it, is known before it comes
    assert torch.equal(shorter[0].latents, refined(refiner, parts)[0].latents)


def test_it_reads_reference_sound_and_motion(refiner: TrainedRefiner) -> None:
    parts, config = chunks(refiner), refiner.dit.config
    plain = latents(refined(refiner, parts))
    valid = torch.ones(1, 3, dtype=torch.bool)
    reference = make_reference(config, valid, size=8, has_motion=True)
    person = EncodedPerson(torch.zeros(3, 64, 64), reference)
    assert (latents(refined(refiner, parts, person=person)) - plain).abs().max() > 1e-3
    for name in ("refiner_audio", "motion"):
        less = [dataclasses.replace(part, **{name: None}) for part in parts]
        assert (latents(refined(refiner, less)) - plain).abs().max() > 1e-3
    with pytest.raises(ValueError, match="context"):
        refined(refiner, parts, context=-1)


def test_a_decoder_of_its_own_decodes_what_it_refined_and_nothing_else(
    refiner: TrainedRefiner, refiner_folder: Path, weights: Path, request_: Request, tmp_path: Path
) -> None:
    tuned = VideoVAE.from_pretrained(weights / "vae")
    with torch.no_grad():
        tuned.core.decoder.conv_in.weight.mul_(1.5)
    tuned.save_pretrained(tmp_path / "tuned")
    replace_decoder(refiner_folder, tmp_path / "tuned", tmp_path / "own")
    own = TrainedRefiner.from_pretrained(tmp_path / "own", load_pipeline(weights)[1])
    same = [latents(refined(r, chunks(r))) for r in (refiner, own)]
    assert torch.equal(*same)  # what is to be refined is decoded by the generator's
    videos = []
    for folder in (refiner_folder, tmp_path / "own"):
        frames: list[Tensor] = []
        out = request_.changed(out=str(tmp_path / f"{folder.name}.mp4"))
        carry_out(out, weights=weights, refiner=folder, device="cpu", on_frames=frames.append)
        videos.append(torch.cat(frames))
    assert not torch.equal(*videos)


# --- files ---


def test_a_live_sound_is_refined_as_its_file(
    request_: Request, weights: Path, refiner_folder: Path
) -> None:
    pipe = AvatarPipeline(
        *load_pipeline(weights), read_card(weights),
        device="cpu", precision="fp32", refiner=refiner_folder,
    )  # fmt: skip
    request = request_.changed(gain_db=0.0)
    speech = sound(20)
    file = read_inputs(request, pipe.input_spec(request))
    file = dataclasses.replace(file, audio=speech, num_frames=20)
    live = LiveSound(iter(speech.split(640)))
    heard = read_inputs(request.changed(audio=LIVE), pipe.input_spec(request), live)
    made = [torch.cat(list(pipe.stream(inputs, request))) for inputs in (file, heard)]
    assert made[0].shape[-1] == 2 * pipe.format.video.width
    assert torch.equal(*made)


def test_command_line(request_: Request, weights: Path, refiner_folder: Path) -> None:
    words = ["generate", "--reference", request_.person.reference, "--audio", request_.person.audio]
    words += ["--weights", str(weights), "--steps", "2", "--no-face-crop", "--device", "cpu"]
    plain = str(Path(request_.output.out).with_name("plain.mp4"))
    assert cli.main([*words, "--out", plain]) == 0
    assert cli.main([*words, "--out", request_.output.out, "--refiner", str(refiner_folder)]) == 0
    small, large = read_video(plain), read_video(request_.output.out)
    assert large.shape == (len(small), 3, 64, 64)
    record = json.loads(Path(request_.output.out).with_suffix(".json").read_text())
    assert (record["video"]["width"], record["video"]["height"]) == (64, 64)
    assert record["refiner"] == str(refiner_folder)


def test_the_watermark_is_in_refined_frames(
    request_: Request, weights: Path, refiner_folder: Path
) -> None:
    """At the size that comes out, behind the refiner, which would clean it away."""

    def marked(frames: Tensor) -> Tensor:
        assert frames.shape[-2:] == (64, 64)
        frames = frames.clone()
        frames[:, :, :8, :8] = 255
        return frames

    refined = Weights(weights, refiner_folder, device="cpu")
    frames: list[Tensor] = []
    run(request_, refined, watermark=marked).finish(frames.append)
    assert bool((torch.cat(frames)[:, :, :8, :8] == 255).all())
    assert bool((read_video(str(request_.output.out))[:, :, 1:7, 1:7] > 230).all())


def test_an_interrupted_run_goes_on(
    request_: Request, weights: Path, refiner_folder: Path, tmp_path: Path
) -> None:
    how = {"weights": weights, "refiner": refiner_folder, "device": "cpu"}

    def stop(frames: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(request_, on_frames=stop, **how)
    assert num_kept(kept_folder(request_.output.out)) == 1
    again = request_.changed(resume=True)
    with pytest.raises(ValueError, match="refiner was"):
        carry_out(again, weights=weights, device="cpu")
    blocks: list[Tensor] = []
    record = carry_out(again, on_frames=blocks.append, **how)
    assert record.resumed_chunks == 1
    whole: list[Tensor] = []
    fresh = request_.changed(out=str(tmp_path / "whole.mp4"))
    carry_out(fresh, on_frames=whole.append, **how)
    assert torch.equal(torch.cat(blocks), torch.cat(whole))


def test_weights_that_do_not_fit_are_refused(
    request_: Request, weights: Path, refiner_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="refine none"):
        carry_out(request_, weights=weights, refiner=weights)
    with pytest.raises(ValueError, match=r"--refiner: no weights .*expected a name"):
        carry_out(request_, weights=weights, refiner=tmp_path)
    with pytest.raises(ValueError, match="pass them as --refiner"):
        AvatarPipeline.from_pretrained(refiner_folder)
    dit, conditioner = load_pipeline(refiner_folder)
    assert AvatarPipeline.from_pretrained(weights, refiner=refiner_folder).refiner is not None
    torch.nn.init.normal_(conditioner.vae.core.quant_conv.weight)
    save_pipeline(tmp_path / "other", dit, conditioner, Card(preset="tiny"))
    with pytest.raises(ValueError, match="trained with the encoder"):
        AvatarPipeline.from_pretrained(weights, refiner=tmp_path / "other")
    assert list(Path(request_.output.out).parent.iterdir()) == []


def test_the_app_makes_larger_pictures_too(
    request_: Request, weights: Path, refiner_folder: Path, tmp_path: Path
) -> None:
    how = {"device": "cpu", "precision": "fp32", "refiner": refiner_folder}
    desk = desk_of(tmp_path / "app", AvatarPipeline.from_pretrained(weights, **how))
    made(desk, form_of(desk, request_, num_steps=1))
    (folder,) = desk.place.jobs.iterdir()
    record = json.loads((folder / "avatar.json").read_text())
    side = 2 * desk.pipeline.format.video.width
    size = (record["video"]["width"], record["video"]["height"])
    assert (size, record["refiner"]) == ((side, side), str(refiner_folder))
    video = read_video(folder / "avatar.mp4")
    assert video.shape == (record["num_frames"], 3, side, side)
