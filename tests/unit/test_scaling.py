"""planning/scaling.py: a step over several GPUs, as the code of one rank counts it."""

import dataclasses
import functools
import re
import shlex
from pathlib import Path

import pytest
import torch

from avatar_v.cli import main
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import ByteTextEncoder
from avatar_v.parallel import exchange
from avatar_v.planning.causal import Blocks
from avatar_v.planning.generating import _sharded
from avatar_v.planning.gpus import GPU, GPUS, LINK_SHARE, MEMORY_SHARE, gpu_called
from avatar_v.planning.measure import Cost, Event, as_on_gpus, cost_of
from avatar_v.planning.passes import Pass, history_bytes, pass_cost
from avatar_v.planning.scaling import (
    StepTime,
    exposed_links,
    gather_time,
    group_sizes,
    pcie_time,
    scaling_table,
    spread_over,
    step_time,
)
from avatar_v.weights.presets import build

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "full_size.md"
PLAIN = Pass(2, 3, (8, 8), audio=False, text_tokens=8)
"""2 samples of 3 frames of 16 tokens: 96 in all."""


def network(num_heads: int = 8, num_layers: int = 4) -> AvatarDiT:
    with torch.device("meta"):
        return AvatarDiT(
            DiTConfig(
                dim=8 * num_heads, num_heads=num_heads, num_layers=num_layers, ffn_dim=32,
                latent_channels=4, text_dim=8, audio_dim=8, freq_dim=16, motion_dim=64,
            )
        )  # fmt: skip


@functools.cache
def cost(num_ranks: int, of: Pass = PLAIN, num_heads: int = 8) -> Cost:
    dit = network(num_heads)
    with as_on_gpus(), spread_over(num_ranks, dit):
        return pass_cost(dit, of)


@pytest.mark.parametrize(
    ("num_ranks", "attention", "patches"),
    [
        # of 96 · 64 elements of queries 4 (P - 1) / P²; of 96 / P tokens 16 numbers to P - 1 ranks
        (1, 0, 0),
        (2, 6144, 768),
        (4, 4608, 1152),
        (8, 2688, 1344),
    ],
)
def test_what_a_rank_sends_by_hand(num_ranks: int, attention: int, patches: int) -> None:
    assert cost(num_ranks).sent == 2 * (4 * attention + patches)  # 4 layers, bf16


def test_where_heads_run_out_keys_go_round_a_ring() -> None:
    # 12 heads on 8 ranks: Ulysses 4 x ring 2. Of 96 · 96 elements 4 · 3 / 32 and 2 / 8
    exchanged, turns = 3456, 2304
    patches = 12 * 16 * 3 + 48 * 16  # to the Ulysses group, then what it has to the other
    assert cost(8, num_heads=12).sent == 2 * (4 * (exchanged + turns) + patches)


def test_sound_motion_and_a_ring_together_are_counted() -> None:
    of = Pass(2, 3, (8, 8), motion=True, text_tokens=8, reference=4)
    plain, whole = cost(8, num_heads=12), cost(8, of, num_heads=12)
    assert plain.sent < whole.sent < 1.5 * plain.sent  # motion has one token a frame


def test_tokens_of_a_reference_are_not_sent() -> None:
    shown = Pass(2, 3, (8, 8), audio=False, text_tokens=8, reference=4)
    assert cost(4, shown).sent == cost(4).sent > 0
    assert cost(4, shown).attention > cost(4).attention


def test_more_ranks_do_less_each_and_as_much_together() -> None:
    found = [cost(num) for num in (1, 2, 4, 8)]
    for name in ("flops", "attention", "moved"):
        values = [getattr(x, name) for x in found]
        assert values == sorted(set(values), reverse=True), name
    assert found[0].peak > found[1].peak
    for num, x in zip((1, 2, 4, 8), found, strict=True):
        assert x.attention * num == found[0].attention
        assert x.flops * num >= found[0].flops  # each rank projects the text


def test_the_attention_of_a_pass_by_hand() -> None:
    # 4 layers, 2 samples: 48 tokens see 48 and 8 of text, in two products of 2 · 64 operations
    assert cost(1).attention == 4 * 2 * 48 * (48 + 8) * 2 * 2 * 64


def test_the_attention_of_a_causal_block_by_hand() -> None:
    """Its 48 tokens see themselves, 4 frames of a history, 2 of the reference, and 8 of text."""
    dit = network()
    dit = AvatarDiT(dataclasses.replace(dit.config, causal_block=3, causal_window=2)).to("meta")
    of = dataclasses.replace(PLAIN, history=4, reference=2)
    with as_on_gpus():
        found, alone = pass_cost(dit, of), pass_cost(dit, dataclasses.replace(of, history=0))
    assert found.attention == 4 * 2 * 48 * (48 + 16 * (4 + 2) + 8) * 2 * 2 * 64
    assert found.moved > alone.moved  # also the history, which is rotated in each step
    assert history_bytes(dit, of) == 4 * 2 * 2 * (4 * 16 * 64) * 2  # layers, k and v, samples, bf16


def test_an_operator_moves_what_it_reads_and_writes() -> None:
    linear, x = torch.nn.Linear(4, 8), torch.zeros(2, 4)

    def moved(run) -> float:
        return cost_of(run, bf16=False, trains=False).moved

    assert moved(lambda: linear(x)) == 4 * (2 * 4 + 8 * 4 + 8 + 2 * 8)
    assert moved(lambda: x.view(4, 2).t().unsqueeze(0)) == 0
    assert moved(lambda: torch.empty(9)) == 0
    assert moved(lambda: torch.zeros(1).expand(2, 4) + x) == 4 * (1 + 1 + 8 + 8)  # zeros, then sum
    assert moved(lambda: x.add_(1)) == 4 * (8 + 8)


def test_times_are_what_the_rates_say() -> None:
    gpu = GPU("round", 1.0, 10.0, memory_gb_s=1000.0, pcie_gb_s=10.0, nvlink_gb_s=100.0)
    of = Cost(flops=20e12, saved=0, peak=0, attention=5e12, moved=800e9, sent=40e9)
    time = step_time(of, gpu, 0.5)
    assert time == StepTime(products=3.0, attention=1.0, memory=1.0, links=0.5)
    assert (time.compute, time.apart, time.overlapped) == (4.0, 5.5, 4.0)
    assert time.limit == "compute"
    assert StepTime(1.0, 0.0, 2.0, 3.0).limit == "links"
    assert StepTime(1.0, 0.0, 2.0, 1.5).limit == "memory"
    assert pcie_time(8e9, gpu) == 1.0
    assert scaling_table({2: time})[1].split() == ["2", "3", "1", "1", "0.5", "5.5", "4", "compute"]


def test_links_that_computing_does_not_hide_by_hand() -> None:
    gpu = GPU("round", 80.0, 1.0, 1000 / MEMORY_SHARE, 0.0, 1 / LINK_SHARE)  # 1 T, 1 TB, 1 GB a s
    ends = [(0, 2e9, 0), (1, 2e9, 1), (1, 0, 3), (0, 0, 3), (2, 1e9, 9), (2, 0, 9.5), (3, 1e9, 9.5)]
    events = tuple(Event(i, float(size), 1e12 * at / 2, 1e12 * at / 2) for i, size, at in ends)
    # two of 2 s, one behind the other, are there at 4 s, 1 s behind 3; then half of 1 s is hidden;
    # what nobody reads is not waited for
    assert exposed_links(Cost(0, 0, 0, events=events), gpu, 1.0) == pytest.approx(1.5)
    assert exposed_links(Cost(0, 0, 0), gpu, 1.0) == 0


def test_exchanges_that_overlap_leave_little_of_the_links() -> None:
    gpu, left = GPU("slow", 80.0, 0.001, 1.0, 0.0, 0.0005), {}
    for way in ("blocking", "asynchronous", "tiled:1"):
        with exchange.using(way):
            found = cost.__wrapped__(2)
        assert (found.sent, found.flops) == (cost(2).sent, cost(2).flops)
        left[way] = exposed_links(found, gpu, 1.0) / step_time(found, gpu, 1.0).links
    assert left["blocking"] == pytest.approx(1)
    assert 1 > left["asynchronous"] > left["tiled:1"] > 0


def test_gpus_without_nvlink_send_over_pcie() -> None:
    assert GPUS["l40s"].link_gb_s == GPUS["l40s"].pcie_gb_s == 32
    assert GPUS["h100"].link_gb_s == 450


def test_groups_are_the_powers_of_two_up_to_all() -> None:
    assert [group_sizes(num) for num in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_setting_of_a_plain_wan_can_be_stated(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--size", "48x32", "--frames", "9", "--steps", "7", "--text-only"]
    assert main(["plan", "--generate", "small", "--gpus", "2", *words]) == 0
    said = capsys.readouterr().out
    assert "0.36 s of 48 x 32: 1 chunk of 3 latents in 7 steps of 2 passes, " in said
    assert "keys of the reference" not in said
    rows = re.findall(r"^ +(\d+)((?: +[\d.e-]+){6})  (\w+)$", said, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "2"]
    assert float(rows[0][1].split()[3]) == 0 < float(rows[1][1].split()[3])
    assert main(["plan", "--generate", "small", *words, "--passes", "1"]) == 0
    one = capsys.readouterr().out
    assert "7 steps of 1 pass, " in one
    assert "--shard" not in one
    assert re.search(r"--shard: [+-]\d+\.\d GiB on each of 2, with --offload [+-]\d+\.\d GiB", said)
    assert "--shard: weights are gathered in " in said
    assert re.search(r"all where exchanges block; where they overlap [\d.e-]+ on 2 \(AVATAR", said)


def test_devices_of_causal_weights_share_out_steps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--generate", "small_causal", "--steps", "4", "--gpus"]
    assert main([*words, "8"]) == 2
    assert "8 devices for 4 steps" in capsys.readouterr().err
    said = {}
    for num, shares in (("3", "1, 1, 2"), ("5", "0, 1, 1, 1, 1")):
        assert main([*words, num]) == 0
        said[num] = capsys.readouterr().out
        assert re.search(rf"22 blocks of 3 latents behind 12 at most; .*: {shares}\n", said[num])
        assert "--shard" not in said[num]
        assert "links that are waited for" not in said[num]
        assert "keys of the history" in said[num]
    found = re.findall(r"[\d.e-]+ to ([\d.e-]+) s on (\d)", said["5"])
    assert [num for _, num in found] == ["1", "2", "4", "5"]
    assert [float(high) for high, _ in found] == sorted((float(h) for h, _ in found), reverse=True)


def test_a_clean_history_takes_one_more_pass_and_one_copy() -> None:
    noisy, clean = (Blocks(3, 12, 22, 4, is_clean) for is_clean in (False, True))
    assert (noisy.shares(1), clean.shares(1)) == ([4], [5])
    assert (noisy.histories(1), noisy.histories(2), clean.histories(1)) == (4, 2, 1)
    # the first makes no step and decodes: what takes longer counts
    assert (noisy.most(5, 2.0, 1.0, 2.5), noisy.most(5, 2.0, 1.0, 9.0)) == (3.0, 9.0)
    assert noisy.most(2, 2.0, 1.0, 0.5) == 2 * 2.0 + 1.0 + 0.5


def test_a_gpu_receives_what_it_lacks_of_the_weights() -> None:
    assert gather_time(8e9, 8, GPUS["h100"]) == pytest.approx(7e9 / (0.8 * 450e9))
    assert gather_time(8e9, 1, GPUS["h100"]) == 0


def test_shards_save_all_but_a_part_and_what_is_gathered() -> None:
    dit, conditioner = build("tiny")
    text = conditioner.text_encoder
    assert isinstance(text, ByteTextEncoder)
    of = {id(net): sum(p.numel() * p.itemsize for p in net.parameters()) for net in (dit, text)}
    block = sum(p.numel() * p.itemsize for p in dit.blocks[0].parameters())
    blocks = sum(p.numel() * p.itemsize for p in dit.blocks.parameters())
    saved, waiting = _sharded(dit, conditioner, 1e12, 4)
    assert saved == 0.75 * sum(of.values()) - (of[id(dit)] - blocks) - 3 * block
    layers = sum(p.numel() * p.itemsize for p in text.layers.parameters())
    assert waiting - saved == (blocks + layers) / 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--generate", "small", "--size", "50x64"], "the nearest are 48x64, 64x64"),
        (["--generate", "small", "--frames", "8"], "a clip has 4k + 1 frames (1, 5, 9, …), got 8"),
        (["--generate", "small", "--steps", "0"], "--steps is a whole number from 1"),
        (["--generate", "small", "--passes", "-1"], "--passes is a whole number from 1"),
        (["--generate", "small", "--measures"], "--measures is for a recipe"),
        (["x.yaml", "--text-only"], "--text-only is for --generate"),
        (["x.yaml", "--refine", "2"], "--refine is for --generate"),
        (
            ["--generate", "small", "--frames", "9", "--seconds", "4"],
            "--seconds says nothing beside --frames",
        ),
        (
            ["--generate", "small", "--text-only", "--reference-seconds", "4"],
            "--reference-seconds says nothing beside --text-only",
        ),
    ],
)
def test_a_video_that_cannot_be_planned_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_page_shows_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Each table of seconds, behind the command that printed it, and the rows taken from them."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    pattern = r"^(avatar-v plan --generate [^\n]* --text-only[^\n]*)\n```\n\n```\n(.*?)```"
    shown = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    rows: list[tuple[str, str, str, str]] = []
    for command, block in shown:
        assert main(shlex.split(command)[1:]) == 0
        assert block in capsys.readouterr().out
        one, *_, eight = (line.split() for line in block.splitlines() if line.endswith("compute"))
        rows.append((one[5], eight[5], one[6], eight[6]))
    assert f"nothing overlaps | {rows[0][0]} | {rows[0][1]} |" in text
    assert f"all overlaps | {rows[0][2]} | {rows[0][3]} |" in text
    assert f"the least that is possible | {rows[1][2]} | {rows[1][3]} |" in text


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["wan_1_3b", "wan_14b"])
def test_the_page_shows_what_480_and_1080_lines_need(
    preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row of the table, by the two commands above it, which name one of its presets."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("## 480 and 1080 lines, by plan")[1].split("\n## ")[0]
    commands = re.findall(r"^avatar-v (plan .*)$", section, re.MULTILINE)
    rows = re.findall(rf"^\| `{preset}` \| (.*) \|$", section, re.MULTILINE)
    assert len(commands) == len(rows) == 2
    for command, row in zip(commands, rows, strict=True):
        picture, gib, activations, operations, seconds = row.split(" | ")
        assert main(shlex.split(command.replace("wan_14b", preset))) == 0
        said = capsys.readouterr().out
        assert re.search(rf"^{preset}: .*: {gib} of 80 GiB on each of 8 H100$", said, re.MULTILINE)
        found = re.search(r"^ *activations +([\d.]+) GiB$", said, re.MULTILINE)
        assert found is not None
        assert round(float(found[1])) == int(activations)
        found = re.search(r", (\S+) operations on device 0$", said, re.MULTILINE)
        assert found is not None
        assert float(found[1]) == float(operations)
        found = re.search(r"^ *([\d.]+) s at 40% of 989 TFLOP/s", said, re.MULTILINE)
        assert found is not None
        assert round(float(found[1])) == int(seconds)
        made, *larger = picture.split(", refined to ")
        assert f"10 s of {made.replace('×', 'x')}: " in said
        assert "in 4 steps of 2 passes" in said
        assert all(f"delivered as {out.replace('×', 'x')}\n" in said for out in larger)


def test_1080_lines_are_planned_with_a_refiner_of_another_factor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1920 / 2.25 and 1080 / 2.25 are 853.3 and 480, in whole tokens 864 and 480."""
    words = ["--generate", "small", "--seconds", "1", "--size", "1920x1080", "--refine", "2.25"]
    assert main(["plan", *words]) == 0
    said = capsys.readouterr().out
    assert "1 s of 864 x 480: 1 chunk of 13 latents in 4 steps" in said
    assert "refined to 1944 x 1080 in 180 tiles of 144 x 144, delivered as 1920 x 1080" in said
    assert re.search(r"^ *refiner, bf16 +[\d.]+ GiB$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100_40"),
        ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_a_card_is_not_taken_for_a_faster_one_of_its_name(name: str, expected: str | None) -> None:
    assert gpu_called(name) == (None if expected is None else GPUS[expected])
