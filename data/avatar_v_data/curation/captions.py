"""What a clip shows and says, in words: by a model of the user's that describes pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image

from avatar_v.base import checks
from avatar_v.base.local_models import load_part, load_whole
from avatar_v.base.paths import indexed_weights
from avatar_v.critics.frozen import hash_folder
from avatar_v_data.curation.stages import Clip, Frame, Reader, Reads, Result, Seen, Stage

SOURCE = (
    "a model of transformers that describes pictures, with its processor, such as "
    "Salesforce/blip-image-captioning-large (BSD-3-Clause) or Qwen/Qwen2.5-VL-7B-Instruct "
    "(Apache-2.0) of the Hugging Face hub: download the repository into a folder"
)
MAX_CHARACTERS = 1000
SAID = "{transcript}"


@dataclass(frozen=True)
class CaptionStage(Stage):
    """``model``: the folder of any image-text-to-text model of transformers. ``prompt``: what a
    model that chats is asked, or the first words of a description; "" for none. "{transcript}" in
    it is what the clip says, by the stage `words`. ``frames``: pictures of a clip that are shown,
    evenly spread; one is its middle. More are for models that chat.

    Column: ``caption``, which training takes as its prompt.
    """

    model: str = "weights/captioner"
    prompt: str = ""
    max_tokens: int = 64
    frames: int = 1

    name: ClassVar[str] = "captions"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "clips"
    texts: ClassVar[tuple[str, ...]] = ("caption",)

    def __post_init__(self) -> None:
        checks.count("captions: frames", self.frames)

    def weights(self) -> str:
        folder = Path(self.model)
        if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
            raise ValueError(
                f"captions: {folder} has no config.json with *.safetensors; it takes {SOURCE}"
            )
        return hash_folder(folder)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("clips", "words") if SAID in self.prompt else ("clips",)

    def begin(self, seen: Seen) -> Reader:
        return _Captions(self, seen)

    def caption(self, pictures: Sequence[Frame], said: str) -> Result:
        """The columns of a clip that ``said`` this."""
        prompt = self.prompt.replace(SAID, said)
        return {"caption": _captioner(self.model)(pictures, prompt, self.max_tokens)}


class _Captions(Reader):
    """Clips are described as they come, or at the end, when it is known what they say."""

    def __init__(self, stage: CaptionStage, seen: Seen) -> None:
        super().__init__({"clips": []})
        self._stage, self._seen = stage, seen
        self._shown: list[Sequence[Frame]] = []

    def clip(self, clip: Clip) -> None:
        if self._stage.frames == 1:
            pictures = [clip.frames[(clip.start + clip.stop) // 2 - clip.start]]
        else:
            pictures = list(clip.some(self._stage.frames))
        if SAID in self._stage.prompt:
            self._shown.append(pictures)
        else:
            self.columns["clips"].append(self._stage.caption(pictures, ""))

    def finish(self) -> Result:
        if self._shown:
            rows = self._seen.results["words"]["clips"]
            for pictures, row in zip(self._shown, rows, strict=True):
                self.columns["clips"].append(self._stage.caption(pictures, row["transcript"]))
        return self.columns


class Captioner:
    """A loaded model and its processor. ValueError for a folder that holds no such model."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        indexed_weights(folder)
        self.processor = load_part(AutoProcessor, folder, SOURCE)
        self.model = load_whole(AutoModelForImageTextToText, folder, SOURCE, dtype="auto")

    @torch.inference_mode()
    def __call__(self, frames: Sequence[Frame], prompt: str, max_tokens: int) -> str:
        """A description on one line. ValueError for more pictures than the model takes."""
        shown = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in frames]
        inputs = self._inputs(shown, prompt)
        inputs = inputs.to(self.model.device, self.model.dtype)
        made = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        asked = inputs.get("input_ids")
        if self._chats and asked is not None:  # it repeats what it was asked
            made = made[:, asked.shape[1] :]
        (text,) = self.processor.batch_decode(made, skip_special_tokens=True)
        return " ".join(text.split())[:MAX_CHARACTERS]

    @property
    def _chats(self) -> bool:
        return bool(getattr(self.processor, "chat_template", None))

    def _inputs(self, pictures: Sequence[Image.Image], prompt: str) -> Any:
        if not self._chats:
            if len(pictures) > 1:
                raise ValueError("captions: its model does not chat and takes one of its `frames`")
            words = {"text": prompt} if prompt else {}
            return self.processor(images=pictures[0], return_tensors="pt", **words)
        content: list[dict[str, Any]] = [{"type": "image", "image": one} for one in pictures]
        content += [{"type": "text", "text": prompt}] if prompt else []
        return self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        )  # fmt: skip


@cache
def _captioner(folder: str) -> Captioner:
    return Captioner(folder)
