"""An even share: no person and no group of clips takes the place of others in a tier."""

from collections import Counter
from typing import Any

import pytest

from avatar_v_data.curation.balance import balanced, group_of, largest_share
from avatar_v_data.curation.kinds import KINDS, kinds
from avatar_v_data.curation.plan import Balance, Limit
from avatar_v_data.curation.select import select
from avatar_v_data.curation.table import CurationResults, clip_name


def crowded() -> list[dict[str, Any]]:
    """One person has most clips, most are large, and one has a single scene."""
    counts = {"anchor": 60, "guest": 6, "other": 4, "alone": 5}
    return [
        {"file": f"{person}-{n}", "start": 0, "stop": 5, "seconds": 4.0, "sharpness": float(n),
         "face_pixels": 300 if n % 5 else 100, "person": person, "copy_of": "",
         "scene": f"{person}-{0 if person == 'alone' else n % 3}"}
        for person, num in counts.items() for n in range(num)
    ]  # fmt: skip


def test_no_person_and_no_group_takes_the_place_of_others() -> None:
    clips, balance = crowded(), Balance(20, {"face_pixels": [160.0]})
    assert largest_share(clips, balance)[1] == 60 / 75
    chosen = balanced(clips, balance)
    assert len(chosen) == 20
    assert [clip_name(c) for c in chosen] == [clip_name(c) for c in clips if c in chosen]
    persons = Counter(c["person"] for c in chosen)
    assert persons["guest"] + persons["other"] >= 6
    assert "alone" not in persons
    groups = Counter(group_of(c, balance.groups) for c in chosen)
    assert abs(groups[0,] - groups[1,]) <= 2
    assert balanced(clips[::-1], balance) == chosen[::-1]
    partners = {(c["person"], c["scene"], group_of(c, balance.groups)) for c in chosen}
    for person, scene, group in partners:
        assert any(p == person and s != scene and g == group for p, s, g in partners)
    everything = balanced(clips, Balance(1000, {}))
    assert len(everything) == 70, "all but those of a single scene"


def test_a_tier_is_balanced_last() -> None:
    found = CurationResults(crowded(), footage_s=400.0)
    limits = {"sharpness": Limit(min=1.0)}
    selection = select(found, "sft", limits, Balance(10, {"face_pixels": [160.0]}))
    assert len(selection.clips) == 10
    assert "balanced: largest group" in selection.steps[-1].what
    for column, ends in (("pixels", [160.0]), ("kind_framing", [])):
        with pytest.raises(ValueError, match=f"tier sft: no column '{column}'"):
            select(found, "sft", limits, Balance(10, {column: ends}))


def test_a_tier_is_balanced_by_kinds() -> None:
    """Of 10 clips of 160 pixels and more as many as of the others, of which there are fewer."""
    clips = [clip | kinds(clip) for clip in crowded()]
    found, balance = CurationResults(clips), Balance(16, {"kind_resolution": [], "seconds": [5.0]})
    chosen = select(found, "sft", {}, balance).clips
    before, after = (Counter(c["kind_resolution"] for c in some) for some in (clips, chosen))
    assert before["middle"] > 3 * before["small"]
    assert abs(after["middle"] - after["small"]) <= 2
    assert kinds({"face_share": 0.4, "turned": 0.0, "language": "fr"}) == {
        "kind_framing": "close", "kind_head": "frontal", "kind_language": "fr"
    }  # fmt: skip
    assert all(len(words.split()) == len(ends) + 1 for _, ends, words in KINDS.values())
