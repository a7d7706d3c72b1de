"""torch.compile of the whole network in one graph: any lengths, behind a cache that some samples
read. A reference is one graph too, behind its packing, which stays outside. A compiled policy
repeats its rollout exactly. Blocks alone are a graph each, which all blocks share.

The scripts run in a process of their own, where functions have no run-time type checks for the
compiler to trace.
"""

import dataclasses
from pathlib import Path

import pytest
import torch

from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.models.config import DiTConfig
from avatar_v.parallel.compiling import PAYS_FROM, check_compile, compiles
from avatar_v.request.request import Weights
from avatar_v.sampling.amount import num_passes
from avatar_v.sampling.settings import Settings
from forked import run_script

SCRIPT = """
import dataclasses
import sys

import torch
from torch._dynamo.utils import counters

from avatar_v.models.config import DiTConfig
from random_models import make_cond, make_dit, make_reference

torch.set_num_threads(1)
config = dataclasses.replace(DiTConfig.tiny(), num_layers=1)
dit = make_dit(config)
options = {"backend": sys.argv[1], "dynamic": True}
forward = torch.compile(dit, fullgraph=True, **options)
encode = torch.compile(dit.encode_reference, **options)


def same(got, expected):
    # fp32: the compiler takes the plain formulas of norm and rotation
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def graphs():
    return counters["stats"]["unique_graphs"]


def passes(num_samples, num_frames, num_reference):
    drawn = torch.Generator().manual_seed(num_frames)
    x = torch.randn(num_samples, num_frames, config.latent_channels, 4, 4, generator=drawn)
    t = torch.rand(num_samples, num_frames, generator=drawn)
    cond = make_cond(config, num_samples, num_frames)
    valid = torch.ones(num_samples, num_reference, dtype=torch.bool)
    valid[1, 4] = False
    reference = make_reference(config, valid)
    yield lambda network: (dit.encode_reference if network is dit else encode)(reference).layers[0]
    past = dit.encode_reference(reference)
    some = dataclasses.replace(cond, reference_keep=torch.arange(num_samples) > 0)
    yield lambda network: network(x, t, some, past=past)


with torch.no_grad():
    # sizes that are equal at first would be taken for one: 3 samples, 7 frames, 13 of a reference
    for call in passes(3, 7, 13):
        same(call(forward), call(dit))
    compiled = graphs()
    for call in passes(5, 11, 29):
        same(call(forward), call(dit))
    assert graphs() == compiled, f"{graphs()} graphs, {compiled} of them for the first lengths"
    breaks = counters["graph_break"]
    assert breaks and all("disable" in why for why in breaks), f"not the packing's: {dict(breaks)}"
print("compiled", compiled)
"""

BLOCKS = """
import dataclasses
import sys

import torch
from torch._dynamo.utils import counters

from avatar_v.models.config import DiTConfig
from avatar_v.parallel.compiling import compiled, compiled_s
from avatar_v.sampling.guidance import guided
from random_models import make_cond, make_dit, make_reference

torch.set_num_threads(1)
backend, *lengths = sys.argv[1:]
config = DiTConfig.tiny()
dit = make_dit(config)
dits = dit, compiled(dit, backend)
with torch.inference_mode():
    for num_frames in map(int, lengths):
        x = torch.randn(1, num_frames, config.latent_channels, 4, 4)
        reference = make_reference(config, torch.ones(1, 11, dtype=torch.bool), has_motion=True)
        cond = make_cond(config, 1, num_frames, reference=reference)
        motion = torch.randn(1, num_frames, config.motion_dim)
        cond = dataclasses.replace(cond, motion=motion)
        steps = [guided(dit, cond, text=1.0, audio=2.0) for dit in dits]
        for t in (0.9, 0.4):  # the second reads what the first has left of text and sound
            want, got = (step(x, torch.full((1, num_frames), t)) for step in steps)
            # fp32: sums in another order
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
assert not counters["graph_break"], dict(counters["graph_break"])
assert compiled_s() > 0
assert dits[1].blocks[0]._compiled_call_impl and not dit.blocks[0]._compiled_call_impl
ours, theirs = (list(part.parameters()) for part in dits)
assert all(a is b for a, b in zip(ours, theirs, strict=True)), "weights are there once"
print("compiled", counters["stats"]["unique_graphs"])
"""

POLICY = """
import sys
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from aligning import clips, make_stage, make_weights
from avatar_v.sampling.exploring import Exploration
from avatar_v.training.policies import Guidance

torch.set_num_threads(1)
steps = Exploration(num_steps=2, window=1, noise=0.7)
stage = make_stage(make_weights(Path(sys.argv[1])), exploration=steps, guidance=Guidance())
batch = clips()


_, eager = stage.roll(stage.begin(batch, 0))
stage.network.compile(backend="aot_eager")
rollout, trajectory = stage.roll(stage.begin(batch, 0))
loss, logs = stage.policy_loss(rollout, trajectory, 0, first=True)
assert logs["ratio"] == 0
loss.backward()
assert any(p.grad is not None and bool(p.grad.any()) for p in stage.network.parameters())
mean, other = trajectory.moves[0].mean, eager.moves[0].mean
torch.testing.assert_close(mean, other, atol=1e-5, rtol=1e-5)
print("compiled", counters["stats"]["unique_graphs"])
"""


def run(script: str, *words: str) -> str:
    done = run_script(script, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_one_graph_serves_all_lengths() -> None:
    assert "compiled" in run(SCRIPT, "aot_eager")


@pytest.mark.parametrize(
    ("backend", "lengths", "num"),
    [("eager", "7 5 6", 6), pytest.param("inductor", "7 5 6", 6, marks=pytest.mark.slow)],
)
def test_a_block_is_one_graph_in_generation(backend: str, lengths: str, num: int) -> None:
    """One each for tokens of video and of motion, and those of the reference; of a second length
    one that serves all. As many whatever the number of blocks."""
    assert f"compiled {num}" in run(BLOCKS, backend, *lengths.split())


def test_auto_compiles_from_where_it_pays() -> None:
    """A live sound has no length that is known, and its first pictures would wait."""
    for num, expected in ((1, False), (PAYS_FROM - 1, False), (PAYS_FROM, True), (None, False)):
        assert compiles("auto", num) is expected
        assert compiles("on", num)
        assert not compiles("off", num)
    with pytest.raises(ValueError, match="compile is auto, on, off, got 'always'"):
        compiles("always", 1)


def test_passes_are_chunks_or_blocks_by_steps_and_guidance() -> None:
    """45 frames are 12 latents: 4 chunks of 5 that share 2, and 4 blocks of 3 behind one of 2."""
    settings, config = Settings(chunk_latents=5, num_steps=4), DiTConfig.tiny()

    def passes(config: DiTConfig, *, has_reference: bool = False, **given: float) -> int:
        asked = dataclasses.replace(settings, **given)
        return num_passes(asked, config, 45, has_reference=has_reference)

    assert passes(config, guidance_audio=1.0) == 4 * 4
    assert passes(config, guidance_audio=2.0) == 2 * 4 * 4
    assert passes(config, guidance_text=3.0, has_reference=True) == 3 * 4 * 4
    assert passes(dataclasses.replace(config, causal_block=3), guidance_audio=1.0) == 5 * 4
    inside = dataclasses.replace(config, guidance_ranges=((1.0, 5.0),) * 3)
    assert passes(inside, guidance_audio=2.0) == 4 * 4


def test_compiling_asks_for_a_compiler_and_weights_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="neither with --offload nor with --shard"):
        check_compile("auto", torch.device("cpu"), is_moved=True)
    check_compile("off", torch.device("cpu"), is_moved=True)
    with pytest.raises(ValueError, match="compile is auto, on, off, got 'yes'"):
        StoredPipeline(Weights("small", device="cpu", compile="yes"))
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler, and there is no no-compiler"):
        StoredPipeline(Weights("small", device="cpu", compile="on"))


@pytest.mark.slow
def test_the_ratio_of_a_compiled_policy_is_exactly_one(tmp_path: Path) -> None:
    assert "compiled 2" in run(POLICY, str(tmp_path)), "a graph of the rollout, one with gradients"
