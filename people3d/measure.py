"""Readers, critics and autoencoders trained alike on drawn people, people in three dimensions and
half of both, and read on real clips.

    python -m people3d.measure WORK_DIR TASK [SEED]    # readers, sync, vae, faces; then record

Every task adds its numbers per clip to WORK_DIR/measured_WORLD/TASK_SEED.json; ``record`` writes
eval/results/people_3d.json with means, paired differences and intervals (t, n clips).
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from avatar_v.models.audio import log_mel, mel_filters
from avatar_v.types import MOTION_NAMES
from people3d.real import CLIPS

SETS = ("drawn", "people", "mixed")
WORLD = os.environ.get("PEOPLE3D_WORLD", "people")
"""The file of the three-dimensional clips; what was measured lies in measured_WORLD."""
FRAMES = 25
READER_STEPS, READER_BATCH = 1800, 32
SYNC_STEPS, SYNC_CLIPS = 750, 8
VAE_STEPS, VAE_BATCH = 6000, 8
PERSONS = 50
"""Of each world for dlib's rows, two pictures each."""
_SHIFT = 10  # frames, the most by which the sound is shifted
_MELS = 40


def load_sets(work: Path) -> dict[str, dict[str, np.ndarray]]:
    """The three training sets: as many clips and frames each; clip k is the same speech."""
    drawn, people = (dict(np.load(work / f"{name}.npz").items()) for name in ("drawn", WORLD))
    shared = [i for i in people["id"] if i in set(drawn["id"].tolist())]
    rows = {}
    for name, data in (("drawn", drawn), ("people", people)):
        order = [list(data["id"]).index(i) for i in shared]
        rows[name] = {
            k: v[order][:, : (FRAMES * 640 if k == "audio" else FRAMES)]
            for k, v in data.items()
            if k != "id"
        }
    odd = np.arange(len(shared)) % 2 == 1
    rows["mixed"] = {
        k: np.where(odd.reshape(-1, *[1] * (v.ndim - 1)), rows["people"][k], v)
        for k, v in rows["drawn"].items()
    }
    return rows


def load_real(work: Path) -> dict[str, dict[str, np.ndarray]]:
    """By name of the clip."""
    return {name: dict(np.load(work / "real" / f"{name}.npz")) for name in CLIPS}


def smooth(x: Tensor, frames: int = 25) -> Tensor:
    """A moving mean over frames, "f d"."""
    pad = frames // 2
    y = F.pad(x.T[None], (pad, frames - 1 - pad), mode="replicate")
    return F.avg_pool1d(y, frames, 1)[0].T


def cut(video: np.ndarray, points: np.ndarray, part: str, size: int, side: float) -> Tensor:
    """Squares "f 3 size size" in [0, 1] around the face or mouth; ``side`` in heights from brow to
    chin. Centre and side follow the landmarks' moving mean."""
    p = torch.from_numpy(points).float()
    tall = p[:, 8, 1] - p[:, 17:27, 1].amin(1)
    middle = p[:, 48:].mean(1) if part == "mouth" else (p[:, 17:].amin(1) + p.amax(1)) / 2
    steady = smooth(torch.cat([middle, tall[:, None]], 1))
    theta = torch.zeros(len(p), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = steady[:, 2] * side
    theta[:, :, 2] = 2 * steady[:, :2] - 1
    grid = F.affine_grid(theta, [len(p), 3, size, size], align_corners=False)
    x = torch.from_numpy(video).float() / 255
    return F.grid_sample(x, grid, align_corners=False, padding_mode="border")


def cut_set(data: dict[str, np.ndarray], part: str, size: int, side: float) -> Tensor:
    """Of all clips, "c f 3 size size"."""
    return torch.stack(
        [cut(v, p, part, size, side) for v, p in zip(data["video"], data["points"], strict=True)]
    )


def jitter(x: Tensor, g: torch.Generator, *, move: bool = True) -> Tensor:
    """Brightness, contrast, colour, blur and small moves; one draw per sample of "b c h w"."""
    b = len(x)
    u = torch.rand(b, 8, generator=g)
    one = (b, 1, 1, 1)
    x = (x - 0.5) * (0.7 + 0.6 * u[:, 0]).view(one) + 0.5 + 0.3 * (u[:, 1] - 0.5).view(one)
    if x.shape[1] == 3:
        x = x * (0.9 + 0.2 * torch.rand(b, 3, 1, 1, generator=g))
    if move:
        theta = torch.zeros(b, 2, 3)
        theta[:, 0, 0] = theta[:, 1, 1] = 0.9 + 0.2 * u[:, 2]
        theta[:, :, 2] = 0.16 * (u[:, 3:5] - 0.5)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False, padding_mode="border")
    blurred = F.avg_pool2d(x, 3, 1, 1)
    return x + (u[:, 5].view(one) - 0.3).clamp_min(0) * 1.2 * (blurred - x)


def tower(channels: int, widths: tuple[int, ...], out: int) -> nn.Sequential:
    """Convolutions that halve the picture each."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, out)]
    return nn.Sequential(*layers)


def reader_labels(data: dict[str, np.ndarray]) -> Tensor:
    """Opening, yaw, gaze and pitch "n 4", each with mean 0 and spread 1."""
    m = data["motion"]
    columns = [data["gap"], *(m[..., MOTION_NAMES.index(k)] for k in ("yaw", "gaze_x", "pitch"))]
    y = torch.from_numpy(np.stack([c.reshape(-1) for c in columns], 1)).float()
    return (y - y.mean(0)) / y.std(0)


def truths(clip: dict[str, np.ndarray]) -> np.ndarray:
    """Of a real clip, by dlib: opening, yaw (where the nose's tip is between the jaw's edges, and
    before the eyes), gaze (the dark iris)."""
    p = clip["points"]
    eyes = np.stack([p[:, 36:42].mean(1), p[:, 42:48].mean(1)], 1)
    between = np.linalg.norm(eyes[:, 1] - eyes[:, 0], axis=1)
    opening = np.mean(
        [np.linalg.norm(p[:, a] - p[:, b], axis=1) for a, b in ((61, 67), (62, 66), (63, 65))], 0
    )
    across = (eyes[:, 1] - eyes[:, 0]) / between[:, None]
    yaw = ((p[:, 30] - eyes.mean(1)) * across).sum(1) / between
    return np.stack([opening / between, yaw, clip["gaze"]], 1)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's r; 0 where one of them does not move."""
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 1e-9 and b.std() > 1e-9 else 0.0


def readers(work: Path, seed: int) -> dict:
    """Rows 4 and 5: one network from the face (64 px) to opening, yaw, gaze and pitch."""
    sets, real = load_sets(work), load_real(work)
    faces = {n: cut(c["video"], c["points"], "face", 64, 1.5) for n, c in real.items()}
    out: dict = {}
    for name in SETS:
        x = cut_set(sets[name], "face", 64, 1.5).flatten(0, 1)
        y = reader_labels(sets[name])
        torch.manual_seed(seed)
        g = torch.Generator().manual_seed(seed)
        net = tower(3, (24, 48, 64, 96), 4)
        start = time.process_time()
        _fit(net, READER_STEPS, 2e-3, _reader_loss, x, y, g)
        net.eval()
        seconds = time.process_time() - start
        rows = {}
        with torch.no_grad():
            for clip, face in faces.items():
                got, want = net(face).numpy(), truths(real[clip])
                ok = real[clip]["found"]
                rows[clip] = {
                    k: correlation(got[ok, i], want[ok, i])
                    for i, k in enumerate(("mouth", "yaw", "gaze"))
                }
        out[name] = {"clips": rows, "cpu_s": seconds, "pictures": len(x)}
        print(name, seconds, {k: np.mean([r[k] for r in rows.values()]) for k in rows[clip]})
    return out


def _fit(
    net: nn.Module, steps: int, rate: float, loss_of: Callable[..., Tensor], *data: object
) -> None:
    """Minimise ``loss_of(net, *data)``, which draws its own samples."""
    optimizer = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    net.train()
    for k in range(steps):
        loss = loss_of(net, *data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if k % 100 == 99:
            print(k + 1, float(loss.detach()), flush=True)


def _reader_loss(net: nn.Module, x: Tensor, y: Tensor, g: torch.Generator) -> Tensor:
    at = torch.randint(len(x), (READER_BATCH,), generator=g)
    return F.mse_loss(net(jitter(x[at], g)), y[at])


class Critic(nn.Module):
    """Two towers: five grey mouths, and twenty rows of log-mels."""

    def __init__(self) -> None:
        super().__init__()
        self.video = tower(5, (24, 48, 64), 64)
        self.audio = tower(1, (24, 48, 64), 64)
        self.sharpness = nn.Parameter(torch.tensor(2.0))

    def see(self, mouths: Tensor) -> Tensor:
        return F.normalize(self.video(mouths - mouths.mean((1, 2, 3), keepdim=True)), dim=1)

    def hear(self, mels: Tensor) -> Tensor:
        return F.normalize(self.audio(mels[:, None]), dim=1)


def mels_of(audio: np.ndarray, frames: int) -> Tensor:
    """Windows "f - 4 20 m" of log-mels, of unit spread over the clip."""
    mel = log_mel(torch.from_numpy(audio).float()[None], mel_filters(_MELS))[0][: frames * 4]
    mel = (mel - mel.mean(0)) / (mel.std() + 1e-3)
    return mel.unfold(0, 20, 4).transpose(1, 2)


def mouths_of(mouth: Tensor) -> Tensor:
    """Windows "f - 4 5 h w" of grey mouths."""
    return mouth.mean(1).unfold(0, 5, 1).permute(0, 3, 1, 2)


def sync(work: Path, seed: int) -> dict:
    """Row 6: whose sound is it, among shifts of the same clip."""
    sets, real = load_sets(work), load_real(work)
    tests = {
        n: (
            mouths_of(cut(c["video"], c["points"], "mouth", 40, 0.8)),
            mels_of(c["audio"], len(c["video"])),
        )
        for n, c in real.items()
    }
    out: dict = {}
    for name in SETS:
        v = torch.stack(
            [mouths_of(m) for m in cut_set(sets[name], "mouth", 40, 0.8)]
        )  # clips, windows, 5, h, w
        a = torch.stack([mels_of(x, FRAMES) for x in sets[name]["audio"]])
        torch.manual_seed(seed)
        g = torch.Generator().manual_seed(seed)
        net = Critic()
        start = time.process_time()
        _fit(net, SYNC_STEPS, 2e-3, _sync_loss, v, a, g)
        net.eval()
        seconds = time.process_time() - start
        rows = {}
        with torch.no_grad():
            for clip, (mouths, mels) in tests.items():
                n = min(len(mouths), len(mels))
                rows[clip] = _judge(net.see(mouths[:n]) @ net.hear(mels[:n]).T)
        out[name] = {"clips": rows, "cpu_s": seconds, "clips_trained": len(v)}
        print(name, seconds, {k: np.mean([r[k] for r in rows.values()]) for k in rows[clip]})
    return out


def _sync_loss(net: Critic, v: Tensor, a: Tensor, g: torch.Generator) -> Tensor:
    at = torch.randint(len(v), (SYNC_CLIPS,), generator=g)
    x = v[at]  # c w 5 h w
    c, w = x.shape[:2]
    x = jitter(x.flatten(0, 1), g)
    seen = net.see(x).view(c, w, -1)
    heard = net.hear(a[at].flatten(0, 1)).view(c, w, -1)
    scores = (seen @ heard.transpose(1, 2)) * net.sharpness.exp()
    apart = (torch.arange(w)[:, None] - torch.arange(w)[None]).abs()
    scores = scores.masked_fill((apart == 1)[None], -1e4)  # neighbours are nearly right
    target = torch.arange(w).expand(c, w)
    return (
        F.cross_entropy(scores.flatten(0, 1), target.flatten())
        + F.cross_entropy(scores.transpose(1, 2).flatten(0, 1), target.flatten())
    ) / 2


def _judge(scores: Tensor) -> dict[str, float]:
    """Of "n n" (mouths, sounds): over windows, the share of other shifts (2 to ``_SHIFT`` frames
    away) that the true one beats; the same for the clip's mean over windows."""
    n = len(scores)
    inner = range(_SHIFT, n - _SHIFT)
    table = torch.stack([scores[t, t - _SHIFT : t + _SHIFT + 1] for t in inner])
    others = [k for k in range(2 * _SHIFT + 1) if abs(k - _SHIFT) > 1]
    share = (table[:, _SHIFT : _SHIFT + 1] > table[:, others]).float().mean()
    mean = table.mean(0)
    best = mean[_SHIFT - 1 : _SHIFT + 2].max()
    return {
        "share": float(share),
        "margin": float((mean[_SHIFT] - mean[others].mean()) / mean[others].std()),
        "of_clip": float((best > mean[others]).float().mean()),
    }


class Autoencoder(nn.Module):
    """By 8 in space to 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(32, 64, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(64, 96, 4, 2, 1), nn.SiLU(),
            nn.Conv2d(96, 16, 3, 1, 1),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv2d(16, 96, 3, 1, 1), nn.SiLU(),
            nn.Conv2d(96, 256, 3, 1, 1), nn.PixelShuffle(2), nn.SiLU(),
            nn.Conv2d(64, 128, 3, 1, 1), nn.PixelShuffle(2), nn.SiLU(),
            nn.Conv2d(32, 12, 3, 1, 1), nn.PixelShuffle(2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def vae(work: Path, seed: int) -> dict:
    """Row 3: PSNR on the real clips, of the whole crop and of the face."""
    sets, real = load_sets(work), load_real(work)
    out: dict = {}
    for name in SETS:
        x = torch.from_numpy(sets[name]["video"]).flatten(0, 1)
        torch.manual_seed(seed)
        g = torch.Generator().manual_seed(seed)
        net = Autoencoder()
        start = time.process_time()
        _fit(net, VAE_STEPS, 1.5e-3, _vae_loss, x, g)
        net.eval()
        seconds = time.process_time() - start
        rows = {}
        with torch.no_grad():
            for clip, c in real.items():
                pictures = torch.from_numpy(c["video"][::12]).float() / 127.5 - 1
                error = ((net(pictures).clamp(-1, 1) - pictures) / 2).square().mean(1)
                side = error.shape[-1]
                whole, face = [], []
                for e, p in zip(error, c["points"][::12], strict=True):
                    low = (p.min(0) * side).astype(int).clip(0, side - 8)
                    high = (p.max(0) * side).astype(int).clip(8, side)
                    whole.append(float(e.mean()))
                    face.append(float(e[low[1] : high[1], low[0] : high[0]].mean()))
                rows[clip] = {
                    "whole": float(-10 * np.log10(np.mean(whole))),
                    "face": float(-10 * np.log10(np.mean(face))),
                }
        out[name] = {"clips": rows, "cpu_s": seconds, "pictures": len(x)}
        print(name, seconds, {k: np.mean([r[k] for r in rows.values()]) for k in rows[clip]})
    return out


def _vae_loss(net: nn.Module, x: Tensor, g: torch.Generator) -> Tensor:
    at = torch.randint(len(x), (VAE_BATCH,), generator=g).tolist()
    corner = torch.randint(0, 65, (VAE_BATCH, 2), generator=g).tolist()
    parts = [x[i, :, r : r + 64, c : c + 64] for i, (r, c) in zip(at, corner, strict=True)]
    y = torch.stack(parts).float() / 127.5 - 1
    got = net(y)
    return F.mse_loss(got, y) + 0.1 * F.l1_loss(got, y)


def faces(work: Path, seed: int) -> dict:
    """Rows 1 and 2, of the worlds: faces found, and dlib's vectors in other scenes and poses."""
    from avatar_v.faces.dlib_face import embed_faces
    from avatar_v.faces.face_track import detect_faces, landmarks_in
    from people3d.clips import drawn_frames, people_frames, shared_track

    out: dict = {}
    for name, frames_of in (("drawn", drawn_frames), ("people", people_frames)):
        found, vectors, owners = 0, [], []
        for person in range(1000, 1000 + PERSONS):
            for take in range(2):
                motion, _, s = shared_track(person, 8 + 12 * take)
                video, _ = _in_scene(frames_of, person, person + 500 * take, motion[-1:], s)
                boxes = detect_faces(video[0])
                found += len(boxes) > 0
                if boxes:
                    box = torch.from_numpy(boxes[0]).float()[None] / 128
                    marks = landmarks_in(video, box)
                    vectors.append(embed_faces(video, marks).values[0])
                    owners.append(person)
        d = torch.cdist(torch.stack(vectors), torch.stack(vectors)).numpy()
        out[name] = {
            "found": found, "of": 2 * PERSONS, **_told_apart(d, np.array(owners), range(PERSONS)),
            "distances": d.tolist(), "owners": owners,
        }  # fmt: skip
        print(name, {k: v for k, v in out[name].items() if k != "distances"}, flush=True)
    return out


def _told_apart(d: np.ndarray, who: np.ndarray, persons: Iterable[int]) -> dict[str, float]:
    """Mean distance within and between persons and the equal error rate of pairs. A person drawn
    twice by the bootstrap is not compared with itself."""
    rows = [np.flatnonzero(who == 1000 + p) for p in persons]
    copy = np.concatenate([np.full(len(r), k) for k, r in enumerate(rows)])
    at = np.concatenate(rows)
    d, who = d[np.ix_(at, at)], who[at]
    upper = np.triu(np.ones_like(d), 1) > 0
    near = d[upper & (copy[:, None] == copy[None])]
    far = d[upper & (who[:, None] != who[None])]
    limits = np.linspace(0, 1.2, 600)
    missed = 1 - np.searchsorted(np.sort(near), limits, "right") / len(near)
    taken = np.searchsorted(np.sort(far), limits, "left") / len(far)
    best = np.abs(missed - taken).argmin()
    return {
        "within": float(near.mean()),
        "between": float(far.mean()),
        "equal_error": float((missed[best] + taken[best]) / 2),
    }


def _in_scene(frames_of, person: int, scene: int, motion: Tensor, seed: int) -> tuple:
    """A person in a scene that is not of the same number."""
    if frames_of.__name__ == "people_frames":
        from people3d.render import render_people

        return render_people(person, scene, motion, size=128, seed=seed)
    from avatar_v.world.person import sample_person
    from avatar_v.world.render import render
    from avatar_v.world.scene import sample_scene

    return render(
        sample_person(person), sample_scene(scene), motion, size=128, seed=seed
    ).video, None


ROWS = {
    ("vae", "whole"): ("autoencoder, PSNR of the whole picture", "dB"),
    ("vae", "face"): ("autoencoder, PSNR of the face", "dB"),
    ("readers", "mouth"): ("mouth opening, r", ""),
    ("readers", "yaw"): ("yaw of the head, r", ""),
    ("readers", "gaze"): ("gaze, r", ""),
    ("sync", "share"): ("sync critic, share of other shifts that the true one beats", ""),
    ("sync", "margin"): ("sync critic, margin in spreads over shifts", ""),
}
WORDS = {"drawn": "drawn", "people": "three-dimensional", "mixed": "half of both"}


def record(work: Path, _: int) -> dict:
    """Means over seeds for each clip, then paired differences over clips with 95 % t-intervals;
    of dlib's rows a bootstrap over persons (the worlds' persons are not the same)."""
    from avatar_v_eval.records import Number, make_result, write_result

    done: dict[str, dict[str, dict]] = {}
    for path in sorted((work / f"measured_{WORLD}").glob("*.json")):
        task, seed = path.stem.rsplit("_", 1)
        done.setdefault(task, {})[seed] = json.loads(path.read_text())
    numbers: dict[str, Number] = {}
    for (task, key), (label, unit) in ROWS.items():
        runs = done[task]
        table = {
            s: np.array([[runs[r][s]["clips"][c][key] for c in CLIPS] for r in runs]).mean(0)
            for s in SETS
        }
        for s, v in table.items():
            numbers[f"{task}_{key}_{s}"] = Number(float(v.mean()), len(CLIPS)).described(
                f"{label}: {WORDS[s]}", unit=unit
            )
        for other in ("people", "mixed"):
            d = table[other] - table["drawn"]
            half = float(stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5)
            mean = float(d.mean())
            numbers[f"{task}_{key}_{other}_over_drawn"] = Number(
                mean, len(d), mean - half, mean + half
            ).described(f"{label}: {WORDS[other]} over drawn", unit=unit)
    faces_of = done["faces"]["0"]
    g = np.random.default_rng(0)
    spread: dict[str, list[dict[str, float]]] = {}
    for s in ("drawn", "people"):
        row = faces_of[s]
        d, who = np.array(row["distances"]), np.array(row["owners"])
        spread[s] = [_told_apart(d, who, g.integers(0, PERSONS, PERSONS)) for _ in range(1000)]
        numbers[f"found_{s}"] = Number(row["found"] / row["of"], row["of"]).described(
            f"pictures in which dlib finds the face, share: {WORDS[s]}"
        )
    texts = {
        "within": "dlib's distance within a person",
        "between": "dlib's distance between persons",
        "equal_error": "dlib's equal error rate, pairs of another scene",
    }
    for key, label in texts.items():
        for s in ("drawn", "people"):
            low, high = np.quantile([x[key] for x in spread[s]], (0.025, 0.975))
            numbers[f"{key}_{s}"] = Number(
                faces_of[s][key], PERSONS, float(low), float(high)
            ).described(f"{label}: {WORDS[s]}")
        apart = [b[key] - a[key] for a, b in zip(spread["drawn"], spread["people"], strict=True)]
        low, high = np.quantile(apart, (0.025, 0.975))
        numbers[f"{key}_people_over_drawn"] = Number(
            faces_of["people"][key] - faces_of["drawn"][key], PERSONS, float(low), float(high)
        ).described(f"{label}: {WORDS['people']} over drawn")
    sets = load_sets(work)["drawn"]["video"].shape
    seconds = {
        t: [round(x["cpu_s"]) for r in done[t].values() for x in r.values()]
        for t in ("vae", "readers", "sync")
    }
    result = make_result(
        "people_3d",
        "People in three dimensions as training data",
        numbers,
        command="python -m people3d.measure FOLDER readers|sync|vae|faces SEED; then record",
        precision="fp32",
        notes=(
            f"on the {len(CLIPS)} clips of shared/media, which train nothing; differences paired "
            "over clips, averaged over seeds first, t-intervals; dlib's by bootstrap of persons",
            f"{sets[0]} clips of {sets[1]} frames of 128 px a set",
            *(
                f"{name}: seeds {', '.join(done[t])}, {steps} steps, "
                f"{min(seconds[t])} to {max(seconds[t])} s of a core each"
                for t, name, steps in (
                    ("vae", "autoencoder", VAE_STEPS),
                    ("readers", "readers", READER_STEPS),
                    ("sync", "critics", SYNC_STEPS),
                )
            ),
            "light and detail of the second drawing were set by averages of these clips, so the "
            "autoencoder's rows are not blind to them",
        ),
    )
    print(write_result(result))
    return {}


def main() -> None:
    """Do one task and store what it measured."""
    torch.set_num_threads(1)
    work, task = Path(sys.argv[1]), sys.argv[2]
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    start = time.time()
    got = globals()[task](work, seed)
    if task != "record":
        (work / f"measured_{WORLD}").mkdir(exist_ok=True)
        path = work / f"measured_{WORLD}" / f"{task}_{seed}.json"
        path.write_text(json.dumps(got, indent=1))
    print(task, seed, "wall", round(time.time() - start, 1), flush=True)


if __name__ == "__main__":
    main()
