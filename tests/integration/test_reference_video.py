"""A reference video from its file to the sampler: what is read of it, and what is wrong with it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.critics.motion import MotionMeter
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.resume import asked_for
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.reference_clip import read_reference
from avatar_v.media.sound import prepared
from avatar_v.motion.extractors import find_extractor
from avatar_v.request.request import Request
from avatar_v.request.resolve import InputSpec, input_spec, resolved
from avatar_v.sampling.motion import LEAST_MOTION_STEPS
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.card import Capabilities, Card
from avatar_v.world.redrawn import close_ups
from avatar_v.world.splits import RANGES
from clip_files import clip_file
from random_models import randomise

ID = RANGES["validation"][0]
PERSONAL = InputSpec(video=VideoFormat(32, 32), reference=True, motion=True)


def read(path: str, seconds: float = 16.0, motion: str = "none"):
    extractor = find_extractor(motion, face_crop=False)
    return read_reference(
        path, video=VideoFormat(64, 64), seconds=seconds, face_crop=False, extractor=extractor
    )


def test_a_clip_is_read_with_its_sound_and_motion(spoken) -> None:
    path, video, audio = spoken
    clip = read(path, motion="auto")
    assert clip.num_frames == 41
    assert (clip.video.float() - video[:41].float()).abs().mean() < 3
    assert clip.valid.all()
    assert clip.audio is not None
    assert clip.audio.shape == (41 * 640,)
    assert np.corrcoef(clip.audio, prepared(audio[: 41 * 640]))[0, 1] > 0.99
    assert clip.motion is not None
    true = MotionMeter.from_pretrained().measure(video[:41]).values
    assert torch.allclose(clip.motion[:, 0], true[:, 0], atol=0.1)
    assert clip.warnings == ()


@pytest.mark.parametrize(("seconds", "frames"), [(0.04, 1), (0.5, 13), (1.0, 25), (60.0, 41)])
def test_no_more_is_read_than_asked_for(spoken, seconds: float, frames: int) -> None:
    assert read(spoken[0], seconds).num_frames == frames


@pytest.mark.parametrize(
    ("audio", "warning"),
    [
        (None, "has no sound"),
        (torch.zeros(41 * 640), "is silent"),
        (0.1 * torch.ones(20 * 640), "0.8 s before its picture"),
        (0.1 * torch.ones(66 * 640), "goes on behind its picture"),
    ],
)
def test_odd_sound_is_one_warning(
    spoken, tmp_path: Path, audio: Tensor | None, warning: str
) -> None:
    clip = read(clip_file(tmp_path / "a.mkv", spoken[1][:41], audio))
    (note,) = clip.warnings
    assert warning in note
    assert (clip.audio is None) == (audio is None)
    assert clip.audio is None or clip.audio.shape == (41 * 640,)


def able(card: Card, **changes: object) -> Card:
    """``card`` of weights that can something else."""
    return dataclasses.replace(card, can=dataclasses.replace(card.can, **changes))


@pytest.fixture(scope="module")
def personal(weights: Path) -> AvatarPipeline:
    """Tiny weights that say they read a reference and motion; all they compute is random."""
    pipe = AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32")
    randomise(pipe.dit)
    card = Card(preset="tiny", can=Capabilities(reference=True, motion=True))
    return AvatarPipeline(pipe.dit, pipe.conditioner, card, device="cpu", precision="fp32")


def frames_of(pipe: AvatarPipeline, request: Request, **change: object) -> Tensor:
    asked = request.changed(**change)  # pyright: ignore[reportArgumentType]
    inputs = read_inputs(asked, PERSONAL)
    return torch.cat(list(pipe.stream(inputs, asked)))


def test_the_reference_reaches_the_video(personal, request_: Request, spoken) -> None:
    """Its length, a second clip, its motion and its guidance each change what is generated."""
    base = request_.changed(
        reference=spoken[0], image=request_.person.reference, guidance_reference=1.0
    )
    videos = [
        frames_of(personal, base),
        frames_of(personal, base, reference_s=0.0),
        frames_of(personal, base, reference_s=0.5),
        frames_of(personal, base, motion="none"),
        frames_of(personal, base, also=(request_.person.reference,)),
        frames_of(personal, base, guidance_reference=3.0),
    ]
    assert len({video.numpy().tobytes() for video in videos}) == len(videos)
    assert torch.equal(videos[0], frames_of(personal, base))


def test_what_the_weights_do_not_read_is_not_read(request_: Request, spoken) -> None:
    asked = request_.changed(reference=spoken[0])
    plain = read_inputs(asked, InputSpec(video=VideoFormat(32, 32), reference=False, motion=False))
    assert plain.clips == ()
    assert plain.motion is None
    with pytest.raises(ValueError, match="--also: these weights read one picture"):
        read_inputs(
            asked.changed(also=(spoken[0],)),
            InputSpec(video=VideoFormat(32, 32), reference=False, motion=False),
        )
    whole = read_inputs(asked, PERSONAL)
    (clip,) = whole.clips
    assert whole.reference_frame is not None
    assert whole.motion is not None
    assert clip.motion is not None
    assert torch.equal(whole.motion, clip.motion[whole.reference_frame])
    one = read_inputs(asked.changed(reference_s=0.0), PERSONAL)
    assert one.clips[0].num_frames == 1
    scene = request_.person.reference  # another file gives the first frame alone
    both = read_inputs(asked.changed(reference_s=0.0, image=scene), PERSONAL)
    assert torch.equal(both.clips[0].video, one.clips[0].video)
    assert not torch.equal(both.image, one.image)


def test_close_ups_reach_the_video_where_the_weights_read_them(
    personal, request_: Request, spoken
) -> None:
    asked = request_.changed(reference=spoken[0], image=request_.person.reference)
    plain = read_inputs(asked, PERSONAL)
    assert plain.clips[0].faces is None  # nobody looked for a face in a drawing
    pictures = close_ups(ID, ID + 1, ID + 2, torch.zeros(2, len(MOTION_NAMES)), size=32)
    clip = dataclasses.replace(plain.clips[0], faces=pictures)
    inputs = dataclasses.replace(plain, clips=(clip,))
    card = able(personal.card, faces=True)
    reads = AvatarPipeline(personal.dit, personal.conditioner, card, precision="fp32", device="cpu")
    videos = [
        torch.cat(list(pipe.stream(given, asked)))
        for pipe in (personal, reads)
        for given in (plain, inputs)
    ]
    assert torch.equal(videos[0], videos[1])  # these weights do not read faces
    assert torch.equal(videos[0], videos[2])
    assert not torch.equal(videos[2], videos[3])
    reference = reads.person(dataclasses.replace(inputs, clips=(clip, plain.clips[0]))).reference
    assert reference is not None
    assert reference.faces is not None
    assert reference.faces.shape == (1, 2, 16, 4, 4)
    assert reference.faces_valid is not None
    assert reference.faces_valid.all()
    assert personal.person(inputs).reference.faces is None
    assert input_spec(asked, card).faces
    assert asked_for(asked, inputs) != asked_for(asked, plain)  # kept chunks are of other faces
    some = dataclasses.replace(
        plain, clips=(dataclasses.replace(plain.clips[0], habits_known=("yaw",)),)
    )
    assert asked_for(asked, some) != asked_for(asked, plain)  # and of other habits


def test_weights_trained_with_an_anchor_use_it_unless_told(
    personal, request_: Request, spoken
) -> None:
    asked = request_.changed(reference=spoken[0], image=request_.person.reference)
    inputs = read_inputs(asked, PERSONAL)
    card = able(personal.card, anchor=True)
    trained = AvatarPipeline(
        personal.dit, personal.conditioner, card, precision="fp32", device="cpu"
    )

    def made(pipe: AvatarPipeline, anchor: bool | None) -> Tensor:
        return torch.cat(list(pipe.stream(inputs, asked.changed(anchor=anchor))))

    anchored, plain = made(personal, True), made(personal, False)
    assert not torch.equal(anchored, plain)
    assert torch.equal(made(trained, None), anchored)
    assert torch.equal(made(trained, False), plain)
    assert torch.equal(made(personal, None), plain)
    both = asked.changed(guidance_audio=2.0, guidance_motion=1.0, chunk_latents=5)
    assert resolved(asked, card, has_clips=True) == both.changed(anchor=True)
    assert resolved(asked, personal.card, has_clips=True) == both.changed(anchor=False)
    alone = dataclasses.replace(inputs, clips=())  # nothing that an anchor could join
    assert len(torch.cat(list(trained.stream(alone, asked)))) == inputs.num_frames


def test_the_card_says_how_strongly_sound_counts_unless_told(
    personal, request_: Request, spoken
) -> None:
    asked = request_.changed(reference=spoken[0], image=request_.person.reference)
    inputs = read_inputs(asked, PERSONAL)
    card = dataclasses.replace(personal.card, guidance_audio=1.0)
    unguided = AvatarPipeline(
        personal.dit, personal.conditioner, card, precision="fp32", device="cpu"
    )

    def made(pipe: AvatarPipeline, audio: float | None) -> Tensor:
        told = asked.changed(guidance_audio=audio)
        return torch.cat(list(pipe.stream(inputs, told)))

    plain, doubled = made(personal, 1.0), made(personal, 2.0)
    assert not torch.equal(plain, doubled)
    assert torch.equal(made(personal, None), doubled)
    assert torch.equal(made(unguided, None), plain)
    assert torch.equal(made(unguided, 2.0), doubled)


def test_clips_say_what_the_motion_stream_says_of_their_frames(
    personal, request_: Request, spoken
) -> None:
    asked = request_.changed(reference=spoken[0], image=request_.person.reference)
    inputs = dataclasses.replace(read_inputs(asked, PERSONAL), motion=torch.zeros(16))
    clips = list(personal.clips(inputs, asked))
    assert all(len(clip.motion) == len(clip.frames) for clip in clips)
    motion = torch.cat([clip.motion for clip in clips])
    assert motion.shape == (inputs.num_frames, 16)
    # the first frame's is given, and in the units it was given in
    torch.testing.assert_close(motion[0], torch.zeros(16), atol=1e-5, rtol=0)
    assert float(motion[1:].std()) > 0.01
    still = able(personal.card, motion=False)
    pipe = AvatarPipeline(personal.dit, personal.conditioner, still, precision="fp32", device="cpu")
    assert all(
        c.motion is None for c in pipe.clips(dataclasses.replace(inputs, motion=None), asked)
    )


def test_the_card_says_how_strongly_habits_count_unless_told(
    personal, request_: Request, spoken
) -> None:
    asked = request_.changed(reference=spoken[0], image=request_.person.reference)
    inputs = dataclasses.replace(read_inputs(asked, PERSONAL), motion=torch.zeros(16))
    card = dataclasses.replace(personal.card, guidance_motion=3.0)
    strong = AvatarPipeline(
        personal.dit, personal.conditioner, card, precision="fp32", device="cpu"
    )

    def made(pipe: AvatarPipeline, motion: float | None) -> Tensor:
        told = asked.changed(guidance_motion=motion)
        return torch.cat([clip.motion for clip in pipe.clips(inputs, told)])

    plain, tripled = made(personal, 1.0), made(personal, 3.0)
    assert not torch.equal(plain, tripled)
    assert torch.equal(made(personal, None), plain)
    assert torch.equal(made(strong, None), tripled)
    assert torch.equal(made(strong, 1.0), plain)


@pytest.mark.parametrize("num", [2, LEAST_MOTION_STEPS + 1])
def test_motion_is_made_before_its_video(personal, request_: Request, spoken, num: int) -> None:
    """In as many steps as its video, or its own least number, if that is more."""
    asked = request_.changed(reference=spoken[0], image=request_.person.reference, num_steps=num)
    inputs = read_inputs(asked, PERSONAL)
    calls: list[tuple[bool, float]] = []
    hooks = [
        network.register_forward_pre_hook(
            lambda _, given, is_video=is_video: calls.append((is_video, float(given[1].max())))
        )
        for network, is_video in ((personal.dit, True), (personal.conditioner.motion_net, False))
    ]
    frames = torch.cat(list(personal.stream(inputs, asked)))
    for hook in hooks:
        hook.remove()
    ahead = max(num, LEAST_MOTION_STEPS)
    assert len(calls) % (ahead + num) == 0
    for begin in range(0, len(calls), ahead + num):  # of every chunk
        before, after = calls[begin : begin + ahead], calls[begin + ahead :][:num]
        for some, is_video in ((before, False), (after, True)):
            assert [kind for kind, _ in some] == [is_video] * len(some)
            times = [t for _, t in some]
            assert times[0] == 1.0
            assert times == sorted(times, reverse=True)
    net, personal.conditioner.motion_net = personal.conditioner.motion_net, None
    still = torch.cat(list(personal.stream(inputs, asked)))
    personal.conditioner.motion_net = net
    assert not torch.equal(still, frames)


def test_from_the_prompt_no_frame_is_given(personal, request_: Request, spoken) -> None:
    asked = request_.changed(reference=spoken[0], from_prompt=True, anchor=False)
    inputs = read_inputs(asked, PERSONAL)
    assert inputs.reference_frame is None
    least = []

    def made(inputs) -> Tensor:
        least.clear()
        hook = personal.dit.register_forward_pre_hook(
            lambda _, given: least.append(float(given[1].min()))
        )
        frames = torch.cat(list(personal.stream(inputs, asked)))
        hook.remove()
        return frames

    frames = made(inputs)
    num = asked.sampling.num_steps
    assert min(least[:num]) > 0, "of the first chunk nothing is clean"
    assert max(least[num:]) == 0, "and later ones continue it"
    black = dataclasses.replace(inputs, image=torch.zeros_like(inputs.image))
    assert torch.equal(made(black), frames)
    given = asked.changed(from_prompt=False)
    assert not torch.equal(torch.cat(list(personal.stream(inputs, given))), frames)
    assert asked_for(asked, inputs) != asked_for(given, inputs)


def test_frames_stand_for_the_clip_where_the_card_says_so(
    personal, request_: Request, spoken
) -> None:
    """Always, or where no first frame is given; habits are those of the whole clip either way."""
    asked = request_.changed(reference=spoken[0], anchor=False)
    inputs, pipe = read_inputs(asked, PERSONAL), personal
    whole = pipe.person(inputs).reference
    for always, from_prompt in ((0, 3), (3, 0), (2, 4)):
        card = able(pipe.card, stills=always, stills_from_prompt=from_prompt)
        other = AvatarPipeline(pipe.dit, pipe.conditioner, card, device="cpu", precision="fp32")
        for num, prompted in ((always, False), (max(always, from_prompt), True)):
            reference = other.person(inputs, from_prompt=prompted).reference
            assert reference.latents.shape[1] == (num or whole.latents.shape[1])
            close = torch.allclose(reference.moments, whole.moments)
            assert close
    plain = torch.cat(list(pipe.stream(inputs, asked)))
    prompted = asked.changed(from_prompt=True)
    for request, same in ((asked, True), (prompted, False)):
        card = able(pipe.card, stills_from_prompt=3)
        other = AvatarPipeline(pipe.dit, pipe.conditioner, card, device="cpu", precision="fp32")
        before = plain if same else torch.cat(list(pipe.stream(inputs, prompted)))
        assert torch.equal(torch.cat(list(other.stream(inputs, request))), before) is same


def test_from_the_prompt_wants_a_reference_and_no_image(request_: Request) -> None:
    asked = request_.changed(from_prompt=True)
    with pytest.raises(ValueError, match="--image gives it"):
        read_inputs(asked.changed(image=asked.person.reference), PERSONAL)
    with pytest.raises(ValueError, match="know a person by their first frame"):
        read_inputs(asked, InputSpec(video=VideoFormat(32, 32), reference=False, motion=False))


@pytest.mark.parametrize("seconds", [-1.0, 301.0, float("nan")])
def test_a_length_that_cannot_be_is_refused(request_: Request, seconds: float) -> None:
    with pytest.raises(ValueError, match="--reference-seconds"):
        read_inputs(request_.changed(reference_s=seconds), PERSONAL)
