"""Q-Align (Wu et al. 2024): a vision-language model that rates a picture as people do.

The weights are the user's to supply; network and scoring are pyiqa's port of them to transformers 5
(the extra [iqa]). Importing pyiqa puts its own Llama in the place of transformers' for the whole
process, so that happens only where a `QAlign` is made.
"""

import contextlib
import importlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from avatar_v.base.outside import read_json
from avatar_v.base.paths import indexed_weights
from avatar_v.critics.frozen import Score, hash_files

Task = Literal["quality", "aesthetics"]

HUB_NAME = "q-future/one-align"
SOURCE = (
    f"{HUB_NAME} on the Hugging Face hub (code MIT, weights as its LLaMA-2 base): download the "
    "whole folder and pass its path. Its network is pyiqa's (PolyForm Noncommercial 1.0.0): "
    "pip install 'avatar_v[iqa]'"
)
_MODULES = "pyiqa.archs.q_align"
_TOKENIZERS = ("tokenizer.model", "tokenizer.json")


class QAlign:
    """Q-Align's mean opinion score, 1 bad … 5 excellent, of "quality" (IQA) or "aesthetics" (ASE).

    Tables in the original repository's scale of 0 … 1 become this one by 1 + 4 x. ``folder`` is a
    local copy of `HUB_NAME`; its own code does not run. Half precision, as published.

    ValueError naming the file that is missing or is not of this network; ImportError naming the
    extra where pyiqa is absent or does not fit torch.
    """

    def __init__(self, folder: str | Path, device: str | torch.device = "cpu") -> None:
        folder = Path(folder).resolve()
        weights = weight_files(folder)
        for package in ("pyiqa", "icecream"):
            if importlib.util.find_spec(package) is None:
                raise ImportError(f"Q-Align needs {package}: pip install 'avatar_v[iqa]'")
        self.model = _load(folder).to(device).eval()
        self._hash = hash_files(weights)

    def hash(self) -> str:
        """12 hex digits of sha256 over the files of weights."""
        return self._hash

    @torch.inference_mode()
    def measure(
        self, frames: UInt8[Tensor, "f 3 h w"], task: Task = "quality", *, batch_size: int = 8
    ) -> Score:
        """Values "f". Pictures are padded to squares of the colour that the network was trained
        with."""
        pictures = [Image.fromarray(x.permute(1, 2, 0).contiguous().numpy()) for x in frames.cpu()]
        parts: list[Float[Tensor, " n"]] = [
            self.model.score(pictures[i : i + batch_size], task_=task, input_="image")
            for i in range(0, len(pictures), batch_size)
        ]
        return Score(torch.cat(parts).float().cpu(), f"qalign_{task}", self._hash)


def weight_files(folder: Path) -> list[Path]:
    """Of such a folder. ValueError for the first thing that it lacks."""
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; Q-Align is {SOURCE}")
    for name in ("config.json", "preprocessor_config.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder}: no {name}; Q-Align is {SOURCE}")
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "mplug_owl2":
        raise ValueError(f"{folder}: a model of type {kind!r}, not mplug_owl2; Q-Align is {SOURCE}")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ValueError(f"{folder}: no {' or '.join(_TOKENIZERS)}; Q-Align is {SOURCE}")
    for path in indexed_weights(folder):
        if not path.is_file():
            raise ValueError(f"{folder}: no {path.name}, which its index names; it is {SOURCE}")
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        raise ValueError(f"{folder}: no *.safetensors or *.bin; Q-Align is {SOURCE}")
    return weights


def _load(folder: Path) -> Any:
    """pyiqa's network with the weights of ``folder``; ValueError where it does not fill them."""
    try:
        network = importlib.import_module(f"{_MODULES}.modeling_mplug_owl2")
        abstractor = importlib.import_module(f"{_MODULES}.visual_encoder")
    except RuntimeError as error:  # torchvision's operators, where it was built for another torch
        raise ImportError(
            f"pyiqa cannot be imported: {error}. Its torchvision has to be of the same build as "
            f"torch {torch.__version__}"
        ) from error
    abstractor.MplugOwlVisualAbstractorModel.invert_attention_mask = _additive_mask
    with _as_hub_name(folder):
        model, info = network.MPLUGOwl2LlamaForCausalLM.from_pretrained(
            HUB_NAME, dtype=torch.float16, local_files_only=True, output_loading_info=True
        )
    if lacking := sorted(info["missing_keys"]):
        raise ValueError(
            f"{folder}: {len(lacking)} weights of the network are missing, such as {lacking[0]}; "
            f"Q-Align is {SOURCE}"
        )
    return model


@contextlib.contextmanager
def _as_hub_name(folder: Path) -> Iterator[None]:
    """While it lasts, `HUB_NAME` is a path to ``folder``: pyiqa gives that name, and no other, to
    transformers, which prefers folders to the hub."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        link = Path(HUB_NAME)
        link.parent.mkdir()
        link.symlink_to(folder, target_is_directory=True)
        yield


def _additive_mask(self: Any, mask: Float[Tensor, "b n"]) -> Float[Tensor, "b 1 1 n"]:
    """What pyiqa expects of transformers' `PreTrainedModel.invert_attention_mask`, which 5.x no
    longer has: 0 where to look, the lowest number elsewhere."""
    return (1 - mask[:, None, None].to(self.dtype)) * torch.finfo(self.dtype).min
