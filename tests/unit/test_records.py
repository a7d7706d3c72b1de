"""Result files: intervals against known answers, round trip, refusals; tables from them."""

import json
import math
import re
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from avatar_v.base.device import chosen_device, chosen_precision, processor_flags
from avatar_v.critics.frozen import weights_hash
from avatar_v.scoring.clip import Footage
from avatar_v.scoring.sampling import pearson
from avatar_v.scoring.values import Values
from avatar_v.weights.card import ASSETS
from avatar_v.weights.weights import load_dit
from avatar_v_eval import intervals, records, tables
from avatar_v_eval.protocol import Readings
from avatar_v_eval.records import Number
from avatar_v_eval.studies import own_face, sound_mark, watermark


def test_wilson_interval_is_the_published_one():
    # 48 of 70 is [57.0, 78.2] % (Avatar V §7.3)
    number = intervals.rate(48, 70)
    assert (round(number.low, 3), round(number.high, 3)) == (0.570, 0.782)


def test_fisher_interval_is_the_textbook_one():
    # r = 0.5, n = 28: z = 0.5493 +- 1.96 / 5, so r is in [0.156, 0.736]
    x = np.array([1.0, -1.0] * 14)
    y = 0.5 * x + math.sqrt(0.75) * np.array([1.0, 1.0, -1.0, -1.0] * 7)
    number = intervals.correlation(x, y)
    assert number.value == pytest.approx(0.5, abs=1e-12)
    assert (round(number.low, 3), round(number.high, 3)) == (0.156, 0.736)


def test_the_interval_of_a_mean_is_students() -> None:
    # Student's t of 4 values: 2.5 +- 3.182 * 1.291 / 2
    number = intervals.mean_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (number.value, number.n) == (2.5, 4)
    assert (round(number.low, 3), round(number.high, 3)) == (0.446, 4.554)


def test_frames_of_one_video_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    far = [(0, 0.2), (12, 0.4), (25, 0.9)]
    for name in ("FaceDlibScorer", "StyleLandmarksScorer"):
        found = Values({"face_dlib": 0.5, "face_dlib_found": 1.0, "style_landmarks": 0.0},
                       {"face_dlib": far})  # fmt: skip
        monkeypatch.setattr(own_face, name, lambda f=found: SimpleNamespace(score=lambda clip: f))
    video = Footage.of(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4 * 640))
    number = own_face.identity_numbers(video, video, [])["face_own"]
    assert (number.value, number.n) == (pytest.approx(0.5), 3)
    assert (number.low, number.high) == (0.2, 0.9), "what was seen, not t of three persons"


@pytest.mark.parametrize("study", [watermark, sound_mark])
def test_attacks_of_one_video_or_sound_are_one_unit(study: ModuleType) -> None:
    names = ("false", "false_z", "psnr", "level", "cost", *watermark.CHANGES)
    own = [f"{what}_{name}" for what in ("right", "wrong", "bits") for name in study.ATTACKS]
    rows = [dict.fromkeys((*names, *own), float(clip == 0)) for clip in range(4)]
    if study is watermark:
        number = watermark.summarise_condition(Readings({"drawn": rows}), "drawn", "")["wrong"]
    else:
        number = sound_mark.summarise(rows, "", "")["wrong"]
    assert (number.value, number.n) == (0.25, 4), "however many attacks gave it"


def of_means(draw: np.random.Generator, n: int) -> Number:
    return intervals.mean_interval(draw.normal(size=n))


def of_correlations(draw: np.random.Generator, n: int) -> Number:
    """Correlations of persons: near 1, with a tail to below."""
    return intervals.mean_interval(np.tanh(draw.normal(1.5, 0.3, n)) - 0.8899)


def of_shares(draw: np.random.Generator, n: int) -> Number:
    counts = draw.integers(5, 40, n)
    return intervals.pooled_mean(draw.binomial(counts, draw.beta(6, 2, n)) - 0.75 * counts, counts)


def of_pooled_r(draw: np.random.Generator, n: int) -> Number:
    """Frames of a person are alike: their own slope. The true r is 0.6926."""
    x, slope = draw.normal(size=(n, 40)), draw.uniform(0.5, 1.5, (n, 1))
    y = slope * x + draw.normal(size=(n, 40))
    number = intervals.jackknife(lambda i: pearson(x[i].ravel(), y[i].ravel()), n)
    return Number(number.value, n, number.low - 0.6926, number.high - 0.6926)


@pytest.mark.parametrize("measure", [of_means, of_correlations, of_shares, of_pooled_r])
@pytest.mark.parametrize("n", [3, 6, 16])
def test_an_interval_of_few_units_holds_the_truth_as_often_as_it_says(measure, n) -> None:
    """Percentiles of a bootstrap hold it .70, .84 and .91 of the time. 400 draws: the standard
    error of .95 is .011; skewed values cost up to .03 at 3 units."""
    draw = np.random.default_rng(n)
    numbers = [measure(draw, n) for _ in range(400)]
    covered = np.mean([number.low <= 0 <= number.high for number in numbers])
    assert 0.9 < covered < 0.985


def test_an_interval_over_persons_is_wider_than_over_dependent_frames():
    generator = np.random.default_rng(2)
    persons = np.repeat(generator.normal(size=20), 50)
    by_frame = intervals.mean_interval(persons)
    by_person = intervals.jackknife(lambda i: float(persons.reshape(20, 50)[i].mean()), 20)
    assert by_person.high - by_person.low > 3 * (by_frame.high - by_frame.low)


def test_one_unit_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 2 units, got 1"):
        intervals.mean_interval(np.array([1.0]))


def test_pearson_of_a_constant_is_zero_and_of_itself_one():
    x = np.arange(5.0)
    assert pearson(x, np.ones(5)) == 0.0
    assert pearson(x, 3 * x - 1) == pytest.approx(1.0, abs=1e-12)


def test_a_result_round_trips_and_says_where_it_came_from(tmp_path):
    number = intervals.rate(63, 64).described("identity", target="≥ 0.9")
    written = records.make_result("one", "One", {"top1": number}, notes=["a note"], command="c")
    read = records.read_result(records.write_result(written, tmp_path))
    assert read.numbers["top1"].value == pytest.approx(63 / 64, rel=1e-5)  # 6 digits are kept
    assert (read.numbers["top1"].met, read.numbers["top1"].n) == (True, 64)
    assert (read.command, read.commit, read.notes) == ("c", written.commit, ("a note",))
    assert set(read.hardware) >= {"cpu", "cores", "gpu", "torch"}
    assert read.hardware["precision"] == chosen_precision("auto", chosen_device("auto"))
    assert read.hardware["cpu_flags"] == processor_flags()
    fixed = records.make_result("one", "One", {}, command="c", precision="fp32")
    assert fixed.hardware["precision"] == "fp32"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("out", [["--out", "/some/private/path"], ["--out=/some/private/path"], []])
def test_a_command_does_not_say_where_its_result_went(monkeypatch, out):
    monkeypatch.setattr(records.sys, "argv", ["measure", "runs/a", *out, "--steps", "8"])
    assert records.running_command().endswith(" runs/a --steps 8")
    assert "private" not in records.running_command()


def test_no_result_says_where_it_went():
    for path in records.RESULTS_DIR.rglob("*.json"):
        assert "--out" not in records.read_result(path).command, path.name


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [(0.6, "≥ 0.6", True), (0.59, "≥ 0.6", False), (-0.2, "|r| < 0.15", False), (4, "< 5", True)],
)
def test_targets_are_judged(value, target, met):
    assert records.Number(value, 1).described("x", target=target).met is met


def test_a_failed_measurement_is_not_written(tmp_path):
    result = records.make_result("bad", "Bad", {"x": records.Number(math.nan, 3)})
    with pytest.raises(ValueError, match="x must be finite"):
        records.write_result(result, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_field_is_named(tmp_path):
    path = records.write_result(records.make_result("a", "A", {}), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": 1}))
    with pytest.raises(ValueError, match="colour"):
        records.read_result(path)


def test_tables_show_value_interval_and_verdict(tmp_path):
    good = records.Number(0.7, 64, 0.65, 0.75).described("mouth r", target="≥ 0.6")
    bad = records.Number(0.2, 64).described("unrelated r", target="|r| < 0.15")
    result = records.make_result("one", "One", {"a": good, "b": bad}, command="python -m x")
    records.write_result(result, tmp_path)
    text = "before\n<!-- table:one -->\nold\n<!-- /table -->\nafter\n"
    filled = tables.filled(text, tmp_path)
    assert "| mouth r | 0.7 | 0.65 … 0.75 | 64 | ≥ 0.6: yes |" in filled
    assert "| unrelated r | 0.2 |  | 64 | \\|r\\| < 0.15: NO |" in filled
    assert "python -m x" in filled
    assert "old" not in filled
    assert tables.filled(filled, tmp_path) == filled
    one_row = tables.filled("<!-- table:one | b* -->\nold\n<!-- /table -->\n", tmp_path)
    assert "unrelated r" in one_row
    assert "mouth r" not in one_row
    assert tables.filled(one_row, tmp_path) == one_row
    with pytest.raises(ValueError, match="fits c"):
        tables.filled("<!-- table:one | c -->\n<!-- /table -->", tmp_path)
    with pytest.raises(ValueError, match="the table of one does not end"):
        tables.filled("<!-- table:one -->\n\ntext", tmp_path)
    with pytest.raises(ValueError, match="two"):
        tables.filled("<!-- table:two -->\n<!-- /table -->", tmp_path)
    for name, begin in (
        ("one", "<!-- table:one -->"),
        ("headline", "<!-- headline\nx | one.a | -->"),
    ):
        with pytest.raises(ValueError, match=f"the table of {name} does not end"):
            tables.filled(f"{begin}\n\n## Words that would be lost\n\n{text}", tmp_path)


@pytest.mark.parametrize(
    ("value", "said"),
    [(1.23e-5, "0.0000123"), (-3e-5, "-0.00003"), (0.123456, "0.123"), (99.95, "100")],
)
def test_small_numbers_keep_three_digits(tmp_path, value, said):
    result = records.make_result("one", "One", {"a": records.Number(value, 4).described("a")})
    records.write_result(result, tmp_path)
    filled = tables.filled("<!-- table:one -->\n<!-- /table -->\n", tmp_path)
    assert f"| a | {said} |" in filled


def test_tables_say_of_which_weights_they_are(tmp_path):
    number = records.Number(0.7, 64).described("mouth r")
    dit = weights_hash(load_dit(ASSETS / "small" / "dit").state_dict())
    for name, weights in (("ours", dit), ("other", "0123456789ab")):
        result = records.make_result(name, name, {"a": number}, weights={"dit": weights})
        records.write_result(result, tmp_path)
    ours, other = (
        tables.filled(f"<!-- table:{name} -->\n<!-- /table -->\n", tmp_path)
        for name in ("ours", "other")
    )
    assert "· weights that ship" in ours
    assert "· weights 01234567" in other


def test_documents_show_what_the_results_say():
    for document in tables.DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert text == tables.filled(text), f"run avatar-v-eval tables: {document}"


def test_every_result_in_the_repository_can_be_read():
    for path in sorted(records.RESULTS_DIR.rglob("*.json")):
        result = records.read_result(path)
        assert result.name == path.stem
        assert result.numbers, f"{path} holds no number"


def test_a_result_has_one_place():
    names = [path.name for path in records.RESULTS_DIR.rglob("*.json")]
    assert sorted(names) == sorted(set(names))
    for path in records.RESULTS_DIR.rglob("*.json"):
        parts = path.relative_to(records.RESULTS_DIR).parts
        assert len(parts) == 1 or (parts[0] == "experiments" and len(parts) == 3), path


def test_every_file_of_results_is_stated():
    """A result in a table, it or a log by its name, a picture by its file."""
    documents = [path.read_text(encoding="utf-8") for path in tables.DOCUMENTS]
    words = {
        word
        for text in documents
        for found in re.findall(r"<!-- (?:table|grid):([\w ]+)|`(\w+)`|results/([\w.]+)\)", text)
        for word in "".join(found).split()
    }
    for path in records.RESULTS_DIR.rglob("*"):
        name = path.stem if path.suffix in (".json", ".csv") else path.name
        if path.is_file() and ".kept" not in path.parts:
            assert name in words, f"nothing is said of {path.name}"
