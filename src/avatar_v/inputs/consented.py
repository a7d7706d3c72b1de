"""Whether the people whom a request shows have agreed: its files beside records of consent."""

from collections.abc import Sequence
from datetime import date

from avatar_v.base.words import counted
from avatar_v.inputs.best_frame import SEARCH_S
from avatar_v.inputs.inputs import Inputs
from avatar_v.request.request import Request
from avatar_v.request.resolve import InputSpec
from avatar_v.safety.consent import FILMED, Consented, StoredConsent, read_consents
from avatar_v.safety.faces import SAME, face_in, hash_critic, read_faces
from avatar_v.weights.card import DRAWN_PEOPLE, Card


def check_consent(
    request: Request, inputs: Inputs, card: Card, spec: InputSpec, today: date | None = None
) -> Consented | None:
    """The consent of the person whom a request shows; None where it asks for no check.

    All its pictures must show the face of one record: every clip as far as it is read, and the
    picture that begins the video. Records of drawn people count only for weights of drawn people.
    ValueError: no record is of this face, or those that are have expired.
    """
    if not request.person.consent:
        return None
    records = read_consents(request.person.consent)
    usable = [r for r in records if r.consent.critic == FILMED or card.can.people == DRAWN_PEOPLE]
    if not usable:
        raise ValueError(
            "--consent: the records are of drawn people, and these weights make filmed ones"
        )
    problems = []
    for critic in dict.fromkeys(record.consent.critic for record in usable):
        own = [record for record in usable if record.consent.critic == critic]
        try:
            return _agreed(request, inputs, spec, own, today or date.today())
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; ".join(dict.fromkeys(problems)))


def shown_faces(
    request: Request, inputs: Inputs, spec: InputSpec, critic: str
) -> list[tuple[str, list[float]]]:
    """Each file with the face that it shows. ValueError for one that shows none, or two people."""
    person = request.person
    first = person.image or person.reference
    begins = face_in(inputs.image, critic)
    if begins is None:
        raise ValueError(f"{first}: no face is found in the picture that begins the video")
    reads = spec.reference and person.reference_s > 0
    seconds = person.reference_s if reads else SEARCH_S
    clips = [(p, read_faces(p, critic, seconds).face) for p in (person.reference, *person.also)]
    return [(name, face.tolist()) for name, face in (*clips, (first, begins))]


def _agreed(
    request: Request, inputs: Inputs, spec: InputSpec, records: Sequence[StoredConsent], today: date
) -> Consented:
    """The record, of those of one critic, of all pictures of a request."""
    critic, num = records[0].consent.critic, counted(len(records), "record")
    own = [record for record in records if record.consent.critic_hash == hash_critic(critic)]
    if not own:
        raise ValueError(f"--consent: other weights of {critic} made the records; make them anew")
    for name, face in shown_faces(request, inputs, spec, critic):
        own = [r for r in own if r.consent.distance(face) <= SAME[critic]]
        if not own:
            raise ValueError(f"{name}: the face in it is of nobody who has agreed ({num} compared)")
    known = [r for r in own if not r.consent.is_to_come(today)]
    if not known:
        raise ValueError(
            f"{request.person.reference}: the consent of this person is dated "
            f"{own[0].consent.recorded}, and today is {today}"
        )
    valid = [r for r in known if date.fromisoformat(r.consent.expires) >= today]
    if not valid:
        last = max(r.consent.expires for r in known)
        raise ValueError(f"{request.person.reference}: the consent of this person ended on {last}")
    return valid[0].named
