"""The refiner that ships: it is measured against enlarging, and it beats it on a person."""

import json
from pathlib import Path

import torch
from PIL import Image

from avatar_v.generate.refine import check_refiner
from avatar_v.models.weights import ASSETS, read_card
from avatar_v_eval import refiner as refiner_eval


def test_the_measurement_of_the_shipped_refiner(tmp_path: Path) -> None:
    num_threads = torch.get_num_threads()
    words = "--split validation --first 520 --persons 2 --frames 9 --rows 2 --name quick --out"
    try:
        refiner_eval.main([*words.split(), str(tmp_path)])
    finally:
        torch.set_num_threads(num_threads)
    numbers = json.loads((tmp_path / "quick.json").read_text())["numbers"]
    value = {name: number["value"] for name, number in numbers.items()}
    assert value["psnr_vae"] > value["psnr_refined"] > value["psnr_low_decoder"]
    assert value["psnr_refined"] > value["psnr_bicubic"]
    assert value["sharpness_refined"] > 2 * value["sharpness_bicubic"]
    assert value["made_sharpness_refined"] > 2 * value["made_sharpness_bicubic"]
    assert all(number["n"] in (2, 4, 6) for number in numbers.values())
    with Image.open(tmp_path / "quick.png") as picture:
        assert picture.size == (6 * 256, 2 * 256)


def test_it_says_where_it_comes_from() -> None:
    folder = check_refiner("small_refiner")
    assert folder == ASSETS / "small_refiner"
    card = read_card(folder, preset="small")
    assert card.recipe == "recipes/refiner.yaml recipes/small.yaml"
    assert (folder / card.log).is_file()
    assert (folder / "vae" / "log.csv").is_file()
