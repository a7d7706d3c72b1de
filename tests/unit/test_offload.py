"""parallel/offload.py on a simulated device: who travels when, who waits for whom, what is left."""

import threading

import pytest
import torch
from torch import Tensor, nn

from avatar_v.parallel.offload import Residency
from avatar_v.parallel.streams import check_offload
from fake_streams import FakeStreams, Span, Stack, X, stacks
from random_models import randomise


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
    for copied, computing in zip(copies[: len(computed)], computed, strict=True):
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

    def wait(*_: object) -> None:
        streams.synchronize()

    for block in timed.blocks:
        block.layer.register_forward_hook(wait)
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
