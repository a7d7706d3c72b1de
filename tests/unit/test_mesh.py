"""parallel/mesh: who reads which data and draws what, for every size of ranks and groups."""

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from avatar_v.parallel.mesh import Layout, common_generator, own_generator
from avatar_v.parallel.strategy import ShardedStrategy, data_ranks
from avatar_v.parallel.trainer import trainer_layout

SIZES = [(world, size) for world in range(1, 9) for size in range(1, 9) if world % size == 0]


def drawn(generator: torch.Generator) -> tuple[float, ...]:
    return tuple(torch.rand(2, generator=generator).tolist())


@pytest.mark.parametrize(("world_size", "sequence_size"), SIZES)
def test_a_sequence_group_shares_batch_and_noise_and_groups_differ(
    world_size: int, sequence_size: int
) -> None:
    layouts = [Layout(world_size, rank, sequence_size) for rank in range(world_size)]
    groups: dict[range, list[Layout]] = {}
    for layout in layouts:
        assert layout.rank in layout.sequence_group
        assert layout.sequence_group[layout.sequence_rank] == layout.rank
        assert layout.shard_group == range(world_size)
        groups.setdefault(layout.sequence_group, []).append(layout)
    assert all(len(group) == sequence_size for group in groups.values())
    assert sorted(group[0].data_rank for group in groups.values()) == list(
        range(layouts[0].num_data_ranks)
    )
    seen = set()
    for group in groups.values():
        draws = {drawn(own_generator(3, layout, 7)) for layout in group}
        assert len(draws) == 1
        assert len({layout.data_rank for layout in group}) == 1
        seen |= draws
    assert len(seen) == world_size // sequence_size


def test_draws_depend_on_seed_batch_and_purpose() -> None:
    layout = Layout(2, 1)
    draws = [
        drawn(generator)
        for seed in (0, 1)
        for index in (0, 1)
        for validation in (False, True)
        for generator in (
            own_generator(seed, layout, index, validation=validation),
            common_generator(seed, index, validation=validation),
        )
    ]
    assert len(set(draws)) == len(draws) == 16


def test_impossible_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="6 ranks do not form sequence groups of 4"):
        Layout(6, 0, 4)
    with pytest.raises(ValueError, match="got 2"):
        Layout(2, 2)
    assert trainer_layout(None) == Layout(1, 0, 1)


@pytest.mark.parametrize(
    ("nodes", "devices", "sequence", "groups"), [(1, 8, 1, 8), (2, 8, 1, 16), (4, 8, 2, 16)]
)
def test_all_ranks_of_all_nodes_are_groups(
    nodes: int, devices: int, sequence: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Lightning is told when the processes have started; nothing is started here."""
    told: list[object] = []
    strategy = ShardedStrategy(tensor_parallel_size=sequence)
    monkeypatch.setattr(
        ModelParallelStrategy, "setup_environment", lambda s: told.append(s._data_parallel_size)
    )
    L.Trainer(accelerator="cpu", num_nodes=nodes, devices=devices, strategy=strategy, logger=False)
    strategy.setup_environment()
    assert told == [groups]


def test_ranks_that_form_no_groups_are_an_error() -> None:
    with pytest.raises(ValueError, match="8 ranks do not form sequence groups of 3"):
        data_ranks(8, 3)
