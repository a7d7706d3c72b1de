"""critics/qalign on small random weights, in the layout of q-future/one-align."""

import io
import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.critics import qalign
from avatar_v.critics.qalign import HUB_NAME, QAlign

SIDE, VOCABULARY = 28, 160
SENTENCES = [
    "USER: How would you rate the quality of this image?",
    "USER: How would you rate the aesthetics of this image?",
    "ASSISTANT: The quality of the image is excellent good fair poor bad",
    "ASSISTANT: The aesthetics of the image is excellent good fair poor bad",
]
VISUAL = {
    "visual_model": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": 14,
    },
    "visual_abstractor": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_learnable_queries": 4,
        "encoder_hidden_size": 32,
        "grid_size": 2,
    },
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds q-future/one-align: pyiqa finds it by that name from there."""
    pytest.importorskip("pyiqa", reason="the [iqa] extra is not installed")
    hub = tmp_path_factory.mktemp("hub")
    folder = hub / HUB_NAME
    folder.mkdir(parents=True)
    _write_tokenizer(folder)
    from transformers import CLIPImageProcessor

    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    CLIPImageProcessor(**sizes).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(hub)
        _write_network(folder)
    return hub


@pytest.fixture
def folder(hub: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for path in (hub / HUB_NAME).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def critic(hub: Path) -> QAlign:
    return QAlign(hub / HUB_NAME)


@pytest.fixture(scope="module")
def frames() -> Tensor:
    """Wide ones, so that squares have to be made of them."""
    return torch.randint(0, 256, (5, 3, 36, 52), generator=torch.Generator().manual_seed(0)).byte()


def test_scores_are_from_1_to_5_and_both_questions_are_asked(critic: QAlign, frames: Tensor):
    quality, aesthetics = critic.measure(frames), critic.measure(frames, "aesthetics")
    for score in (quality, aesthetics):
        assert score.values.shape == (5,)
        assert bool(((score.values > 1) & (score.values < 5)).all())
        assert score.weights_hash == critic.hash()
        assert score.values.std() > 0.01, "pictures are told apart"
    assert (quality.critic, aesthetics.critic) == ("qalign_quality", "qalign_aesthetics")
    assert (quality.values - aesthetics.values).abs().max() > 0.01


@pytest.mark.parametrize("task", ["quality", "aesthetics"])
def test_it_is_pyiqa_s_own_number(critic: QAlign, hub: Path, frames: Tensor, task, monkeypatch):
    from pyiqa.archs.qalign_arch import QAlign as Theirs

    monkeypatch.chdir(hub)
    theirs = Theirs().eval()
    expected = torch.cat([theirs(frame[None], task_=task) for frame in frames])
    mine = critic.measure(frames, task, batch_size=2).values
    # halves between 2 and 4 are 0.002 apart, and batches add in another order
    assert torch.allclose(mine, expected.float(), atol=0.01)


def test_the_scale_of_the_original_repository_is_1_plus_4_x(critic: QAlign, frames: Tensor):
    picture = critic.model.image_processor(frames[:1], return_tensors="pt")["pixel_values"].half()
    said = critic.model.score(None, image_tensor=picture, return_dict=True)
    levels = torch.tensor([1, 0.75, 0.5, 0.25, 0])  # excellent … bad, as Q-Align's repository has
    original = said["logits"].float().softmax(-1) @ levels
    assert torch.allclose(1 + 4 * original, said["scores"].float(), atol=0.01)  # halves


def test_the_code_in_the_folder_does_not_run(folder: Path, frames: Tensor):
    config = json.loads((folder / "config.json").read_text())
    theirs = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": theirs}))
    (folder / "theirs.py").write_text("raise SystemExit('it ran')")
    assert len(QAlign(folder).measure(frames[:1]).values) == 1


def test_weights_of_older_torch_and_where_one_works_do_not_matter(
    critic: QAlign, folder: Path, frames: Tensor, monkeypatch: pytest.MonkeyPatch
):
    """The hub has .bin files. A path may be relative, and the working directory stays."""
    (folder / "model.safetensors").unlink()
    torch.save(critic.model.state_dict(), folder / "pytorch_model.bin")
    monkeypatch.chdir(folder.parent)
    older = QAlign(folder.name)
    assert Path(os.getcwd()) == folder.parent.resolve()
    assert torch.equal(older.measure(frames).values, critic.measure(frames).values)
    assert older.hash() != critic.hash()


def test_weights_that_do_not_fill_the_network_are_an_error(folder: Path, critic: QAlign):
    state = critic.model.state_dict()
    state.pop("model.visual_abstractor.query_embeds")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="1 weights of the network are missing") as error:
        QAlign(folder)
    assert "query_embeds" in str(error.value)


@pytest.fixture
def names_alone(tmp_path: Path) -> Path:
    """A folder with the right files and nothing in them: what is checked before any import."""
    (tmp_path / "config.json").write_text('{"model_type": "mplug_owl2"}')
    for name in ("preprocessor_config.json", "tokenizer.model", "model.safetensors"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    "name", ["config.json", "preprocessor_config.json", "tokenizer.model", "model.safetensors"]
)
def test_a_missing_file_is_one_error_with_source_and_licence(names_alone: Path, name: str):
    (names_alone / name).unlink()
    kind = "*.safetensors" if name == "model.safetensors" else name
    with pytest.raises(ValueError, match=re.escape(f"{names_alone}: no {kind}")) as error:
        QAlign(names_alone)
    for word in (HUB_NAME, "MIT", "LLaMA-2", "Noncommercial", "avatar_v[iqa]"):
        assert word in str(error.value)


def test_a_missing_folder_a_part_of_the_weights_and_another_model_are_named(names_alone: Path):
    with pytest.raises(ValueError, match=r"no folder .+nowhere; .+one-align"):
        QAlign(names_alone / "nowhere")
    index = {"weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}
    (names_alone / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"no pytorch_model-00001-of-00002\.bin, which"):
        QAlign(names_alone)
    index = {"weight_map": {"lm_head.weight": "../elsewhere.bin"}}
    (names_alone / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"index\.json: expected a path below .+elsewhere"):
        QAlign(names_alone)
    (names_alone / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="type 'llama', not mplug_owl2"):
        QAlign(names_alone)


def test_without_pyiqa_the_extra_is_named(names_alone: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(qalign.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'avatar_v\[iqa\]'"):
        QAlign(names_alone)


def test_a_torchvision_of_another_build_is_explained(
    names_alone: Path, monkeypatch: pytest.MonkeyPatch
):
    """What `import torchvision` says beside a torch without CUDA."""

    def import_module(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(qalign.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(qalign.importlib, "import_module", import_module)
    with pytest.raises(ImportError, match=r"nms does not exist.+same build as torch"):
        QAlign(names_alone)


def _write_tokenizer(folder: Path) -> None:
    import sentencepiece as spm

    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    words = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


def _write_network(folder: Path) -> None:
    from pyiqa.archs.q_align.configuration_mplug_owl2 import MPLUGOwl2Config
    from pyiqa.archs.q_align.modeling_mplug_owl2 import MPLUGOwl2LlamaForCausalLM

    config = MPLUGOwl2Config(
        visual_config=VISUAL,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    generator = torch.Generator().manual_seed(0)
    network = MPLUGOwl2LlamaForCausalLM(config)
    for weight in network.parameters():  # larger than at the start of a training: pictures differ
        weight.data = weight.data + 0.2 * torch.randn(weight.shape, generator=generator)
    network.half().save_pretrained(folder)
