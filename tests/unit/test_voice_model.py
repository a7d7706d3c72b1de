"""The networks of a voice: the codec, its tokens, the language model, and the engine of them."""

import copy
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

from avatar_v.critics import voice as network
from avatar_v.engines.checks import check_engine, check_script
from avatar_v.engines.cloning import (
    TrainedVoice,
    VoicePrompt,
    engine_rate_hz,
    load_engine,
    manners_of,
    phonemes_of,
    say_pieces,
)
from avatar_v.engines.manner import Manner, split_manners
from avatar_v.objectives.voice_codec import CodecLoss, TrainVoiceCodec
from avatar_v.training.optim import Optim
from avatar_v.training.roles import Updates
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.model import Drawing, HeardVoice, PartErrors, VoiceModel, fresh_llama
from avatar_v.voices.shipped import TRAINED
from avatar_v.voices.tokens import END, SPEAKER_PARTS, Vocabulary, Voiced, rate_of
from voice_models import TINY, tiny_codec, tiny_voice

SPOKEN = ("SIL", "M", "AY", "SIL")


@pytest.fixture(scope="module")
def codec() -> VoiceCodec:
    return tiny_codec()


@pytest.fixture(scope="module")
def model(codec: VoiceCodec) -> VoiceModel:
    return tiny_voice(codec)


def test_sound_that_is_made_in_pieces_is_that_of_the_whole(codec: VoiceCodec) -> None:
    sound = torch.randn(2, 20 * SAMPLES_PER_FRAME - 100, generator=torch.Generator().manual_seed(0))
    codes = codec.encode(0.1 * sound)
    assert codes.shape == (2, 3, 20)
    whole = codec.decode(codes)
    assert whole.shape == (2, 20 * SAMPLES_PER_FRAME)
    assert whole.abs().max() > 0.01
    for start, stop in ((0, 3), (3, 15), (15, 20)):
        piece = codec.decode_between(codes, start, stop)
        expected = whole[:, start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME]
        torch.testing.assert_close(piece, expected, atol=1e-5, rtol=1e-4)


def test_codes_without_use_move_to_where_latents_lie() -> None:
    generator = torch.Generator().manual_seed(0)
    made = VoiceCodec(TINY).train()
    for name, weight in made.quantiser.named_parameters():
        if name.endswith("codebook.weight"):
            torch.nn.init.constant_(weight, 1.0)
    sound, use = (
        0.1 * torch.randn(4, 20 * SAMPLES_PER_FRAME, generator=generator),
        torch.zeros(3, 16),
    )
    assert len(made.encode(sound)[:, 0].unique()) == 1
    made.revive(sound, use, generator)
    assert len(made.encode(sound)[:, 0].unique()) > 8
    assert use.min() > 0.01, "all codes are new or in use"


def test_a_step_of_the_codec_is_clipped_and_drawn_by_the_batch(tmp_path: Path) -> None:
    optim, most = Optim(1e-3, num_warmup_steps=0, betas=(0.0, 0.5), hidden="adamw"), 1e-3
    seen = []
    for seed in (1, 2):  # of torch's own draws, which a resumed run has others of
        stage = TrainVoiceCodec(TINY, optim, CodecLoss(), Updates(gradient_clip_val=most))
        torch.manual_seed(seed)
        trainer = L.Trainer(
            accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        sound = 0.1 * torch.randn(4, 4 * SAMPLES_PER_FRAME, generator=seeded())
        trainer.fit(stage, DataLoader([sound], batch_size=None))
        states = trainer.optimizers[0].state.values()
        seen.append(torch.cat([state["exp_avg"].flatten() for state in states]))
    assert torch.equal(*seen)
    torch.testing.assert_close(seen[0].norm(), torch.tensor(most), rtol=1e-3, atol=0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_codec_comes_back_from_its_folder(codec: VoiceCodec, tmp_path: Path) -> None:
    codec.save(tmp_path)
    found = VoiceCodec.load(tmp_path)
    sound = 0.1 * torch.randn(1, 5 * SAMPLES_PER_FRAME)
    assert (found.encode(sound) == codec.encode(sound)).double().mean() > 0.8, "16 bits"
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace('"num_codebooks": 3', '"num_codebooks": 0')
    )
    with pytest.raises(ValueError, match=r"config\.json: num_codebooks is 1 to 8192"):
        VoiceCodec.load(tmp_path)


def test_speech_as_tokens_holds_codes_and_times() -> None:
    vocabulary = Vocabulary(3, 16)
    codes = np.random.default_rng(0).integers(16, size=(3, 12))
    stops_s = (0.1, 0.1, 0.36, 0.4)
    tokens = vocabulary.speech(codes, SPOKEN, stops_s)
    assert max(tokens) < vocabulary.size
    found, spans = vocabulary.codes_of(tokens)
    assert (found == codes).all()
    assert spans == [(0, 2), (2, 2), (2, 9), (9, 12)], "the last takes what is left"
    lengths = [token - vocabulary.lengths for token in tokens if token >= vocabulary.lengths]
    assert lengths == [2, 0, 7, 3]
    long, _ = vocabulary.codes_of(
        vocabulary.speech(codes.repeat(9, 1), SPOKEN, (1.0, 2.0, 3.0, 4.5))
    )
    assert long.shape[1] == 25 * 4, "of each a second at most"
    with pytest.raises(ValueError, match="not whole"):
        vocabulary.codes_of(tokens[:3])
    head = vocabulary.head(Voiced(0, 3, 1, 2), range(SPEAKER_PARTS), codes, SPOKEN)
    kinds = [head.count(token) for token in range(1, 6)]
    assert kinds == [1, 0, 1, 1, 1]
    assert vocabulary.said_after(head) == list(SPOKEN)
    assert len(head) == 5 + SPEAKER_PARTS + 1 + 2 * 12 + 1 + len(SPOKEN) + 1
    assert rate_of(SPOKEN, (1.0, 1.1, 1.2, 9.0)) == 1, "pauses do not count"
    assert phonemes_of("My, my.") == ["SIL", "M", "AY", "SIL", "M", "AY", "SIL"]


def test_all_phonemes_are_said_in_their_order_and_in_whole_frames(model: VoiceModel) -> None:
    codes = np.zeros((2, 10), int)
    head = model.head(SPOKEN, HeardVoice(codes, [0] * SPEAKER_PARTS), Voiced(0, 0, 2, 1))
    how = Drawing(seed=3)
    tokens = list(model.tokens(head, SPOKEN, how))
    assert tokens == list(model.tokens(head, SPOKEN, how)), "the seed decides"
    assert tokens[-1] == END
    said = [token for token in tokens[:-1] if token < model.vocabulary.codes]
    assert said == model.vocabulary.of_phonemes(SPOKEN)
    codes, _ = model.vocabulary.codes_of(tokens)
    whole = model.codec.decode(torch.from_numpy(codes)[None])[0]
    pieces = list(model.sound(head, SPOKEN, how))
    assert len(pieces) >= 2
    torch.testing.assert_close(torch.cat(pieces), whole, atol=1e-5, rtol=1e-4)


def test_a_cached_step_is_an_uncached_one(model: VoiceModel) -> None:
    head = model.vocabulary.head(
        Voiced(0, 0, 0, 0), [0] * SPEAKER_PARTS, np.zeros((3, 4), int), SPOKEN
    )
    tokens = list(model.tokens(head, SPOKEN, Drawing(temperature=0.0)))
    row = torch.tensor([[*head, *tokens]])
    logits = model.llama(input_ids=row).logits[0]
    for at, token in enumerate(tokens[1:30], len(head)):
        if token >= model.vocabulary.lengths:
            assert logits[at, token] >= logits[at, model.vocabulary.lengths :].max() - 1e-4
        elif token >= model.vocabulary.codes:
            level = (token - model.vocabulary.codes) // 16
            first = model.vocabulary.codes + 16 * level
            best = logits[at, first : first + 16].max()
            assert logits[at, token] >= best - 1e-4


def test_speeches_together_are_those_said_alone(model: VoiceModel) -> None:
    said = [SPOKEN, ("SIL", "DH", "AH", "SIL", "M", "AY", "SIL"), ("AA",)]
    rng = np.random.default_rng(0)
    heads = [
        model.vocabulary.head(
            Voiced(0, n, 0, 0), [n] * SPEAKER_PARTS, rng.integers(16, size=(3, 4 + 5 * n)), words
        )
        for n, words in enumerate(said)
    ]
    hows = [Drawing(temperature=0.7, seed=n) for n in range(3)]
    together = model.say_together(heads, said, hows)
    for saying, head, words, how in zip(together, heads, said, hows, strict=True):
        assert saying.tokens == list(model.tokens(head, words, how))
        assert len(saying.are_drawn) == len(saying.tokens)
        given = [token < model.vocabulary.codes for token in saying.tokens]
        assert saying.are_drawn == [not one for one in given], "phonemes and the end are given"


def test_a_script_says_in_which_language_and_how() -> None:
    text = "Good day. [de] [sad] Guten Tag. [neutral] Ja. [en] Yes."
    assert list(split_manners(text)) == [
        (Manner(), "Good day."),
        (Manner("de", "sad"), "Guten Tag."),
        (Manner("de"), "Ja."),
        (Manner(), "Yes."),
    ]
    with pytest.raises(ValueError, match=r"\[happy\] is no mark; known are en, de"):
        list(split_manners("[happy] Yes."))
    with pytest.raises(ValueError, match="model of recipes/voices alone"):
        check_script("[sad] Good day.", "drawn")
    unread = object.__new__(TrainedVoice)  # nothing of a model is needed, so nothing is said before
    unread.rate_hz = SAMPLE_RATE_HZ
    with pytest.raises(ValueError, match="English words, and not '5'"):
        manners_of(unread, "Good day. [sad] It is 5.")


@pytest.mark.skipif(not network.is_available(), reason=network.HOW_TO_INSTALL)
def test_a_folder_of_it_is_an_engine_for_voices(model: VoiceModel, tmp_path: Path) -> None:
    model.save(tmp_path)
    assert check_engine(tmp_path) == "llama"
    assert engine_rate_hz(tmp_path) == SAMPLE_RATE_HZ
    engine = load_engine(tmp_path)
    prompt = VoicePrompt(0.1 * torch.randn(3 * SAMPLE_RATE_HZ), SAMPLE_RATE_HZ, "My day is long.")
    torch.manual_seed(0)
    sound = engine.say("My day.", prompt)
    assert sound.dtype == torch.float32
    assert len(sound) > 0
    assert len(sound) % SAMPLES_PER_FRAME == 0
    torch.manual_seed(0)
    pieces = say_pieces(engine, "My day.", prompt)
    torch.manual_seed(1)  # draws are made
    assert torch.equal(torch.cat(list(pieces)), sound)
    (tmp_path / "speaker.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks speaker\.safetensors"):
        check_engine(tmp_path)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_packed_model_has_its_own_head(model: VoiceModel, tmp_path: Path, is_tied: bool) -> None:
    config = copy.deepcopy(model.llama.config)
    config.tie_word_embeddings = is_tied
    llama = LlamaForCausalLM(config)
    VoiceModel(llama, model.speaker, model.codec).save(tmp_path, PartErrors(1e-3, 0.0))
    found = VoiceModel.load(tmp_path, TRAINED).llama
    assert torch.equal(found.lm_head.weight, found.model.embed_tokens.weight) == is_tied
    for name, value in llama.state_dict().items():
        assert (found.state_dict()[name] - value).norm() <= 1.5e-3 * value.norm()
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace('"vocab_size": ', '"vocab_size": 1')
    )
    with pytest.raises(ValueError, match=r"compressed\.safetensors do not fit the model"):
        VoiceModel.load(tmp_path, TRAINED)


def test_what_is_learned_has_the_loss_that_trl_gives_it(codec: VoiceCodec) -> None:
    utils = pytest.importorskip("trl.trainer.utils")
    from avatar_v.voices.sft import loss_of_learned

    llama = fresh_llama(codec, width=32, num_layers=1, num_heads=2, seed=0)
    ids = torch.randint(6, llama.config.vocab_size, (2, 12))
    labels = ids.clone()
    labels[0, :5], labels[1, :7], labels[1, 10:] = -100, -100, -100
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    total, num = loss_of_learned(llama, inputs)
    grads = torch.autograd.grad(total / num, [*llama.parameters()])
    utils.add_fused_lm_head(llama)
    theirs = llama(**inputs, fused_lm_head=True).loss
    assert num == 7 + 3
    assert float(total / num) == pytest.approx(float(theirs), rel=1e-5)
    for own, other in zip(grads, torch.autograd.grad(theirs, [*llama.parameters()]), strict=True):
        assert torch.allclose(own, other, atol=1e-5)
