"""A prompt in words from scene and clothing. It says nothing of face, voice or style."""

from avatar_v.base.seeds import stream
from avatar_v.world.scene import CLOTHINGS, COLORS, Scene

_BACKGROUNDS = {
    "wall": "a plain {} wall",
    "office": "an office with {} walls",
    "window": "a window in a {} room",
    "lights": "blurred lights in a dark {} room",
    "shelf": "shelves before a {} wall",
    "garden": "a green garden",
    "curtain": "a {} curtain",
}
_LIGHTS = {
    "left": ("light from the left", "lit from the left"),
    "right": ("light from the right", "lit from the right"),
    "front": ("light from the front", "evenly lit"),
}
_TEMPLATES = (
    "a person in a {clothing} speaks to the camera in front of {background}, {light}",
    "close-up of a person wearing a {clothing}, talking, {background} behind, {light}",
    "{background}, {light}: someone in a {clothing} is talking",
    "a talking head, {clothing}, {background} in the back, {light}",
    "video of a person in a {clothing} talking before {background}, {light}",
)


def scene_prompt(scene: Scene) -> str:
    """A prompt for a scene: one of a few phrasings, always the same one for a scene."""
    rng = stream("prompt", scene.id)
    template = _TEMPLATES[rng.integers(len(_TEMPLATES))]
    shade = "dark " if scene.clothing == "suit" else ""
    return template.format(
        clothing=f"{shade}{scene.clothing_color} {scene.clothing}",
        background=_BACKGROUNDS[scene.background].format(scene.background_color),
        light=_LIGHTS[scene.light][rng.integers(2)],
    ).replace(" a orange", " an orange")


def prompt_pattern() -> str:
    """A regular expression of all prompts, which are all that weights of drawn people know; "a" and
    "an" pass before every colour."""
    color = f"(?:{'|'.join(COLORS)})"
    plain = "|".join(name for name in CLOTHINGS if name != "suit")
    values = {
        "clothing": f"(?:{color} (?:{plain})|dark {color} suit)",
        "background": f"(?:{'|'.join(_BACKGROUNDS.values())})".replace("{}", color),
        "light": f"(?:{'|'.join(word for words in _LIGHTS.values() for word in words)})",
    }
    pattern = "|".join(template.format(**values) for template in _TEMPLATES)
    return f"(?:{pattern})".replace("a (?:", "an? (?:")
