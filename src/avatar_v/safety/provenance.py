"""Content Credentials (C2PA 2) in an mp4: a signed manifest that says what made the video.

The manifest lies in the file and is bound to its bytes, so that a file that was changed has none
that is valid, and one that was encoded anew has none; the mark in the frames (watermark.py) stays.
c2pa-python writes and reads it. It asks for no time stamp, follows no link and knows no list of
trusted certificates: whether one trusts the signer is for the reader to say.
"""

import dataclasses
import importlib
import importlib.util
import io
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

MADE_BY_A_MODEL = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
LABEL = "org.avatar_v.generation"
"""Of the assertion that holds an `Origin`."""
MOST_BYTES = 2**20
"""Of a file of certificates, or of a key."""
NO_PACKAGE = "Content Credentials need c2pa-python: pip install 'avatar_v[provenance]'"
UNTRUSTED = "signingCredential.untrusted"


@dataclass(frozen=True)
class Origin:
    """What made a video."""

    weights: str
    weights_hash: str
    seed: int
    watermark: str | None  # the id in the frames


@dataclass(frozen=True)
class Manifest:
    """What the manifest of a file says, and whether it holds."""

    made_by: str  # program and version
    origin: dict[str, Any]  # an `Origin`, or empty in a manifest of another program
    signer: str  # as the certificate names it
    faults: tuple[str, ...]  # why it is not valid: none if the file is as it was signed


def check_signing(certificates: str | Path, key: str | Path) -> None:
    """ValueError unless one can sign with these files now: a picture is signed in memory."""
    from PIL import Image

    picture, signed = io.BytesIO(), io.BytesIO()
    Image.new("L", (1, 1)).save(picture, "PNG")
    picture.seek(0)
    signer = _signer(certificates, key)
    c2pa = _c2pa()
    try:
        c2pa.Builder(_manifest(Origin("", "", 0, None))).sign(signer, "image/png", picture, signed)
    except c2pa.C2paError as error:
        raise ValueError(f"--sign {certificates} --sign-key {key}: {error}") from error


def sign(video: str | Path, certificates: str | Path, key: str | Path, origin: Origin) -> None:
    """Put a signed manifest into an mp4, which stays as it is if that fails. OSError then."""
    video, c2pa = Path(video), _c2pa()
    part = video.with_name(f".{video.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with video.open("rb") as source, part.open("w+b") as target:
            builder = c2pa.Builder(_manifest(origin))
            builder.sign(_signer(certificates, key), "video/mp4", source, target)
        os.replace(part, video)
    except (c2pa.C2paError, ValueError) as error:
        raise OSError(f"{video} is whole, but could not be signed ({error})") from error
    finally:
        part.unlink(missing_ok=True)


def read_manifest(video: str | Path) -> Manifest | None:
    """The manifest of a video; None where there is none. ValueError for one that is damaged, or
    without c2pa-python."""
    c2pa = _c2pa()
    settings = c2pa.Settings.from_dict({"verify": {"remote_manifest_fetch": False}})
    try:
        with Path(video).open("rb") as file:
            if file.read(8)[4:] != b"ftyp":  # no mp4
                return None
            file.seek(0)
            reader = c2pa.Reader("video/mp4", file, context=c2pa.Context(settings))
            found = json.loads(reader.json())
    except c2pa.C2paError.ManifestNotFound:
        return None
    except c2pa.C2paError as error:
        raise ValueError(f"{video}: its Content Credentials cannot be read ({error})") from error
    return _read(found)


def is_installed() -> bool:
    """Whether c2pa-python is there."""
    return importlib.util.find_spec("c2pa") is not None


def _read(found: dict[str, Any]) -> Manifest:
    """What c2pa-python tells of a file; its words are whatever someone wrote there."""
    manifest = found["manifests"][found["active_manifest"]]
    maker = next(iter(manifest.get("claim_generator_info") or ()), {})
    assertions = [one["data"] for one in manifest.get("assertions", ()) if one["label"] == LABEL]
    failures = found.get("validation_results", {}).get("activeManifest", {}).get("failure", [])
    signature = manifest.get("signature_info", {})
    return Manifest(
        made_by=_printable(maker.get(name, "") for name in ("name", "version")),
        origin=assertions[0] if assertions else {},
        signer=_printable(signature.get(name, "") for name in ("common_name", "issuer")),
        faults=tuple(
            _printable([one.get("explanation", one["code"])])
            for one in failures
            if one["code"] != UNTRUSTED
        ),
    )


def _printable(words: Iterable[object]) -> str:
    """The words that are there, with a blank between them and nothing that a terminal obeys."""
    text = " ".join(filter(None, map(str, words)))
    return "".join(letter for letter in text if letter.isprintable())


def _manifest(origin: Origin) -> dict[str, Any]:
    us = {"name": "avatar_v", "version": version("avatar_v")}
    created = {"action": "c2pa.created", "digitalSourceType": MADE_BY_A_MODEL, "softwareAgent": us}
    return {
        "claim_generator_info": [us],
        "assertions": [
            {"label": "c2pa.actions.v2", "data": {"actions": [created]}},
            {"label": LABEL, "data": dataclasses.asdict(origin)},
        ],
    }


def _signer(certificates: str | Path, key: str | Path) -> Any:
    """ValueError for a key that is no private key of a kind that C2PA knows."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    c2pa = _c2pa()
    chain, secret = _pem(certificates, "--sign"), _pem(key, "--sign-key")
    try:
        private = serialization.load_pem_private_key(secret, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:  # TypeError: it asks for a password
        raise ValueError(f"--sign-key {key}: {error}") from error
    except ValueError as error:
        raise ValueError(f"--sign-key {key}: no private key in PEM") from error
    algorithm = _algorithm(private)
    if algorithm is None:
        raise ValueError(f"--sign-key {key}: expected a key of EC (P-256 …), RSA or Ed25519")
    text = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        return c2pa.Signer.from_info(c2pa.C2paSignerInfo(algorithm, chain, text, None))
    except c2pa.C2paError as error:
        raise ValueError(f"--sign {certificates}: {error}") from error


def _algorithm(private: Any) -> bytes | None:
    """C2PA's name for signatures with a key; None for a key of another kind."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(private, ec.EllipticCurvePrivateKey):
        return {256: b"es256", 384: b"es384", 521: b"es512"}.get(private.key_size)
    if isinstance(private, rsa.RSAPrivateKey):
        return b"ps256"
    return b"ed25519" if isinstance(private, ed25519.Ed25519PrivateKey) else None


def _pem(path: str | Path, flag: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise ValueError(f"{flag}: cannot read {path} ({error.strerror})") from error
    if b"-----BEGIN" not in data:
        raise ValueError(f"{flag}: {path} is no PEM file")
    return data


def _c2pa() -> Any:
    if not is_installed():
        raise ValueError(NO_PACKAGE)
    return importlib.import_module("c2pa")
