"""A policy network of fully connected layers, run by numpy.

On a few rows torch spends more time on dispatch than on arithmetic; numpy has a third of that. The
arrays share the memory of the network, so new weights are seen at once. What cannot be mirrored, or
comes out differently, is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from .actions import LOG_STD_RANGE, Floats
from .networks import PolicyHead, PolicyNetwork, RunningNormalizer

Step = Callable[[Floats], Floats]

# Above so many products NumPy's library takes all cores for a layer and mostly waits for them (ten
# times the time, measured at 128 rows of 64 x 64); torch keeps to the threads it was given.
_MOST_PRODUCTS = 2**18


def mirror(network: PolicyNetwork) -> Step | None:
    """Returns a function from observations ``[N, *O]`` to parameters ``[N, P]``, or ``None``."""
    on_cpu = all(tensor.device.type == "cpu" for tensor in network.state_dict().values())
    layers = _layers(network.encoder)
    if network.memory is not None or layers is None or not on_cpu:
        return None
    steps: list[Step] = []
    for layer in layers:
        step = _linear(layer) if isinstance(layer, nn.Linear) else _ACTIVATIONS.get(type(layer))
        if step is None:
            return None
        steps.append(step)
    steps.append(_linear(network.head.linear))
    if len(network.head.log_std):
        steps.append(_with_log_std(network.head))
    chain = _Chain(steps, network.normalizer)
    return chain if _agrees(chain, network) else None


class _Chain:
    def __init__(self, steps: list[Step], normalizer: RunningNormalizer | None) -> None:
        self._steps = steps
        self._normalize = _identity if normalizer is None else _normalization(normalizer)

    def __call__(self, observations: Floats) -> Floats:
        rows = self._normalize(observations)
        rows = rows.reshape(len(rows), -1)
        for step in self._steps:
            rows = step(rows)
        return rows


def _layers(encoder: nn.Module) -> list[nn.Module] | None:
    """Returns the layers of an encoder that is one Sequential, without those that do nothing.

    That ``forward`` does nothing else is found out by comparing results.
    """
    children = list(encoder.children())
    if not isinstance(encoder, nn.Sequential):
        if len(children) != 1 or not isinstance(children[0], nn.Sequential):
            return None
        children = list(children[0])
    kept = [layer for layer in children if not isinstance(layer, nn.Dropout | nn.Identity)]
    # An activation works in place, so a linear layer has to come first: observations are not ours.
    return kept if kept and isinstance(kept[0], nn.Linear) else None


def _linear(layer: nn.Linear) -> Step:
    weight = layer.weight.detach().numpy().T
    bias = None if layer.bias is None else layer.bias.detach().numpy()
    detached = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()

    def apply(inputs: Floats) -> Floats:
        if len(inputs) * weight.size > _MOST_PRODUCTS:
            by_torch: Floats = nn.functional.linear(torch.from_numpy(inputs), *detached).numpy()
            return by_torch
        outputs: Floats = inputs @ weight
        if bias is not None:
            outputs += bias
        return outputs

    return apply


def _normalization(normalizer: RunningNormalizer) -> Step:
    mean, variance = normalizer.mean.numpy(), normalizer.variance.numpy()
    clip = normalizer.clip

    def apply(inputs: Floats) -> Floats:
        scaled: Floats = ((inputs - mean) / np.sqrt(variance + np.float32(1e-8))).clip(-clip, clip)
        return scaled

    return apply


def _with_log_std(head: PolicyHead) -> Step:
    log_std = head.log_std.detach().numpy()
    layout = head.layout
    bounded = head.is_bounded.numpy().nonzero()[0]

    def apply(outputs: Floats) -> Floats:
        outputs[:, bounded] = np.tanh(outputs[:, bounded])
        deviations = log_std.clip(*LOG_STD_RANGE)
        blocks: list[Floats] = []
        column = start = 0
        for size, is_categorical in layout:
            blocks.append(outputs[:, column : column + size])
            column += size
            if not is_categorical:
                own = deviations[start : start + size]
                blocks.append(np.broadcast_to(own, (len(outputs), size)))
                start += size
        return np.concatenate(blocks, axis=1)

    return apply


def _identity(inputs: Floats) -> Floats:
    return inputs


def _tanh(inputs: Floats) -> Floats:
    return np.tanh(inputs, out=inputs)


def _relu(inputs: Floats) -> Floats:
    return np.maximum(inputs, 0, out=inputs)


_ACTIVATIONS: dict[type[nn.Module], Step] = {nn.Tanh: _tanh, nn.ReLU: _relu}


def _agrees(chain: Step, network: PolicyNetwork) -> bool:
    """Compares the mirror with the network on a few rows."""
    was_training = network.training
    input_size = next(m.in_features for m in network.modules() if isinstance(m, nn.Linear))
    network.eval()
    shape = (3, input_size) if network.normalizer is None else (3, *network.normalizer.mean.shape)
    rows = np.linspace(-1, 1, 3 * input_size, dtype=np.float32).reshape(shape)
    try:
        with torch.no_grad():
            wanted = network.step(torch.from_numpy(rows), torch.zeros(3, 0))[0].numpy()
        return bool(np.allclose(chain(rows), wanted, atol=1e-4, rtol=1e-4))
    except (RuntimeError, ValueError, TypeError):
        return False
    finally:
        network.train(was_training)
