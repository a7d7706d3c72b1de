"""Whether the people whom a request shows, and whose voice it takes, have agreed: its files beside
records of consent."""

from collections.abc import Sequence
from datetime import date

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.words import counted
from avatar_v.critics import voice
from avatar_v.engines.voice_file import read_voice
from avatar_v.engines.voices import is_voice_file
from avatar_v.inputs.best_frame import SEARCH_S
from avatar_v.inputs.inputs import Inputs
from avatar_v.media.sound import resampled
from avatar_v.request.request import PersonOptions, Request
from avatar_v.request.resolve import InputSpec
from avatar_v.safety.consent import FILMED, Consented, StoredConsent, read_consents
from avatar_v.safety.faces import SAME, Face, face_in, hash_critic, read_faces
from avatar_v.safety.statement import read_voice_vector
from avatar_v.weights.card import DRAWN_PEOPLE, Card

Records = tuple[StoredConsent, ...]


def request_records(person: PersonOptions) -> tuple[Records, tuple[str, ...]]:
    """The records of a request, of those alone that agree with a recorded voice that says its
    script, or the texts of a conversation, and a note where that cannot be told. ValueError where
    none does, before it speaks."""
    if not person.consent:
        return (), ()
    records = read_consents(person.consent)
    if not is_voice_file(person.voice):
        return records, ()
    recorded = read_voice(person.voice)
    vector, critic_hash = recorded.vector, recorded.about.critic_hash
    if voice.is_available():  # what the file says of itself anyone can write
        heard = resampled(recorded.prompt.sound, recorded.about.rate_hz)
        vector, critic_hash = read_voice_vector(heard), voice.weights_hash()
    return records_of_voice(person.voice, vector, critic_hash, records)


def records_of_voice(
    name: str,
    vector: Float[Tensor, " d"] | None,
    critic_hash: str | None,
    records: Records,
) -> tuple[Records, tuple[str, ...]]:
    """Those of ``records`` whose voice this is; where nothing can be compared those that know no
    voice, with a note. ValueError where all know one and it is none of them, or was read by other
    weights."""
    known = [r for r in records if r.consent.voice is not None]
    if vector is None or not known:
        why = "the records name no voice" if vector is not None else voice.HOW_TO_INSTALL
        return records, (f"{name}: whether its speaker has agreed was not compared; {why}",)
    for record in known:
        if record.consent.voice_critic_hash != critic_hash:
            raise ValueError(f"--consent {record.path}: other weights read its voice than that of "
                             f"{name}; make both anew")  # fmt: skip
    own = tuple(r for r in known if _cosine_distance(r, vector) <= voice.SAME_VOICE)
    rest = tuple(r for r in records if r.consent.voice is None)
    if own:
        return own, ()
    if not rest:
        num = counted(len(known), "record")
        raise ValueError(f"{name}: the voice in it is of nobody who has agreed ({num} compared)")
    return rest, (f"{name}: the voice in it is of no record that names one",)


def _cosine_distance(record: StoredConsent, vector: Float[Tensor, " d"]) -> float:
    return 1 - float(F.cosine_similarity(torch.tensor(record.consent.voice), vector, dim=0))


def check_consent(
    request: Request,
    inputs: Inputs,
    card: Card,
    spec: InputSpec,
    records: Records,
    today: date | None = None,
) -> Consented | None:
    """The consent of the person whom a request shows, one of ``records``; None where there are none
    since it asks for no check.

    All its pictures must show the face of one record: every clip as far as it is read, and the
    picture that begins the video. Records of drawn people count only for weights of drawn people.
    ValueError: no record is of this face, or those that are have expired.
    """
    if not records:
        return None
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
    if inputs.stored is not None:
        known = inputs.stored.faces.get(critic)
        if known is None:
            raise ValueError(f"{person.reference}: no face of it can be compared by {critic}")
        return [(person.reference, row.tolist()) for row in known] + [(first, begins.tolist())]
    clips = zip((person.reference, *person.also), clip_faces(person, spec, critic), strict=True)
    return [(name, face.tolist()) for name, face in (*clips, (first, begins))]


def clip_faces(person: PersonOptions, spec: InputSpec, critic: str) -> list[Face]:
    """The face in each clip, as far as it is read. ValueError for one that shows none, or two
    people."""
    reads = spec.reference and person.reference_s > 0
    seconds = person.reference_s if reads else SEARCH_S
    return [read_faces(path, critic, seconds).face for path in (person.reference, *person.also)]


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
    return agreed_on(request.person.reference, own, today).named


def agreed_on(name: str, records: Sequence[StoredConsent], today: date) -> StoredConsent:
    """The first record that holds today. ValueError where none does."""
    known = [r for r in records if not r.consent.is_to_come(today)]
    if not known:
        raise ValueError(
            f"{name}: the consent of this person is dated {records[0].consent.recorded}, and today "
            f"is {today}"
        )
    valid = [r for r in known if date.fromisoformat(r.consent.expires) >= today]
    if not valid:
        last = max(r.consent.expires for r in known)
        raise ValueError(f"{name}: the consent of this person ended on {last}")
    return valid[0]
