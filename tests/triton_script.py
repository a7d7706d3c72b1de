"""What needs a process of its own: kernels in torch.compile, where the run-time checks of shapes
would be traced, and kernels as code for GPUs, which the interpreter leaves no way to."""

import sys
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager

torch.set_num_threads(1)
CAPABILITY = 90
"""Of an H100 and an H200."""
WIDEST = ("gated_add_norm", "norm_rotate", "rotate", "norm_silu")
"""Scopes whose kernels hold the most numbers."""


def in_one_graph() -> None:
    """All kernels one after another, forward and backward."""
    from avatar_v.kernels import switch
    from avatar_v.kernels.scopes import Size, scopes, tensors_of

    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return aot_eager(graph, inputs)

    parts = [
        (f, [x.requires_grad_() for x in given]) for f, given in scopes(Size(1, 5, 3, 10)).values()
    ]

    def total() -> torch.Tensor:
        found = [tensors_of(function(*given)) for function, given in parts]
        return torch.stack([x.square().sum() for each in found for x in each])

    found = []
    for name, run in (
        ("triton", torch.compile(total, fullgraph=True, backend=backend)),
        ("plain", total),
    ):
        with switch.using(name):
            out = run()
            every = [x for _, given in parts for x in given]
            gradients = torch.autograd.grad(out.sum(), every, allow_unused=True)
        found.append([out.detach(), *(g for g in gradients if g is not None)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    for name in ("residual_norm", "norm_rotate", "channel_norm"):
        assert any(name in target for target in graphs[0]), f"no {name} in the graph"


def for_gpus() -> None:
    """Every kernel as the model calls it with rows of 14B, bf16: it compiles and keeps its numbers
    in registers."""
    torch.cuda.is_available = lambda: True
    from avatar_v.kernels import channel_norm, norm, residual, switch
    from avatar_v.kernels.scopes import Size, scopes, tensors_of

    switch.INTERPRETS = True  # operators take tensors of a CPU
    seen: set[str] = set()
    for module in (channel_norm, norm, residual):
        for name in ("_forward", "_backward"):
            setattr(module, name, Compiled(getattr(module, name), seen))
    with switch.using("triton"):
        parts = scopes(Size(1, 4, 40, 128, torch.bfloat16))
        for function, given in map(parts.__getitem__, WIDEST):
            out = tensors_of(function(*(x.requires_grad_() for x in given)))
            sum(x.float().sum() for x in out).backward()
    assert len(seen) == 2 * len(WIDEST), f"expected two kernels of each scope, got {sorted(seen)}"


class Compiled:
    """In the place of a kernel: compiled for what it is given, and not run."""

    def __init__(self, kernel: Any, seen: set[str]) -> None:
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid: Any) -> Any:
        return partial(self.compile)

    def compile(self, *given: Any, num_warps: int = 4) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        kinds = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
        signature, constants, divisible = {}, {}, {}
        for i, (param, value) in enumerate(zip(self.kernel.params, given, strict=True)):
            kind = "i32"
            if param.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                constants[(i,)], kind = value, "constexpr"
            elif isinstance(value, torch.Tensor):
                kind = kinds[value.dtype]
            elif isinstance(value, float):
                kind = "fp32"
            if kind.startswith("*") or (kind == "i32" and value % 16 == 0):
                divisible[(i,)] = [["tt.divisibility", 16]]
            signature[param.name] = kind
        key = f"{self.kernel.fn.__module__} {self.kernel.fn.__name__} {constants}"
        if key in self.seen:
            return
        self.seen.add(key)
        source = ASTSource(self.kernel, signature, constants, divisible)
        target = GPUTarget("cuda", CAPABILITY, 32)
        made = compile(source, target=target, options={"num_warps": num_warps})
        assert ".local" not in made.asm["ptx"], f"{key} keeps numbers in memory"


if __name__ == "__main__":
    {"graph": in_one_graph, "gpu": for_gpus}[sys.argv[1]]()
