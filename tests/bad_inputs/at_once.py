"""Hostile numbers of processes, threads and devices. One that were taken would fill the machine."""

from collections.abc import Iterator

from bad_inputs.case import Case

GENERATE = (
    "avatar-v generate --reference FILES/media/me.mkv --audio FILES/media/talk.wav --out out.mp4 "
    "--weights FILES/weights/tiny --no-face-crop --steps 1 --motion none --device cpu"
)
NUMBERS = ("0", "-1", "5000", "1000000000", "2.5")
OPTIONS = {
    f"{GENERATE} --devices": ("--devices", NUMBERS),
    "avatar-v run RECIPES/1_t2v.yaml RECIPES/tiny.yaml --model.init_args.models.vae null "
    "--trainer.strategy ddp --trainer.devices": (
        "trainer.devices", ("0", "-1", "900", "1000000000"),
    ),
    "avatar-v run RECIPES/1_t2v.yaml RECIPES/tiny.yaml --data.init_args.cache false "
    "--data.init_args.num_workers": ("num_workers", ("-1", "5000", "1000000000")),
    "avatar-v shards encode --shards FILES/shards/tiny/train --out latents "
    "--vae FILES/weights/tiny/vae --threads": ("--threads", NUMBERS),
    "avatar-v shards stills --shards FILES/shards/tiny/train --vae FILES/weights/tiny/vae "
    "--threads": ("--threads", NUMBERS),
    "avatar-v-data world --out made --clips 1 --frames 5 --size 32 --workers": (
        "--workers", NUMBERS,
    ),
    "avatar-v-data import FILES/media --out made --frames 5 --size 32 --no-face-crop --workers": (
        "--workers", NUMBERS,
    ),
    "avatar-v-data curate FILES/media --out made --workers": ("--workers", NUMBERS),
    "avatar-v-data footage --out made --recordings 1 --seconds 2 --workers": (
        "--workers", NUMBERS,
    ),
    "avatar-v-eval run FILES/media --out made --workers": ("--workers", NUMBERS),
    "avatar-v-eval study drift --weights FILES/weights/tiny --persons 1 --workers": (
        "--workers", NUMBERS,
    ),
    "avatar-v-eval study systems --weights FILES/weights/tiny --persons 4 --workers": (
        "--workers", NUMBERS,
    ),
}  # fmt: skip


def at_once() -> Iterator[Case]:
    for command, (name, numbers) in OPTIONS.items():
        front = " ".join(command.split()[:3])
        for number in numbers:
            yield Case(f"at once: {front} {name} {number}", f"{command}={number}", says=name)
