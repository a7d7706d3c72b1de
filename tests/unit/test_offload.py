"""parallel/offload.py on a simulated device: who travels when, who waits for whom, what is left."""

import copy
import threading

import pytest
import torch
from torch import Tensor, nn

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.presets import build
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.offload import Residency, blocks_of, offload_models, tensors_of
from avatar_v.parallel.streams import CudaStreams, check_offload
from avatar_v.testing import make_cond, make_dit, make_reference, randomise
from fake_streams import FakeStreams, Span, Stack

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def stacks(streams: FakeStreams, num_blocks: int, seconds: float = 2.0) -> tuple[Stack, Stack]:
    """The same network twice: on the simulated device, and as it is."""
    timed, plain = Stack(streams, num_blocks, seconds), Stack(None, num_blocks)
    randomise(plain, seed=num_blocks)
    timed.load_state_dict(plain.state_dict())
    return timed, plain


def overlaps(a: Span, b: Span) -> bool:
    return a.begin < b.end and b.begin < a.end


# --- order ---


def test_the_next_block_travels_while_this_one_computes() -> None:
    streams = FakeStreams(copy_s=1.0)
    timed, plain = stacks(streams, 4, seconds=2.0)
    Residency({"stack": timed}, streams)
    with torch.inference_mode():
        assert torch.equal(timed(X), plain(X))
    copies, computed = streams.copies, streams.computations
    assert [span.name for span in computed] == ["0", "1", "2", "3"]
    assert [span.name for span in copies] == ["0", "1", "2", "3", "0"]  # and ahead, to begin anew
    for copied, computing in zip(copies, computed, strict=False):
        assert copied.end <= computing.begin
    for copied, before in zip(copies[1:], computed, strict=True):
        assert copied.begin < before.end
    assert all(overlaps(copies[i + 1], computed[i]) for i in range(1, 4))
    assert streams.synchronize() == 1.0 + 4 * 2.0  # the first copy is all that anybody waits for


def test_copies_that_take_longer_than_blocks_set_the_pace() -> None:
    streams = FakeStreams(copy_s=3.0)
    timed, plain = stacks(streams, 4, seconds=2.0)
    Residency({"stack": timed}, streams)
    with torch.inference_mode():
        assert torch.equal(timed(X), plain(X))
    # two places: block 2 sets off when block 0 has ended, and so on
    assert [(span.begin, span.end) for span in streams.copies] == [
        (0, 3), (3, 6), (6, 9), (9, 12), (12, 15),
    ]  # fmt: skip
    assert [span.begin for span in streams.computations] == [3, 6, 9, 12]


def test_the_next_block_sets_off_even_if_the_host_waits_for_this_one() -> None:
    streams = FakeStreams(copy_s=1.0)
    timed, _ = stacks(streams, 4, seconds=2.0)
    for block in timed.blocks:
        block.layer.register_forward_hook(lambda *_: streams.synchronize() and None)
    Residency({"stack": timed}, streams)
    with torch.inference_mode():
        timed(X)
    assert streams.synchronize() == 1.0 + 4 * 2.0


@pytest.mark.parametrize("num_blocks", [2, 3, 5])
def test_no_more_blocks_than_places_are_on_the_device(num_blocks: int) -> None:
    streams = FakeStreams()
    timed, plain = stacks(streams, 5)
    residency = Residency({"stack": timed}, streams, num_blocks=num_blocks)
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(timed(X), plain(X))
    assert streams.peak == len(streams.places) == num_blocks
    copies = len(streams.copies)
    assert copies == (5 if num_blocks == 5 else 16)  # with places for all, nobody travels twice
    residency.release()
    assert streams.places == []


def test_steps_of_one_model_follow_without_a_gap() -> None:
    streams = FakeStreams(copy_s=1.0)
    timed, _ = stacks(streams, 3, seconds=2.0)
    Residency({"stack": timed}, streams)
    with torch.inference_mode():
        for _ in range(4):
            timed(X)
            streams.synchronize()
    assert streams.synchronize() == 1.0 + 4 * 3 * 2.0


def test_a_switch_between_models_hides_behind_the_last_block() -> None:
    streams = FakeStreams(copy_s=1.0)
    first, plain = stacks(streams, 3, seconds=2.0)
    second, other = stacks(streams, 4, seconds=2.0)
    Residency({"first": first, "second": second}, streams)
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(first(X), plain(X))
            assert torch.equal(second(X), other(X))
    assert streams.peak == 2
    assert streams.synchronize() == 1.0 + 3 * (3 + 4) * 2.0


def test_the_order_of_blocks_is_learned() -> None:
    class Backwards(Stack):
        def forward(self, x: Tensor) -> Tensor:
            for block in reversed(self.blocks):
                x = block(block(x))  # each twice, as with the motion stream
            return x

    streams = FakeStreams(copy_s=1.0)
    stack = Backwards(streams, 3, 2.0)
    randomise(stack)
    Residency({"stack": stack}, streams)
    with torch.inference_mode():
        stack(X)
        stack(X)  # that the first comes behind the last is known from here on
        streams.copies.clear()
        begin = streams.synchronize()
        stack(X)
    assert [span.name for span in streams.copies] == ["1", "0", "2"]
    assert streams.synchronize() == begin + 3 * 2 * 2.0


# --- what is left behind ---


def test_parameters_lie_on_the_host_between_calls_and_after_an_error() -> None:
    streams = FakeStreams()
    timed, plain = stacks(streams, 3)
    residency = Residency({"stack": timed}, streams)
    home = {name: p.data_ptr() for name, p in timed.named_parameters()}

    def check() -> None:
        assert {name: p.data_ptr() for name, p in timed.named_parameters()} == home
        for name, value in plain.state_dict().items():
            assert torch.equal(timed.state_dict()[name], value), name
        assert not any(p.is_inference() for p in timed.parameters())

    with torch.inference_mode():
        timed(X)
    check()
    for kind in (RuntimeError, KeyboardInterrupt):
        hook = timed.blocks[1].layer.register_forward_hook(lambda *_, kind=kind: _raise(kind))
        with torch.inference_mode(), pytest.raises(kind):
            timed(X)
        hook.remove()
        check()
        assert streams.places == []
        with torch.inference_mode():
            assert torch.equal(timed(X), plain(X))
    with pytest.raises(RuntimeError), residency.use("stack"):
        _raise(RuntimeError)
    assert streams.places == []


def _raise(kind: type[BaseException]) -> None:
    raise kind("in the middle")


def test_autocast_keeps_no_cast_weights_behind() -> None:
    streams = FakeStreams()
    timed, _ = stacks(streams, 2)
    residency = Residency({"stack": timed}, streams)
    weight = timed.blocks[0].layer.weight
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # without inference mode it would
        first = timed(X)
        residency.release()
        weight.data.zero_()
        assert not torch.equal(timed(X), first)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="2 blocks or more, got 1"):
        Residency({}, FakeStreams(), num_blocks=1)
    with pytest.raises(ValueError, match="the device is cpu: leave it out"):
        check_offload(torch.device("cpu"))
    check_offload(torch.device("cuda"))


# --- threads ---


def test_models_in_threads_take_turns_in_the_order_asked_for() -> None:
    streams = FakeStreams()
    first, plain = stacks(streams, 3)
    second, other = stacks(streams, 4)
    residency = Residency({"first": first, "second": second}, streams)
    order: list[str] = []
    with torch.inference_mode():
        wanted = {"first": plain(X), "second": other(X)}

    def work(name: str, module: nn.Module, times: int) -> None:
        with torch.inference_mode():
            for _ in range(times):
                with residency.use(name):
                    order.append(name)
                    assert torch.equal(module(X), wanted[name])

    with residency.use("first"):
        threads = []
        for name, module in (("second", second), ("first", first), ("second", second)):
            threads.append(threading.Thread(target=work, args=(name, module, 1)))
            threads[-1].start()
            while len(residency._turns._line) < len(threads) + 1:
                pass
        assert order == []
        with torch.inference_mode():
            assert torch.equal(first(X), plain(X))  # its own thread goes on
    for thread in threads:
        thread.join()
    assert order == ["second", "first", "second"]


def test_nobody_is_overtaken_by_a_thread_that_comes_back() -> None:
    streams = FakeStreams()
    first, _ = stacks(streams, 3)
    residency = Residency({"first": first}, streams)
    order: list[str] = []
    waits = threading.Event()

    def late() -> None:
        waits.set()
        with residency.use("first"):
            order.append("late")

    thread = threading.Thread(target=late)
    for turn in range(100):
        with residency.use("first"):
            order.append("back")
            if turn == 0:
                thread.start()
                while len(residency._turns._line) < 2:
                    pass
    thread.join()
    assert order[:3] == ["back", "late", "back"]


def test_many_threads_compute_what_one_computes() -> None:
    streams = FakeStreams()
    first, plain = stacks(streams, 3)
    second, other = stacks(streams, 4)
    Residency({"first": first, "second": second}, streams)
    failed: list[str] = []

    def work(module: nn.Module, like: nn.Module) -> None:
        with torch.inference_mode():
            for _ in range(20):
                if not torch.equal(module(X), like(X)):
                    failed.append("differs")

    pairs = [(first, plain), (second, other)] * 2
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert streams.peak == 2
    assert len(streams.computations) == 20 * 2 * (3 + 4)


# --- which tensors travel ---


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
    dit, conditioner = build("tiny")
    assert blocks_of(dit) == list(dit.blocks)
    assert conditioner.text_encoder.byte_embed in blocks_of(conditioner.text_encoder)
    for vae in (VideoVAE.wan21(), VideoVAE.wan22()):
        for half in (vae.core.encoder, vae.core.decoder):
            total = sum(tensor.numel() for tensor in tensors_of(half))
            rest = sum(tensor.numel() for tensor in tensors_of(half, besides=blocks_of(half)))
            assert rest < 0.05 * total


def test_what_tells_the_device_stays_on_it() -> None:
    """generator.py asks these tensors where the networks compute."""
    dit, conditioner = build("tiny")
    inside = [
        id(tensor)
        for module in (dit, conditioner)
        for block in blocks_of(module)
        for tensor in tensors_of(block)
    ]
    for tensor in (dit.patch_embed.weight, next(conditioner.parameters())):
        assert id(tensor) not in inside


# --- our networks ---


@pytest.fixture
def networks() -> tuple[nn.Module, Conditioner]:
    dit, conditioner = make_dit(), build("tiny")[1]
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
    with torch.autocast("cpu", torch.bfloat16):
        half = dit(x, t, cond, motion_t=motion, reference_cache=cache)
    return [
        latents, *frames, *half, *dit(x, t, cond, motion_t=motion),
        conditioner.encode_text(["a person speaks", ""]),
        conditioner.encode_audio(torch.randn(1, 9 * 640, generator=generator)),
        *(tensor for layer in cache.layers for tensor in layer),
    ]  # fmt: skip


def test_our_networks_give_the_same_bits(networks: tuple[nn.Module, Conditioner]) -> None:
    dit, conditioner = networks
    wanted = everything(dit, conditioner)
    streams = FakeStreams()
    offload_models(dit, conditioner, streams)
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
    offload_models(dit, conditioner, CudaStreams(device))
    assert next(conditioner.parameters()).device.type == "cuda"
    with torch.inference_mode():
        video = conditioner.vae.decode(torch.randn(1, 3, 16, 4, 4, device=device))
        text = conditioner.encode_text(["a"])
    assert video.isfinite().all()
    assert text.device.type == "cuda"


def test_umt5_with_its_tied_table() -> None:
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(vocab_size=8, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    model = UMT5EncoderModel(config).eval()
    tokens = torch.tensor([[3, 4, 5, 1]])
    with torch.inference_mode():
        wanted = model(tokens).last_hidden_state
        streams = FakeStreams()
        Residency({"text": model}, streams)
        assert torch.equal(model(tokens).last_hidden_state, wanted)
    assert len(streams.names) == 3  # the table, tied in two places, and two layers
    assert streams.peak == 2
    moving = {id(t) for block in blocks_of(model) for t in tensors_of(block)}
    assert id(model.encoder.final_layer_norm.weight) not in moving
