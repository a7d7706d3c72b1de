"""Pictures of three-dimensional people in the drawn world's scenes, moved by its motion.

Each frame: actions bend the body, the head turns about the neck, a z-buffer says what each pixel
sees; skin, eyes and teeth are shaded in linear light under a key light with a shadow map, a fill
and a rim; hair is drawn as shells with soft strands over it; then a camera blurs, exposes, and
adds noise. The canvas is twice the size and averaged.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.types import MOTION_NAMES
from avatar_v.world.scene import Scene, sample_scene
from avatar_v.world.shapes import seeded
from people3d import hair
from people3d.backdrop import backdrop, blurred
from people3d.bake import (
    ALBEDO,
    BEARD,
    BUMP,
    CLOTH,
    GLOSS,
    HAIR,
    SHADE,
    STRAND,
    Maps,
    bake,
    texel_index,
    to_head,
)
from people3d.body import (
    EYE,
    LASH,
    SKIN,
    TEETH_LOWER,
    TEETH_UPPER,
    TONGUE,
    Body,
    Frame,
    act,
    load_body,
    measure,
)
from people3d.noise import noise, step
from people3d.person import HANGING_STYLES, Looks, sample_looks
from people3d.rasterise import Fragments, rasterise, vertex_normals

FRAME, BUN, HANGING = 7, 8, 9
_LAYER = 0.0024  # metres between the shells of hair
_SHADOW_SIDE = 160


@dataclass(frozen=True)
class Lights:
    """Directions towards the lights, and their colours in linear light."""

    key: Tensor
    key_color: Tensor
    fill: Tensor
    fill_color: Tensor
    rim: Tensor
    rim_color: Tensor
    sky: Tensor
    ground: Tensor


@dataclass(frozen=True)
class Camera:
    """Where and how it looks; lengths in canvas pixels."""

    distance: float
    focal: float
    center_x: float
    center_y: float
    blur: float
    sharpen: float  # as cameras and codecs do, along edges
    exposure: float
    contrast: float
    balance: Tensor
    grain: float
    canvas: int


@dataclass(frozen=True)
class Cast:
    """A person ready to be drawn in a scene."""

    looks: Looks
    frame: Frame
    maps: Maps
    rest: Tensor  # "v 3", with clothes' and hair's vertices
    weight: Tensor  # "v", how far each vertex turns with the head
    delta: Tensor  # "52 b 3" of the body's vertices
    triangles: Tensor
    material: Tensor
    opaque: Tensor  # triangle indices
    lash: Tensor
    shell: Tensor
    thick: Tensor  # "v"
    hanging: Tensor
    round_down: Tensor  # "v 2" of the curtain
    lights: Lights
    camera: Camera
    backdrop: Tensor  # "n n 3" linear


def render_people(
    person_id: int, scene_id: int, motion: Tensor, *, size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Video "f 3 n n" in uint8 and the opening of the lips "f" in interocular distances."""
    cast = prepare(person_id, scene_id, size)
    amounts, gap = act(load_body(), motion, cast.frame.interocular)
    g = seeded(0x6A13, person_id, scene_id, seed)
    video = [
        _develop(draw(cast, a, m), cast.camera, g) for a, m in zip(amounts, motion, strict=True)
    ]
    return torch.stack(video), gap


def prepare(person_id: int, scene_id: int, size: int) -> Cast:
    """All that does not move."""
    body, scene = load_body(), sample_scene(scene_id)
    looks = sample_looks(person_id, len(body.neutral))
    frame = measure(body, looks.shape)
    maps = bake(body, frame, looks, scene)
    rest = body.neutral[looks.shape].clone()
    normals = vertex_normals(rest, body.triangles[body.material == SKIN])
    q = to_head(rest, frame)
    cloth = _vertex_texels(body, maps.texels)[:, CLOTH]
    rest = rest + normals * (0.006 * cloth)[:, None]
    delta = body.actions.clone()
    delta[:, body.vertices_of(EYE)] = 0.0
    delta[:, :, :] *= frame.interocular / 0.061
    parts, material = [body.triangles], [body.material]
    more, kinds, round_down = [], [], []
    skin = body.neutral[looks.shape][body.vertices_of(SKIN)] - frame.middle
    for vertices, triangles, kind in _props(looks, frame, skin):
        parts.append(triangles + len(rest) + sum(len(m) for m in more))
        material.append(torch.full((len(triangles),), kind))
        more.append(vertices[:, :3] + frame.middle)
        round_down.append(vertices[:, 3:] if kind == HANGING else torch.zeros(len(vertices), 2))
        kinds.append(kind)
    num_body = len(rest)
    rest = torch.cat([rest, *more])
    triangles, kind = torch.cat(parts), torch.cat(material)
    z = rest[:, 2] - frame.middle[2]
    weight = step(z, -0.205, -0.105)
    weight[num_body:] = step(z[num_body:], -0.32, -0.08) if HANGING in kinds else 1.0
    thick = torch.zeros(len(rest))
    thick[:num_body] = hair.thickness(q, looks) * (1 - _ear_vertices(body))
    thick[:num_body][body.vertices_of(EYE, TEETH_UPPER, TEETH_LOWER, TONGUE, LASH)] = 0
    opaque = torch.tensor([SKIN, EYE, TEETH_UPPER, TEETH_LOWER, TONGUE, FRAME, BUN])
    skin_triangles = (kind == SKIN).nonzero().squeeze(1)
    standing = thick[triangles[skin_triangles]].amax(1) > 0.0008
    rows = torch.zeros(len(rest), 2)
    if round_down:
        rows[num_body:] = torch.cat(round_down)
    return Cast(
        looks=looks,
        frame=frame,
        maps=maps,
        rest=rest,
        weight=weight,
        delta=delta,
        triangles=triangles,
        material=kind,
        opaque=torch.isin(kind, opaque).nonzero().squeeze(1),
        lash=(kind == LASH).nonzero().squeeze(1),
        shell=skin_triangles[standing],
        thick=thick,
        hanging=(kind == HANGING).nonzero().squeeze(1),
        round_down=rows,
        lights=_lights(scene),
        camera=_camera(scene, frame, looks.tone, 2 * size),
        backdrop=backdrop(scene, 2 * size),
    )


def _vertex_texels(body: Body, texels: Tensor) -> Tensor:
    """The maps at the skin's vertices (of one of the corners where islands meet)."""
    chosen = body.material == SKIN
    out = torch.zeros(body.neutral.shape[1], texels.shape[1])
    at = texel_index(body.uv[chosen].reshape(-1, 2))
    out[body.triangles[chosen].reshape(-1)] = texels[at]
    return out


def _ear_vertices(body: Body) -> Tensor:
    flat = body.masks.flatten(1).T
    return step(_vertex_texels(body, flat)[:, 3], 0.15, 0.5)


def _props(looks: Looks, frame: Frame, skin: Tensor) -> list[tuple[Tensor, Tensor, int]]:
    """Glasses, bun and hanging hair, from between the eyes."""
    out = []
    if looks.glasses != "none":
        near = skin[(skin[:, 2].abs() < 0.024) & (skin[:, 0].abs() > 0.010)]
        bridge = skin[(skin[:, 2].abs() < 0.008) & (skin[:, 0].abs() < 0.010)]
        front = min(float(near[near[:, 0].abs() < 0.05, 1].min()), float(bridge[:, 1].min()))
        side = skin[(skin[:, 2].abs() < 0.012) & (skin[:, 1] > 0.02) & (skin[:, 1] < 0.05)]
        temple = float(side[:, 0].max()) + 0.002
        for v, t in hair.glasses(looks, front - 0.003, temple, frame.interocular / 2):
            out.append((v, t, FRAME))
    if looks.hair_style == "bun":
        top = float(frame.crown - frame.middle[2])
        v, t = hair.ball((0.0, 0.115, top + 0.008), 0.036)
        out.append((v, t, BUN))
    if looks.hair_style in HANGING_STYLES:
        upper = skin[(skin[:, 2] > 0.02) & (skin[:, 2] < 0.07)]
        back, fore = float(upper[:, 1].max()), float(upper[:, 1].min())
        width = float(upper[:, 0].max())
        v, t = hair.curtain(looks, width + 0.006, (back - fore) / 2, (back + fore) / 2)
        out.append((v, t, HANGING))
    return out


def _lights(scene: Scene) -> Lights:
    g = seeded(0x11C7, scene.id)
    u = torch.rand(12, generator=g).tolist()
    key = torch.tensor([scene.light_x, -scene.light_z, -scene.light_y])
    warm = torch.tensor([1.0 + 0.16 * scene.warmth, 1.0, 1.0 - 0.22 * scene.warmth])
    cool = torch.tensor([1.0 - 0.12 * u[0], 1.0, 1.0 + 0.15 * u[0]])
    side = -1.0 if scene.light_x > 0 else 1.0
    unit = F.normalize
    return Lights(
        key=unit(key, dim=0),
        key_color=warm * (1.35 + 1.1 * u[1]) * scene.key / 0.65,
        fill=unit(torch.tensor([side * (0.5 + 0.4 * u[2]), -0.8, 0.1 * u[3]]), dim=0),
        fill_color=cool * (0.40 + 0.6 * u[4]),
        rim=unit(torch.tensor([side * (0.7 + 0.3 * u[5]), 0.55, 0.35]), dim=0),
        rim_color=torch.tensor([1.0, 0.97 - 0.1 * u[6], 0.9]) * (0.9 * max(0.0, u[7] - 0.3)),
        sky=cool * (0.36 + 0.22 * u[8]),
        ground=torch.tensor([1.0, 0.86, 0.74]) * (0.14 + 0.14 * u[9]),
    )


def _camera(scene: Scene, frame: Frame, tone: float, canvas: int) -> Camera:
    g = seeded(0xCA3E, scene.id)
    u = torch.rand(10, generator=g).tolist()
    distance = 0.65 * 2.2 ** u[0]
    head = frame.crown - frame.chin + 0.012
    focal = 1.06 * scene.head_height * canvas * distance / head
    return Camera(
        distance=distance,
        focal=focal,
        center_x=scene.center_x * canvas,
        center_y=scene.center_y * canvas,
        blur=0.25 + 0.45 * u[1] ** 2,
        sharpen=0.30 * u[7],
        exposure=(0.78 + 0.36 * u[2]) * (1 + 0.35 * tone),
        contrast=1.0 + 0.26 * u[3],
        balance=torch.tensor([1 + 0.06 * (u[4] - 0.5), 1.0, 1 + 0.08 * (u[5] - 0.5)]),
        grain=0.3 + 1.6 * u[6] ** 2,
        canvas=canvas,
    )


def turn_matrix(yaw: float, pitch: float, roll: float) -> Tensor:
    """Of the head: yaw to the picture's right, pitch up, roll clockwise."""
    cy, sy, cp, sp, cr, sr = (
        math.cos(yaw),
        math.sin(yaw),
        math.cos(-pitch),
        math.sin(-pitch),
        math.cos(roll),
        math.sin(roll),
    )
    about_z = torch.tensor([[cy, -sy, 0.0], [sy, cy, 0.0], [0.0, 0.0, 1.0]])
    about_x = torch.tensor([[1.0, 0.0, 0.0], [0.0, cp, -sp], [0.0, sp, cp]])
    about_y = torch.tensor([[cr, 0.0, sr], [0.0, 1.0, 0.0], [-sr, 0.0, cr]])
    return about_y @ about_z @ about_x


def draw(cast: Cast, amounts: Tensor, motion: Tensor) -> Tensor:
    """One frame in linear light, "n n 3" on the canvas."""
    m = dict(zip(MOTION_NAMES, motion.tolist(), strict=True))
    n = cast.camera.canvas
    used = amounts.nonzero().squeeze(1)
    v = cast.rest.clone()
    v[: cast.delta.shape[1]] += torch.einsum("k,kvc->vc", amounts[used], cast.delta[used])
    turn = turn_matrix(m["yaw"], m["pitch"], m["roll"])
    turned = (v - cast.frame.pivot) @ turn.T + cast.frame.pivot
    v = v + cast.weight[:, None] * (turned - v)
    normals = vertex_normals(v, cast.triangles)
    points = _project(v, cast)
    eye = torch.tensor([0.0, float(cast.frame.middle[1]) - cast.camera.distance, 0.0])
    eye[2] = cast.frame.middle[2]
    shadow = _shadow_map(v, cast)
    image = cast.backdrop.reshape(-1, 3).clone()
    depth = torch.full((n * n,), 1e9)
    opaque = cast.triangles[cast.opaque]
    f = rasterise(points, opaque, n, n, cull=cast.material[cast.opaque] < FRAME)
    f = Fragments(f.pixel, cast.opaque[f.triangle], f.weight, f.depth)
    place = f.gather(v, cast.triangles)
    normal = F.normalize(f.gather(normals, cast.triangles), dim=1)
    view = F.normalize(eye - place, dim=1)
    normal = torch.where((normal * view).sum(1, keepdim=True) < 0, -normal, normal)
    lit = _shadow(shadow, place, cast)
    image[f.pixel] = _shade(cast, f, place, normal, view, lit, m, turn)
    depth[f.pixel] = f.depth
    _lashes(cast, points, v, image, depth, n)
    shells = min(15, max(4, math.ceil(float(cast.thick.max()) / _LAYER)))
    for k in range(shells):
        _shell(cast, (k + 1) / shells, v, normals, image, depth, eye, shadow, n)
    if len(cast.hanging):
        _hanging(cast, points, v, normals, image, depth, eye, shadow, n)
    return image.view(n, n, 3)


def _project(v: Tensor, cast: Cast) -> Tensor:
    c, frame = cast.camera, cast.frame
    middle = (frame.crown + frame.chin) / 2
    depth = v[:, 1] - float(frame.middle[1]) + c.distance
    scale = c.focal / depth
    column = c.center_x + scale * (v[:, 0] - frame.middle[0])
    row = c.center_y - scale * (v[:, 2] - middle)
    return torch.stack([column, row, depth], 1)


def _axes(direction: Tensor) -> tuple[Tensor, Tensor]:
    side = F.normalize(torch.linalg.cross(direction, torch.tensor([0.0, 0.0, 1.0])), dim=0)
    return side, torch.linalg.cross(side, direction)


def _shadow_map(v: Tensor, cast: Cast) -> Tensor:
    """Distances of what the key light sees first, in metres, beside the head's middle."""
    side, up = _axes(cast.lights.key)
    q = v - cast.frame.middle
    scale = _SHADOW_SIDE / 0.42
    points = torch.stack(
        [
            q @ side * scale + _SHADOW_SIDE / 2,
            -(q @ up) * scale + _SHADOW_SIDE * 0.40,
            1.0 - q @ cast.lights.key,
        ],
        1,
    )
    chosen = torch.cat([cast.opaque, cast.hanging])
    one_sided = cast.material[chosen] == SKIN
    f = rasterise(points, cast.triangles[chosen], _SHADOW_SIDE, _SHADOW_SIDE, cull=one_sided)
    out = torch.full((_SHADOW_SIDE * _SHADOW_SIDE,), 9.0)
    # orthographic: depth is linear, so weights in perspective are close enough at this range
    out[f.pixel] = f.depth
    return out.view(_SHADOW_SIDE, _SHADOW_SIDE)


def _shadow(depth: Tensor, place: Tensor, cast: Cast) -> Tensor:
    """Share of the key light that arrives, "n"."""
    side, up = _axes(cast.lights.key)
    q = place - cast.frame.middle
    scale = _SHADOW_SIDE / 0.42
    x, y = q @ side * scale + _SHADOW_SIDE / 2, -(q @ up) * scale + _SHADOW_SIDE * 0.40
    z = 1.0 - q @ cast.lights.key
    out = torch.zeros(len(place))
    for dx, dy in ((-0.9, -0.4), (0.9, 0.4), (-0.4, 0.9), (0.4, -0.9), (0.0, 0.0)):
        col = (x + dx).round().long().clamp(0, _SHADOW_SIDE - 1)
        row = (y + dy).round().long().clamp(0, _SHADOW_SIDE - 1)
        out += step(z - depth[row, col], 0.012, 0.004)
    return out / 5


def _diffuse(cast: Cast, normal: Tensor, lit: Tensor, wrap: float) -> Tensor:
    """Light on a matt surface, "n 3"."""
    s = cast.lights
    key = ((normal @ s.key + wrap) / (1 + wrap)).clamp_min(0)
    fill = ((normal @ s.fill + 0.4) / 1.4).clamp_min(0)
    rim = (normal @ s.rim).clamp_min(0)
    up = (0.5 + 0.5 * normal[:, 2])[:, None]
    return (
        (key * lit)[:, None] * s.key_color
        + fill[:, None] * s.fill_color
        + rim[:, None] * s.rim_color
        + s.ground
        + up * (s.sky - s.ground)
    )


def _shine(cast: Cast, normal: Tensor, view: Tensor, lit: Tensor, power: float) -> Tensor:
    s = cast.lights
    out = torch.zeros(len(normal), 3)
    for direction, color, share in (
        (s.key, s.key_color, lit),
        (s.fill, s.fill_color, 0.6),
        (s.rim, s.rim_color, 1.0),
    ):
        half = F.normalize(view + direction, dim=1)
        out += ((normal * half).sum(1).clamp_min(0) ** power * share)[:, None] * color
    return out


def _shade(
    cast: Cast,
    f: Fragments,
    place: Tensor,
    normal: Tensor,
    view: Tensor,
    lit: Tensor,
    m: dict[str, float],
    turn: Tensor,
) -> Tensor:
    """Colours "n 3" of all that is not see-through."""
    out = torch.zeros(len(place), 3)
    kind = cast.material[f.triangle]
    for material, shade in ((SKIN, _shade_skin), (EYE, _shade_eye)):
        at = (kind == material).nonzero().squeeze(1)
        if len(at):
            g = Fragments(f.pixel[at], f.triangle[at], f.weight[at], f.depth[at])
            out[at] = shade(cast, g, normal[at], view[at], lit[at], m, turn)
    at = ((kind == TEETH_UPPER) | (kind == TEETH_LOWER)).nonzero().squeeze(1)
    if len(at):
        out[at] = _shade_teeth(cast, f, at, kind, normal[at], view[at], lit[at])
    at = (kind == TONGUE).nonzero().squeeze(1)
    if len(at):
        color = torch.tensor([0.30, 0.07, 0.07])
        out[at] = (
            color * _diffuse(cast, normal[at], lit[at] * 0.5, 0.3) * (0.22 + 0.9 * m["tongue"])
        )
        out[at] += 0.10 * _shine(cast, normal[at], view[at], lit[at], 24)
    at = (kind == FRAME).nonzero().squeeze(1)
    if len(at):
        color = torch.tensor(cast.looks.frame)
        out[at] = color * _diffuse(cast, normal[at], lit[at], 0.0)
        out[at] += 0.35 * _shine(cast, normal[at], view[at], lit[at], 40)
    at = (kind == BUN).nonzero().squeeze(1)
    if len(at):
        rest = f.gather(cast.rest, cast.triangles)[at] - cast.frame.middle
        strand = 0.8 * noise(rest * torch.tensor([900.0, 300.0, 120.0]))
        out[at] = _hair_color(cast, strand, normal[at], view[at], lit[at], 0.9)
    return out


def _shade_skin(
    cast: Cast,
    f: Fragments,
    normal: Tensor,
    view: Tensor,
    lit: Tensor,
    m: dict[str, float],
    turn: Tensor,
) -> Tensor:
    body = load_body()
    corners = body.uv[f.triangle]
    uv = (corners * f.weight[..., None]).sum(1)
    t = cast.maps.texels[texel_index(uv)]
    albedo, gloss, open_share = t[:, ALBEDO], t[:, GLOSS], t[:, SHADE]
    rough = F.normalize(normal + t[:, BUMP] @ turn.T, dim=1)
    soft = F.normalize(normal + 0.35 * (rough - normal), dim=1)
    cloth = t[:, CLOTH : CLOTH + 1]
    pale = 1 - 0.6 * cast.looks.tone
    red = _diffuse(cast, soft, 0.15 * pale + (1 - 0.15 * pale) * lit, 0.30 + 0.15 * pale)
    sharp = _diffuse(cast, rough, lit, 0.12)
    scatter = torch.cat([red[:, :1], (0.4 * red + 0.6 * sharp)[:, 1:2], sharp[:, 2:]], 1)
    light = scatter + cloth * (sharp - scatter)
    out = albedo * light * open_share[:, None]
    facing = (rough * view).sum(1).clamp(0, 1)
    edge = (1 - facing) ** 4
    shine = 0.075 * _shine(cast, rough, view, lit, 14) + 0.10 * _shine(cast, rough, view, lit, 60)
    shine = shine + (0.22 * edge)[:, None] * cast.lights.sky
    return out + (gloss * open_share)[:, None] * shine


def _shade_eye(
    cast: Cast,
    f: Fragments,
    normal: Tensor,
    view: Tensor,
    lit: Tensor,
    m: dict[str, float],
    turn: Tensor,
) -> Tensor:
    frame, looks = cast.frame, cast.looks
    rest = f.gather(cast.rest, cast.triangles)
    right = rest[:, 0] > frame.middle[0]
    center = torch.where(right[:, None], frame.eye_right, frame.eye_left)
    q = F.normalize(rest - center, dim=1)
    ax, az = 0.50 * m["gaze_x"], -0.34 * m["gaze_y"]
    gaze = torch.tensor([math.sin(ax) * math.cos(az), -math.cos(ax) * math.cos(az), math.sin(az)])
    off = q - (q @ gaze)[:, None] * gaze
    radius = torch.where(q @ gaze > 0, off.norm(dim=1), torch.ones(len(q)))
    iris = looks.iris_radius
    spoke = torch.atan2(off[:, 0], off[:, 2])
    grain = noise(torch.stack([spoke * 7, radius * 9, torch.zeros_like(spoke)], 1))
    ring = radius / iris
    white = torch.tensor([0.80, 0.75, 0.71]) * (1 - 0.25 * step(q[:, 0].abs(), 0.3, 0.75))[:, None]
    white = white * torch.tensor([1.0, 0.95, 0.94]) * (1 - 0.58 * looks.tone)
    color = torch.tensor(looks.iris) * (0.8 + 0.6 * grain + 0.5 * step(ring, 0.75, 0.45))[:, None]
    color = 1.25 * color * (1 - 0.85 * step(ring, 0.74, 1.0))[:, None]
    a = white + step(ring, 1.08, 0.95)[:, None] * (color - white)
    a = a * (1 - step(ring, 0.46, 0.38) * 0.97)[:, None]
    lid = 0.66 + 0.34 * step(q[:, 2] + 0.9 * (1 - m["eye_open"]), 0.66, 0.10)
    corner = 1 - 0.25 * step(q[:, 0].abs(), 0.35, 0.8)
    out = a * _diffuse(cast, normal, lit, 0.45) * (lid * corner)[:, None] * 0.9
    bulge = F.normalize(normal + 0.35 * (off @ turn.T) * step(ring, 1.2, 0.9)[:, None], dim=1)
    out += (0.7 - 0.4 * looks.tone) * _shine(cast, bulge, view, 0.4 + 0.6 * lit, 130) * lid[:, None]
    return out + 0.02 * cast.lights.sky * lid[:, None]


def _shade_teeth(
    cast: Cast, f: Fragments, at: Tensor, kind: Tensor, normal: Tensor, view: Tensor, lit: Tensor
) -> Tensor:
    rest = f.gather(cast.rest, cast.triangles)[at] - cast.frame.middle
    upper = kind[at] == TEETH_UPPER
    z = rest[:, 2]
    edge = torch.where(upper, z - z[upper].amin() if bool(upper.any()) else z, z * 0)
    low = z[~upper].amax() - z if bool((~upper).any()) else z * 0
    edge = torch.where(upper, edge, low)
    gum = step(edge, 0.009, 0.012)
    a = torch.tensor([0.86, 0.82, 0.74]) + gum[:, None] * (
        torch.tensor([0.36, 0.12, 0.11]) - torch.tensor([0.86, 0.82, 0.74])
    )
    line = ((rest[:, 0] / 0.0082 + 0.5) % 1 - 0.5).abs()
    a = a * (1 - 0.35 * step(line, 0.44, 0.5))[:, None]
    back = step(rest[:, 1], -0.010, 0.018)
    share = (1.0 - 0.75 * back) * torch.where(upper, 1.1, 0.50)
    out = a * _diffuse(cast, normal, 0.5 + 0.5 * lit, 0.5) * share[:, None]
    return out + 0.12 * share[:, None] * _shine(cast, normal, view, lit, 40)


def _hair_color(
    cast: Cast, strand: Tensor, normal: Tensor, view: Tensor, lit: Tensor, shade: Tensor | float
) -> Tensor:
    """Of hair with strand noise in [-1, 1]: matt light and two bands of shine across strands."""
    base = torch.tensor(cast.looks.hair)
    a = base * (0.95 + 0.42 * strand).clamp_min(0.25)[:, None]
    light = _diffuse(cast, normal, lit, 0.35)
    out = a * light * (shade[:, None] if isinstance(shade, Tensor) else shade)
    tilt = F.normalize(normal + 0.25 * strand[:, None] * normal.new_tensor([0.3, 0.2, 1.0]), dim=1)
    shine = 0.035 * _shine(cast, tilt, view, lit, 9)
    tinted = (0.25 + 3.0 * base).clamp_max(1.2) * _shine(cast, tilt, view, lit, 28) * 0.09
    k = (0.8 + 0.8 * strand).clamp_min(0)[:, None]
    return out + k * (shine + tinted) * (shade[:, None] if isinstance(shade, Tensor) else shade)


def _over(
    image: Tensor, depth: Tensor, f: Fragments, color: Tensor, alpha: Tensor, offset: float = 0.0
) -> None:
    """Paint see-through fragments where nothing nearer is."""
    ok = f.depth < depth[f.pixel] + offset
    pixel, a = f.pixel[ok], alpha[ok, None]
    image[pixel] = image[pixel] + a * (color[ok] - image[pixel])


def _lashes(cast: Cast, points: Tensor, v: Tensor, image: Tensor, depth: Tensor, n: int) -> None:
    f = rasterise(points, cast.triangles[cast.lash], n, n)
    if len(f.pixel) == 0:
        return
    color = (torch.tensor(cast.looks.hair) * 0.3).expand(len(f.pixel), 3)
    strong = 0.50 if cast.looks.male else 0.68 + 0.25 * cast.looks.make_up
    _over(image, depth, f, color, torch.full((len(f.pixel),), strong), 0.0005)


def _shell(
    cast: Cast,
    share: float,
    v: Tensor,
    normals: Tensor,
    image: Tensor,
    depth: Tensor,
    eye: Tensor,
    shadow: Tensor,
    n: int,
) -> None:
    """One layer of the hair that stands on the skin, at a share of its thickness."""
    away = normals
    if cast.looks.hair_style in ("curly", "afro"):  # round, whatever the skull
        middle = cast.frame.middle + torch.tensor([0.0, 0.08, 0.02])
        away = F.normalize(0.35 * normals + F.normalize(v - middle, dim=1), dim=1)
        bearded = v[:, 2] < cast.frame.middle[2] - 0.04
        away = torch.where(bearded[:, None], normals, away)
    grow = v + away * (cast.thick * share)[:, None]
    if cast.looks.hair_style in ("swept", "short"):
        grow[:, 1] += 0.35 * cast.thick * share**2  # combed back
    one_sided = torch.ones(len(cast.shell), dtype=torch.bool)
    f = rasterise(_project(grow, cast), cast.triangles[cast.shell], n, n, cull=one_sided)
    if len(f.pixel) == 0:
        return
    f = Fragments(f.pixel, cast.shell[f.triangle], f.weight, f.depth)
    uv = (load_body().uv[f.triangle] * f.weight[..., None]).sum(1)
    t = cast.maps.texels[texel_index(uv)]
    strand = t[:, STRAND]
    grown = torch.maximum(t[:, HAIR], t[:, BEARD])
    tight = 0.55
    low = -1.1 + 1.5 * share**2
    alpha = grown * step(strand, low - tight, low + tight) * (1 - t[:, CLOTH])
    keep = alpha > 0.02
    f = Fragments(f.pixel[keep], f.triangle[keep], f.weight[keep], f.depth[keep])
    strand, alpha = strand[keep], alpha[keep]
    place = f.gather(grow, cast.triangles)
    normal = F.normalize(f.gather(normals, cast.triangles), dim=1)
    view = F.normalize(eye - place, dim=1)
    lit = _shadow(shadow, place + 0.004 * normal, cast)
    shade = torch.full((len(strand),), 0.45 + 0.60 * share)
    color = _hair_color(cast, strand, normal, view, lit, shade)
    _over(image, depth, f, color, alpha)


def _hanging(
    cast: Cast,
    points: Tensor,
    v: Tensor,
    normals: Tensor,
    image: Tensor,
    depth: Tensor,
    eye: Tensor,
    shadow: Tensor,
    n: int,
) -> None:
    """Long hair; it lies in front of the shoulders and behind the face. What hangs behind the
    head is painted first, so that it shows through what hangs beside it."""
    turn = cast.round_down[cast.triangles[cast.hanging], 0].abs().amax(1)
    for chosen in (cast.hanging[turn < 0.7], cast.hanging[turn >= 0.7]):
        _hang(cast, chosen, points, v, normals, image, depth, eye, shadow, n)


def _hang(
    cast: Cast,
    chosen: Tensor,
    points: Tensor,
    v: Tensor,
    normals: Tensor,
    image: Tensor,
    depth: Tensor,
    eye: Tensor,
    shadow: Tensor,
    n: int,
) -> None:
    f = rasterise(points, cast.triangles[chosen], n, n)
    if len(f.pixel) == 0:
        return
    f = Fragments(f.pixel, chosen[f.triangle], f.weight, f.depth)
    t, d = f.gather(cast.round_down, cast.triangles).unbind(1)
    strand = hair.curtain_strands(t, d, cast.looks.seed)
    alpha = hair.hang(t, d, strand, cast.looks)
    place = f.gather(v, cast.triangles)
    view = F.normalize(eye - place, dim=1)
    normal = F.normalize(f.gather(normals, cast.triangles), dim=1)
    inside = (normal * view).sum(1) < 0
    # triangles may run either way: outwards is away from the head's axis
    outward = place - cast.frame.middle - torch.tensor([0.0, 0.075, 0.0])
    inside = (outward * view).sum(1) < 0
    normal = torch.where(((normal * view).sum(1) < 0)[:, None], -normal, normal)
    lit = _shadow(shadow, place + 0.01 * normal, cast)
    shade = torch.where(inside, 0.35, 0.95)
    color = _hair_color(cast, strand, normal, view, lit, shade)
    _over(image, depth, f, color, alpha)


def _develop(image: Tensor, camera: Camera, generator: torch.Generator) -> Tensor:
    """What the camera stores of linear light "n n 3": "3 h w" in uint8."""
    x = image.permute(2, 0, 1)[None]
    x = blurred(x, camera.blur)
    x = F.avg_pool2d(x, 2)[0] * camera.exposure * camera.balance.view(3, 1, 1) * 0.72
    x = x * (1 + 0.10 * x) / (1 + 0.62 * x)  # shoulder: highlights roll off
    x = x.clamp(0, 1) ** (1 / 2.2)
    x = x + camera.sharpen * (x - blurred(x[None], 0.9)[0])
    x = 0.5 + camera.contrast * (x - 0.5)
    side = x.shape[-1]
    axis = torch.linspace(-1, 1, side)
    x = x * (1 - 0.06 * (axis.view(-1, 1) ** 2 + axis.view(1, -1) ** 2))
    noisy = torch.randn(x.shape, generator=generator) * camera.grain / 255 * (1.3 - 0.6 * x)
    return ((x + noisy) * 255 + 0.5).clamp(0, 255).to(torch.uint8)
