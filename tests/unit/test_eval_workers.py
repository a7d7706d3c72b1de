"""avatar_v_eval/workers: many cases, and a measurement that was stopped."""

from pathlib import Path

import pytest

from avatar_v_eval.workers import forget, kept_folder, mapped


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order(num_workers: int) -> None:
    assert mapped(lambda i: i * i, 5, "squares", num_workers) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stopped_measurement_goes_on_with_what_is_left(tmp_path: Path, num_workers: int) -> None:
    made = tmp_path / "made"
    made.mkdir()

    def fn(index: int, last: int) -> int:
        if index > last:
            raise KeyboardInterrupt
        (made / f"{index}-{last}").touch()
        return 10 * index

    with pytest.raises(KeyboardInterrupt):
        mapped(lambda i: fn(i, 2), 6, "cases", num_workers, tmp_path / "kept")
    first = {path.name for path in made.iterdir()}
    assert first <= {"0-2", "1-2", "2-2"}
    assert first
    results = mapped(lambda i: fn(i, 5), 6, "cases", num_workers, tmp_path / "kept")
    assert results == [0, 10, 20, 30, 40, 50]
    again = {path.name for path in made.iterdir()} - first
    assert {name.split("-")[0] for name in first}.isdisjoint(n.split("-")[0] for n in again)
    forget(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    forget(None)


def test_what_is_kept_belongs_to_a_commit_and_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder(commit: str, dirty: bool = False, **what: object) -> Path | None:
        return kept_folder(tmp_path, "m", (commit, dirty), **what)

    one = folder("a", steps=4)
    assert one == folder("a", steps=4)
    assert len({one, folder("b", steps=4), folder("a", steps=5)}) == 3
    assert folder("a", dirty=True, steps=4) is None
    assert "would begin anew" in capsys.readouterr().out
