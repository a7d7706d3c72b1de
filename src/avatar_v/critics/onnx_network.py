"""A small feed-forward ONNX graph as a torch module, for its gradients.

For recognisers of faces (faces/recogniser.py), which are handed out as ONNX. onnxruntime has no
backward pass here, and onnx2torch needs torchvision, beside which Lightning cannot be imported.
Only what such networks are made of is read; the file is data, and nothing that it names is opened.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avatar_v.base.outside import check_pulled
from avatar_v.base.states import check_numbers


class OnnxNetwork(nn.Module):
    """The graph of a file, its weights as frozen buffers; one picture in, one tensor out.

    ImportError where onnx is absent; ValueError for a file that is no such graph, saying why.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            import onnx
            from onnx import numpy_helper
        except ImportError as error:
            raise ImportError(
                "reading .onnx needs onnx: pip install 'avatar_v[arcface]'"
            ) from error
        check_pulled(path)
        try:
            graph = onnx.load(str(path), load_external_data=False).graph
            self._nodes = [
                (
                    node.op_type,
                    {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute},
                    tuple(node.input),
                    node.output[0],
                )
                for node in graph.node
            ]
            unknown = sorted({node[0] for node in self._nodes} - set(OPERATORS))
            stored = () if unknown else graph.initializer
            weights = {x.name: torch.tensor(numpy_helper.to_array(x)) for x in stored}
        except Exception as error:  # of protobuf, numpy or onnx: whatever the bytes are
            raise ValueError(f"{path} is not a readable ONNX file: {error}") from error
        if unknown:
            raise ValueError(f"{path} has operators that are not read: {', '.join(unknown)}")
        inputs = [x for x in graph.input if x.name not in weights]
        if len(inputs) != 1 or len(graph.output) != 1:
            raise ValueError(f"{path} has {len(inputs)} inputs and {len(graph.output)} outputs")
        check_numbers(weights, where=path)
        self.input_shape = [x.dim_value for x in inputs[0].type.tensor_type.shape.dim]
        self._input, self._output = inputs[0].name, graph.output[0].name
        self._weights = {name: f"weight_{i}" for i, name in enumerate(weights)}  # names with dots
        for name, value in weights.items():
            self.register_buffer(self._weights[name], value.float())
        self._path = path

    def forward(self, x: Tensor) -> Tensor:
        """ValueError for an attribute or a shape that does not fit."""
        known = {name: getattr(self, own) for name, own in self._weights.items()} | {self._input: x}
        try:
            for operator, how, inputs, output in self._nodes:
                known[output] = OPERATORS[operator](*(known[name] for name in inputs), **how)
            return known[self._output]
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{self._path} is not read as a network: {error}") from error


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, **how: Any) -> Tensor:
    pads = how.pop("pads", [0] * 4)  # top, left, bottom, right
    strides, group = how.pop("strides", [1, 1]), how.pop("group", 1)
    dilations = how.pop("dilations", [1, 1])
    how.pop("kernel_shape", None)  # the weight's
    _none_left(how)
    x = F.pad(x, (pads[1], pads[3], pads[0], pads[2])) if any(pads) else x
    return F.conv2d(x, weight, bias, strides, 0, dilations, group)


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, **how: Any
) -> Tensor:
    epsilon = how.pop("epsilon", 1e-5)
    how.pop("momentum", None)  # of training
    _none_left(how)
    return F.batch_norm(x, mean, variance, weight, bias, eps=epsilon)


def _gemm(a: Tensor, b: Tensor, c: Tensor | None = None, **how: Any) -> Tensor:
    a = a.T if how.pop("transA", 0) else a
    b = b.T if how.pop("transB", 0) else b
    alpha, beta = how.pop("alpha", 1.0), how.pop("beta", 1.0)
    _none_left(how)
    return alpha * (a @ b) if c is None else alpha * (a @ b) + beta * c


def _none_left(how: dict[str, Any]) -> None:
    if how:
        raise TypeError(f"attributes {', '.join(sorted(how))} are not read")


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": lambda a, b: a + b,
    "BatchNormalization": _norm,
    "Conv": _conv,
    "Flatten": lambda x, axis=1: x.flatten(axis),
    "Gemm": _gemm,
    "Identity": lambda x: x,
    "PRelu": lambda x, slope: torch.where(x >= 0, x, slope * x),
    "Relu": lambda x: x.relu(),
}
