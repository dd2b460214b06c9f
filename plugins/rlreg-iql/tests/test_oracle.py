"""Both update rules against a second writing of their formulas, in float64.

Nothing here calls our losses, networks or optimizers: forward passes are matrix products, gradients
come from autograd on the formulas, Adam is written out.
"""

import math

import numpy as np
import pytest
import torch

STEPS = 25
FLOOR, CEILING = -5.0, 2.0


class Adam:
    """Kingma and Ba 2015, algorithm 1, with the clipping that stands before it."""

    def __init__(self, rate, clip=None):
        self.rate, self.clip = rate, clip
        self.t, self.m, self.v = 0, {}, {}

    def step(self, parameters, loss, rate=None):
        names = list(parameters)
        gradients = torch.autograd.grad(loss, [parameters[name] for name in names])
        if self.clip is not None:
            norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
            gradients = [g * min(1.0, self.clip / (norm + 1e-6)) for g in gradients]
        self.t += 1
        for name, g in zip(names, gradients, strict=True):
            self.m[name] = 0.9 * self.m.get(name, 0.0) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, 0.0) + 0.001 * g**2
            m, v = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.999**self.t)
            change = (self.rate if rate is None else rate) * m / (v.sqrt() + 1e-8)
            parameters[name] = (parameters[name].detach() - change).requires_grad_()


def dense(x, p, prefix):
    h = torch.relu(x @ p[f"{prefix}0.weight"].T + p[f"{prefix}0.bias"])
    return torch.relu(h @ p[f"{prefix}2.weight"].T + p[f"{prefix}2.bias"])


class Oracle:
    """IQL by its formulas; parameters are plain tensors by name."""

    def __init__(self, learnable, config):
        self.c = config
        take = lambda module: {  # noqa: E731
            name: value.detach().clone().requires_grad_()
            for name, value in module.state_dict().items()
        }
        self.policy, self.value = take(learnable.policy), take(learnable.value)
        self.q, self.target = take(learnable.critics), take(learnable.target_critics)
        clip = config.critic_optim_factory.clip_grad_norm
        self.actor_adam = Adam(config.actor_learning_rate)
        self.critic_adam = Adam(config.critic_learning_rate, clip)
        self.value_adam = Adam(config.value_learning_rate or config.critic_learning_rate, clip)
        self.k = 0

    def V(self, s):
        p = self.value
        return (dense(s, p, "encoder.layers.") @ p["head.weight"].T + p["head.bias"])[:, 0]

    def Q(self, p, s, a):
        x, out = torch.cat([s, a], 1), []
        for e in range(self.c.n_critics):
            own = {name: value[e] for name, value in p.items()}
            out.append((dense(x, own, "encoder.") @ own["head.weight"].T + own["head.bias"])[:, 0])
        return torch.stack(out)

    def log_pi(self, s, a):
        p = self.policy
        h = dense(s, p, "encoder.layers.")
        mean = torch.tanh(h @ p["mean.weight"].T + p["mean.bias"])
        if self.c.actor_kind == "deterministic":
            return -((a - mean) ** 2).sum(1)
        if self.c.actor_kind == "normal_state_dependent":
            log_std = (h @ p["log_std.weight"].T + p["log_std.bias"]).clamp(FLOOR, CEILING)
        elif self.c.update_rule == "d3rlpy":
            log_std = FLOOR + (CEILING - FLOOR) / (1 + torch.exp(-p["log_std"]))
        else:
            log_std = p["log_std"].clamp(FLOOR, CEILING)
        var = torch.exp(2 * log_std)
        density = torch.exp(-((a - mean) ** 2) / (2 * var)) / torch.sqrt(2 * math.pi * var)
        return torch.log(density).sum(1)

    def v_loss(self, s, q_min):
        u = q_min - self.V(s)
        return (torch.abs(self.c.expectile - (u.detach() < 0).double()) * u**2).mean()

    def q_loss(self, b, a, next_v):
        y = b.rewards + self.c.gamma**b.intervals * (1 - b.terminations) * next_v
        return sum(((q - y) ** 2).mean() for q in self.Q(self.q, b.observations, a))

    def actor_step(self, s, a, q_min):
        with torch.no_grad():
            w = torch.exp(self.c.weight_temp * (q_min - self.V(s)))
            w = torch.minimum(w, torch.tensor(self.c.max_weight).double())
        loss = -(w * self.log_pi(s, a)).mean()
        total = 40
        rate = self.c.actor_learning_rate * 0.5 * (1 + math.cos(math.pi * self.k / total))
        self.actor_adam.step(self.policy, loss, rate)
        return float(loss.detach()), w

    def update(self, b):
        s, a = b.observations, b.actions
        if self.c.update_rule == "paper":
            a = a.clamp(-1 + 1e-5, 1 - 1e-5)
        q_min = self.Q(self.target, s, a).detach().min(0).values
        if self.c.update_rule == "d3rlpy":
            next_v = self.V(b.next_observations).detach()
            q_loss, v_loss = self.q_loss(b, a, next_v), self.v_loss(s, q_min)
            joint = {f"q.{n}": p for n, p in self.q.items()}
            joint |= {f"v.{n}": p for n, p in self.value.items()}
            self.critic_adam.step(joint, q_loss + v_loss)
            self.q = {n[2:]: p for n, p in joint.items() if n[:2] == "q."}
            self.value = {n[2:]: p for n, p in joint.items() if n[:2] == "v."}
            actor_loss, w = self.actor_step(s, a, q_min)
        else:
            v_loss = self.v_loss(s, q_min)
            self.value_adam.step(self.value, v_loss)
            actor_loss, w = self.actor_step(s, a, q_min)
            q_loss = self.q_loss(b, a, self.V(b.next_observations).detach())
            self.critic_adam.step(self.q, q_loss)
        tau = self.c.tau
        self.target = {n: (1 - tau) * t + tau * self.q[n] for n, t in self.target.items()}
        self.target = {n: t.detach() for n, t in self.target.items()}
        self.k += 1
        return {
            "q_loss": float(q_loss.detach()),
            "v_loss": float(v_loss.detach()),
            "actor_loss": actor_loss,
            "weight_at_max": float((w >= self.c.max_weight).double().mean()),
        }


CASES = {
    "d3rlpy": {"update_rule": "d3rlpy"},
    "d3rlpy_three_critics_clipped": {
        "update_rule": "d3rlpy",
        "n_critics": 3,
        "critic_optim_factory": {"type": "adam", "clip_grad_norm": 0.5},
    },
    "d3rlpy_deterministic": {"update_rule": "d3rlpy", "actor_kind": "deterministic"},
    "d3rlpy_state_dependent": {"update_rule": "d3rlpy", "actor_kind": "normal_state_dependent"},
    "paper": {"update_rule": "paper", "initialization": "orthogonal"},
    "paper_value_rate": {"update_rule": "paper", "value_learning_rate": 1e-2, "n_critics": 1},
    "paper_deterministic": {"update_rule": "paper", "actor_kind": "deterministic"},
    "paper_state_dependent": {"update_rule": "paper", "actor_kind": "normal_state_dependent"},
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_five_updates_equal_the_formulas(case, make_iql, make_batch, as_double):
    settings = {
        "expectile": 0.8,
        "weight_temp": 6.0,
        "max_weight": 1.5,
        "critic_learning_rate": 3e-3,
        "actor_learning_rate": 2e-3,
        "tau": 0.05,
        "actor_optim_factory": {
            "type": "adam",
            "lr_scheduler_factory": {"type": "cosine_annealing"},
        },
        **CASES[case],
    }
    learnable = make_iql(is_double=True, **settings)
    learnable.set_total_steps(40)
    oracle = Oracle(learnable, learnable.config)
    capped = 0.0
    for step in range(STEPS):
        raw = make_batch(learnable, seed=step, scale=3.0)
        raw["actions"][:3] = [[1.0, -1.0], [-1.0, 0.5], [1.3, -1.7]]  # on and beyond the bounds
        batch = as_double(raw)
        given, wanted = learnable.update(batch), oracle.update(batch)
        capped += wanted["weight_at_max"]
        for name in ("q_loss", "v_loss", "actor_loss"):
            assert float(given[name]) == pytest.approx(wanted[name], rel=1e-8), (step, name)
        assert float(given["diagnostics/weight_at_max"]) == pytest.approx(wanted["weight_at_max"])
        assert float(given["critic_loss"]) == pytest.approx(wanted["q_loss"] + wanted["v_loss"])
    assert capped > 0  # the cap was reached, so it was compared too
    pairs = (
        (learnable.policy, oracle.policy),
        (learnable.value, oracle.value),
        (learnable.critics, oracle.q),
        (learnable.target_critics, oracle.target),
    )
    for module, expected in pairs:
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(value, expected[name].detach(), rtol=1e-7, atol=1e-9)


def test_the_rules_differ_after_one_update(make_iql, make_batch):
    losses = {}
    for rule in ("d3rlpy", "paper"):
        learnable = make_iql(update_rule=rule, critic_learning_rate=1e-2)
        losses[rule] = learnable.update(make_batch(learnable))
    assert losses["d3rlpy"]["v_loss"] == pytest.approx(losses["paper"]["v_loss"], rel=1e-4)
    assert losses["d3rlpy"]["q_loss"] != pytest.approx(losses["paper"]["q_loss"], rel=1e-4)
