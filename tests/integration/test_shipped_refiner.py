"""The refiner that ships: it is measured against enlarging, and it beats it on a person."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from avatar_v.generate.refine import check_refiner
from avatar_v.weights.card import ASSETS, read_card
from eval_cases import measured


@pytest.mark.slow
def test_the_measurement_of_the_shipped_refiner(tmp_path: Path) -> None:
    num_threads = torch.get_num_threads()
    words = "--split validation --first 520 --persons 2 --frames 9 --rows 2 --name quick --out"
    try:
        assert measured("study", "refiner", *words.split(), str(tmp_path)) == 0
    finally:
        torch.set_num_threads(num_threads)
    numbers = json.loads((tmp_path / "quick.json").read_text())["numbers"]
    value = {name: number["value"] for name, number in numbers.items()}
    assert value["psnr_vae"] > value["psnr_refined"] > value["psnr_low_decoder"]
    assert value["psnr_refined"] > value["psnr_bicubic"]
    assert value["sharpness_refined"] > 2 * value["sharpness_bicubic"]
    assert value["sharpness_made_refined"] > 2 * value["sharpness_made_bicubic"]
    assert all(number["n"] in (2, 4, 6) for number in numbers.values())
    with Image.open(tmp_path / "quick.webp") as picture:
        assert picture.size[0] == 6 * 240


def test_it_says_where_it_comes_from() -> None:
    folder = check_refiner("small_refiner")
    assert folder == ASSETS / "small_refiner"
    card = read_card(folder, preset="small")
    assert card.recipe == "recipes/refiner.yaml recipes/small.yaml"
    assert (folder / card.log).is_file()
    assert (folder / "vae" / "log.csv").is_file()
