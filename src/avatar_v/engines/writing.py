"""What a text model writes: a scene in the words that the weights know, or script and scene of an
idea (the agent and the prompt enhancer of Avatar V's pipeline).

The form of a text is a JSON schema, which the model cannot leave (text_model.py). It is checked
once more here, with what a schema cannot say; after `NUM_TRIES` answers that cannot be used there
is an error, and never a text that nobody asked for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from avatar_v.base.seeds import derive
from avatar_v.base.stored import Within, converted
from avatar_v.base.words import is_hidden
from avatar_v.engines.checks import check_script
from avatar_v.engines.script import MAX_SCRIPT, SPOKEN_PER_S, checked_text
from avatar_v.engines.text_model import TextModel, UnusableError
from avatar_v.engines.voices import is_drawn
from avatar_v.models.base import hash_folder
from avatar_v.world.prompt import prompt_pattern, scene_prompt
from avatar_v.world.scene import sample_scene

NUM_TRIES = 3
MAX_IDEA = 2000
"""Characters."""
SECONDS = (3.0, 600.0)
"""Of a script."""
SCENE_LETTERS = (20, 240)
"""Of a scene in words; ASCII, so that the shipped encoder of 256 bytes takes it."""
CHARS_PER_WORD = 6
_WORD = "[A-Za-z]+(?:'[a-z]+)?"
DRAWN_SCRIPT = f"{_WORD}(?:(?:, | |; |: |[.!?] ){_WORD})*[.!?]"
"""What the drawn voice says: words of letters, and signs between them."""
SCENE = "[A-Za-z][A-Za-z0-9 ,.;:'()-]*"
NUM_EXAMPLES = 6

Check = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True)
class Written:
    """Texts by name, and what they were written of and by."""

    asked: dict[str, str]
    texts: dict[str, str]
    model: str  # its folder
    model_hash: str
    seed: int
    num_tries: int  # the last of them gave the texts


def rewrite_scenes(
    texts: Mapping[str, str], folder: str | Path, *, drawn: bool, seed: int
) -> Written:
    """Each of these scenes in the form that weights know: of drawn people one of the world's
    prompts, of others a description in one sentence. ValueError as `TextModel`, and where no
    answer could be used."""
    names = ", ".join(f'"{name}"' for name in texts)
    lines = "\n".join(f"{name}: {text}" for name, text in texts.items())
    question = (
        "Texts describe the picture of a video in which one person speaks to the camera. Rewrite "
        f"each of them. Keep what it says, and add what it leaves open. {_scene_words(drawn)} "
        f"Answer with JSON of the keys {names}.\n\n{lines}"
    )
    schemas = dict.fromkeys(texts, _scene_schema(drawn))
    return _written(dict(texts), question, schemas, folder, seed=seed, check=_check_printable)


def draft_script(
    idea: str, folder: str | Path, *, seconds: float, voice: str, drawn: bool, seed: int
) -> Written:
    """A ``script`` of about so many ``seconds``, which the ``voice`` can say, and a ``scene`` as in
    `rewrite_scenes`. ValueError also as `check_idea`."""
    check_idea(idea, seconds)
    letters = seconds * SPOKEN_PER_S
    script: dict[str, Any] = {
        "minLength": round(letters / 2),
        "maxLength": min(round(letters * 1.25), MAX_SCRIPT),
    }
    plain = ""
    if is_drawn(voice):
        script["pattern"] = f"^{DRAWN_SCRIPT}$"
        plain = " It is English, in plain words, with numbers written as words."
    question = (
        "Of the idea below make a video in which one person speaks to the camera. The script is "
        f"what the person says, about {round(letters / CHARS_PER_WORD)} words: whole sentences to "
        f"be spoken, no headings, no directions.{plain} The scene is what the picture shows. "
        f'{_scene_words(drawn)} Answer with JSON of the keys "script", "scene".\n\nIdea: {idea}'
    )

    def check(texts: Mapping[str, str]) -> None:
        _check_printable(texts)
        try:
            check_script(f"{texts['script']} ", voice)  # with a blank behind, it names no file
        except ValueError as error:
            raise UnusableError(str(error)) from error

    schemas = {"script": script, "scene": _scene_schema(drawn)}
    return _written({"idea": idea}, question, schemas, folder, seed=seed, check=check)


def check_idea(idea: str, seconds: float) -> None:
    """ValueError for an idea without words or of too many, and for a length out of `SECONDS`."""
    checked_text(idea, where="--idea")
    if len(idea) > MAX_IDEA:
        raise ValueError(f"--idea has at most {MAX_IDEA:,} characters, got {len(idea):,}")
    converted(seconds, Annotated[float, Within(*SECONDS)], where="--seconds")


def _written(
    asked: dict[str, str],
    question: str,
    schemas: Mapping[str, Mapping[str, Any]],
    folder: str | Path,
    *,
    seed: int,
    check: Check,
) -> Written:
    model, fault = TextModel(folder), ""
    for number in range(NUM_TRIES):
        try:
            own = derive("text model", seed, number)
            texts = model.answer(question, schemas, seed=own)
            _check_form(texts, schemas)
            check(texts)
        except UnusableError as error:
            fault = str(error)
            continue
        return Written(asked, texts, str(folder), hash_folder(folder), seed, number + 1)
    raise ValueError(f"{folder}: none of {NUM_TRIES} answers could be used; of the last: {fault}. "
                     "Another --seed, other words or another model may help")  # fmt: skip


def _check_form(texts: Any, schemas: Mapping[str, Mapping[str, Any]]) -> None:
    """UnusableError unless the texts are as their schemas say, whoever kept the model to them."""
    if not isinstance(texts, dict) or texts.keys() != schemas.keys():
        raise UnusableError(f"it has not the keys {', '.join(schemas)}")
    for name, schema in schemas.items():
        text = texts[name]
        fits = isinstance(text, str) and schema["minLength"] <= len(text) <= schema["maxLength"]
        if not fits or not re.search(schema.get("pattern", ""), text):
            raise UnusableError(f"its {name} has another form: {text!r:.60}")


def _check_printable(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if any(is_hidden(letter) and letter != "\n" for letter in text):
            raise UnusableError(f"its {name} has characters that show nothing")


def _scene_schema(drawn: bool) -> dict[str, Any]:
    least, most = SCENE_LETTERS
    pattern = prompt_pattern() if drawn else SCENE
    return {"minLength": least, "maxLength": most, "pattern": f"^{pattern}$"}


def _scene_words(drawn: bool) -> str:
    if not drawn:
        return (
            "A scene is one English sentence of at most 35 words, in the present tense, as a "
            "caption: the person's clothes, the surroundings and the light. It names nobody, and "
            "says nothing of the voice or of what is said."
        )
    examples = "; ".join(scene_prompt(sample_scene(i)) for i in range(NUM_EXAMPLES))
    return f"A scene has one of these forms, with other colours, clothes and places: {examples}."
