"""The simulated fleet: an account that adds up, gangs, preemption and faults as they are told."""

import numpy as np
import pytest

pytest.importorskip("simpy", reason="needs simpy, of the extra eval")

from avatar_v_eval.cells import fleet as fleet_module
from avatar_v_eval.cells.fleet import CHECKPOINT_S, START_S, WRITE_S, Fleet, simulated
from avatar_v_eval.cells.policies import Cells, OneQueue, PlainKueue
from avatar_v_eval.cells.traces import (
    CLASSES,
    DAY_S,
    HOUR_S,
    NODE,
    NODES,
    SHARES,
    Trace,
    Work,
    draw,
)
from avatar_v_eval.studies.cells import WAYS, summary

BIGGEST = NODES[0] * NODE


def one_cell(monkeypatch: pytest.MonkeyPatch, work: list[Work], days: float = 10.0) -> Fleet:
    """A fleet of the largest cell alone, where no node fails."""
    monkeypatch.setattr(fleet_module, "NODES", NODES[:1])
    monkeypatch.setattr(fleet_module, "FAILS_S", 1e12)
    return Fleet(Trace(work, [0] * 60), 0, 0.0, days * DAY_S)


def test_a_trace_asks_for_what_it_says() -> None:
    trace = draw(3, 0.5, 4.0)
    asked = sum(NODES) * NODE * 4 * DAY_S * 0.5
    hours = {kind: sum(w.gpus * w.need_s for w in trace.work if w.kind == kind) for kind in CLASSES}
    for kind, share in zip(CLASSES, SHARES, strict=True):
        assert hours[kind] == pytest.approx(share * asked, rel=0.15)  # the last gang may be large
    assert [w.arrives_s for w in trace.work] == sorted(w.arrives_s for w in trace.work)
    assert sum(NODES) * NODE == 5000
    assert [(w.gpus, w.need_s) for w in draw(3, 0.5, 4.0).work[:9]] == [
        (w.gpus, w.need_s) for w in trace.work[:9]
    ]


@pytest.mark.parametrize("way", WAYS)
def test_an_account_adds_up_under_every_way(way: str) -> None:
    """Light work is done under all of them: they differ in nothing but waits and waste."""
    trace = draw(1, 0.2, 1.5)
    found = simulated(WAYS[way][1](), trace, 1, 1.5, 0.0)
    done = sum(
        w.gpus * (min(w.need_s, max(0.0, 1.5 * DAY_S - w.begun_s))) for w in trace.work
        if w.begun_s >= 0
    )  # fmt: skip
    whole = sum(NODES) * NODE * 1.5 * DAY_S
    assert 0 < found["use"] <= found["held"] <= 1
    assert found["use"] == pytest.approx(done / whole, rel=0.05)  # less starts, copies and faults
    states = sum(found[f"gpu_{s}"] for s in ("copying", "starting", "lost", "hanging", "waiting"))
    assert states == pytest.approx(found["waste"], rel=1e-9)


def test_inference_preempts_training_which_loses_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Work(0, "training", 0, 512, 0.0, 20 * HOUR_S)
    inference = [Work(i, "inference", 0, 8, 5 * HOUR_S, HOUR_S) for i in range(1, 41)]
    fleet = one_cell(monkeypatch, [training, *inference])
    fleet.run(Cells(chooses=True))
    assert fleet.preempted == 1
    assert max(fleet.waits["inference"]) <= fleet_module.EVERY_S
    assert fleet.gpu_s["lost"] == 0
    assert fleet.gpu_s["working"] == pytest.approx(512 * 20 * HOUR_S + 40 * 8 * HOUR_S)
    starts = 2 * START_S["training"] + WRITE_S
    assert fleet.gpu_s["starting"] == pytest.approx(512 * starts + 40 * 8 * START_S["inference"])


def test_one_queue_waits_where_it_may_not_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> list[Work]:
        return [
            Work(0, "training", 0, BIGGEST - 8, 0.0, 10 * HOUR_S),
            Work(1, "training", 0, 64, 1.0, HOUR_S),
            Work(2, "data", 0, 4, 2.0, HOUR_S),
        ]

    strict, skips = (one_cell(monkeypatch, work()) for _ in range(2))
    strict.run(OneQueue(skips=False))
    skips.run(OneQueue(skips=True))
    assert strict.waits["data"][0] > 10 * HOUR_S
    assert skips.waits["data"][0] <= fleet_module.EVERY_S


def test_a_gang_that_kueue_admits_by_number_holds_nodes_and_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spread pods leave GPUs on every node and no node whole. Packed, the gang begins at once."""

    def work() -> list[Work]:
        small = [Work(i, "data", 0, 1, 0.0, 8 * HOUR_S) for i in range(NODES[0])]
        return [*small, Work(NODES[0], "training", 0, 16, HOUR_S, HOUR_S)]

    plain, packed = (one_cell(monkeypatch, work()) for _ in range(2))
    plain.run(PlainKueue())
    packed.run(Cells(chooses=False))
    assert plain.waits["training"][0] > 6 * HOUR_S
    assert packed.waits["training"][0] <= fleet_module.EVERY_S


def test_a_fault_costs_a_gang_what_came_behind_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = one_cell(monkeypatch, [Work(0, "training", 0, 64, 0.0, 10 * HOUR_S)], days=1.0)

    def fault():
        yield fleet.env.timeout(fleet_module.EVERY_S + START_S["training"] + 2.5 * HOUR_S)
        (work,) = fleet.running
        fleet.stop(work, "fault")

    fleet.env.process(fault())
    fleet.run(OneQueue(skips=False))
    assert fleet.gpu_s["lost"] == pytest.approx(64 * 0.5 * CHECKPOINT_S)
    assert fleet.gpu_s["working"] == pytest.approx(64 * 10 * HOUR_S)
    assert fleet.gpu_s["hanging"] == pytest.approx(64 * fleet_module.NOTICED_S)


def test_gains_are_taken_within_a_seed() -> None:
    keys = ("use", "waste", "not_working", "gpu_copying", "gpu_starting", "gpu_lost", "gpu_waiting",
            "wait_inference", "wait_training", "wait_data", "usd_per_working_hour")  # fmt: skip
    runs = {way: [dict.fromkeys(keys, 0.5), dict.fromkeys(keys, 0.8)] for way in WAYS}
    runs["two"] = [dict.fromkeys(keys, 0.6), dict.fromkeys(keys, 0.96)]
    numbers = summary(runs, 1.0)
    gain = numbers["gain_use_queue_100"]
    assert np.allclose([gain.value, gain.low, gain.high], 0.2)
    assert (gain.met, numbers["gain_waste_queue_100"].met) == (True, False)
