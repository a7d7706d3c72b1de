"""safety/provenance: signed mp4s are read again, changed ones are not valid, faults are one."""

import datetime
from pathlib import Path

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from avatar_v import cli
from avatar_v.media.reading import read_video
from avatar_v.media.writer import Mp4Writer
from avatar_v.safety.provenance import Origin, check_signing, is_installed, read_manifest, sign

needs_c2pa = pytest.mark.skipif(not is_installed(), reason="needs c2pa-python (extra provenance)")
ORIGIN = Origin(weights="small_student", weights_hash="c722b7e7b6a0b20a", seed=3, watermark=None)


def name(text: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, text),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "a studio"),
        ]
    )


def certificate(
    of: str, key: ec.EllipticCurvePrivateKey, issuer: ec.EllipticCurvePrivateKey, *, is_root: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(name(of))
        .issuer_name(name("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(is_root, None), True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_root, key_cert_sign=is_root, crl_sign=is_root, **usage
            ),
            True,
        )
        .add_extension(identifier, False)
    )
    if not is_root:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        made = made.add_extension(purpose, False)
    return made.sign(issuer, hashes.SHA256())


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem, key.pem and other.pem, a key that is not the certificate's."""
    folder = tmp_path_factory.mktemp("pems")
    root, own, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    chain = (
        certificate("a signer", own, root, is_root=False),
        certificate("root", root, root, is_root=True),
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(b"".join(one.public_bytes(pem) for one in chain))
    for file, key in (("key.pem", own), ("other.pem", other)):
        plain = serialization.NoEncryption()
        layout = serialization.PrivateFormat.TraditionalOpenSSL
        (folder / file).write_bytes(key.private_bytes(pem, layout, plain))
    return folder


@pytest.fixture
def video(tmp_path: Path) -> Path:
    frames = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    with Mp4Writer(tmp_path / "out.mp4", torch.zeros(640 * 20)) as writer:
        writer.write(frames)
    return tmp_path / "out.mp4"


@needs_c2pa
def test_a_signed_video_says_what_made_it_and_a_changed_one_is_not_valid(
    video: Path, pems: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = read_video(video)
    assert read_manifest(video) is None
    check_signing(pems / "cert.pem", pems / "key.pem")
    sign(video, pems / "cert.pem", pems / "key.pem", ORIGIN)
    assert torch.equal(read_video(video), frames)
    manifest = read_manifest(video)
    assert manifest is not None
    assert Origin(**manifest.origin) == ORIGIN
    assert (manifest.signer, manifest.faults) == ("a signer a studio", ())
    assert manifest.made_by.startswith("avatar_v ")
    assert cli.main(["watermark", "read", str(video)]) == 1
    assert "Content Credentials, valid; made by avatar_v" in capsys.readouterr().out
    data = bytearray(video.read_bytes())
    data[data.index(b"mdat") + 200] ^= 1
    video.write_bytes(data)
    changed = read_manifest(video)
    assert changed is not None
    assert "hash" in changed.faults[0]
    assert list(video.parent.iterdir()) == [video]


@needs_c2pa
@pytest.mark.parametrize(
    ("certificates", "key", "message"),
    [
        ("cert.pem", "other.pem", "does not match"),
        ("key.pem", "key.pem", "--sign"),
        ("cert.pem", "cert.pem", "no private key in PEM"),
        ("cert.pem", "none.pem", r"--sign-key: cannot read .*none\.pem \(No such file"),
    ],
)
def test_files_that_cannot_sign_are_one_error(
    video: Path, pems: Path, certificates: str, key: str, message: str
) -> None:
    before = video.read_bytes()
    with pytest.raises(ValueError, match=message):
        check_signing(pems / certificates, pems / key)
    with pytest.raises(OSError, match="is whole, but could not be signed"):
        sign(video, pems / certificates, pems / key, ORIGIN)
    assert video.read_bytes() == before
    assert list(video.parent.iterdir()) == [video]


def test_without_the_package_signing_is_one_error_and_reading_says_so(
    video: Path, pems: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("avatar_v.safety.provenance.is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'avatar_v\[provenance\]'"):
        check_signing(pems / "cert.pem", pems / "key.pem")
    assert cli.main(["watermark", "read", str(video)]) == 1
    assert "Content Credentials not looked for" in capsys.readouterr().out
