"""SyncNet of joonson/syncnet_python: layer names and shapes fit its ``syncnet_v2.model`` unchanged.

For real faces: 224 x 224 crops of the tracked face and 16 kHz speech, scored by sync.py. The
weights are the user's to supply; nothing is downloaded. Paper: Chung & Zisserman, "Out of time:
automated lip sync in the wild", ACCV workshops 2016.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.base.outside import check_pulled
from avatar_v.critics.frozen import weights_hash
from avatar_v.critics.look import Faces, Video, cut, in_pixels, upright

INPUT_SIZE = 224
CROP_SCALE = 0.40
"""By how much its own pipeline cuts wider than the detector's box (faces/syncnet_crop.py)."""
BROW = 0.65
"""Height of the brows over the chin, in heads; a detector's box ends there."""
NUM_DIMS = 1024
WEIGHTS_FILE = "syncnet_v2.model"
WEIGHTS_URL = "https://www.robots.ox.ac.uk/~vgg/software/lipsync/data/syncnet_v2.model"
SOURCE = (
    f"{WEIGHTS_FILE} from {WEIGHTS_URL} "
    "(licence: for research, Creative Commons Attribution, VGG, University of Oxford)"
)


class SyncNet(nn.Module):
    """Five frames and 0.2 s of sound into one space, where what belongs together is near."""

    name = "syncnet"
    by_face = True

    def __init__(self) -> None:
        super().__init__()
        self.netcnnaud = _audio_layers()
        self.netfcaud = _head()
        self.netcnnlip = _lip_layers()
        self.netfclip = _head()

    def look(self, video: Video, faces: Faces | None) -> Float[Tensor, "b f 3 224 224"]:
        """Faces as the network was trained on them, but that the crop stands still for these
        frames, which are few, and repeats the border."""
        assert faces is not None
        corners = in_pixels(faces.box.float().unflatten(-1, (2, 2)), *video.shape[3:]).mean(1)
        low, high = corners.unbind(1)
        low = torch.stack([low[:, 0], high[:, 1] - BROW * (high - low)[:, 1]], dim=1)
        half = (high - low).amax(1) / 2
        down = torch.stack([torch.zeros_like(half), CROP_SCALE * half], dim=1)
        square = upright(low + down, high + down, (1 + CROP_SCALE) * half)
        square = square.repeated(video.shape[1])
        pictures = video.float().clamp(-1, 1).flatten(0, 1)
        return cut(pictures, square, INPUT_SIZE).unflatten(0, video.shape[:2])

    def forward_lip(self, x: Float[Tensor, "b 3 5 224 224"]) -> Float[Tensor, "b 1024"]:
        """``x``: BGR pictures, 0 … 255."""
        return self.netfclip(self.netcnnlip(x).flatten(1))

    def forward_aud(self, x: Float[Tensor, "b 1 13 20"]) -> Float[Tensor, "b 1024"]:
        """``x``: 13 MFCCs, 20 of them in time, 100 a second."""
        return self.netfcaud(self.netcnnaud(x).flatten(1))

    def embed_video(self, windows: Float[Tensor, "b 5 3 h w"]) -> Float[Tensor, "b 1024"]:
        """Windows of RGB faces in [-1, 1], of any square size; differentiable, in fp32."""
        x = windows.float()
        if x.shape[-2:] != (INPUT_SIZE, INPUT_SIZE):
            size = (INPUT_SIZE, INPUT_SIZE)
            flat = F.interpolate(x.flatten(0, 1), size, mode="bilinear", antialias=True)
            x = flat.unflatten(0, x.shape[:2])
        bgr = (x.flip(2) + 1) * 127.5
        return self.forward_lip(bgr.transpose(1, 2))

    def embed_audio(self, windows: Float[Tensor, "b 20 13"]) -> Float[Tensor, "b 1024"]:
        """Windows of ``sync.mfcc``."""
        return self.forward_aud(windows.float().transpose(1, 2)[:, None])

    def hash(self) -> str:
        return weights_hash(self.state_dict())

    @classmethod
    def load(cls, path: Path | str) -> "SyncNet":
        """The frozen network with the weights of a ``syncnet_v2.model``, in eval mode and fp32.

        ValueError if the file is missing (where to get it, its licence), holds no plain tensors,
        or has other names or shapes (which ones).
        """
        model = cls()
        state = _read(Path(path))
        _check(state, model.state_dict(), Path(path))
        model.load_state_dict({**_counters(model), **state})
        return model.float().eval().requires_grad_(False)


def _audio_layers() -> nn.Sequential:
    return nn.Sequential(
        *_block(nn.Conv2d(1, 64, 3, padding=1)),
        nn.Identity(),  # a pool of one element in the original; it keeps the numbering
        *_block(nn.Conv2d(64, 192, 3, padding=1)),
        nn.MaxPool2d(3, stride=(1, 2)),
        *_block(nn.Conv2d(192, 384, 3, padding=1)),
        *_block(nn.Conv2d(384, 256, 3, padding=1)),
        *_block(nn.Conv2d(256, 256, 3, padding=1)),
        nn.MaxPool2d(3, stride=2),
        *_block(nn.Conv2d(256, 512, (5, 4))),
    )


def _lip_layers() -> nn.Sequential:
    """The first kernel spans the five frames, all others one picture."""
    flat = (1, 3, 3)
    return nn.Sequential(
        *_block(nn.Conv3d(3, 96, (5, 7, 7), stride=(1, 2, 2))),
        nn.MaxPool3d(flat, stride=(1, 2, 2)),
        *_block(nn.Conv3d(96, 256, (1, 5, 5), stride=(1, 2, 2), padding=(0, 1, 1))),
        nn.MaxPool3d(flat, stride=(1, 2, 2), padding=(0, 1, 1)),
        *_block(nn.Conv3d(256, 256, flat, padding=(0, 1, 1))),
        *_block(nn.Conv3d(256, 256, flat, padding=(0, 1, 1))),
        *_block(nn.Conv3d(256, 256, flat, padding=(0, 1, 1))),
        nn.MaxPool3d(flat, stride=(1, 2, 2)),
        *_block(nn.Conv3d(256, 512, (1, 6, 6))),
    )


def _head() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, NUM_DIMS)
    )


def _block(conv: nn.Conv2d | nn.Conv3d) -> list[nn.Module]:
    norm = nn.BatchNorm2d if isinstance(conv, nn.Conv2d) else nn.BatchNorm3d
    return [conv, norm(conv.out_channels), nn.ReLU()]


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"SyncNet needs its weights, and {path} is missing: get {SOURCE}")
    check_pulled(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of torch and pickle: whatever the bytes are
        raise ValueError(f"{path} is not a readable {WEIGHTS_FILE}: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} is not a readable {WEIGHTS_FILE}: expected tensors by name")
    return state


def _check(state: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    """Every tensor is there in its shape, and no other. Counters of batches may be absent."""
    needed = {name for name in expected if not name.endswith("num_batches_tracked")}
    wrong = [f"{name} is missing" for name in sorted(needed - set(state))]
    wrong += [f"{name} is unknown" for name in sorted(set(state) - set(expected))]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)}, expected {tuple(expected[name].shape)}"
        for name in sorted(set(state) & set(expected))
        if state[name].shape != expected[name].shape
    ]
    if wrong:
        raise ValueError(f"{path} does not fit SyncNet: {'; '.join(wrong)}")


def _counters(model: SyncNet) -> dict[str, Tensor]:
    """Batch counters, which files written before PyTorch 0.4.1 lack and nothing here reads."""
    return {k: v for k, v in model.state_dict().items() if k.endswith("num_batches_tracked")}
