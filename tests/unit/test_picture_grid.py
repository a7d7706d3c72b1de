"""Pictures of results say what their rows and columns are."""

import pytest
import torch

from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.studies import own_face, refiner

VIDEO = torch.arange(5, dtype=torch.uint8).repeat_interleave(192).reshape(5, 3, 8, 8)


def test_words_stand_at_their_rows_and_columns() -> None:
    figure = picture_grid(
        [list(VIDEO[:2]), list(VIDEO[2:4])],
        row_labels=["one", "two"],
        column_labels=["left", "right"],
        below=["a", "b"],
    )
    axes = figure.axes
    assert [int(ax.images[0].get_array()[0, 0, 0]) for ax in axes] == [0, 1, 2, 3]
    assert [ax.get_ylabel() for ax in axes] == ["one", "", "two", ""]
    assert [ax.get_title() for ax in axes] == ["left", "right", "", ""]
    assert [ax.get_xlabel() for ax in axes] == ["", "", "a", "b"]


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([], {}, "one length of at least 1"),
        ([[]], {}, "one length of at least 1"),
        ([[VIDEO[0]], list(VIDEO)], {}, r"one length of at least 1, got \[1, 5\]"),
        ([[VIDEO[0]]], {"row_labels": ["one", "two"]}, "1 rows have as many labels, got 2"),
        ([[VIDEO[0]]], {"below": ["one", "two"]}, "1 columns have as many labels, got 2"),
    ],
)
def test_words_that_do_not_fit_are_refused(rows: list, words: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture_grid(rows, **words)


def test_the_pictures_of_results_have_words() -> None:
    """Of the own face at its rows, of the refiner at its columns, in the order of the pictures."""
    axes = own_face.contact_sheet(VIDEO.repeat(10, 1, 1, 1), VIDEO + 100, num_columns=3).axes
    assert [ax.get_ylabel() for ax in axes[::3]] == [
        "the real clip\n(0 to 2 s)",
        "generated, other\nspeech (0 to 0 s)",
    ]
    assert int(axes[3].images[0].get_array()[0, 0, 0]) == 100
    row = dict(zip(("bicubic", "true", "mouth, bicubic", "mouth, true"), VIDEO, strict=False))
    axes = refiner.draw([row, row]).axes
    assert [ax.get_title() for ax in axes] == [*row, "", "", "", ""]
