"""parallel/offload.py on real networks: which tensors travel, and the same bits as without."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.blocks import find_blocks, list_tensors
from avatar_v.parallel.offload import Residency, offload_models
from avatar_v.parallel.streams import CudaStreams
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from fake_streams import FakeStreams, Stack, X, stacks
from random_models import make_cond, make_dit, make_reference, randomise


def test_shared_weights_buffers_and_layouts_survive() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.again = nn.Embedding(5, 4)
            self.again.weight = self.table.weight  # tied, both embeddings
            self.blocks = nn.ModuleList(nn.Conv3d(4, 4, 1) for _ in range(3))
            self.blocks[1].weight = self.blocks[0].weight  # tied, in two blocks
            self.outside = nn.Linear(4, 4)
            self.blocks[2].register_buffer("shift", torch.arange(4.0))
            self.blocks[2].register_parameter("tied", self.outside.weight)

        def forward(self, index: Tensor) -> Tensor:
            x = (self.table(index) + self.again(index)).reshape(1, 4, 1, 1, 2)
            for block in self.blocks:
                x = block(x.to(memory_format=torch.channels_last_3d))
            return self.outside(x.flatten(1)[:, :4])

    module = Shared()
    randomise(module)
    for block in module.blocks:
        block.weight.data = block.weight.data.to(memory_format=torch.channels_last_3d)
    plain = copy.deepcopy(module)
    streams = FakeStreams()
    Residency({"module": module}, streams)
    index = torch.tensor([1, 3])
    with torch.inference_mode():
        assert torch.equal(module(index), plain(index))
    assert streams.peak == 2
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
        assert module.state_dict()[name].stride() == value.stride(), name
    assert module.table.weight is module.again.weight
    assert module.blocks[2].tied is module.outside.weight
    home = module.outside.weight.untyped_storage().data_ptr()
    assert home not in streams.names  # it stays on the device, for good


def test_a_weight_may_belong_to_two_models() -> None:
    streams = FakeStreams()
    first, plain = stacks(streams, 3)
    second, other = stacks(streams, 3)
    second.blocks[0].layer.weight = first.blocks[0].layer.weight
    second.after.weight = first.blocks[2].layer.weight  # a block's there, outside blocks here
    second.load_state_dict(other.state_dict())
    plain.load_state_dict(first.state_dict())
    for timed in (first, second):  # what is outside of blocks has no place of its own
        for block in timed.blocks:
            block.streams = None
    Residency({"first": first, "second": second}, streams)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(first(X), plain(X))
            assert torch.equal(second(X), other(X))


def test_the_blocks_of_our_networks() -> None:
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    assert find_blocks(dit) == list(dit.blocks)
    assert conditioner.text_encoder.byte_embed in find_blocks(conditioner.text_encoder)
    for vae in (VideoVAE.wan21(), VideoVAE.wan22()):
        for half in (vae.core.encoder, vae.core.decoder):
            total = sum(tensor.numel() for tensor in list_tensors(half))
            rest = sum(tensor.numel() for tensor in list_tensors(half, besides=find_blocks(half)))
            assert rest < 0.05 * total


def test_what_tells_the_device_stays_on_it() -> None:
    """generator.py asks these tensors where the networks compute."""
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    inside = [
        id(tensor)
        for module in (dit, conditioner)
        for block in find_blocks(module)
        for tensor in list_tensors(block)
    ]
    for tensor in (dit.patch_embed.weight, next(conditioner.parameters())):
        assert id(tensor) not in inside


# --- our networks ---


@pytest.fixture
def networks() -> tuple[nn.Module, Conditioner]:
    dit, conditioner = make_dit(), build("tiny", motion_stats=motion_stats())[1]
    randomise(conditioner.text_encoder)
    randomise(conditioner.audio_encoder)
    return dit, conditioner.eval()


@torch.inference_mode()
def everything(dit, conditioner: Conditioner) -> list[Tensor]:
    """What the networks give for some inputs: every path of generation."""
    generator = torch.Generator().manual_seed(0)
    video = torch.rand(1, 9, 3, 32, 32, generator=generator) * 2 - 1
    latents = conditioner.encode_video(video)
    decoder = conditioner.vae.stream_decoder()
    frames = [decoder.push(latents[:, :1]), decoder.push(latents[:, 1:])]
    reference = make_reference(
        dit.config, torch.ones(1, 9, dtype=torch.bool), has_motion=True,
        faces_valid=torch.ones(1, 2, dtype=torch.bool),
    )  # fmt: skip
    cache = dit.encode_reference(reference)
    assert cache is not None
    x = torch.randn(1, 3, dit.config.latent_channels, 4, 4, generator=generator)
    motion = torch.randn(1, 3, dit.config.motion_dim, generator=generator)
    t, cond = torch.full((1, 3), 0.5), make_cond(dit.config, 1, 3, reference=reference)
    cond = dataclasses.replace(cond, motion=motion)
    with torch.autocast("cpu", torch.bfloat16):
        half = dit(x, t, cond, past=cache)
    return [
        latents, *frames, half, dit(x, t, cond, past=cache),
        conditioner.encode_text(["a person speaks", ""]),
        conditioner.encode_audio(torch.randn(1, 9 * 640, generator=generator)),
        *(tensor for layer in cache.layers for tensor in layer),
    ]  # fmt: skip


def test_our_networks_give_the_same_bits(networks: tuple[nn.Module, Conditioner]) -> None:
    dit, conditioner = networks
    wanted = everything(dit, conditioner)
    streams = FakeStreams()
    offload_models([(dit, conditioner)], streams)
    for _ in range(2):
        for a, b in zip(everything(dit, conditioner), wanted, strict=True):
            assert torch.equal(a, b)
    assert streams.peak == 2


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits_and_holds_few_blocks(
    networks: tuple[nn.Module, Conditioner],
) -> None:
    device = torch.device("cuda")
    stack = Stack(None, 8)
    stack.blocks = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(8))  # 16 MiB each
    stack.before = stack.after = nn.Identity()
    x = torch.randn(64, 2048, device=device)
    with torch.inference_mode():
        wanted = copy.deepcopy(stack).to(device)(x)
        torch.cuda.synchronize()
        begin = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        Residency({"stack": stack}, CudaStreams(device))
        for _ in range(20):
            assert torch.equal(stack(x), wanted)
    assert torch.cuda.max_memory_allocated() - begin < 3 * 2**24 + 2**23
    assert {p.device.type for p in stack.parameters()} == {"cpu"}
    dit, conditioner = networks
    offload_models([(dit, conditioner)], CudaStreams(device))
    assert next(conditioner.parameters()).device.type == "cuda"
    with torch.inference_mode():
        video = conditioner.vae.decode(torch.randn(1, 3, 16, 4, 4, device=device))
        text = conditioner.encode_text(["a"])
    assert video.isfinite().all()
    assert text.device.type == "cuda"
