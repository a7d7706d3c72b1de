"""A request's scene, rewritten by the text model that it names."""

from avatar_v.engines.writing import Written, rewrite_scenes
from avatar_v.request.request import Request
from avatar_v.safety.moderation import Moderator
from avatar_v.weights.card import DRAWN_PEOPLE, Card


def enhance(
    request: Request, card: Card, moderator: Moderator | None
) -> tuple[Request, Written | None]:
    """The request with the rewritten words in place of its own, as if they had been asked for, and
    what was written; the same request where it names no model.

    ValueError as `rewrite_scenes`: what would be made else is no video that anyone asked for.
    RefusedError for words that the policy refuses."""
    person = request.person
    if person.enhance is None:
        return request, None
    texts = {"prompt": person.prompt, "scene": person.scene or ""}
    texts = {name: text for name, text in texts.items() if text.strip()}
    drawn, seed = card.can.people == DRAWN_PEOPLE, request.sampling.seed
    written = rewrite_scenes(texts, person.enhance, drawn=drawn, seed=seed)
    if moderator is not None:
        moderator.check_texts(
            {f"--{name}, rewritten,": text for name, text in written.texts.items()}
        )
    return request.changed(enhance=None, **written.texts), written
