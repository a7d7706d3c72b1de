"""SyncNet and its front end against independent evaluations: names, shapes, every layer, MFCCs.

With `pip install --no-deps syncnet-python` the network is also compared with the one in that
package; its other needs (torchvision among them) are neither installed nor imported.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.sync import audio_windows, distance_table, embed_clip, mfcc, sync_score
from avatar_v.critics.syncnet import SyncNet
from random_models import randomise

# of joonson/syncnet_python, SyncNetModel.py: convolutions by index, their norm is the next index
AUDIO = {0: (64, 1, 3, 3), 4: (192, 64, 3, 3), 8: (384, 192, 3, 3), 11: (256, 384, 3, 3),
         14: (256, 256, 3, 3), 18: (512, 256, 5, 4)}  # fmt: skip
LIP = {0: (96, 3, 5, 7, 7), 4: (256, 96, 1, 5, 5), 8: (256, 256, 1, 3, 3),
       11: (256, 256, 1, 3, 3), 14: (256, 256, 1, 3, 3), 18: (512, 256, 1, 6, 6)}  # fmt: skip
STATISTICS = ("weight", "bias", "running_mean", "running_var")


@pytest.fixture(scope="module")
def net() -> SyncNet:
    """Random weights and statistics, so that no norm is the identity."""
    net = SyncNet()
    randomise(net)
    generator = torch.Generator().manual_seed(1)
    for name, buffer in net.named_buffers():
        if buffer.is_floating_point():
            low = 0.5 if name.endswith("var") else -0.5
            buffer.copy_(low + torch.rand(buffer.shape, generator=generator))
    return net.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    lip = torch.rand(2, 3, 5, 224, 224, generator=generator) * 255
    return lip, torch.randn(2, 1, 13, 20, generator=generator) * 10


def expected_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for branch, table in (("netcnnaud", AUDIO), ("netcnnlip", LIP)):
        for index, shape in table.items():
            shapes[f"{branch}.{index}.weight"], shapes[f"{branch}.{index}.bias"] = shape, shape[:1]
            for name in STATISTICS:
                shapes[f"{branch}.{index + 1}.{name}"] = shape[:1]
    for branch in ("netfcaud", "netfclip"):
        shapes |= {f"{branch}.0.weight": (512, 512), f"{branch}.3.weight": (1024, 512)}
        shapes |= {f"{branch}.0.bias": (512,), f"{branch}.3.bias": (1024,)}
        shapes |= {f"{branch}.1.{name}": (512,) for name in STATISTICS}
    return shapes


def test_names_and_shapes_are_those_of_the_published_weights(net):
    state = {k: tuple(v.shape) for k, v in net.state_dict().items() if "num_batches" not in k}
    assert state == expected_shapes()


def test_both_branches_against_a_plain_evaluation(net, inputs):
    lip, audio = inputs
    state = net.state_dict()

    def norm(x: Tensor, at: str) -> Tensor:
        w, b, mean, var = (state[f"{at}.{name}"] for name in STATISTICS)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale = w / (var + 1e-5).sqrt()
        return torch.relu(x * scale.view(shape) + (b - mean * scale).view(shape))

    def layer(x: Tensor, branch: str, index: int, conv, stride, padding) -> Tensor:
        at = f"{branch}.{index}"
        y = conv(x, state[f"{at}.weight"], state[f"{at}.bias"], stride, padding)
        return norm(y, f"{branch}.{index + 1}")

    def head(x: Tensor, branch: str) -> Tensor:
        x = x.flatten(1) @ state[f"{branch}.0.weight"].T + state[f"{branch}.0.bias"]
        return norm(x, f"{branch}.1") @ state[f"{branch}.3.weight"].T + state[f"{branch}.3.bias"]

    a = layer(audio, "netcnnaud", 0, F.conv2d, 1, 1)
    a = F.max_pool2d(layer(a, "netcnnaud", 4, F.conv2d, 1, 1), 3, (1, 2))
    for index in (8, 11, 14):
        a = layer(a, "netcnnaud", index, F.conv2d, 1, 1)
    a = layer(F.max_pool2d(a, 3, 2), "netcnnaud", 18, F.conv2d, 1, 0)
    v = layer(lip, "netcnnlip", 0, F.conv3d, (1, 2, 2), 0)[:, :, 0]  # five frames are one now
    v = F.max_pool2d(v, 3, 2)[:, :, None]
    v = layer(v, "netcnnlip", 4, F.conv3d, (1, 2, 2), (0, 1, 1))[:, :, 0]
    v = F.max_pool2d(v, 3, 2, padding=1)[:, :, None]
    for index in (8, 11, 14):
        v = layer(v, "netcnnlip", index, F.conv3d, 1, (0, 1, 1))
    v = layer(F.max_pool2d(v[:, :, 0], 3, 2)[:, :, None], "netcnnlip", 18, F.conv3d, 1, 0)
    assert a.shape[1:] == (512, 1, 1)
    assert v.shape[1:] == (512, 1, 1, 1)
    # fp32 sums of up to 9,216 terms in another order
    torch.testing.assert_close(net.forward_aud(audio), head(a, "netfcaud"), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(net.forward_lip(lip), head(v, "netfclip"), rtol=1e-4, atol=1e-3)


def test_the_network_of_the_syncnet_python_package_gives_the_same(net, inputs):
    spec = importlib.util.find_spec("syncnet_python")  # found, not imported: its __init__ needs cv2
    if spec is None or spec.origin is None:
        pytest.skip("no syncnet-python: pip install --no-deps syncnet-python")
    file = Path(spec.origin).with_name("SyncNetModel.py")
    model_spec = importlib.util.spec_from_file_location("joonson_syncnet", file)
    assert model_spec is not None
    assert model_spec.loader is not None
    module = importlib.util.module_from_spec(model_spec)
    model_spec.loader.exec_module(module)
    other = module.S(num_layers_in_fc_layers=1024).eval()
    other.load_state_dict(net.state_dict(), strict=True)
    lip, audio = inputs
    with torch.no_grad():  # the same kernels on the same numbers: a few last bits at most
        torch.testing.assert_close(net.forward_lip(lip), other.forward_lip(lip), rtol=1e-5, atol=0)
        torch.testing.assert_close(
            net.forward_aud(audio), other.forward_aud(audio), rtol=1e-5, atol=0
        )


def test_windows_of_a_clip_are_bgr_bytes_and_transposed_mfccs(net):
    """`embed_clip` against the calls that syncnet_python makes, window by window."""
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (8, 3, 224, 224), dtype=torch.uint8, generator=generator)
    audio = torch.randn(8 * 640, generator=generator) * 0.1
    steps = mfcc(audio).T[None, None]
    bgr = frames.float().flip(1).transpose(0, 1)[None]
    video = torch.cat([net.forward_lip(bgr[:, :, i : i + 5]) for i in range(3)])
    sound = torch.cat([net.forward_aud(steps[..., 4 * i : 4 * i + 20]) for i in range(3)])
    expected = sync_score(distance_table(video, sound))
    score = sync_score(distance_table(*embed_clip(net, frames, audio, batch_size=2)))
    assert score.offset == expected.offset
    # pictures go through [-1, 1] in fp32, which costs the last bits of 0 … 255
    assert score.distance == pytest.approx(expected.distance, rel=1e-4)


def test_mfccs_against_the_formulas():
    """python_speech_features' defaults, written out in numpy: a change of them must be seen."""
    audio = torch.randn(4_000, generator=torch.Generator().manual_seed(4)) * 0.1
    x = np.clip(np.round(audio.double().numpy() * 32768), -32768, 32767)
    x = np.append(x[0], x[1:] - 0.97 * x[:-1])
    num = 1 + int(np.ceil((len(x) - 400) / 160))
    x = np.append(x, np.zeros(num * 160 + 400))
    framed = np.stack([x[160 * i : 160 * i + 400] for i in range(num)])
    power = np.abs(np.fft.rfft(framed, 512)) ** 2 / 512
    mel = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 28)
    edges = np.floor(513 * 700 * (10 ** (mel / 2595) - 1) / 16000)
    bins = np.arange(257)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    bands = np.log(power @ np.clip(np.minimum(rise, fall), 0, None))
    k, n = np.arange(13)[None], np.arange(26)[:, None]
    cosine = np.sqrt(2 / 26) * np.cos(np.pi * k * (2 * n + 1) / 52)
    rows = (bands @ cosine) * (1 + 11 * np.sin(np.pi * k / 22))
    rows[:, 0] = np.log(power.sum(1))
    # both in fp64, ours kept in fp32: 24 bits of values up to 100
    np.testing.assert_allclose(mfcc(audio).numpy(), rows, rtol=1e-5, atol=1e-4)


def test_a_window_has_the_sound_of_its_five_frames():
    """A click within frames 7 … 11 is in window 7 and its neighbours, in no window farther off."""
    audio = torch.zeros(20 * 640)
    audio[9 * 640 + 320] = 0.5  # the middle of frame 9, the middle frame of window 7
    windows = audio_windows(mfcc(audio))
    heard = (windows - windows[0]).abs().amax((1, 2)) > 1
    assert heard.nonzero()[:, 0].tolist() == [5, 6, 7, 8, 9]
