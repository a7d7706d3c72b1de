"""store, exchange, answers: what is kept of a vote, when it is refused, and files of votes."""

import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from avatar_v_eval.cli import main
from avatar_v_eval.human.answers import read_answer, sent_answer
from avatar_v_eval.human.assign import rating_plan
from avatar_v_eval.human.blind import blinded_copies
from avatar_v_eval.human.exchange import read_votes, write_votes
from avatar_v_eval.human.items import all_items, item_votes
from avatar_v_eval.human.questions import ATTRIBUTES, AXES, SIX_DIMENSIONS
from avatar_v_eval.human.session import consent
from avatar_v_eval.human.store import DuplicateVoteError, StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Vote
from human_study import make_study, study_yaml


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(tmp_path_factory.mktemp("study"), study_yaml(3, mos=5, pairs=5, turing=2))


@pytest.fixture
def store(tmp_path: Path, study: Study) -> StudyStore:
    return StudyStore(tmp_path / "votes.sqlite", study.fingerprint)


def some_votes(study: Study, rater: str, answer: str = "first") -> list[Vote]:
    """One vote of each kind, as the page would make them."""
    items = all_items(study)
    scores = {dimension.key: "4" for dimension in study.dimensions}
    asked = [("mos/c00/ours", scores), ("pair/c01/ours/weak", {"": answer})]
    asked += [("turing/c02/ours/footage", {"": "second"}), ("check/t1", {"": "first"})]
    more = {"second_on_left": True, "duration_s": 7.25, "time": "2026-01-01T00:00:00+00:00"}
    return [v for name, given in asked for v in item_votes(items[name], rater, given, **more)]


@pytest.mark.parametrize(
    ("content", "message"), [(b"no database at all", "not a database"), (None, "directory")]
)
def test_what_is_no_file_of_votes_is_one_line(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], content, message: str
) -> None:
    file = tmp_path / "v.sqlite"
    file.mkdir() if content is None else file.write_bytes(content)
    words = ["votes", "export", str(study.root), str(tmp_path / "v.csv"), "--votes", str(file)]
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line
    assert str(file) in line


def test_withdrawn_raters_free_their_items(study: Study, store: StudyStore) -> None:
    first, second = store.add_raters(2)
    now_s = 1_000.0
    for rater in (first, second):
        store.set_state(rater.name, "rating")
        store.assign(rater.name, lambda load: rating_plan(study, "x", Counter()), now_s=now_s)
    seen: list[Counter[str]] = []
    store.withdraw(first.name)
    store.assign(second.name, lambda load: seen.append(load) or [], now_s=now_s)
    store.assign(second.name, lambda load: seen.append(load) or [], now_s=now_s + 25 * 3600)
    assert set(seen[0].values()) == {1}
    assert not seen[1]  # open for more than a day: handed out again


def test_duplicates(study: Study, store: StudyStore) -> None:
    votes = some_votes(study, "r9")
    assert store.add_votes(votes) == 9
    assert store.add_votes(votes) == 0
    with pytest.raises(DuplicateVoteError, match="before with 'first'; 'second' is refused"):
        store.add_votes(some_votes(study, "r9", "second"))
    assert store.votes() == votes
    mixed = [*some_votes(study, "r8"), *some_votes(study, "r9", "second")]
    with pytest.raises(DuplicateVoteError):
        store.add_votes(mixed)
    assert store.votes() == votes, "all of a file or nothing"


def test_a_transaction_keeps_other_processes_out_from_its_first_moment(store: StudyStore) -> None:
    """Else two raters who start together could be given the same half of a study."""
    other = sqlite3.connect(store.place, timeout=0, isolation_level=None)
    locked = pytest.raises(sqlite3.OperationalError, match="locked")
    with closing(other), store.transaction(), locked:
        other.execute("BEGIN IMMEDIATE")


def test_votes_survive_a_killed_server(study: Study, tmp_path: Path) -> None:
    store = StudyStore(tmp_path / "v.sqlite", study.fingerprint)
    store.add_votes(some_votes(study, "r1"))  # and no close
    assert len(StudyStore(tmp_path / "v.sqlite", study.fingerprint).votes()) == 9


def test_a_vote_is_on_the_disk_when_the_page_goes_on(store: StudyStore) -> None:
    """FULL (2): SQLite waits for the disk at each commit, so a power cut takes no vote either."""
    names = ("journal_mode", "synchronous")
    with store.transaction() as db:
        told = [db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]
    assert told == ["wal", 2]


def test_votes_and_copies_are_their_owners_alone(study: Study, tmp_path: Path) -> None:
    """Also files of before, when everybody could read them; and what SQLite lays beside them."""
    file, copies = tmp_path / "new" / "votes.sqlite", tmp_path / "copies"
    with closing(StudyStore(file, study.fingerprint)) as store:
        store.add_raters(1)
        made = {path: _rights(path) for path in (file.parent, *file.parent.iterdir())}
        assert made == {path: 0o700 if path.is_dir() else 0o600 for path in made}
        assert len(made) == 4
        for path in file.parent.iterdir():
            path.chmod(0o644)
        with closing(StudyStore(file, study.fingerprint)):
            assert {_rights(path) for path in file.parent.iterdir()} == {0o600}
    copies.mkdir(mode=0o755)
    blinded_copies([study.root / "ref.mp4"], copies)
    assert _rights(copies) == 0o700


def _rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_withdrawing_deletes_and_stays(study: Study, store: StudyStore) -> None:
    store.add_votes(some_votes(study, "r1") + some_votes(study, "r2"))
    assert store.withdraw("r1") == 9
    assert {vote.rater for vote in store.votes()} == {"r2"}
    with pytest.raises(ValueError, match="r1 has withdrawn"):
        store.add_votes(some_votes(study, "r1"))


def test_votes_of_another_study_are_refused(study: Study, store: StudyStore) -> None:
    with pytest.raises(ValueError, match="another version of the study"):
        StudyStore(store.place, "0000")


def test_files_read_back_equal(study: Study, tmp_path: Path) -> None:
    votes = some_votes(study, "r1") + some_votes(study, "r2", "tie")
    write_votes(votes, tmp_path / "v.csv")
    assert sorted(read_votes(tmp_path / "v.csv"), key=repr) == sorted(votes, key=repr)
    with pytest.raises(ValueError, match=r"are \.csv"):
        write_votes(votes, tmp_path / "v.json")


def test_tokens_are_in_no_file(study: Study, store: StudyStore, tmp_path: Path) -> None:
    many = store.add_raters(50)
    rater = many[0]
    assert len({one.token for one in many}) == 50
    assert min(len(one.token) for one in many) >= 22  # of 64 letters: 128 bits cannot be guessed
    consent(study, store, rater, 0.0)
    screen = store.screens(rater.name)[0]
    store.answer(screen, some_votes(study, rater.name), 0.0)
    write_votes(store.votes(), tmp_path / "v.csv", store.raters())
    assert rater.token not in (tmp_path / "v.csv").read_text()


def test_a_file_that_contradicts_itself(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "v.csv"
    write_votes(some_votes(study, "r1") + some_votes(study, "r1", "second"), file)
    with pytest.raises(ValueError, match=r"line \d+: r1 answered .* both 'first' and 'second'"):
        read_votes(file)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "{}", "[1]", '[{"id": 1}]'])
def test_files_that_hold_no_votes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "v.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"v\.csv"):
        read_votes(file)


def marked(fault: str, start: float, stop: float) -> dict:
    return {"fault": fault, "start": start, "stop": stop}


CHOSEN = {attribute.key: attribute.values[0] for attribute in ATTRIBUTES}
SCORES = {dimension.key: 3 for dimension in SIX_DIMENSIONS}
POINTS = {axis.key: 61 for axis in AXES}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("mos", {**SCORES, "visual": 6}),
        ("mos", {**SCORES, "visual": "5"}),
        ("mos", {**SCORES, "visual": True}),
        ("mos", {**SCORES, "charm": 5}),
        ("mos", {"visual": 5}),
        ("score", {**POINTS, "naturalness": 101}),
        ("score", {**POINTS, "naturalness": 49.5}),
        ("pair", {"choice": "first"}),
        ("pair", {}),
        ("pair", ["left"]),
        ("turing", {"choice": "tie"}),
        ("attributes", CHOSEN | {"gaze": "inward"}),
        ("attributes", {"gaze": "camera"}),
        ("ranges", {}),
        ("ranges", {"ranges": "teeth"}),
        ("ranges", {"ranges": [], "choice": "left"}),
        ("ranges", {"ranges": [marked("wings", 0, 0.2)]}),
        ("ranges", {"ranges": [marked("teeth", 0.2, 0.2)]}),
        ("ranges", {"ranges": [marked("teeth", 0.2, 0.201)]}),
        ("ranges", {"ranges": [marked("teeth", -0.1, 0.2)]}),
        ("ranges", {"ranges": [marked("teeth", 0.1, 0.7)]}),  # the clip is shorter
        ("ranges", {"ranges": [marked("teeth", 0.1, 10**400)]}),
        ("ranges", {"ranges": [marked("teeth", float("nan"), 0.2)]}),
        ("ranges", {"ranges": [marked("teeth", True, 0.2)]}),
        ("ranges", {"ranges": [{**marked("teeth", 0, 0.2), "why": "x"}]}),
        ("ranges", {"ranges": [marked("teeth", 0, 0.2)] * 51}),
    ],
)
def test_malformed_answers(study: Study, kind, answer: object) -> None:
    with pytest.raises(ValueError, match="got"):
        read_answer(study, kind, answer, second_on_left=False, duration_s=0.5)


@pytest.mark.parametrize("second_on_left", [False, True])
def test_what_a_page_sends_is_what_it_is_shown_again(study: Study, second_on_left: bool) -> None:
    def there_and_back(kind, sent: dict) -> dict[str, str]:
        read = read_answer(study, kind, sent, second_on_left=second_on_left, duration_s=2.0)
        assert sent_answer(kind, read, second_on_left=second_on_left) == sent
        return read

    left, right = (there_and_back("pair", {"choice": side}) for side in ("left", "right"))
    assert (left, right)[second_on_left] == {"": "first"}
    assert there_and_back("pair", {"choice": "tie"}) == {"": "tie"}
    assert there_and_back("mos", SCORES)["visual"] == "3"
    assert there_and_back("score", POINTS)["consistency"] == "61"
    assert there_and_back("attributes", CHOSEN) == CHOSEN
    assert there_and_back("ranges", {"ranges": []}) == {"": "none"}
    two = [marked("blink", 1.0, 1.5), marked("teeth", 0.25, 2.0)]
    assert there_and_back("ranges", {"ranges": two}) == {"": "blink:1.00-1.50 teeth:0.25-2.00"}


def test_votes_go_out_and_in_and_become_tables(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("krippendorff", reason="needs pip install 'avatar_v[eval]'")
    root, base = str(study.root), str(tmp_path / "votes.sqlite")
    votes = some_votes(study, "r1") + some_votes(study, "r2") + some_votes(study, "r3", "second")
    write_votes(votes, tmp_path / "in.csv")
    assert main(["votes", "tables", root, str(tmp_path / "x.md"), "--votes", base]) == 2
    assert "no votes that count (nobody has voted)" in capsys.readouterr().err
    for action, name in [("import", "in.csv"), ("export", "out.csv"), ("tables", "out.md")]:
        assert main(["votes", action, root, str(tmp_path / name), "--votes", base]) == 0
    assert "27 of 27 votes were new" in capsys.readouterr().out
    assert sorted(read_votes(tmp_path / "out.csv"), key=repr) == sorted(votes, key=repr)
    text = (tmp_path / "out.md").read_text()
    assert "| weak | 100.0% [20.7, 100.0] | 0.0% [0.0, 79.3] | 1 |" in text
    assert "MOS (5-point scale), cross scene" in text
    assert "| **0.35** |" in text  # ln(2 / 1) / 2, and no interval from one case
    assert "24 votes of 3 raters count." in text
