"""The rating page over HTTP: what it gives away, what it refuses, and what scripted raters give.

A real server on a local port, so headers are those that a browser would get.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from avatar_v_eval.human.aggregate import mos, turing
from avatar_v_eval.human.exclude import counted, exclusions
from avatar_v_eval.human.preference import preference
from avatar_v_eval.human.study_file import load_study
from human_study import SYSTEMS, ScriptedRater, Shown, Site, make_study, serve, study_yaml

SECRETS = (
    *SYSTEMS,
    "videos/",
    "checks/",
    "gold",
    "trap",
    "intact",
    "melted",
    "c00",
    "c01",
    "ref.mp4",
)
QUALITY = {"ours": 4.3, "rival": 3.5, "weak": 2.4}  # true MOS
STRENGTH = {"ours": 0.9, "rival": 0.0, "weak": -0.9}  # true log odds
P_REAL_FOUND = 0.75


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with serve(make_study(folder, study_yaml(2, mos=3, pairs=3, turing=2)), folder / "v") as one:
        yield one


def system(file: Path) -> str:
    return file.parent.name


def careful(seed: int):
    """A rater who sees quality with noise, picks by Davidson's rule and never fails a check."""
    generator = np.random.default_rng(seed)
    bias = generator.normal(0, 0.2)

    def judge(shown: Shown) -> dict:
        names = {side: file.stem for side, file in shown.files.items()}
        if shown.kind == "mos":
            if names["only"] == "melted":
                return dict.fromkeys(DIMENSIONS, 1)
            mean = QUALITY[system(shown.files["only"])] + bias
            return {key: score(mean + generator.normal(0, 0.5)) for key in DIMENSIONS}
        if "melted" in names.values():
            return {"choice": "left" if names["left"] == "intact" else "right"}
        left, right = system(shown.files["left"]), system(shown.files["right"])
        if shown.kind == "turing":
            found = generator.random() < P_REAL_FOUND
            return {"choice": "left" if (left == "footage") == found else "right"}
        a, b = np.exp(STRENGTH[left]), np.exp(STRENGTH[right])
        weights = np.array([a, b, 0.3 * np.sqrt(a * b)])
        return {
            "choice": str(generator.choice(["left", "right", "tie"], p=weights / weights.sum()))
        }

    return judge


DIMENSIONS = (
    "identity",
    "lip_sync",
    "motion_naturalness",
    "motion_consistency",
    "artifacts",
    "visual",
)


def score(value: float) -> int:
    return int(np.clip(round(value), 1, 5))


def careless(judge):
    """Passes the practice, then always presses the same key."""

    def lazy(shown: Shown) -> dict:
        if "Practice" in shown.html:
            return judge(shown)
        return dict.fromkeys(DIMENSIONS, 4) if shown.kind == "mos" else {"choice": "left"}

    return lazy


def new_rater(site: Site, judge=None, seconds: float = 12.0) -> ScriptedRater:
    (rater,) = site.store.add_raters(1)
    return ScriptedRater(site, rater.token, judge or careful(0), seconds)


def test_nothing_tells_systems_apart(site: Site) -> None:
    rater = new_rater(site)
    rater.run()
    assert len(rater.pages) > 10
    for html in rater.pages:
        text = re.sub(r"<dialog.*", "", html, flags=re.DOTALL).lower()  # without the instructions
        assert not [word for word in SECRETS if re.search(rf"\b{re.escape(word)}", text)]
    screens = site.store.screens(site.store.rater(rater.token).name)
    seen = set()
    for public in (public for screen in screens for public in screen.media):
        status, headers, _ = site.request("GET", f"/r/{rater.token}/m/{public}")
        assert status == 200
        seen.add(tuple(sorted((k, v) for k, v in headers.items() if k not in SIZES)))
        assert not {"etag", "last-modified", "content-disposition"} & set(headers)
    assert len(seen) == 1, "headers differ between videos"


SIZES = ("date", "content-length")


def test_copies_carry_no_marks(site: Site) -> None:
    for original, copy in site.copies.items():
        data = copy.read_bytes()
        assert re.fullmatch(r"[0-9a-f]{24}\.mp4", copy.name)  # nothing of the original's
        assert b"made by" in original.read_bytes()
        assert b"made by" not in data
        assert b"Lavf" not in data
        assert data.index(b"moov") < data.index(b"mdat")


def test_ranges(site: Site) -> None:
    rater = new_rater(site)
    rater.run(max_items=0)
    public = site.store.screens(site.store.rater(rater.token).name)[0].media[0]
    path = f"/r/{rater.token}/m/{public}"
    whole = site.request("GET", path)[2]
    for text, part in [
        ("bytes=0-9", whole[:10]),
        ("bytes=10-", whole[10:]),
        ("bytes=-7", whole[-7:]),
        ("bytes=5-99999999", whole[5:]),
    ]:
        status, headers, body = site.request("GET", path, headers={"Range": text})
        assert (status, body) == (206, part)
        assert headers["content-range"].endswith(f"/{len(whole)}")
    assert site.request("GET", path, headers={"Range": "bytes=99999999-"})[0] == 416
    assert site.request("GET", path, headers={"Range": "nonsense"})[0] == 200


def test_no_way_to_other_raters_and_files(site: Site) -> None:
    mine, other = new_rater(site), new_rater(site)
    mine.run(max_items=0)
    other.run(max_items=0)
    theirs = site.store.screens(site.store.rater(other.token).name)[0]
    base = f"/r/{mine.token}"
    assert site.request("GET", f"{base}/m/{theirs.media[0]}")[0] == 404
    body = {"item": theirs.public, "answer": {"choice": "left"}}
    assert site.request("POST", f"{base}/answer", body)[0] == 404
    for path in (
        f"{base}/m/..%2f..%2fstudy.yaml",
        f"{base}/m/../../study.yaml",
        f"{base}/m/%2e%2e/%2e%2e/etc/passwd",
        f"{base}/m//etc/passwd",
        "/static/..%2fserver.py",
        "/static/../server.py",
        "/static//etc/passwd",
        "/votes.sqlite",
        "/openapi.json",
        "/r/",
        "/r/unknown",
        "/r/unknown/m/x",
    ):
        assert site.request("GET", path)[0] == 404, path
    for path in ("answer", "consent", "withdraw", "read/mos"):
        body = {"item": theirs.public, "answer": {"choice": "left"}}
        assert site.request("POST", f"/r/unknown/{path}", body)[0] == 404, path


def test_bad_answers_change_nothing(site: Site) -> None:
    rater = new_rater(site)
    rater.run(max_items=0)
    name = site.store.rater(rater.token).name
    first, later = site.store.screens(name)[:2]
    path = f"/r/{rater.token}/answer"
    for answer in ({"choice": "up"}, {}, {"choice": 1}, {"x": 1}, "left", None, {"choice": True}):
        status, _, body = site.request("POST", path, {"item": first.public, "answer": answer})
        assert status == 422, answer
        assert b'"error"' in body
    ahead = {"item": later.public, "answer": {"choice": "left"}}
    assert site.request("POST", path, ahead)[0] == 422  # not shown yet
    assert not [vote for vote in site.store.votes() if vote.rater == name]


def test_an_answer_is_final_and_a_retry_is_harmless(site: Site) -> None:
    rater = new_rater(site)
    rater.run(max_items=0)
    name = site.store.rater(rater.token).name
    item = next(s for s in site.store.screens(name) if s.shown_s is not None)
    sent = dict.fromkeys(DIMENSIONS, 1) if "q2" in item.item else {"choice": "left"}
    path = f"/r/{rater.token}/answer"
    assert site.request("POST", path, {"item": item.public, "answer": sent})[0] == 200
    assert site.request("POST", path, {"item": item.public, "answer": sent})[0] == 200
    before = site.store.votes()
    other = {key: 2 for key in sent} if len(sent) > 1 else {"choice": "right"}
    assert site.request("POST", path, {"item": item.public, "answer": other})[0] == 409
    assert site.store.votes() == before


def test_a_closed_session_goes_on_and_withdrawing_ends_it(tmp_path: Path) -> None:
    study = make_study(tmp_path, study_yaml(2, mos=2, pairs=2, turing=1))
    with serve(study, tmp_path / "votes") as site:
        rater = new_rater(site)
        page = rater.run(max_items=4)
        token, asked = rater.token, re.findall(r'data-item="([^"]+)"', page)
    with serve(load_study(tmp_path), tmp_path / "votes") as site:
        rater = ScriptedRater(site, token, careful(0))
        assert re.findall(r'data-item="([^"]+)"', rater.run(max_items=0)) == asked
        (out,) = exclusions(site.store.raters(), site.store.votes(), study.rules)
        assert out.reason == "unfinished: 4 of 10 items"
        assert "All done" in rater.run()
        assert not exclusions(site.store.raters(), site.store.votes(), study.rules)
        assert site.request("POST", f"/r/{token}/withdraw")[0] == 303
        assert not site.store.votes()
        status, _, body = site.request("GET", f"/r/{token}")
        assert status == 410
        assert b"withdrawn" in body
        assert "withdrawn" in exclusions(site.store.raters(), [], study.rules)[0].reason


def test_a_failed_practice_ends_the_session(site: Site) -> None:
    wrong = new_rater(site, lambda s: careless(careful(0))(Shown(s.public, s.kind, s.files, "")))
    assert "Thank you for trying" in wrong.run()


def test_known_preferences_come_back(tmp_path: Path) -> None:
    """Seven careful raters, one careless, one in a hurry: truth within intervals, two left out."""
    study = make_study(tmp_path, study_yaml(8, mos=14, pairs=14, turing=8))
    with serve(study, tmp_path / "votes") as site:
        for seed in range(7):
            assert "All done" in new_rater(site, careful(seed)).run()
        lazy = new_rater(site, careless(careful(99)))
        hasty = new_rater(site, careful(98), seconds=0.7)
        assert "All done" in lazy.run()
        assert "All done" in hasty.run()
        votes, raters = site.store.votes(), site.store.raters()
        names = [site.store.rater(one.token).name for one in (lazy, hasty)]
    left_out = {e.rater: e.reason for e in exclusions(raters, votes, study.rules)}
    assert set(left_out) == set(names)
    assert "failed golds" in left_out[names[0]] or "failed traps" in left_out[names[0]]
    assert left_out[names[1]].startswith("too fast")
    kept = counted(votes, exclusions(raters, votes, study.rules))
    numbers = mos(kept)
    inside = [n.low <= QUALITY[system] <= n.high for (system, _), n in numbers.items()]
    assert len(inside) == 18
    assert sum(inside) >= 16  # of 18 intervals of 95 %, 17.1 are expected to hold the truth
    for dimension in DIMENSIONS:
        means = [numbers[name, dimension].value for name in ("ours", "rival", "weak")]
        assert means == sorted(means, reverse=True)
    result = preference(kept)
    assert list(result.strengths) == ["ours", "rival", "weak"]
    for name, strength in STRENGTH.items():
        number = result.strengths[name]
        assert number.low <= strength <= number.high
    (real,) = turing(kept)
    assert real.accuracy.low <= P_REAL_FOUND <= real.accuracy.high
