"""What a clip shows, in words: by a model of the user's that describes pictures."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image

from avatar_v.base.local_models import load_part, load_whole
from avatar_v.base.paths import indexed_weights
from avatar_v.critics.frozen import hash_folder
from avatar_v_data.curation.stages import Clip, ClipScorer, Frame, Result, Seen

SOURCE = (
    "a model of transformers that describes pictures, with its processor, such as "
    "Salesforce/blip-image-captioning-large (BSD-3-Clause) or Qwen/Qwen2.5-VL-7B-Instruct "
    "(Apache-2.0) of the Hugging Face hub: download the repository into a folder"
)
MAX_CHARACTERS = 1000


@dataclass(frozen=True)
class CaptionStage(ClipScorer):
    """``model``: the folder of any image-text-to-text model of transformers. ``prompt``: what a
    model that chats is asked, or the first words of a description; "" for none.

    Column: ``caption``, of the clip's middle frame, which training takes as its prompt.
    """

    model: str = "weights/captioner"
    prompt: str = ""
    max_tokens: int = 64

    name: ClassVar[str] = "captions"
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("clips",)
    texts: ClassVar[tuple[str, ...]] = ("caption",)

    def weights(self) -> str:
        folder = Path(self.model)
        if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
            raise ValueError(
                f"captions: {folder} has no config.json with *.safetensors; it takes {SOURCE}"
            )
        return hash_folder(folder)

    def score(self, clip: Clip, seen: Seen) -> Result:
        middle = clip.frames[(clip.start + clip.stop) // 2 - clip.start]
        return {"caption": _captioner(self.model)(middle, self.prompt, self.max_tokens)}


class Captioner:
    """A loaded model and its processor. ValueError for a folder that holds no such model."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        indexed_weights(folder)
        self.processor = load_part(AutoProcessor, folder, SOURCE)
        self.model = load_whole(AutoModelForImageTextToText, folder, SOURCE, dtype="auto")

    @torch.inference_mode()
    def __call__(self, frame: Frame, prompt: str, max_tokens: int) -> str:
        """A description on one line."""
        inputs = self._inputs(Image.fromarray(frame.permute(1, 2, 0).numpy()), prompt)
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

    def _inputs(self, picture: Image.Image, prompt: str) -> Any:
        if not self._chats:
            words = {"text": prompt} if prompt else {}
            return self.processor(images=picture, return_tensors="pt", **words)
        content: list[dict[str, Any]] = [{"type": "image", "image": picture}]
        content += [{"type": "text", "text": prompt}] if prompt else []
        return self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        )  # fmt: skip


@cache
def _captioner(folder: str) -> Captioner:
    return Captioner(folder)
