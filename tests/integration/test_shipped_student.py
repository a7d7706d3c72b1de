"""The student that ships: its card, and two passes of the network for a chunk."""

from pathlib import Path

from avatar_v.app.example import draw_person
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.models.card import ASSETS, read_card
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.chunks import plan


def test_it_says_where_it_comes_from() -> None:
    folder = ASSETS / "small_student"
    card, teacher = read_card(folder, preset="small"), read_card(ASSETS / "small")
    assert card.can.num_steps == 2
    assert card.recipe.startswith("recipes/4b_distill_dmd")
    assert (folder / card.log).is_file()
    assert (card.can.people, card.can.window_latents) == (teacher.can.people, 13)


def test_a_chunk_takes_two_passes_whatever_the_guidance(tmp_path: Path) -> None:
    clip, speech = draw_person(tmp_path, 5)
    pipeline, passes = AvatarPipeline.from_pretrained("small_student"), []
    noted = AvatarDiT.forward

    def noting(self, x_t, *args, **options):
        passes.append(x_t.shape[1])
        return noted(self, x_t, *args, **options)

    pipeline.dit.forward = noting.__get__(pipeline.dit)
    frames = list(pipeline(reference=clip, audio=speech, face_crop=False, guidance_audio=2.0))
    chunks = plan(len(frames), chunk_latents=13).chunks
    assert len(chunks) > 1
    assert len(passes) == 2 * len(chunks)
