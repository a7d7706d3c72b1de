"""scoring/registry.py: what is wrong with a metric of the user's is said at the start."""

from pathlib import Path

import pytest

from avatar_v.scoring.registry import find_scorers


def test_a_metric_that_is_not_whole_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begin = "from avatar_v.scoring.scorer import ANY, Scorer\nclass Half(Scorer):\n"
    whole = "    name, version, judge, faces = 'half', 1, 'formula', ANY\n"
    monkeypatch.syspath_prepend(tmp_path)
    for name, code, words in (
        ("half.a", begin + whole, "half.a: Half has no outputs$"),
        ("half.b", begin + whole + "    outputs = 'half'\n", "Half.outputs is a tuple of"),
        ("half.c", "1 / 0\n", "half.c is no metric: ZeroDivisionError"),
    ):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(code if "1 / 0" in code else code + "SCORERS = (Half,)\n")
        with pytest.raises(ValueError, match=words):
            find_scorers([name], {}, "drawn")
