"""Text and audio encoders: bytes; tiny random UMT5, wav2vec 2.0 and Whisper in local folders."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.cli import main
from avatar_v.generate.generator import context_latents, live_audio_chunks, look_ahead_latents
from avatar_v.inputs.live import sound_chunks
from avatar_v.media.sound import high_passed
from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import PAD, ByteTextEncoder, UMT5TextEncoder
from avatar_v.models.time_grids import of_frames
from avatar_v.parallel.offload import Residency
from avatar_v.training.settings import Models
from avatar_v.weights.card import Capabilities, Card, check_follows
from avatar_v.weights.presets import build
from avatar_v.weights.weights import load_pipeline, save_pipeline
from fake_streams import FakeStreams
from random_models import randomise
from text_models import write_umt5
from tiny_run import RECIPES


def test_bytes_are_padded_and_what_follows_them_is_seen() -> None:
    encoder = ByteTextEncoder.tiny()
    symbols = encoder.symbols(["aé", ""])
    assert symbols[0, :4].tolist() == [97, 0xC3, 0xA9, PAD]
    assert (symbols[1] == PAD).all()
    out = encoder(["aé", "a"])
    assert out.shape == (2, 64, 32)
    assert (out[0] - out[1]).abs().max() > 1e-3


def test_a_prompt_does_not_depend_on_its_batch() -> None:
    encoder = ByteTextEncoder.tiny()
    together = encoder(["a person in a red shirt", "hi"])
    # fp32: the same sums in products of another height.
    torch.testing.assert_close(encoder(["hi"])[0], together[1], atol=1e-5, rtol=1e-5)


def test_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="may have 256 bytes, got 257"):
        ByteTextEncoder.tiny()(["x" * 257])
    with pytest.raises(ValueError, match="10 bytes do not fill tokens of 4"):
        ByteTextEncoder(32, num_bytes=10)


@pytest.fixture(scope="module")
def umt5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_umt5(tmp_path_factory.mktemp("umt5"))


def test_doctor_knows_a_pipeline_with_it(
    umt5_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights lie in text/backbone, and in text itself there are none."""
    dit, conditioner = build("tiny", seed=0)
    dit = AvatarDiT(dataclasses.replace(dit.config, text_dim=16))
    conditioner.text_encoder = UMT5TextEncoder(umt5_folder, num_tokens=10)
    save_pipeline(tmp_path / "made", dit, conditioner, Card("tiny"))
    recipe = [str(RECIPES / "2_a2v.yaml"), str(RECIPES / "tiny.yaml")]
    options = ["--", "--model.init_args.models.init_from", str(tmp_path / "made")]
    main(["doctor", *recipe, *options])
    assert f"ok       models.init_from {tmp_path / 'made'}" in capsys.readouterr().out
    (backbone,) = (tmp_path / "made" / "text").rglob("*.safetensors")
    backbone.unlink()
    main(["doctor", *recipe, *options])
    assert f"MISSING  models.init_from {tmp_path / 'made'}" in capsys.readouterr().out


def test_umt5_encodes_to_a_fixed_length_with_zeros_behind(umt5_folder: Path) -> None:
    encoder = UMT5TextEncoder(umt5_folder, num_tokens=10)
    out = encoder(["a  person\nspeaks", "a"])
    assert out.shape == (2, 10, 16)
    assert (out[0, :3].abs().amax(1) > 0).all()
    assert torch.equal(out[0, 3:], torch.zeros(7, 16))
    assert torch.equal(out[1, 1:], torch.zeros(9, 16))
    torch.testing.assert_close(encoder(["a"])[0], out[1], atol=1e-5, rtol=1e-5)
    assert not any(p.requires_grad for p in encoder.parameters())
    with pytest.raises(ValueError, match="may have 2 tokens, got 3"):
        UMT5TextEncoder(umt5_folder, num_tokens=2)(["a person speaks"])


def test_a_saved_umt5_backbone_loads_again(umt5_folder: Path, tmp_path: Path) -> None:
    encoder = UMT5TextEncoder(umt5_folder, num_tokens=10)
    encoder.save_backbone(tmp_path / "copy")
    again = UMT5TextEncoder(tmp_path / "copy", **encoder.config)
    assert torch.equal(again(["a person"]), encoder(["a person"]))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*nowhere to load UMT5 from"):
        UMT5TextEncoder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no folder .*nowhere to load an audio encoder from"):
        HiddenStateAudioEncoder(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def wav2vec2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    folder = tmp_path_factory.mktemp("wav2vec2")
    config = Wav2Vec2Config(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(8,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    Wav2Vec2Model(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hubert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As large models are: norms of layers, not of channels over time."""
    from transformers import HubertConfig, HubertModel, Wav2Vec2FeatureExtractor

    folder = tmp_path_factory.mktemp("hubert")
    config = HubertConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(8,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True,
    )  # fmt: skip
    HubertModel(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperModel

    folder = tmp_path_factory.mktemp("whisper")
    config = WhisperConfig(
        vocab_size=16, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=16,
        max_source_positions=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    WhisperModel(config).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kind", "num_frames"), [("wav2vec2", 5), ("hubert", 25), ("whisper", 33)])
def test_hidden_states_lie_on_the_frame_grid(
    kind: str, num_frames: int, request: pytest.FixtureRequest
) -> None:
    encoder = HiddenStateAudioEncoder(request.getfixturevalue(f"{kind}_folder"))
    waveform = 0.1 * torch.randn(2, 640 * num_frames, generator=torch.Generator().manual_seed(0))
    out = encoder(waveform)
    assert out.shape == (2, num_frames, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert bool(encoder(waveform).isfinite().all())
    out.square().sum().backward()
    gradient = encoder.layer_logits.grad
    assert gradient is not None
    assert gradient.shape == (3,)
    assert (gradient.abs() > 0).any()
    assert not any(p.requires_grad for p in encoder.model.parameters())


@pytest.mark.parametrize("kind", ["wav2vec2", "whisper"])
def test_layer_weights_choose_among_the_hidden_states(
    kind: str, request: pytest.FixtureRequest
) -> None:
    encoder = HiddenStateAudioEncoder(request.getfixturevalue(f"{kind}_folder"))
    waveform = 0.1 * torch.randn(1, 640 * 9, generator=torch.Generator().manual_seed(0))
    outputs = []
    for layer in range(3):
        with torch.no_grad():
            encoder.layer_logits.fill_(-1e4)
            encoder.layer_logits[layer] = 0
        outputs.append(encoder(waveform))
    with torch.no_grad():
        encoder.layer_logits.zero_()
    mean = torch.stack(outputs).mean(0)
    torch.testing.assert_close(encoder(waveform), mean, atol=1e-5, rtol=1e-5)
    assert (outputs[0] - outputs[2]).abs().max() > 1e-3


def encoder_of(
    kind: str, request: pytest.FixtureRequest, look_ahead: int | None = None
) -> LogMelEncoder | HiddenStateAudioEncoder:
    if kind == "embedded":
        encoder = LogMelEncoder(24, num_layers=2, num_mels=20, look_ahead=look_ahead or 0)
        randomise(encoder)
        return encoder
    folder = request.getfixturevalue(f"{kind}_folder")
    return HiddenStateAudioEncoder(folder, look_ahead, window=3)


@pytest.mark.parametrize("look_ahead", [0, 2])
@pytest.mark.parametrize(
    ("kind", "rate"),
    [("embedded", 25), *itertools.product(("wav2vec2", "whisper"), (24, 25, 30))],
)
@torch.inference_mode()
def test_a_live_sound_is_encoded_as_the_whole_track_is(
    kind: str,
    rate: int,
    look_ahead: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To 2e-5: sums of fp32 over other batches. Training's windows of a clip are the same, too; and
    a latent hears ``look_ahead`` latents and two frames behind its own, and nothing later. Only
    what is asked for takes a pass. Motion may hear a latent more."""
    _, conditioner = build("tiny")
    conditioner.audio_encoder = encoder = encoder_of(kind, request, look_ahead)
    conditioner.at_rate(rate)
    num_passes = []
    if isinstance(encoder, HiddenStateAudioEncoder):
        states = encoder._states

        def counted(waveform: Tensor) -> tuple[Tensor, ...]:
            num_passes.append(len(waveform))
            return states(waveform)

        monkeypatch.setattr(encoder, "_states", counted)
    sound = 0.1 * torch.randn(640 * 49, generator=torch.Generator().manual_seed(0))
    passed = high_passed(sound)[:].unsqueeze(0)  # which a live sound is as it arrives
    whole = conditioner.encode_audio(passed)
    context = context_latents(conditioner)
    parts = sound_chunks(
        iter(sound.split(5_000)), chunk_latents=5, context=context, gain=lambda _: 1.0,
        look_ahead=1 + look_ahead_latents(conditioner),
    )  # fmt: skip
    num_passes.clear()
    made = live_audio_chunks(conditioner, parts, look_ahead=1)
    live = [(part.chunk.latents, part.audio) for part in made]
    assert len(live) == 4
    assert sum(num_passes) <= len(live) * (1 + 5 + 1 + look_ahead + 1), "none for what is heard"
    for latents, got in live:
        expected = whole[:, latents.start : latents.stop + 1]
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)
    clip = passed.expand(2, -1)
    got = conditioner.encode_audio_windows(clip, torch.tensor([0, 5]), 4)
    for row, start in zip(got, (0, 5), strict=True):
        torch.testing.assert_close(row, whole[0, start : start + 4], atol=2e-5, rtol=1e-5)
    heard = 640 * (4 * 5 + 3 + 4 * look_ahead)  # latent 5 holds frames up to 20
    for at, is_heard in ((heard, False), (heard - 640, True)):
        other = passed.clone()
        other[:, at:] = 0.5
        moved = (conditioner.encode_audio(other) - whole)[:, 5].abs().max()
        assert (moved > 2e-6) == is_heard


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("wav2vec2", 25), ("hubert", 25), ("whisper", 25), ("hubert", 24), ("wav2vec2", 30)],
)
@torch.inference_mode()
def test_long_windows_go_over_to_the_whole_recording(
    kind: str, rate: int, request: pytest.FixtureRequest
) -> None:
    """Those that hold all of it are it, to sums of fp32 over other batches."""
    encoder = HiddenStateAudioEncoder(request.getfixturevalue(f"{kind}_folder"))
    encoder.at_rate(rate)
    waveform = 0.1 * torch.randn(2, 640 * 25, generator=torch.Generator().manual_seed(0))
    whole = encoder(waveform)
    errors = []
    for window, look_ahead in ((1, 0), (3, 1), (7, 6)):
        encoder.look_ahead, encoder.window = look_ahead, window  # Whisper's pass is of 1 s here
        found = encoder(waveform)
        errors.append(float((found - whole).square().mean().sqrt()))
        torch.testing.assert_close(encoder(waveform, 4)[:, 15:], found[:, 15:])
    assert errors[0] > errors[1] > 1e-4
    assert errors[2] < 1e-5


@pytest.mark.parametrize("kind", ["wav2vec2", "hubert", "whisper"])
@torch.inference_mode()
def test_features_are_of_the_same_seconds_at_any_rate(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Sounds with and without a burst, drawn at each rate, whose tones no resampler touches: their
    features are the means of the states at 25 over each frame's time, to 1 % of their spread. One
    frame early or late they are far from it. (Where attention of random weights shows a burst most
    says nothing: it need not be where it sounds.)"""
    encoder = HiddenStateAudioEncoder(request.getfixturevalue(f"{kind}_folder"))

    def drawn(rate: int, burst: float) -> Tensor:
        second = torch.arange(2 * 640 * rate, dtype=torch.float64) / (640 * rate)
        fades = torch.sin(torch.pi * second / 2).square()
        tones = sum(torch.sin(6000 * i * second + i) for i in (0.1, 0.37, 1, 2.3)) * fades
        shape = torch.exp(-((second - 1.21) / 0.015).square() / 2)
        return (0.05 * tones + burst * shape * torch.sin(9000 * second)).float()[None]

    for burst in (0.0, 0.3):
        states = encoder._states(drawn(25, burst))
        for rate in (24, 25, 30):
            encoder.at_rate(rate)
            found = encoder(drawn(rate, burst))
            assert found.shape == (1, 2 * rate, 24)
            layers = torch.stack([of_frames(x, 0, 2 * rate, rate) for x in states])
            expected = torch.einsum("k,kbfd->bfd", encoder.layer_logits.softmax(0), layers)
            spread = expected.std(1).mean()
            late = found.roll(1, 1)
            errors = [(x - expected).square().mean().sqrt() / spread for x in (found, late)]
            assert errors[0] < 0.01
            assert errors[1] > 0.3


def test_what_weights_hear_is_stored_and_nobody_changes_it_later(
    wav2vec2_folder: Path, whisper_folder: Path, tmp_path: Path
) -> None:
    dit, conditioner = build("tiny")
    conditioner.hear(1, None)
    save_pipeline(tmp_path / "embedded", dit, conditioner, Card("tiny"))
    assert load_pipeline(tmp_path / "embedded")[1].hears == (1, None)
    assert not conditioner.hears_moments
    with pytest.raises(ValueError, match="has a memory of its own"):
        conditioner.hear(1, 12)
    dit = AvatarDiT(dataclasses.replace(DiTConfig.tiny(), audio_dim=24))
    conditioner.audio_encoder = HiddenStateAudioEncoder(wav2vec2_folder)
    with pytest.raises(ValueError, match="needs the whole recording"):
        context_latents(conditioner)
    save_pipeline(tmp_path / "whole", dit, conditioner, Card("tiny"))
    with pytest.raises(ValueError, match="needs the whole recording"):
        check_follows(tmp_path / "whole", Card("tiny"))
    conditioner.hear(2, 6, is_learned=True)  # from whole recordings to windows
    save_pipeline(tmp_path / "w", dit, conditioner, Card("tiny"))
    check_follows(tmp_path / "w", Card("tiny"))
    loaded = load_pipeline(tmp_path / "w")[1]
    assert loaded.hears == (2, 6)
    loaded.hear(2, 6, is_learned=True)
    with pytest.raises(ValueError, match="trained to hear 2 latents ahead in windows of 6"):
        loaded.hear(1, None, is_learned=True)
    fast = Card("tiny", can=Capabilities(video=VideoFormat(32, 32, 30)))
    save_pipeline(tmp_path / "fast", dit, conditioner, fast)
    for name, rate in (("w", 25), ("fast", 30)):
        encoder = load_pipeline(tmp_path / name)[1].audio_encoder
        assert isinstance(encoder, HiddenStateAudioEncoder)
        assert encoder.frame_rate_hz == rate
    whisper = HiddenStateAudioEncoder(whisper_folder)
    with pytest.raises(ValueError, match=r"are 1\.12 s of sound, and Whisper hears 1 s at once"):
        whisper.hear(1, 6)
    whisper.at_rate(30)
    whisper.hear(1, 6)
    with pytest.raises(ValueError, match=r"are 1\.12 s of sound, and Whisper hears 1 s at once"):
        whisper.at_rate(25)
    assert whisper.frame_rate_hz == 30
    with pytest.raises(ValueError, match="audio_window goes with"):
        Models("tiny", audio_window=6)


def test_an_encoder_of_another_kind_is_refused(umt5_folder: Path) -> None:
    with pytest.raises(ValueError, match="holds a umt5, expected wav2vec2 or hubert"):
        HiddenStateAudioEncoder(umt5_folder / "text_encoder")


@pytest.mark.parametrize("kind", ["umt5", "wav2vec2", "whisper"])
def test_an_offloaded_encoder_encodes_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    folder, streams = request.getfixturevalue(f"{kind}_folder"), FakeStreams()
    if kind == "umt5":
        encoder, given = UMT5TextEncoder(folder, num_tokens=10), ["a person speaks", "a"]
    else:
        encoder, given = HiddenStateAudioEncoder(folder), torch.linspace(-1, 1, 640 * 9)[None]
    with torch.inference_mode():
        wanted = encoder(given)
        Residency({"encoder": encoder}, streams)
        for _ in range(2):
            assert torch.equal(encoder(given), wanted)
    assert streams.peak == 2
    if kind == "umt5":
        assert len(streams.names) == 3  # two layers, and the table, which is tied in two places
