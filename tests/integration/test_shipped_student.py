"""The students that ship: their cards, and passes of the network for a chunk."""

import itertools
from pathlib import Path

import pytest

from avatar_v.app.example import draw_person
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import read_inputs
from avatar_v.media.reading import read_audio
from avatar_v.media.writer import write_wav
from avatar_v.models.dit import AvatarDiT
from avatar_v.request.request import Request
from avatar_v.sampling.chunks import plan
from avatar_v.weights.card import ASSETS, read_card


@pytest.mark.parametrize(
    ("name", "recipe", "window"),
    [("small_student", "4b_distill_dmd", 13), ("small_causal", "4e_self_forcing", 20)],
)
def test_it_says_where_it_comes_from(name: str, recipe: str, window: int) -> None:
    folder = ASSETS / name
    card, teacher = read_card(folder, preset="small"), read_card(ASSETS / "small")
    assert card.can.num_steps == 2
    assert card.recipe.startswith(f"recipes/{recipe}")
    assert (folder / card.log).is_file()
    assert (card.can.people, card.can.window_latents) == (teacher.can.people, window)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A drawn person's clip and speech."""
    return draw_person(tmp_path_factory.mktemp("drawn"), 5)


def test_causal_weights_follow_a_voice_in_two_blocks_and_then_in_one(
    drawn: tuple[Path, Path],
) -> None:
    clip, speech = drawn
    pipeline = AvatarPipeline.from_pretrained("small_causal")
    request = Request.of(reference=str(clip), audio=str(speech))
    inputs = read_inputs(request, pipeline.input_spec(request))
    parts = itertools.islice(pipeline.latents(inputs, request), 3)
    assert [part.latents.shape[1] for part in parts] == [5, 3, 3]


def test_a_chunk_takes_two_passes_whatever_the_guidance(
    drawn: tuple[Path, Path], tmp_path: Path
) -> None:
    clip, speech = drawn
    pipeline, passes = AvatarPipeline.from_pretrained("small_student"), []
    noted = AvatarDiT.forward

    def noting(self, x_t, *args, **options):
        passes.append(x_t.shape[1])
        return noted(self, x_t, *args, **options)

    pipeline.dit.forward = noting.__get__(pipeline.dit)
    write_wav(tmp_path / "short.wav", read_audio(speech)[: 640 * 60])
    frames = list(pipeline(reference=clip, audio=tmp_path / "short.wav", guidance_audio=2.0))
    chunks = plan(len(frames), chunk_latents=13).chunks
    assert len(chunks) > 1
    assert len(passes) == 2 * len(chunks)
