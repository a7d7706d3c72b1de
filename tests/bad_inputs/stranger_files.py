"""Recipes, plans, tables and policies of strangers: what they name, hide, repeat and blow up."""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from bad_inputs.case import Case

RECIPES = "RECIPES/0_vae.yaml RECIPES/tiny.yaml"
"""A stage that begins without weights."""
HERE = "FILES/strangers"
LIGHTNING = "lightning.pytorch"
CSV = f"{LIGHTNING}.loggers.CSVLogger"
CHECKPOINT = f"{LIGHTNING}.callbacks.ModelCheckpoint"
PROGRAM = {
    "class_path": "torch.distributed.launcher.api.elastic_launch",
    "init_args": {"entrypoint": "touch", "config": {"run_id": "class_ran"}},
}


def _of(class_path: str, **arguments: object) -> dict[str, object]:
    return {"class_path": class_path, "init_args": arguments}


def _watch(path: str, **options: object) -> dict[str, object]:
    return _of(
        "avatar_v.callbacks.watch_rewards.WatchRewards", every_num_steps=1, num_batches=1,
        rewards=[], metrics=[{"path": path, "options": options}],
    )  # fmt: skip


TRAINERS: dict[str, dict[str, object]] = {
    "program": {"callbacks": [_of(f"{LIGHTNING}.callbacks.LambdaCallback", on_fit_start=PROGRAM)]},
    "abort": {"callbacks": [_of(f"{LIGHTNING}.callbacks.LambdaCallback", setup="os.abort")]},
    "word": {"callbacks": ["LambdaCallback"]},
    "module": {"logger": "antigravity.Logger"},
    "module_text": {"logger": "{class_path: antigravity.Logger}"},
    "through": {"callbacks": [_of("avatar_v.base.paths.os.abort")]},
    "writer": {"callbacks": [_of("avatar_v.media.writer.Mp4Writer", path="class_ran")]},
    "reward": {"callbacks": [_watch("subprocess.Popen", args=["touch", "class_ran"])]},
    "hook": {"strategy": _of(f"{LIGHTNING}.strategies.DDPStrategy", ddp_comm_hook="os.abort")},
    "root": {"default_root_dir": "/tmp/avatar_v_outside"},
    "root_home": {"default_root_dir": "~/avatar_v_outside"},
    "root_above": {"default_root_dir": "../outside"},
    "checkpoints": {"callbacks": [_of(CHECKPOINT, dirpath="../outside")]},
    "checkpoint_names": {"callbacks": [_of(CHECKPOINT, filename="{step!s:/>1.0}tmp/outside")]},
    "csv": {"logger": _of(CSV, save_dir="/tmp/avatar_v_outside")},
    "csv_text": {"logger": f"{{class_path: {CSV}, init_args: {{save_dir: /tmp/outside}}}}"},
    "store": {"logger": _of(f"{LIGHTNING}.loggers.MLFlowLogger", tracking_uri="sqlite:////proc/x")},
}
"""Sections `trainer` of recipes."""
NAMED = ("program", "abort", "word", "module", "module_text", "through", "reward", "hook")
SAYS = {"writer": "subclass of Callback", "checkpoint_names": "filename is the name of a file"}
"""What is said of recipes that name what they may not, and of the others, which write elsewhere."""
BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
PLANS = {
    "bomb": BOMB + "stages: *a11\n",
    "tier": "stages: {}\nlimits: {../../evil: {}}\n",
    "tier_root": "stages: {}\nlimits: {/tmp/evil: {}}\n",
    "twice": "stages: {}\nstages: {}\n",
    "deep": "[" * 50_000,
}
TABLES = {
    "twice.csv": "file,person,person\nme.mkv,anna,bert\n",
    "twice.jsonl": '{"file": "me.mkv", "person": "anna", "person": "bert"}\n',
}
POLICIES = {"twice": "words: [a]\nwords: [b]\n", "bomb": BOMB + "words: *a11\n"}


def make_strangers(folder: Path) -> None:
    """Fill ``folder``."""
    folder.mkdir()
    for name, trainer in TRAINERS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    (folder / "twice.yaml").write_text("trainer: {max_steps: 1, max_steps: 2}\n")
    for name, text in PLANS.items():
        (folder / f"plan_{name}.yaml").write_text(text)
    for name, text in POLICIES.items():
        (folder / f"policy_{name}.yaml").write_text(text)
    for name, text in TABLES.items():
        (folder / name).write_text(text)
    for suffix in ("yaml", "csv", "jsonl", "json"):
        (folder / f"zero.{suffix}").symlink_to("/dev/zero")
        os.mkfifo(folder / f"pipe.{suffix}")


def strangers() -> Iterator[Case]:
    yield from _recipes()
    yield from _readers()
    for seconds in ("inf", "nan", "1e12"):
        command = f"avatar-v-data footage --recordings 1 --out made --seconds {seconds}"
        yield Case(f"strangers: footage --seconds {seconds}", command)


def _recipes() -> Iterator[Case]:
    for name in TRAINERS:
        says = SAYS.get(name, "recipe may name" if name in NAMED else "a recipe writes")
        for command in ("run", "plan"):
            words = f"avatar-v {command} {RECIPES} {HERE}/{name}.yaml"
            yield Case(f"strangers: {command} {name}", words, says=says)
    yield Case("strangers: run twice", f"avatar-v run {RECIPES} {HERE}/twice.yaml", says="twice")
    for command in ("run", "plan"):
        for kind in ("zero", "pipe"):
            yield Case(f"strangers: {command} {kind}", f"avatar-v {command} {HERE}/{kind}.yaml")
    typed = f"avatar-v run {RECIPES} --trainer.callbacks+=antigravity.Logger"
    yield Case("strangers: a name that is typed", typed, says="--trust")
    for wrong in ("''", "a-b", "jsonargparse"):
        yield Case(f"strangers: --trust {wrong}", f"avatar-v run {RECIPES} --trust {wrong}")


def _readers() -> Iterator[Case]:
    """Every command that reads a file of YAML, JSON or a table."""
    pairs = "avatar-v shards pairs --shards FILES/shards/tiny/train --out made --pairs 2 --raters"
    whole = (
        "avatar-v generate --reference FILES/media/me.mkv --audio FILES/media/talk.wav --out "
        "out.mp4 --weights FILES/weights/tiny --no-face-crop --steps 1 --motion none --device cpu"
    )
    specials = ("zero", "pipe")
    commands = {
        "avatar-v-data curate FILES/media --out made --plan": [
            *(f"plan_{name}.yaml" for name in PLANS), *(f"{name}.yaml" for name in specials),
        ],
        "avatar-v-data import FILES/media --out made --manifest": [
            *TABLES, *(f"{name}.{suffix}" for name in specials for suffix in ("csv", "jsonl")),
        ],
        "avatar-v-eval run --system a=FILES/media --out made": [
            f"{name}.json" for name in specials
        ],
        pairs: [f"{name}.json" for name in specials],
        f"{whole} --policy": [
            *(f"policy_{name}.yaml" for name in POLICIES), *(f"{name}.yaml" for name in specials),
        ],
    }  # fmt: skip
    for command, files in commands.items():
        for file in files:
            name = f"strangers: {command.split()[1]} {file}"
            yield Case(name, f"{command} {HERE}/{file}", says=file.partition(".")[0])
