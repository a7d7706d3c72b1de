"""Logs to curves: gaps, smoothing, and a picture that is written."""

import numpy as np
import pytest

from avatar_v_eval.studies.curves import STAGES, draw, read_curves, smoothed, title_of


def test_rows_without_a_value_are_gaps_not_zeros(tmp_path):
    log = tmp_path / "loss.csv"
    log.write_text("step,loss,val_loss\n1,2.0,\n2,1.5,1.75\n3,1.0,\n")
    curves = read_curves(log)
    assert curves["loss"].values.tolist() == [2.0, 1.5, 1.0]
    assert (curves["val_loss"].steps.tolist(), curves["val_loss"].values.tolist()) == ([2], [1.75])
    assert title_of(log) == tmp_path.name
    assert title_of(tmp_path / "1_t2v.csv") == "1_t2v"


@pytest.mark.parametrize("stage", STAGES)
def test_shipped_weights_keep_the_log_of_every_stage(stage):
    losses = [curve for name, curve in read_curves(STAGES[stage]).items() if "loss" in name]
    assert max(len(curve.steps) for curve in losses) >= 100


def test_a_file_that_is_no_log_is_named(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"x\.csv: expected a CSV with a step column"):
        read_curves(tmp_path / "x.csv")


def test_smoothing_keeps_lines_and_reduces_noise():
    line = np.linspace(3, 1, 500)
    assert np.allclose(smoothed(line)[10:-10], line[10:-10])
    noise = np.random.default_rng(0).normal(size=2000)
    # a mean over 41 values has a deviation of 1 / sqrt(41) = 0.16
    assert smoothed(noise).std() < 0.2


def test_a_panel_shows_the_losses_of_a_log(tmp_path):
    log = tmp_path / "loss.csv"
    log.write_text("step,loss\n" + "".join(f"{i},{1 / i}\n" for i in range(1, 80)))
    (ax,) = draw({"stage": log}).axes
    assert ax.get_title() == "stage"
    assert ax.lines[1].get_ydata().tolist() == [float(1 / i) for i in range(1, 80)]
