"""Which library multiplies the matrices inside the compiled update.

torch on x86 calls MKL, which on AMD processors leaves their 512-bit units alone; oneDNN, which
torch carries too, uses them: about twice as fast for IQL's products there (docs/performance.md).
Which one is used depends on the processor alone, never on a measurement, so that a run and its
resumption on one machine round alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.library import Library

_SMALLEST = 64  # of any side: below, the call costs more than the product
_aten = torch.ops.aten

# The compiler takes torch's own operator only for weights that never change, hence one of ours.
_library: Any = Library("rlreg_iql", "DEF")  # type: ignore[no-untyped-call]
_library.define("product(Tensor left, Tensor right, Tensor? bias) -> Tensor")


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
    return result


def _shape_of_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    del bias
    return left.new_empty(left.shape[0], right.shape[1])


_library.impl("product", _product, "CPU")
_library.impl("product", _shape_of_product, "Meta")


def prefers_onednn() -> bool:
    """Whether products should go to oneDNN on this machine."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "AuthenticAMD" in text


class OneDNNProducts(CustomGraphPass):
    """Replaces the large float32 products of a graph by calls of oneDNN."""

    def __call__(self, graph: Graph) -> None:
        """Rewrites the graph."""
        for node in list(graph.nodes):
            if node.op != "call_function":
                continue
            if node.target is _aten.mm.default:
                _replace(graph, node, node.args[0], node.args[1], None)
            elif node.target is _aten.addmm.default and not node.kwargs:
                _replace(graph, node, node.args[1], node.args[2], node.args[0])
        graph.lint()

    def uuid(self) -> object:
        """Names this pass in the key of the compiler's cache."""
        return get_hash_for_files((__file__,))


def _replace(graph: Graph, node: Node, left: Node, right: Node, bias: Node | None) -> None:
    """Writes ``left @ right (+ bias)`` as one call."""
    a, b = left.meta["val"], right.meta["val"]
    is_large = min(a.shape[0], a.shape[1], b.shape[1]) >= _SMALLEST
    if not is_large or a.dtype != torch.float32:
        return
    if bias is not None and bias.meta["val"].dim() != 1:
        return
    with graph.inserting_before(node):
        product = graph.call_function(torch.ops.rlreg_iql.product.default, (left, right, bias))
        product.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(product)
    graph.erase_node(node)
