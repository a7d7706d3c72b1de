"""VideoFeatures: the pictures of a clip as one row of numbers, by a video encoder of transformers.

V-JEPA 2 (Assran et al. 2025), VideoMAE (Tong et al. 2022), or any other that AutoModel loads and
that gives tokens of a clip. Unlike the critics of the world it may know real people; it hears
nothing and gets nothing of the person. Weights are the user's to supply; nothing is downloaded.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.local_models import load_model
from avatar_v.base.paths import indexed_weights
from avatar_v.base.states import check_numbers
from avatar_v.critics.frozen import hash_files
from avatar_v.critics.preparation import read_preparation
from avatar_v.rewards.feature_part import FeaturePart, Video

SOURCE = (
    "facebook/vjepa2-vitl-fpc64-256 (MIT) or MCG-NJU/videomae-base (CC BY-NC 4.0) on the Hugging "
    "Face hub: download config.json, the preprocessor's json and the .safetensors into one folder "
    "and pass it"
)
PREPARATIONS = ("video_preprocessor_config.json", "preprocessor_config.json")
WEIGHTS = "model.safetensors"
NUM_FRAMES = ("num_frames", "frames_per_clip")
"""What configurations call the frames of a clip."""
PICTURES = ("pixel_values", "pixel_values_videos")
"""What networks call a clip "b f 3 h w"."""
ENCODER_ALONE: dict[str, dict[str, Any]] = {"vjepa2": {"skip_predictor": True}}
"""What leaves out a part whose tokens are not read, by the type of the model."""
AT_ONCE = 4
"""Windows that the network sees in one batch."""
MOST_FRAMES = 1024


class VideoFeatures(FeaturePart):
    """A clip is cut into windows of one length, each is shown to the network in ``num_frames``
    pictures, and the row is the mean of all tokens.

    The network is frozen, with weights in fp32, and runs in the precision that is set around it.

    Args:
        folder: With config.json, preprocessor_config.json (or that of a video processor) and
            weights in safetensors. ValueError for any other, naming what would do.
        num_frames: None: as many as the model was trained with.
        num_windows: Of a clip; more of them see faster movements.
    """

    def __init__(self, folder: str, num_frames: int | None = None, num_windows: int = 1) -> None:
        checks.count("num_windows", num_windows, most=MOST_FRAMES)
        place = Path(folder)
        files = _files(place)
        self.prepare = read_preparation(files[1], SOURCE)
        self.model = _network(place)
        self.num_frames = _num_frames(self.model, place) if num_frames is None else num_frames
        checks.count("num_frames", self.num_frames, most=MOST_FRAMES)
        self.num_windows = num_windows
        self.config = {
            "video": folder,
            "num_frames": self.num_frames,
            "num_windows": num_windows,
        }
        self._hash = hash_files(files)
        self._num = self._tried(place)

    @property
    def num(self) -> int:
        return self._num

    def hash(self) -> str:
        text = f"{self._hash} {self.num_frames} {self.num_windows}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @torch.no_grad()
    def __call__(
        self,
        frames: Video,
        audio: Float[Tensor, "b s"],
        portrait: Float[Tensor, "c k 3 _h _w"],
        own_motion: Float[Tensor, "c r m"],
        own_valid: Bool[Tensor, "c r"],
        condition: Int[Tensor, " b"],
    ) -> Float[Tensor, "b d"]:
        self.model.to(frames.device)
        shown = torch.linspace(0, frames.shape[1] - 1, self.num_windows * self.num_frames)
        pictures = frames[:, shown.round().long()]
        windows = rearrange(pictures, "b (k n) ... -> (b k) n ...", n=self.num_frames)
        rows = torch.cat([self._tokens(part).mean(1) for part in windows.split(AT_ONCE)])
        return rows.unflatten(0, (-1, self.num_windows)).mean(1)

    def _tokens(self, windows: Float[Tensor, "k n 3 h w"]) -> Float[Tensor, "k t d"]:
        """The tokens of windows of pictures in [-1, 1]."""
        pictures = (windows.flatten(0, 1).clamp(-1, 1) + 1) * 127.5
        ready = self.prepare(pictures).unflatten(0, windows.shape[:2])
        more = ENCODER_ALONE.get(self.model.config.model_type, {})
        return self.model(**{self.model.main_input_name: ready}, **more).last_hidden_state.float()

    def _tried(self, folder: Path) -> int:
        """Numbers in a row. ValueError where the network gives no tokens of a clip."""
        side = self.prepare.crop
        try:
            with torch.no_grad():
                _, _, num = self._tokens(torch.zeros(1, self.num_frames, 3, side, side)).shape
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            words = f"it makes no tokens of {self.num_frames} pictures of {side} x {side}"
            raise _unfit(folder, f"{words} ({_first_line(error)})") from error
        return num


def _files(folder: Path) -> list[Path]:
    """Configuration, preparation and weights. ValueError for the first that is missing."""
    config, index = folder / "config.json", folder / f"{WEIGHTS}.index.json"
    if not config.is_file():
        raise _unfit(folder, "no config.json in this folder")
    preparations = [folder / name for name in PREPARATIONS if (folder / name).is_file()]
    if not preparations:
        raise _unfit(folder, f"no {' or '.join(PREPARATIONS)}")
    weights = indexed_weights(folder) if index.is_file() else [folder / WEIGHTS]
    for path in weights:
        if not path.is_file():
            raise _unfit(folder, f"no {path.name}")
    return [config, preparations[0], *weights]


def _network(folder: Path) -> Any:
    """ValueError for what transformers does not load, for weights that are missing or not finite,
    and for a network that takes other things than a clip's pictures."""
    from transformers import AutoModel

    model, lacks = load_model(AutoModel, folder, f"a video encoder, as {SOURCE}")
    if missing := [name for name in lacks if not name.startswith("pooler")]:
        raise _unfit(folder, f"its weights lack {', '.join(missing[:3])}")
    if model.main_input_name not in PICTURES:
        raise _unfit(folder, f"a {model.config.model_type} takes {model.main_input_name}")
    state = model.state_dict()
    check_numbers(state, where=folder, counters=state)
    return model


def _num_frames(model: Any, folder: Path) -> int:
    """Of the clips that the network was trained on. ValueError where it was not on clips."""
    config = model.config.to_dict()
    for name in NUM_FRAMES:
        if name in config:
            return config[name]
    raise _unfit(folder, f"the config of a {config['model_type']} has no {' or '.join(NUM_FRAMES)}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _unfit(folder: Path, reason: str) -> ValueError:
    return ValueError(f"{folder}: {reason}; a video encoder is needed, as {SOURCE}")
