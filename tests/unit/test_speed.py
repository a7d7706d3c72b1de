"""The measurements of speed as far as a CPU goes: the ways do the same, the rows are right."""

import subprocess
from pathlib import Path

import pytest
import torch

from avatar_v.models.guided import with_guidance_inside
from avatar_v.weights.random import make_dit
from avatar_v_eval.speed import alignment, commit, losses, offload, peers, timestep
from avatar_v_eval.speed.offload import WAYS, numbers, prepared
from avatar_v_eval.speed.peers import plain
from avatar_v_eval.speed.reference import Peers
from avatar_v_eval.turns import in_turns, ratio
from eval_cases import measured
from fake_streams import FakeStreams

CPU = torch.device("cpu")


def test_without_a_gpu_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measured("speed", "offload", "--out", str(tmp_path)) == 0
    assert "needs a CUDA GPU" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_all_ways_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = FakeStreams()
    monkeypatch.setattr(offload, "streams_of", lambda device: streams)
    velocity, video = {}, {}
    for way in WAYS:
        torch.manual_seed(0)
        work = prepared(way, "tiny", CPU)
        with torch.inference_mode():
            velocity[way], video[way] = work.denoise(), work.decode()
        assert offload.measured(work, CPU, rounds=1)["turn_s"] > 0
    assert velocity["resident"].std() > 0.1
    for way in WAYS:
        assert torch.equal(velocity[way], velocity["resident"]), way
    for way in ("offload", "group"):  # whole models are decoded by diffusers' own loop
        assert torch.equal(video[way], video["resident"]), way
    assert streams.peak == 2


def test_the_rows() -> None:
    def times(denoise_s: float, turn_s: float, switch_s: float, peak_mib: float) -> dict:
        return {
            "denoise_s": denoise_s,
            "turn_s": turn_s,
            "switch_s": switch_s,
            "switch_read_s": 2 * switch_s,
            "peak_mib": peak_mib,
        }

    found = {
        "resident": [times(2.0, 3.0, 0.0, 900)],
        "offload": [times(2.2, 3.3, 0.004, 300)],
        "group": [times(4.4, 0, 0, 0)],
        "model": [times(0, 6.6, 0, 0)],
    }
    rows = numbers(found)
    assert {key: round(row.value, 6) for key, row in rows.items()} == {
        "switch_ms": 4.0,
        "switch_read_ms": 8.0,
        "denoise_ratio": 1.1,
        "resident_mib": 900,
        "offload_mib": 300,
        "group_ratio": 2.0,
        "model_ratio": 2.0,
    }
    assert rows["switch_ms"].met


def test_ways_take_turns_and_a_ratio_is_taken_within_each() -> None:
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = in_turns(ways, 3)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}
    found = ratio({"a": [2.0, 6.0, 4.0], "b": [1.0, 2.0, 4.0]}, "a", "b")
    assert (found.value, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peers_are_timed_on_weights_of_either_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Generation narrows weights where the processor has bf16; what is trained is fp32."""
    monkeypatch.setattr(peers, "emulates_bf16", lambda device: dtype == torch.float32)
    monkeypatch.setattr(peers, "TRAINED_WINDOWS", 1)
    dit = make_dit().to(dtype)
    rows = peers.dit_numbers(dit, 1) | peers.muon_numbers(dit, 1)
    assert list(rows) == ["denoise_speedup", "train_speedup", "muon_speedup"]
    assert all(row.value > 0 for row in rows.values())


@pytest.mark.parametrize("ratio", [1, 2])
def test_the_timed_ways_differ_in_what_the_reference_sees_alone(ratio: int) -> None:
    """Ours stands at a gap in time and reads no text in the reference, the others do not, so only
    the mask's effect is compared: dense attention under it is another result than without."""
    peers = Peers(ratio)
    with torch.no_grad():
        ours, naive, masked = peers.ours(), peers.naive(), peers.masked()
        assert ours.shape == naive.shape == masked.shape
        assert (masked - naive).abs().max() > 1e-4
        assert torch.equal(peers.naive(), naive), "the patch is taken back"


def test_a_step_with_and_without_perceptual_losses_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("BATCH", 1), ("LATENTS", 5), ("WINDOW", 3), ("REFERENCE", 2)):
        monkeypatch.setattr(losses, name, size)
    assert losses.measured("none", 1)["step_s"] > 0
    assert losses.measured("all", 1)["step_s"] > 0


def test_phases_of_a_step_of_grpo_add_up_to_it() -> None:
    times, peak_mib, sizes = alignment.steps(alignment.CASES[0], 1)
    parts = [times[key][0] for key in ("rollout_s", "pictures_s", "rewards_s", "update_s")]
    assert sum(parts) == pytest.approx(times["step_s"][0])
    assert min(parts) > 0
    assert peak_mib > 0
    assert "12 conditions of 8 samples" in sizes


def test_a_commit_is_unpacked_and_one_that_is_not_there_is_refused(tmp_path, monkeypatch) -> None:
    """In a repository of its own: a clone may lack its history."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "file").write_text("now")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "file"], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    monkeypatch.setattr(commit, "ROOT", root)
    (root / "file").write_text("later")
    assert (commit.unpacked("HEAD", tmp_path / "before") / "file").read_text() == "now"
    with pytest.raises(ValueError, match="commit no-such"):
        commit.unpacked("no-such", tmp_path / "none")


def test_peers_get_the_backbone_without_guidance_inside() -> None:
    dit = make_dit()
    guided = with_guidance_inside(dit, ((1.0, 4.0),) * 3)
    state, copied = dit.state_dict(), plain(guided).state_dict()
    assert copied.keys() == state.keys()
    assert all(torch.equal(copied[key], state[key]) for key in state)


def test_a_line_of_ranks_is_faster_where_its_ratio_is_above_one() -> None:
    times = {
        f"{way}_{part}": [took_s]
        for part in ("sampled", "made")
        for way, took_s in (("one", 6.0), ("threads", 4.0), ("line", 2.0))
    }
    rows = timestep.numbers_of(times, num_ranks=2, num_blocks=12)
    assert rows["sampled_line"].value == 6.0
    assert (rows["made_one_over_line"].value, rows["made_threads_over_line"].value) == (3.0, 2.0)
