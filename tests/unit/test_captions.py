"""What a clip shows and says, in words."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from avatar_v_data.curation.captions import CaptionStage
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.stages import Clip, Seen
from classifiers import captioner, chatting_captioner
from curation_stubs import FILE, scores


def test_a_captioner_says_the_same_of_the_same_picture(tmp_path: Path) -> None:
    """A network of random weights, with the processor that is stored beside it."""
    with pytest.raises(ValueError, match=r"no config.json .* it takes a model of transformers"):
        CaptionStage(model=str(tmp_path)).weights()
    captioner(tmp_path)
    frames = torch.zeros(30, 3, 40, 50, dtype=torch.uint8)
    frames[20:, 0] = 255
    stage = CaptionStage(model=str(tmp_path), prompt="a person", max_tokens=6)
    found = scores(stage, frames, (0, 20), (20, 30), (5, 15))
    first, second, third = (row["caption"] for row in found)
    assert "a person" in first
    assert first == third != second
    weights = stage.weights()
    (tmp_path / "generation_config.json").write_text("{}")
    assert stage.weights() != weights


def test_a_caption_is_of_several_pictures_and_what_is_said(tmp_path: Path) -> None:
    """Of a model that chats, with what the stage `words` has found."""
    stage = CaptionStage(chatting_captioner(tmp_path), "a person says {transcript}", 6, frames=3)
    assert stage.needs == ("clips", "words")
    frames = torch.randint(0, 256, (30, 3, 40, 50), dtype=torch.uint8)

    def captions(stage: CaptionStage, *said: str) -> list[str]:
        words = {"words": {"clips": [{"transcript": one} for one in said]}}
        reader = stage.begin(Seen(FILE, words))
        for number in range(len(said)):
            reader.clip(Clip(number, 0, 20, list(frames[:20])))
        return [row["caption"] for row in reader.finish()["clips"]]

    first, second, third = captions(stage, "the red wall", "the blue wall", "the red wall")
    assert first == third != second
    assert captions(replace(stage, frames=1), "the red wall") != [first]
    assert captions(replace(stage, prompt="a person says the red wall"), "") == [first]
    with pytest.raises(ValueError, match="captions: frames is a whole number from 1"):
        replace(stage, frames=0)
    with pytest.raises(ValueError, match="stage captions needs clips, words"):
        CurationPlan((stage,))
