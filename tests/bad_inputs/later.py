"""Hostile command lines of adapters, plans, and pairs that raters judge."""

from collections.abc import Iterator

from bad_inputs.adapter_files import CARDS, CONFIGS, TEXTS
from bad_inputs.case import ACCEPTED, REFUSED, Case
from bad_inputs.vote_files import RATERS, ROWS, STUDIES

TINY = "FILES/weights/tiny"
GENERATE = (
    "avatar-v generate --reference FILES/media/me.mkv --audio FILES/media/talk.wav --out out.mp4 "
    f"--weights {TINY} --no-face-crop --steps 1 --motion none --device cpu --lora"
)
STATES = (
    "nan", "inf", "int32", "large", "shape", "scalar", "more", "other_module", "lacks_a", "lacks_b",
    "nothing_learned", "network_other", "network_huge", "pickle",
)  # fmt: skip
PLACES = (
    "empty", "a_file", "fifo", "circle", "is_not_there", "bin_alone", "no_adapter", "no_config",
    "no_adapter_config", "no_adapter_model", "fifo_adapter", "fifo_adapter_config", "fifo_config",
    "fifo_adapter_model",
)  # fmt: skip
SOUND = ("alpha_top",)
"""Adapters that can be used."""


def adapters() -> Iterator[Case]:
    for name in (*CARDS, *CONFIGS, *TEXTS, *STATES, *PLACES):
        if name in SOUND:
            continue
        folder = f"FILES/adapters/{name}"
        yield Case(f"lora: {name}", f"{GENERATE} {folder}")
        yield Case(f"merge: {name}", f"avatar-v weights merge {TINY} {folder} --out made")
        if name not in ("other_base", "other_vae", "large"):  # what it holds is exported
            yield Case(f"export-lora: {name}",
                       f"avatar-v weights export-lora {folder} made --drop-extras")  # fmt: skip
    yield Case("lora: pipe beside", f"{GENERATE} FILES/adapters/fifo_beside")
    for scale in ("nan", "inf", "1e30", "-11", "abc", ""):
        yield Case(f"lora: scale {scale}", f"{GENERATE} FILES/adapters/good:{scale}", says="scale")
    for path in ("''", "/dev/zero", "<LONG>", "../../../etc", "FILES/media/me.mkv", ":"):
        yield Case(f"lora: {path}", f"{GENERATE} {path}")
    yield Case("lora: good", f"{GENERATE} FILES/adapters/good", ACCEPTED)
    merge = f"avatar-v weights merge {TINY} FILES/adapters/good"
    for out in ("FILES/media/me.mkv", "/proc/x", "FILES/media/circle_a.mp4", TINY, "/dev/null"):
        yield Case(f"merge: --out {out}", f"{merge} --out {out}")
    yield Case("merge: twice", f"{merge} FILES/adapters/good --out made", says="twice")
    yield Case("merge: another VAE", f"{merge} --out made --vae FILES/weights/nan_vae/vae")
    yield Case("merge: good", f"{merge} --out made", ACCEPTED)
    yield Case(
        "merge: too large for fp16",
        f"avatar-v weights merge {TINY} FILES/adapters/alpha_top:10 --out made --dtype float16",
        says="not finite",
    )
    export = "avatar-v weights export-lora FILES/adapters/good made"
    yield Case("export-lora: good without extras", export, says="--drop-extras")


PLAN = "avatar-v plan RECIPES/2_a2v.yaml RECIPES/tiny.yaml"
PLANNED = {
    "--gpus": ("0", "-1", "1e9", "1000000000", "nan"),
    "--gpu": ("unknown", "''"),
    "--mfu": ("0", "nan", "inf", "2", "1e-320"),
    "--size": ("0", "-1", "7", "8"),
    "--frames": ("0", "-1", "4", "1000000000"),
    "--seconds": ("nan", "-1", "1e12", "5"),
    "--reference-seconds": ("nan", "1e12", "5"),
}
OF_RECIPES = {
    "--trainer.devices": ("0", "many"),
    "--trainer.accelerator": ("quantum",),
    "--trainer.strategy": ("magic",),
    "--data.init_args.train": ("FILES/media/me.mkv", "FILES/shards/bad/text"),
    "--model.init_args.optim.lr": (".nan",),
}


def plans() -> Iterator[Case]:
    for option, values in PLANNED.items():
        for value in values:
            yield Case(f"plan {option} {value}", f"{PLAN} {option}={value}")
    for option, values in OF_RECIPES.items():
        for value in values:
            yield Case(f"plan -- {option} {value}", f"{PLAN} -- {option}={value}")
    for option in ("--size=100", "--frames=0", "--measures", "--seconds=inf", "--gpus=0"):
        yield Case(f"plan --generate {option}", f"avatar-v plan --generate {TINY} {option}")
    for name in ("is_not_there", "text/dit", "card_deep", "config_dit_huge"):
        yield Case(f"plan --generate {name}", f"avatar-v plan --generate FILES/weights/{name}")
    for name in ("bomb", "python_tag", "binary", "deep", "self", "latin", "foreign_class"):
        yield Case(f"plan {name}.yaml", f"avatar-v plan FILES/recipes/{name}.yaml")
    for path in ("a_folder", "me.mkv", "circle_a.mp4", "fifo.mp4"):
        yield Case(f"plan {path}", f"avatar-v plan FILES/media/{path}")
        yield Case(f"run {path}", f"avatar-v run FILES/media/{path}")
    yield Case("plan nothing", "avatar-v plan")
    yield Case("plan options alone", "avatar-v plan -- --trainer.devices 1", says="no recipe")
    yield Case("plan both", f"{PLAN} --generate small")
    yield Case("plan --generate", f"avatar-v plan --generate {TINY}", ACCEPTED)


def judged_pairs() -> Iterator[Case]:
    taken = ("row_expected", "rater_path", "rater_nul", "rater_other")
    names = (
        "merges", "bomb", "deep", "self", "large", "latin", "no_votes", "votes_text", "votes_other",
        "votes_foreign", "votes_fifo", "votes_circle", "votes_folder", "votes_cut", "votes_columns",
    )  # fmt: skip
    for name in (*STUDIES, *ROWS, *names, "good"):
        end = ACCEPTED if name in (*taken[1:], "good") else REFUSED
        yield Case(f"votes pairs: {name}", f"{_pairs(name)} --out made", end)
    for option in ("--validation=2", "--validation=nan", "--size=0", "--frames=4", "--seed=-1",
                   "--motion=os:system", "--votes=/dev/zero",
                   "--votes=FILES/media/fifo.mp4"):  # fmt: skip
        yield Case(f"votes pairs {option}", f"{_pairs('good')} --out made {option}")
    for out in ("FILES/media/me.mkv", "/proc/x", "FILES/media/circle_a.mp4"):
        yield Case(f"votes pairs --out {out}", f"{_pairs('good')} --out {out}")
    for name in ("votes_fifo", "votes_other", "row_blob", "row_nan", "row_text"):
        yield Case(
            f"votes tables: {name}", f"avatar-v-eval votes tables FILES/rated/{name} made.md"
        )
    shards = f"avatar-v shards pairs --shards FILES/shards/tiny/train --weights {TINY} --out made"
    for name in RATERS:
        raters = f"--raters FILES/raters/{name}.json"
        yield Case(f"shards pairs: {name}", f"{shards} --frames 5 --pairs 2 {raters}", says=name)
    for option in ("--pairs=0", "--pairs=2 --frames=4", "--pairs=2 --seed=-1", "--pairs=2"):
        yield Case(f"shards pairs {option}", f"{shards} {option}")
    yield from _systems()


def _pairs(name: str) -> str:
    return f"avatar-v-eval votes pairs FILES/rated/{name} --no-face-crop --size 32 --motion none"


def _systems() -> Iterator[Case]:
    study = "avatar-v-eval study systems --persons 4 --out made --systems"
    for systems in (f"a={TINY} a={TINY}", f"{TINY} {TINY}", f"a=is_not_there b={TINY}",
                    f"a={TINY}?num_steps=0 b={TINY}", f"a={TINY}?surprise=1 b={TINY}",
                    f"a={TINY}?guidance_text=nan b={TINY}"):  # fmt: skip
        yield Case(f"study systems {systems}", f"{study} {systems}")
    for option in ("--frames=4", "--frames=0", "--persons=0", "--steps=0", "--text=nan",
                   "--seed=-1", "--audio=inf", "--name=../../x", "--pairs=a:c"):  # fmt: skip
        yield Case(f"study systems {option}", f"{study} a={TINY} b={TINY} {option}")
