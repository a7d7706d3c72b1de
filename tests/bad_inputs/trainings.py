"""Hostile command lines of training, of its checkpoints, and of weights that are joined."""

from collections.abc import Iterator

from bad_inputs.case import ACCEPTED, WARNED, Case
from bad_inputs.pointer_files import SAYS

RECIPES = "RECIPES/2_a2v.yaml RECIPES/tiny.yaml"
MODEL, OPTIM = "--model.init_args", "--model.init_args.optim"
OBJECTIVE = "--model.init_args.objective"
TRAINED = (
    f"{MODEL}.models.init_from FILES/weights/tiny --data.init_args.train FILES/shards/tiny/train \
--data.init_args.validation FILES/shards/tiny/validation --trainer.max_steps 4"
)
RUN = f"avatar-v run {RECIPES} {TRAINED}"

SETTINGS = {
    f"{OPTIM}.lr": (".nan", ".inf", "-1", "0", "1e12", "fast"),
    f"{OPTIM}.num_warmup_steps": ("-1", "1000", ".nan"),
    f"{OPTIM}.final_lr_share": ("-1", "2", ".nan"),
    f"{OPTIM}.weight_decay": ("-1", ".nan", ".inf"),
    f"{OPTIM}.betas": ("'[0.9, 1.5]'", "'[-1, 0.9]'", "'[0.9]'"),
    f"{OPTIM}.muon_momentum": ("1.5", "-1", ".nan"),
    f"{OPTIM}.muon_lr_scale": ("-1", ".inf"),
    f"{OPTIM}.lr_scales": ("'{nothing: 1.0}'", "'{audio: .nan}'", "'{audio: -1}'"),
    f"{OBJECTIVE}.shift": ("0", "-1", ".nan", ".inf"),
    f"{OBJECTIVE}.first_share": ("2", "-1", ".nan"),
    f"{OBJECTIVE}.text_dropout": ("1.5", ".nan"),
    f"{OBJECTIVE}.window_latents": ("'{0: 0}'", "'{0: -5}'", "'{5: 5}'", "'{0: 1000}'", "5"),
    f"{OBJECTIVE}.resolution": ("'{0: 0}'", "'{0: -1}'", "'{0: .nan}'"),
    f"{MODEL}.mouth_boost": (".inf", "-1", ".nan"),
    f"{MODEL}.face_boost": (".nan", "-2"),
    f"{MODEL}.seed": ("-1", "1.5", "nan"),
    f"{MODEL}.models.preset": ("gigantic", "''"),
    f"{MODEL}.models.init_from": ("is_not_there", "FILES/weights/nan_dit", "FILES/media/me.mkv"),
    f"{MODEL}.surprise": ("1",),
    "--data.init_args.batch_size": ("0", "-1", ".nan"),
    "--data.init_args.num_workers": ("-1",),
    "--data.init_args.train": ("is_not_there", "FILES/shards/bad/nothing", "FILES/shards/bad/text"),
    "--data.init_args.validation": ("is_not_there",),
    "--trainer.max_steps": ("-7", "0", ".nan", "many"),
    "--trainer.devices": ("0", "-3", "many"),
    "--trainer.accelerator": ("gpu", "quantum"),
    "--trainer.precision": ("7-bit",),
    "--trainer.gradient_clip_val": ("-1", ".nan"),
    "--trainer.accumulate_grad_batches": ("0", "-1"),
    "--trainer.default_root_dir": ("null", "FILES/media/me.mkv", "/proc/x"),
    "--trainer.val_check_interval": ("-1",),
    "--trainer.strategy": ("magic", "ddp_spawn", "ddp_fork"),
    "--trainer.surprise": ("1",),
    "--seed_everything": ("-1", "x"),
}


def trainings() -> Iterator[Case]:
    for option, values in SETTINGS.items():
        for value in values:
            yield Case(f"run {option} {value}", f"{RUN} {option}={value}")
    for name in ("bomb", "list", "number", "empty", "broken", "python_tag", "unknown_key",
                 "unknown_class", "foreign_class", "trainer_list", "binary", "deep", "self",
                 "latin", "is_not_there"):  # fmt: skip
        recipe = f"FILES/recipes/{name}.yaml"
        yield Case(f"run {name}.yaml", f"avatar-v run {recipe}")
        yield Case(f"run with {name}.yaml", f"avatar-v run RECIPES/2_a2v.yaml {recipe}")
    yield Case("run without a recipe", "avatar-v run")
    yield Case("run a folder", "avatar-v run FILES/media/a_folder")
    yield Case("run an overlay alone", "avatar-v run RECIPES/tiny.yaml")
    yield Case("run a video", "avatar-v run FILES/media/me.mkv")
    yield Case("run at full size here", "avatar-v run RECIPES/2_a2v.yaml")
    yield Case("run before its stage", f"avatar-v run {RECIPES}", says="1_t2v")
    yield Case("fit without a recipe", "avatar-v fit")
    yield Case("fit -c without a name", "avatar-v fit -c")
    yield Case("validate without a recipe", "avatar-v validate")
    yield Case("run on", f"{RUN} --trainer.max_steps 3", ACCEPTED)


def checkpoints() -> Iterator[Case]:
    for name in ("checkpoint_pickle.ckpt", "checkpoint_foreign.ckpt", "checkpoint_text.ckpt",
                 "is_not_there.ckpt"):  # fmt: skip
        yield Case(f"run --ckpt_path {name}", f"{RUN} --ckpt_path FILES/recipes/{name}")
    for path in ("FILES/media/a_folder", "/dev/zero", "http://127.0.0.1:9/a.ckpt"):
        yield Case(f"run --ckpt_path {path}", f"{RUN} --ckpt_path {path}")
    yield Case("run --ckpt_path pointer", f"{RUN} --ckpt_path FILES/pointers/run.ckpt", says=SAYS)
    yield Case("run --ckpt_path last", f"{RUN} --ckpt_path last", WARNED, "no checkpoint")


def joined_weights() -> Iterator[Case]:
    tiny = "FILES/weights/tiny"
    yield Case("average: none", "avatar-v weights average --out made")
    yield Case("average: text", f"avatar-v weights average {tiny} FILES/weights/text --out made")
    yield Case("average: nan", f"avatar-v weights average {tiny} FILES/weights/nan_dit --out made")
    yield Case("average: over itself", f"avatar-v weights average {tiny} {tiny} --out {tiny}")
    yield Case("average: other size",
               f"avatar-v weights average {tiny} SMALL --out made")  # fmt: skip
    yield Case("decoder: no VAE", f"avatar-v weights decoder {tiny} {tiny}/dit --out made")
    yield Case("decoder: nan", f"avatar-v weights decoder {tiny} FILES/weights/nan_vae/vae --out m")
    yield Case("decoder: other VAE", f"avatar-v weights decoder {tiny} SMALL/vae --out made")
    for name in ("tiny", "is_not_there", "text", "a_file"):
        yield Case(f"import-wan {name}", f"avatar-v weights import-wan FILES/weights/{name} made")
    for option in ("--audio-dim=0", "--audio-every=-1", "--audio-dim=nan"):
        yield Case(f"export-wan {option}",
                   f"avatar-v weights import-wan {tiny}/dit made {option}")  # fmt: skip
    yield Case("export-wan: nothing there", "avatar-v weights export-wan is_not_there made")
    yield Case(
        "export-wan: over a file", f"avatar-v weights export-wan {tiny}/dit FILES/secret.wav"
    )
