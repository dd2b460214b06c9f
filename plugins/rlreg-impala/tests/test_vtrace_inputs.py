"""What V-trace refuses: each input that would give wrong numbers is named in one line."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from rlreg.errors import ConfigError, RlregError, ShapeError
from rlreg_impala.vtrace import from_distributions, from_importance_weights, from_logits, vtrace

T, B = 4, 3
NAN = float("nan")
NAMES = ("log_rhos", "discounts", "rewards", "values", "bootstrap_value")


def numbers():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, T, B, generator=generator)
    return {**dict(zip(NAMES, rows, strict=False)), "bootstrap_value": torch.zeros(B)}


def logit_arguments(**changes):
    given = numbers()
    del given["log_rhos"]
    return {
        "behaviour_logits": torch.zeros(T, B, 5),
        "target_logits": torch.ones(T, B, 5),
        "actions": torch.zeros(T, B, dtype=torch.int64),
        **given,
        **changes,
    }


@pytest.mark.parametrize(
    "given", [None, "1", object(), [[1, 2], [3]]], ids=["none", "text", "object", "ragged"]
)
@pytest.mark.parametrize("name", NAMES)
def test_what_holds_no_numbers_is_named(name, given):
    with pytest.raises(ConfigError, match=f"^{name} = .*expected a tensor or an array"):
        from_importance_weights(**{**numbers(), name: given})


@pytest.mark.parametrize("make", [torch.Tensor.numpy, torch.Tensor.tolist], ids=["numpy", "list"])
@pytest.mark.parametrize("name", NAMES)
def test_complex_numbers_are_refused_and_arrays_taken(name, make):
    inputs = numbers()
    wanted = from_importance_weights(**inputs)
    found = from_importance_weights(**{**inputs, name: make(inputs[name])})
    torch.testing.assert_close(found.vs, wanted.vs, check_dtype=False)
    with pytest.raises(ConfigError, match=f"^{name} = .*real numbers"):
        from_importance_weights(**{**inputs, name: inputs[name] * (0.1 + 5j)})
    with pytest.raises(ConfigError, match=f"^{name} = .*real numbers"):
        from_importance_weights(**{**inputs, name: inputs[name].numpy() * 5j})


@pytest.mark.parametrize("given", [NAN, -1.0, 2, "1", None, True, torch.tensor(1.5)], ids=repr)
def test_lambda_is_a_number_between_0_and_1(given):
    with pytest.raises(ConfigError, match=r"^lambda_ = .*expected a number in \[0, 1\]"):
        vtrace(**numbers(), rho_clip=1.0, pg_rho_clip=1.0, lambda_=given)


@pytest.mark.parametrize("given", [1, np.float32(1), torch.tensor(1.0)], ids=["int", "numpy", "0d"])
def test_lambda_and_thresholds_may_be_of_any_type_of_number(given):
    plain = vtrace(**numbers(), rho_clip=1.0, pg_rho_clip=1.0)
    found = vtrace(**numbers(), rho_clip=given, pg_rho_clip=given, lambda_=given)
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("given", ["1", [1.0], False, 1j], ids=repr)
def test_a_threshold_is_a_number(given):
    with pytest.raises(ConfigError, match=r"^clip_pg_rho_threshold = .*expected a number >= 0"):
        from_importance_weights(**numbers(), clip_pg_rho_threshold=given)


@pytest.mark.parametrize("name", ["mask", "truncations"])
@pytest.mark.parametrize("value", [0.5, NAN, -1.0], ids=repr)
def test_flags_are_no_other_numbers(name, value):
    ends = {"next_values": torch.zeros(T, B)} if name == "truncations" else {}
    flags = {name: torch.full((T, B), value)}
    with pytest.raises(ConfigError, match=f"^{name} = .*expected bool, or numbers 0 and 1"):
        vtrace(**numbers(), rho_clip=1.0, pg_rho_clip=1.0, **flags, **ends)
    if name == "mask":
        with pytest.raises(ConfigError, match=r"^mask = .*expected bool, or numbers 0 and 1"):
            from_logits(**logit_arguments(), **flags)


def test_integers_are_flags():
    clips = {"rho_clip": 1.0, "pg_rho_clip": 1.0}
    mask = torch.arange(T * B).view(T, B) % 2
    torch.testing.assert_close(
        vtrace(**numbers(), **clips, mask=mask), vtrace(**numbers(), **clips, mask=mask.bool())
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"behaviour_logits": torch.zeros(T, B, 4)}, r"target_logits: expected \[4\] .* got \[5\]"),
        (
            {"behaviour_logits": torch.zeros(T + 1, B, 5)},
            r"behaviour_logits: expected shape \[4, 3, K\]",
        ),
        ({"target_logits": torch.zeros(T + 1, B, 5)}, r"target_logits: expected shape \[4, 3, K\]"),
        ({"target_logits": [torch.zeros(T, B, 5)] * 2}, r"target_logits: expected \[5\]"),
        (
            {"actions": torch.zeros(T + 1, B, dtype=torch.int64)},
            r"actions: expected shape \[4, 3\]",
        ),
        ({"target_logits": torch.zeros(B, 5)}, r"target_logits: expected"),
    ],
    ids=["other_k", "longer_behaviour", "longer_target", "other_heads", "longer_actions", "rank"],
)
def test_shapes_blame_the_input_that_differs(changes, named):
    with pytest.raises(ShapeError, match=f"^{named}"):
        from_logits(**logit_arguments(**changes))


@pytest.mark.parametrize("name", ["behaviour_logits", "target_logits", "actions", "values"])
@pytest.mark.parametrize("given", [None, "1", object()], ids=["none", "text", "object"])
def test_what_holds_no_logits_is_named(name, given):
    with pytest.raises(ConfigError, match=f"^{name} = .*expected a tensor or an array"):
        from_logits(**logit_arguments(**{name: given}))


@pytest.mark.parametrize("category", [5, -1])
def test_a_category_outside_the_policy_is_named(category):
    actions = torch.zeros(T, B, dtype=torch.int64)
    actions[1, 1] = category
    with pytest.raises(ConfigError, match=r"^actions = .*expected categories from 0 to 4"):
        from_logits(**logit_arguments(actions=actions))


def test_fractions_are_no_categories():
    with pytest.raises(ConfigError, match=r"^actions = .*expected categories of an integer type"):
        from_logits(**logit_arguments(actions=torch.full((T, B), 1.5)))


@pytest.mark.parametrize("nvec", [[0, 5], [-1, 6], [2.5, 2.5], ["2", 3], [True, 4]], ids=repr)
def test_heads_have_actions(nvec):
    actions = torch.zeros(T, B, 2, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"^nvec = .*at least 1"):
        from_logits(**logit_arguments(actions=actions), nvec=nvec)


@pytest.mark.parametrize("nvec", [5, "23", torch.tensor(5), {2, 3}, None.__class__], ids=repr)
def test_numbers_of_actions_are_a_sequence(nvec):
    actions = torch.zeros(T, B, 2, dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"^nvec = .*expected the number of actions of each head"):
        from_logits(**logit_arguments(actions=actions), nvec=nvec)


def test_arrays_give_what_tensors_give():
    given = logit_arguments()
    wanted = from_logits(**given)
    found = from_logits(**{name: tensor.numpy() for name, tensor in given.items()})
    torch.testing.assert_close(found, wanted)
    split = logit_arguments(actions=torch.ones(T, B, 2, dtype=torch.int64))
    both = from_logits(**split, nvec=[2, 3])
    arrays = {name: tensor.numpy() for name, tensor in split.items()}
    torch.testing.assert_close(from_logits(**arrays, nvec=np.array([2, 3])), both)


@pytest.mark.parametrize("given", [None, "policy", 3], ids=repr)
def test_what_is_no_policy_is_named(given):
    rest = list(numbers().values())[1:]
    policy = Normal(torch.zeros(T, B), 1.0)
    with pytest.raises(ConfigError, match=r"^behaviour = .*expected a distribution"):
        from_distributions(given, policy, torch.zeros(T, B), *rest)
    with pytest.raises(RlregError, match=r"^actions"):
        from_distributions(policy, policy, given, *rest)


def test_one_number_is_no_action_of_several_parts():
    rest = list(numbers().values())[1:]
    policies = [Normal(torch.zeros(T, B), 1.0)] * 2
    with pytest.raises(ShapeError, match="actions: expected 2 parts"):
        from_distributions(policies, policies, torch.tensor(1.0), *rest)


def test_flags_may_be_floats_of_0_and_1():
    mask = torch.tensor([[1.0, 0.0] * (B // 2) + [1.0] * (B % 2)] * T)
    common = {**numbers(), "rho_clip": 1.0, "pg_rho_clip": 1.0}
    torch.testing.assert_close(vtrace(**common, mask=mask), vtrace(**common, mask=mask.bool()))
