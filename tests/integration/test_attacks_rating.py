"""A stranger at the rating server, by plain HTTP, against the command as a user starts it.

An attack gives the attempts that got through, by name; none may. Attempts are counted, and the
votes of everybody else, the memory and the pace of the server are looked at when all are over.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from attacking import Target, started
from avatar_v_eval.cli import main
from human_study import annotation_yaml, make_study, study_yaml, write_video
from rating_attacks import ATTACKS, SCRIPT, Attack
from rating_site import Site, vote


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("attacked") / "study"
    raw = annotation_yaml(2)
    raw["title"] = SCRIPT
    raw["checks"][0]["note"] = SCRIPT
    raw["faults"] = [{"key": "teeth", "title": SCRIPT, "hint": SCRIPT}]
    make_study(folder, raw)
    words = ("rate", str(folder), "--port", "0", "--raters", "6", "--reviewers", "1")
    with started("avatar_v_eval.cli", *words) as process:
        assert process.stdout
        links = []
        for line in process.stdout:
            links += re.findall(r"http://127\.0\.0\.1:(\d+)/r/(\S+)", line)
            if "Ctrl-C" in line:
                break
        assert len(links) == 7
        target = Target(int(links[0][0]), process)
        for _ in range(100):  # the port is open before the server is
            if target.ask("GET", "/static/rate.css").status == 200:
                break
        site = Site(target, folder, [token for _, token in links], target.memory_mib())
        item, _, answer = site.question(site.tokens[1])  # an honest vote to be attacked
        sent = {"item": item, "answer": answer}
        assert target.ask("POST", f"/r/{site.tokens[1]}/answer", sent).status == 200
        for token, kind in ((site.tokens[4], "ranges"), (site.tokens[5], "attributes")):
            site.advance(token, kind)
        yield site


@pytest.mark.parametrize("attempts", ATTACKS, ids=lambda function: function.__name__)
def test_nothing_gets_in(site: Site, attempts: Attack) -> None:
    votes = [row for row in site.votes if row[0] != "r004"]  # who leaves in one of the attacks
    passed = attempts(site)
    site.tried += len(passed)
    site.through += [f"{attempts.__name__}: {name}" for name, through in passed.items() if through]
    assert [name for name, through in passed.items() if through] == []
    assert [row for row in site.votes if row[0] != "r004"] == votes


def test_the_server_is_as_before(site: Site) -> None:
    """After all attacks: the honest vote stands, a rater goes on, and Ctrl-C ends the server."""
    assert len(ATTACKS) >= 15
    assert site.tried >= 300, "the attacks run before this test"
    print(f"{site.tried} attempts in {len(ATTACKS)} attacks, {len(site.through)} through")
    assert site.through == []
    assert site.target.memory_mib() - site.memory_mib < 32
    item, _, answer = site.question(site.me)
    assert vote(site, f"/r/{site.me}/answer", item, answer).status == 200
    assert {row[0] for row in site.votes} == {"r001", "r002", "r005", "r006"}
    with site.target.connect() as idle:
        idle.sendall(f"POST /r/{site.me}/answer HTTP/1.1\r\nHost: ".encode())
        site.target.process.send_signal(signal.SIGINT)
        assert site.target.process.wait(10) == 130


@pytest.mark.parametrize("kind", ["link", "linked folder", "up", "absolute", "playlist", "nul"])
def test_a_study_reaches_no_file_outside_of_its_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another person's study: one error before anything is served or copied."""
    folder, secret = tmp_path / "study", tmp_path / "private" / "c00.mp4"
    write_video(secret, 1)
    raw, video = study_yaml(1), folder / "videos" / "ours" / "c00.mp4"
    names = {"up": "../private", "absolute": str(secret.parent), "nul": "videos/ours\0"}
    make_study(folder, raw)
    raw["systems"]["ours"] = names.get(kind, "videos/ours")
    (folder / "study.yaml").write_text(yaml.safe_dump(raw))
    if kind == "link":
        video.unlink()
        video.symlink_to(secret)
    if kind == "linked folder":
        video.parent.rename(folder / "videos" / "before")
        video.parent.symlink_to(secret.parent)
    if kind == "playlist":  # a file that is no link, and has the reader open one
        video.write_text("ffconcat version 1.0\nfile piece.mp4\n")
        (video.parent / "piece.mp4").symlink_to(secret)
    assert main(["rate", str(folder), "--check"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(r"out of|expected a path below|not a readable media file", said), said
    copied = [path.read_bytes() for path in folder.glob(".blinded/*")]
    assert not any(secret.read_bytes()[-500:] in data for data in copied)
