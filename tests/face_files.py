"""Files of face networks in their published layouts, with small random weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

PREPARATION = {
    "crop_size": {"height": 28, "width": 28},
    "do_center_crop": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "size": {"shortest_edge": 32},
}


def dino_folder(folder: Path, num_layers: int = 2) -> Path:
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": num_layers, "num_attention_heads": 4}
    config = Dinov2Config(**sizes, image_size=28, patch_size=14, mlp_ratio=2)
    Dinov2Model(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPARATION))
    return folder


def syncnet_file(path: Path) -> Path:
    from avatar_v.critics.syncnet import SyncNet

    torch.manual_seed(0)
    torch.save(SyncNet().state_dict(), path)
    return path


def recogniser_file(
    path: Path,
    widths: tuple[int, ...] = (4, 4, 8, 8),
    blocks: tuple[int, ...] = (1, 1, 1, 1),
    num_out: int = 512,
) -> Path:
    """insightface's IResNet as it is exported: norms behind convolutions are folded into them, and
    each stage halves the picture. r50 has 64, 128, 256, 512 and 3, 4, 14, 3."""
    from onnx import TensorProto, helper, numpy_helper, save

    draw, nodes, weights = np.random.default_rng(0), [], []

    def weight(*shape: int, spread: float = 1.0, around: float = 0.0) -> str:
        values = (around + spread * draw.standard_normal(shape)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"{685 + len(weights)}"))
        return weights[-1].name

    def node(kind: str, inputs: list[str], **how: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{kind}_{len(nodes)}"], **how))
        return nodes[-1].output[0]

    def norm(x: str, width: int) -> str:
        ones = [weight(width, spread=0.1, around=at) for at in (1, 0, 0)]
        variance = weight(width, spread=0.05, around=1)
        return node("BatchNormalization", [x, *ones, variance], epsilon=1e-5, momentum=0.9)

    def conv(x: str, num_in: int, num: int, kernel: int, stride: int) -> str:
        inputs = [x, weight(num, num_in, kernel, kernel, spread=(num_in * kernel**2) ** -0.5)]
        how = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return node("Conv", [*inputs, weight(num, spread=0.1)], group=1, dilations=[1, 1], **how)

    def slope(x: str, width: int) -> str:
        return node("PRelu", [x, weight(width, 1, 1, spread=0.1, around=0.25)])

    width = widths[0]
    x = slope(conv("input.1", 3, width, 3, 1), width)
    for wider, num in zip(widths, blocks, strict=True):
        for stride in (2, *[1] * (num - 1)):
            skip = x if stride == 1 else conv(x, width, wider, 1, 2)
            inner = slope(conv(norm(x, width), width, wider, 3, 1), wider)
            x, width = node("Add", [conv(inner, wider, wider, 3, stride), skip]), wider
    x = node("Flatten", [norm(x, width)], axis=1)
    last = [weight(num_out, 49 * width, spread=(49 * width) ** -0.5), weight(num_out, spread=0.1)]
    norm(node("Gemm", [x, *last], alpha=1.0, beta=1.0, transB=1), num_out)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "iresnet",
        [info("input.1", TensorProto.FLOAT, ["None", 3, 112, 112])],
        [info(nodes[-1].output[0], TensorProto.FLOAT, ["None", num_out])],
        weights,
    )
    opset = [helper.make_opsetid("", 11)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=6), str(path))
    return path
