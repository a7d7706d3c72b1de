"""How far the judges can be trusted: ``python -m avatar_v_eval.critics``.

On TEST persons that no critic saw: how well the mouth meter reads rendered frames, the same frames
blurred by the VAE and shifted pictures, and how well the face critic finds a person in another
scene. Writes ``eval/results/critics.json``.
"""

import argparse

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.face import FaceCritic, identification
from avatar_v.critics.frozen import as_input
from avatar_v.critics.layers import augment
from avatar_v.critics.motion import INPUT_SIZE, MouthMeter
from avatar_v.generate.pipeline import ASSETS
from avatar_v.models.vae import VideoVAE
from avatar_v_eval import records
from avatar_v_eval.cases import Case, make_cases
from avatar_v_eval.records import Number, bootstrap, bootstrap_mean, pearson, rate
from avatar_v_eval.rollout import through_vae

Videos = UInt8[Tensor, "n f 3 h w"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", type=int, default=64)
    parser.add_argument("--frames", type=int, default=49, help="per person, 4k + 1")
    parser.add_argument("--vae", default=str(ASSETS / "small" / "vae"))
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    options = parser.parse_args(arguments)
    meter, critic = MouthMeter.from_pretrained("mouth"), FaceCritic.from_pretrained("face")
    vae = VideoVAE.from_pretrained(options.vae)
    cases = make_cases(options.persons, options.frames)
    decoded = torch.stack([through_vae(vae, case.video) for case in cases])
    numbers = mouth_numbers(meter, cases, decoded) | face_numbers(critic, cases, decoded)
    result = records.make_result(
        "critics",
        "The judges on test persons",
        numbers,
        recipe="recipes/critic_mouth.yaml, recipes/critic_face.yaml",
        weights={"mouth": meter.hash(), "face": critic.hash(), "vae": vae.hash()},
        notes=[
            f"{options.persons} TEST persons, {options.frames} consecutive frames of speech each",
            "R² pools all frames; its interval is bootstrapped over persons",
        ],
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:64s} {number.value:8.4f}  [{number.low}, {number.high}]")


def mouth_numbers(meter: MouthMeter, cases: list[Case], decoded: Videos) -> dict[str, Number]:
    truth = np.stack([case.mouth_open.double().numpy() for case in cases])
    videos = torch.stack([case.video for case in cases])
    plain = _read(meter, as_input(videos.flatten(0, 1), INPUT_SIZE), truth)
    degraded = augment(as_input(videos.flatten(0, 1), INPUT_SIZE), torch.Generator().manual_seed(0))
    through = _read(meter, as_input(decoded.flatten(0, 1), INPUT_SIZE), truth)
    per_person = np.array([pearson(x, y) for x, y in zip(plain, truth, strict=True)])
    through_person = np.array([pearson(x, y) for x, y in zip(through, truth, strict=True)])
    return {
        "mouth_r2": _r2(plain, truth).described(
            "mouth meter: R² of mouth opening", target="≥ 0.95"
        ),
        "mouth_r": bootstrap_mean(per_person).described("mouth meter: r within a person, mean"),
        "mouth_r2_degraded": _r2(_read(meter, degraded, truth), truth).described(
            "mouth meter: R² on blurred, shifted, noisy frames"
        ),
        "mouth_r2_vae": _r2(through, truth).described("mouth meter: R² through the VAE"),
        "mouth_r_vae": bootstrap_mean(through_person).described(
            "mouth meter: r within a person through the VAE, mean"
        ),
    }


def face_numbers(critic: FaceCritic, cases: list[Case], decoded: Videos) -> dict[str, Number]:
    n = len(cases)
    gallery = torch.stack([critic.embed_clip(case.elsewhere) for case in cases])
    frame = torch.cat([critic.measure(case.reference[:1]).values for case in cases])
    clip = torch.stack([critic.embed_clip(case.video) for case in cases])
    blurred = torch.stack([critic.embed_clip(video) for video in decoded])
    numbers = {}
    for key, label, queries in (
        ("face_frame", "one frame", frame),
        ("face_clip", "a clip", clip),
        ("face_vae", "a clip through the VAE", blurred),
    ):
        nearest, pairwise = identification(queries, gallery)
        numbers[key] = rate(int(nearest.sum()), n).described(
            f"face critic: {label} finds its person in another scene, of {n}"
        )
        numbers[f"{key}_pairs"] = bootstrap_mean(pairwise.double().numpy()).described(
            f"face critic: {label}, against one other person"
        )
    return numbers


def _read(
    meter: MouthMeter, images: Float[Tensor, "b 3 h w"], truth: Float[np.ndarray, "n f"]
) -> Float[np.ndarray, "n f"]:
    return meter.mouth_open(images).double().numpy().reshape(truth.shape)


def _r2(reading: Float[np.ndarray, "n f"], truth: Float[np.ndarray, "n f"]) -> Number:
    def r2(index: np.ndarray) -> float:
        x, y = reading[index], truth[index]
        return float(1 - np.square(x - y).sum() / np.square(y - y.mean()).sum())

    return bootstrap(r2, len(truth), 0, 2000)


if __name__ == "__main__":
    main()
