"""A person's video, motion and first picture, from chunk to chunk."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.generate.generator import audio_chunks, audio_tokens, sample_chunks
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.person import EncodedPerson
from avatar_v.media.heard import HeardSound
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.reference import anchor_frame, join_references
from avatar_v.motion.listening import Listener, listening
from avatar_v.motion.vectors import unpack_motion
from avatar_v.request.request import Request
from avatar_v.sampling import rollout as rollout_module
from avatar_v.sampling.chunks import Span, plan
from avatar_v.types import MOTION_NAMES, Reference
from generating import SETTINGS, carry_out, left_behind, made, picture, sound, speaker
from random_models import randomise

# --- the person's video and motion ---


def test_a_reference_is_encoded_once_and_reads_as_if_it_were_every_time(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, num_encoded = speaker(pipe), 0
    encode = pipe.dit.encode_reference

    def count(*args, **kwargs):
        nonlocal num_encoded
        num_encoded += 1
        return encode(*args, **kwargs)

    monkeypatch.setattr(pipe.dit, "encode_reference", count)
    settings = dataclasses.replace(SETTINGS, guidance_reference=2.0)
    cached = made(pipe, sound(33), settings, person=person)
    assert num_encoded == 1
    original = rollout_module.guided_passes

    def uncached(dit, cond, *, past, **weights):
        return original(dit, dataclasses.replace(cond, reference=person.reference), **weights)

    monkeypatch.setattr(rollout_module, "guided_passes", uncached)
    anew = made(pipe, sound(33), settings, person=person)
    assert num_encoded == 2 + len(plan(33, chunk_latents=5).chunks)  # once more for each chunk
    assert torch.equal(cached, anew)
    without = dataclasses.replace(person, reference=None)
    assert not torch.equal(cached, made(pipe, sound(33), SETTINGS, person=without))


def test_motion_is_carried_from_chunk_to_chunk(pipe: AvatarPipeline) -> None:
    person, calls = speaker(pipe), []

    def remember(module, args, kwargs, output) -> None:
        calls.append((args[2].motion[:1].clone(), args[1][:1].clone()))

    hook = pipe.dit.register_forward_hook(remember, with_kwargs=True)
    try:
        frames = made(pipe, sound(33), person=person)
    finally:
        hook.remove()
    assert len(frames) == 33
    assert not torch.equal(frames, made(pipe, sound(33), person=EncodedPerson(picture())))
    assert torch.equal(frames, made(pipe, sound(33), person=person))
    first, second = calls[0], calls[SETTINGS.num_steps]
    assert torch.equal(first[0][:, :1], person.motion)
    assert first[1][0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert second[1][0].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert torch.equal(second[0][:, :2], first[0][:, -2:])
    assert not torch.equal(second[0][:, 2:4], first[0][:, -2:])


def test_who_listens_nods_and_moves_on_as_if_not(pipe: AvatarPipeline) -> None:
    """In all chunks the motion of the video is that without, and the nod."""
    voice, stats = torch.zeros(53 * 640), pipe.conditioner.known_stats
    voice[3200:14_000] = sound(17)[:10_800]
    listener, motions, made_with, followed = listening([voice], seed=1), [], [], []
    nod = listener.pitch(53)

    def remember(module, args, kwargs, output) -> None:
        followed.append(args[2].motion[:1].clone())

    assert float(nod[:30].abs().max()) == 0 > float(nod[30:].min())
    for hears in (True, False):
        parts = audio_chunks(pipe.conditioner, sound(53), 5)
        if hears:
            runs = ((part, part.chunk.latents) for part in parts)
            parts = (
                dataclasses.replace(part, nods=listener.added(run.start, run.stop, stats))
                for part, run in runs
            )
        hook = pipe.dit.register_forward_hook(remember, with_kwargs=True)
        try:
            made = list(
                sample_chunks(pipe.dit, pipe.conditioner, speaker(pipe), "", SETTINGS, iter(parts))
            )
        finally:
            hook.remove()
        motion = torch.cat([part.motion for part in made if part.motion is not None], dim=1)
        made_with.append(motion[:, -3:])
        motions.append(unpack_motion(motion, stats)[0, :53])
    change = (motions[0] - motions[1])[:, MOTION_NAMES.index("pitch")]
    torch.testing.assert_close(change, nod, atol=1e-5, rtol=0)
    seen, not_seen = followed[: len(followed) // 2], followed[len(followed) // 2 :]
    assert torch.equal(seen[-1][:, 2:], made_with[0]), "the video is made with it"
    assert not torch.equal(seen[-1], not_seen[-1])


@pytest.fixture
def hearing(pipe: AvatarPipeline) -> Iterator[MotionNet]:
    """The pipeline's motion network, able to hear somebody else; it says the same until trained."""
    deaf = pipe.conditioner.motion_net
    assert deaf is not None
    pipe.conditioner.motion_net = net = deaf.hearing()
    yield net
    pipe.conditioner.motion_net = deaf


def test_who_hears_answers_in_the_motion_itself(
    pipe: AvatarPipeline, request_: Request, hearing: MotionNet
) -> None:
    """A network that hears both voices gets no nods of the rule; behind the first answer all that
    follows is another motion."""
    alone = motion_of(pipe, request_, None)
    assert torch.equal(motion_of(pipe, request_, listening([sound(53)], seed=1)), alone)
    randomise(hearing, seed=4)
    silence = torch.zeros(53 * 640)
    late = torch.cat([silence[: 40 * 640], sound(13)])
    quiet, spoken = (motion_of(pipe, request_, listening([x], seed=1)) for x in (silence, late))
    chunk = plan(53, chunk_latents=5).chunks[2]  # the first to hear frame 40
    assert torch.equal(quiet[:, : chunk.latents.start], spoken[:, : chunk.latents.start])
    assert not torch.allclose(quiet[:, -2:], spoken[:, -2:])


def test_a_voice_that_comes_live_is_heard_as_the_finished_one(
    pipe: AvatarPipeline,
    request_: Request,
    hearing: MotionNet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it keeps time with the person's own sound, up to the last chunk, behind which it hears
    silence. Levels are measured on other parts."""
    randomise(hearing, seed=4)
    monkeypatch.setattr(HeardSound, "gain", lambda self: 1.0)
    request = request_.changed(gain_db=0.0)
    whole = motion_of(pipe, request, listening([sound(53)], seed=1))
    listener = Listener(is_live=True)

    def both() -> Iterator[Tensor]:
        for part in sound(53).split(640):
            listener.push(part)
            yield torch.zeros(640)

    live = motion_of(pipe, request, listener, LiveSound(both()))
    stop = plan(53, chunk_latents=5).chunks[-1].new_latents.start
    torch.testing.assert_close(live[:, :stop], whole[:, :stop], atol=1e-4, rtol=0)  # of 16 bits


def motion_of(
    pipe: AvatarPipeline,
    request: Request,
    listener: Listener | None,
    own: LiveSound | None = None,
) -> Tensor:
    """Of 53 frames, silent ones."""
    inputs = Inputs(
        image=torch.zeros(3, 40, 40, dtype=torch.uint8),
        audio=torch.zeros(53 * 640) if own is None else own,
        num_frames=53,
        reference_frame=None,
        warnings=(),
        motion=torch.zeros(len(MOTION_NAMES)),
        listener=listener,
    )
    made = list(pipe.latents(inputs, request.changed(num_steps=1)))
    return torch.cat([part.motion for part in made if part.motion is not None], dim=1)


# --- the appearance anchor ---


def test_the_anchor_is_the_first_latent_and_changes_later_chunks_alone(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person, encoded = speaker(pipe), []
    encode = pipe.dit.encode_reference
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    plain = made(pipe, sound(45), person=person)

    def remember(reference: Reference) -> object:
        encoded.append(reference)
        return encode(reference)

    monkeypatch.setattr(pipe.dit, "encode_reference", remember)
    frames = made(pipe, sound(45), anchored, person=person)
    assert len(plan(45, chunk_latents=5).chunks) == 4
    reference, anchor = encoded  # each once: the keys of the reference are not made again
    assert reference.latents.shape[1] == 4
    with torch.no_grad():
        image = pipe.conditioner.encode_image(person.image[None])
        heard = audio_tokens(pipe.conditioner, sound(45), 12)(Span(0, 1))
    assert anchor.motion is not None
    assert person.motion is not None
    assert torch.equal(anchor.latents, image)
    assert torch.equal(anchor.motion, person.motion)
    torch.testing.assert_close(anchor.audio, heard, atol=1e-5, rtol=1e-5)  # sums of other lengths
    assert torch.equal(frames[:17], plain[:17])
    for chunk in (frames[17:29] != plain[17:29], frames[29:41] != plain[29:41]):
        assert chunk.any()


def test_an_anchor_reads_as_if_both_clips_were_encoded_every_time(
    pipe: AvatarPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = speaker(pipe)
    assert person.reference is not None
    with torch.no_grad():
        image = pipe.conditioner.encode_image(person.image[None])
        heard = audio_tokens(pipe.conditioner, sound(33), 9)(Span(0, 1))
    stats = pipe.dit.motion_stats
    anchor = anchor_frame(image, person.reference, audio=heard, motion=person.motion, stats=stats)
    both = join_references([person.reference, anchor])
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    cached = made(pipe, sound(33), anchored, person=person)
    original, num_calls = rollout_module.guided_passes, 0

    def uncached(dit, cond, *, past, **weights):
        nonlocal num_calls
        reference = both if num_calls else person.reference
        num_calls += 1
        return original(dit, dataclasses.replace(cond, reference=reference), **weights)

    monkeypatch.setattr(rollout_module, "guided_passes", uncached)
    anew = made(pipe, sound(33), anchored, person=person)
    # sums of another order; the same value may round both ways
    assert float((cached.float() - anew.float()).abs().max()) <= 1.0


def test_an_anchor_needs_a_reference_to_join(
    pipe: AvatarPipeline, request_: Request, weights: Path
) -> None:
    anchored = dataclasses.replace(SETTINGS, anchor=True)
    with pytest.raises(ValueError, match="an anchor joins the reference of a person, and this one"):
        made(pipe, sound(20), anchored)
    with pytest.raises(ValueError, match="--anchor: these weights read no reference"):
        carry_out(request_.changed(anchor=True), weights=weights)
    with pytest.raises(ValueError, match="--anchor: these weights read no reference"):
        pipe(
            reference=request_.person.reference,
            audio=request_.person.audio,
            anchor=True,
            face_crop=False,
        )
    assert left_behind(request_) == []
