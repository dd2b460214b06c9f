"""Which library multiplies the matrices inside the compiled update.

torch on x86 calls MKL, which on AMD processors leaves their 512-bit units alone; oneDNN, which
torch carries too, uses them: about twice as fast for IQL's products there (docs/performance.md).
Which one is used depends on the processor alone, never on a measurement, so that a run and its
resumption on one machine round alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.ir import ExternKernel, FixedLayout, TensorBox
from torch._inductor.lowering import permute, register_lowering
from torch._inductor.mkldnn_ir import LinearUnary
from torch.fx import Graph, Node

_WIDE = 64  # sides from which a call of oneDNN costs less than it saves
_NARROW = 8
_aten = torch.ops.aten

# The compiler takes torch's own operator only for weights that never change, hence one of ours.
_library: Any = library.Library("rlreg_iql", "DEF")  # type: ignore[no-untyped-call]
_library.define(
    "product(Tensor left, Tensor right, Tensor? bias, str activation) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),  # else a transposed copy is laid out as it was
)


def _product(left: Tensor, right: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, activation, [], "")
    return result


def _shape_of_product(left: Tensor, right: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    del bias, activation
    return left.new_empty(left.shape[0], right.shape[1])


_library.impl("product", _product, "CPU")
_library.impl("product", _shape_of_product, "Meta")
_product_op = torch.ops.rlreg_iql.product.default


@register_lowering(_product_op, type_promotion_kind=None)
def _lower_product(left: Any, right: Any, bias: Any, activation: str) -> Any:
    """Has generated code call oneDNN itself: our operator is in Python, for one thread at a time.

    The compiler's own node for these calls insists on weights that are contiguous; oneDNN does not.
    """
    left = ExternKernel.require_contiguous(ExternKernel.realize_input(left))
    weight = ExternKernel.realize_input(permute(right, [1, 0]))
    inputs: list[Any] = [left, weight]
    constants: list[Any] = [activation, [-1], ""]
    if bias is None:
        constants.insert(0, None)
    else:
        inputs.append(ExternKernel.require_contiguous(ExternKernel.realize_input(bias)))
    size = [left.get_size()[0], weight.get_size()[0]]
    layout = FixedLayout(left.get_device(), left.get_dtype(), size)
    return TensorBox.create(LinearUnary(layout, inputs, constants))


class OneDNNProducts(CustomGraphPass):
    """Replaces the larger float32 products of a graph by calls of oneDNN."""

    def __call__(self, graph: Graph) -> None:
        """Rewrites the graph."""
        for node in list(graph.nodes):
            value = node.meta.get("val")  # some nodes have several results
            if node.op != "call_function" or getattr(value, "dtype", None) != torch.float32:
                continue
            with graph.inserting_before(node):
                if node.target is _aten.mm.default:
                    _replace_product(graph, node, *node.args)
                elif node.target is _aten.addmm.default and not node.kwargs:
                    _replace_linear(graph, node, *node.args)
        graph.lint()

    def uuid(self) -> object:
        """Names this pass in the key of the compiler's cache."""
        return get_hash_for_files((__file__,))


def _replace_linear(graph: Graph, node: Node, bias: Node, left: Node, right: Node) -> None:
    """Rewrites ``left @ right + bias``, with the relu that follows it if one does."""
    rows, inner, columns = *_shape(left), _shape(right)[1]
    if min(rows, columns) < _WIDE or inner < _NARROW or bias.meta["val"].dim() != 1:
        return
    users = list(node.users)
    activation = "none"
    if len(users) == 1 and users[0].target is _aten.relu.default:
        activation, node = "relu", users[0]
    _substitute(graph, node, _call(graph, _product_op, left, right, bias, activation))


def _replace_product(graph: Graph, node: Node, left: Node, right: Node) -> None:
    """Rewrites ``left @ right``: a gradient."""
    rows, inner, columns = *_shape(left), _shape(right)[1]
    if inner == 1:  # an outer product, which the compiler joins to what follows
        _substitute(graph, node, _call(graph, _aten.mul.Tensor, left, right))
    elif min(rows, columns) < _NARROW or max(rows, columns) < _WIDE or inner < _WIDE:
        return
    elif columns < _WIDE:  # the libraries are slow where rows of the result are short
        left, right = (_call(graph, _aten.permute.default, part, [1, 0]) for part in (right, left))
        product = _call(graph, _product_op, _contiguous(graph, left), right, None, "none")
        _substitute(graph, node, _call(graph, _aten.permute.default, product, [1, 0]))
    else:
        left = _contiguous(graph, left)
        _substitute(graph, node, _call(graph, _product_op, left, right, None, "none"))


def _contiguous(graph: Graph, node: Node) -> Node:
    """Has a transposed matrix written out by the compiler, beside what computes it."""
    if node.target is not _aten.permute.default:
        return node
    return _call(graph, _aten.clone.default, node, memory_format=torch.contiguous_format)


def _shape(node: Node) -> tuple[int, int]:
    rows, columns = node.meta["val"].shape
    return rows, columns


def _call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(target, args, kwargs)
    values = [part.meta["val"] if isinstance(part, Node) else part for part in args]
    node.meta["val"] = target(*values, **kwargs)
    return node


def _substitute(graph: Graph, node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)
