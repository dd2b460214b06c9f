"""Tables and pictures of benchmarks/results/evidence_pointmaze.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from svg_panels import Panel, curve, picture

from rlreg.runtime.report.curves import Curve

LOSSES = {
    "q_loss": "loss of the critics",
    "v_loss": "loss of the value",
    "actor_loss": "loss of the policy",
}
BESIDE = ("as-d3rlpy", "d3rlpy-aligned", "d3rlpy-tuned", "d3rlpy-get_minari", "bc", "bc10")
"""What stands beside the preset."""

PAIRS = {"d3rlpy": ("as-d3rlpy", "d3rlpy-aligned"), "jax": ("as-paper", "jax")}
NOT_RUN = "Not run yet."
BLOCKS = (
    "pointmaze-umaze", "pointmaze-data", "pointmaze-sweep", "same-d3rlpy",
    "same-jax", "finetuning", "pointmaze-medium", "pointmaze-long-umaze",
    "pointmaze-long-medium", "pointmaze-long-large",
)  # fmt: skip


class Results:
    """The results file, with what is looked up in it.

    Args:
        document: What the file holds.
        length: Which runs of it: ``runs``, or ``half_hour_runs``.
    """

    def __init__(self, document: dict[str, Any], length: str = "runs") -> None:
        self.document, self._length = document, length
        self.chosen: str = document["settings"]["chosen"]
        self.labels = {
            self.chosen: "rlreg, preset `iql/pointmaze`",
            "as-d3rlpy": "rlreg, d3rlpy's defaults",
            "d3rlpy-aligned": "d3rlpy, fed rlreg's transitions",
            "d3rlpy-tuned": "d3rlpy, fed them too, with the preset's settings",
            "d3rlpy-get_minari": "d3rlpy through `get_minari`",
            "bc": "behaviour cloning",
            "bc10": "behaviour cloning, best 10 % of the episodes",
            "as-paper": "rlreg, `update_rule: paper`",
            "jax": "JAX, the paper's order",
        }

    def runs(self, maze: str, group: str) -> list[dict[str, Any]]:
        """The seeds of a group."""
        found = self.document.get(self._length, ())
        return [r for r in found if (r["maze"], r["group"]) == (maze, group)]

    def levels(self, maze: str) -> list[tuple[str, float]]:
        """Returns of the controller and of random play."""
        known = self.document["references"][maze]
        return [("controller", known["controller"]), ("random", known["random"])]

    def returns(self, maze: str, group: str, index: int) -> list[Curve]:
        """The curve of a group, if it ran."""
        runs = self.runs(maze, group)
        points = [[(float(x), float(y)) for x, y in run["curve"]] for run in runs]
        return [curve(self.plain(group), index, points)] if runs else []

    def losses(self, maze: str, group: str, name: str, index: int) -> list[Curve]:
        """The same of a loss."""
        points = [
            [
                ((place + 1.0) * run["losses"]["every"], float(value))
                for place, value in enumerate(run["losses"][name])
            ]
            for run in self.runs(maze, group)
        ]
        return [curve(self.plain(group), index, points)] if points else []

    def plain(self, group: str) -> str:
        """A label without Markdown."""
        return self.labels[group].replace("`", "")


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page and pictures by name; a block begins with its picture."""
    results = Results(document)
    blocks = {"pointmaze-data": data_table(results), "pointmaze-sweep": sweep_table(results)}
    pictures: dict[str, str] = {}

    def add(name: str, description: str, drawn: str, text: str) -> None:
        blocks[name] = text or NOT_RUN
        if drawn and text:
            pictures[name] = drawn
            blocks[name] = f"![{description}](pictures/{name}.svg)\n\n{text}"

    for maze in ("umaze", "medium"):
        name = f"pointmaze-{maze}"
        description = f"Return against updates on {maze}, by program"
        text = score_table(results, maze)
        add(name, description, score_picture(results, maze), text)
    longer = Results(document, "half_hour_runs")
    for maze in ("umaze", "medium"):
        description = f"Return against updates on {maze}, by program, four times as long"
        add(f"pointmaze-long-{maze}", description, score_picture(longer, maze),
            half_hour_table(results, longer, maze))  # fmt: skip
    description = "Return against updates on large, by program"
    add("pointmaze-long-large", description, score_picture(longer, "large"),
        score_table(longer, "large"))  # fmt: skip
    for peer, pair in PAIRS.items():
        description = f"Return and losses against updates: {' and '.join(map(results.plain, pair))}"
        add(f"same-{peer}", description, same_picture(results, pair), same_table(results, pair))
    description = "Return against steps in the environment"
    add("finetuning", description, finetuning_picture(results), finetuning_table(results))
    return blocks, pictures


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean over seeds, and the lowest and highest of them."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def significant(values: Sequence[float]) -> str:
    """The same with four digits, whatever the scale."""
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:.4g}" if len(values) == 1 else f"{mean:.4g} ({low:.4g} to {high:.4g})"


def data_table(results: Results) -> str:
    rows = []
    for data in results.document["data"].values():
        rows.append(
            [f"`{data['id']}`", f"{data['transitions']:,}", f"{data['episodes']:,}",
             f"{data['sum_of_rewards']:,.0f}", f"`{data['content_hash'][:16]}`"]
        )  # fmt: skip
    return table(["data set", "steps", "episodes", "sum of rewards", "content hash"], rows)


def score_table(results: Results, maze: str) -> str:
    rows = []
    for group in (results.chosen, *BESIDE):
        runs = results.runs(maze, group)
        if runs:
            rewards = {run["rewards_seen"] for run in runs if "rewards_seen" in run}
            rows.append(
                [results.labels[group], str(len(runs)), spread([run["return"] for run in runs]),
                 spread([run["score"] for run in runs]),
                 f"{100 * sum(run['success_rate'] for run in runs) / len(runs):.0f} %",
                 f"{rewards.pop():,.0f}" if len(rewards) == 1 else ""]
            )  # fmt: skip
    if not rows:
        return ""
    known = results.document["references"][maze]
    controller = "the controller that made the data, without noise"
    rows.append([controller, "", f"{known['controller']:.1f}", "100", "", ""])
    rows.append(["random play", "", f"{known['random']:.1f}", "0", "", ""])
    head = ["", "seeds", "return (lowest to highest seed)", "normalised score",
            "reach the goal", "sum of rewards it was shown"]  # fmt: skip
    return table(head, rows)


def half_hour_table(results: Results, longer: Results, maze: str) -> str:
    """Normalised scores on a maze after the usual and the long runs."""
    settings, rows = results.document["settings"], []
    for group in (results.chosen, *BESIDE):
        both = [own.runs(maze, group) for own in (results, longer)]
        if all(both):
            scores = [spread([run["score"] for run in runs]) for runs in both]
            success = sum(run["success_rate"] for run in both[1]) / len(both[1])
            rate = sum(run["updates"] / run["cpu_s"] for run in both[1]) / len(both[1])
            rows.append(
                [results.labels[group], str(len(both[1])), *scores,
                 f"{100 * success:.0f} %", f"{rate:.0f}"]
            )  # fmt: skip
    if not rows:
        return ""
    lengths = [settings["updates"], settings["half_hour_updates"]]
    heads = [f"score after {length:,} updates" for length in lengths]
    last = "updates a second of a core, judging included"
    return table(["", "seeds of the long runs", *heads, "then reach the goal", last], rows)


def score_picture(results: Results, maze: str) -> str:
    groups = (results.chosen, *BESIDE[:-1])  # there are six colours
    curves = [
        found for index, group in enumerate(groups) for found in results.returns(maze, group, index)
    ]
    if not curves:
        return ""
    panel = Panel(f"return on {maze}", curves, levels=results.levels(maze))
    return picture([panel], {found.index: found.group for found in curves})


def sweep_table(results: Results) -> str:
    """What seed 0 reaches with each of the candidates for the preset, maze by maze."""
    rows = []
    for group, settings in results.document["settings"]["candidates"].items():
        scores = [first_score(results, maze, group) for maze in ("umaze", "medium")]
        if any(scores):
            shift = (settings["reward_scaler"] or {"shift": 0})["shift"]
            rows.append(
                [f"{settings['expectile']}", f"{settings['weight_temp']}", f"{shift:g}", *scores,
                 "the preset" if group == results.chosen else ""]
            )  # fmt: skip
    if not rows:
        return NOT_RUN
    head = ["expectile", "weight_temp", "added to rewards", "umaze", "medium", ""]
    return table(head, rows)


def first_score(results: Results, maze: str, group: str) -> str:
    """The normalised score of seed 0; empty where it has not run."""
    scores = [run["score"] for run in results.runs(maze, group) if run["seed"] == 0]
    return f"{scores[0]:.1f}" if scores else ""


# --- two programs, one algorithm ----------------------------------------------------------------


def agreement(first: Curve, second: Curve) -> tuple[int, int, int]:
    """Points where the intervals meet, where each middle is in the other one, and all points."""
    meet = inside = 0
    if not (first.interval and second.interval):
        return 0, 0, 0
    rows = zip(first.interval, second.interval, first.middle, second.middle, strict=True)
    for (_, low, high), (_, other_low, other_high), (_, own), (_, other) in rows:
        meet += low <= other_high and other_low <= high
        inside += other_low <= own <= other_high and low <= other <= high
    return meet, inside, len(first.interval)


def same_table(results: Results, pair: tuple[str, str]) -> str:
    rows = []
    for name in ("return", *LOSSES):
        both = []
        for index, group in enumerate(pair):
            if name == "return":
                both += results.returns("umaze", group, index)
            else:
                both += results.losses("umaze", group, name, index)
        if len(both) < 2:
            continue
        meet, inside, count = agreement(*both)
        last = [significant([points[-1][1] for points in c.runs]) for c in both]
        shares = [f"{meet} of {count}", f"{inside} of {count}"] if count else ["one seed"] * 2
        rows.append([LOSSES.get(name, name), *last, *shares])
    if not rows:
        return ""
    heads = [
        f"{results.labels[group]}, seeds: {len(results.runs('umaze', group))}" for group in pair
    ]
    return table(
        ["last point of", *heads, "intervals meet", "each mean in the other's interval"], rows
    )


def same_picture(results: Results, pair: tuple[str, str]) -> str:
    panels = []
    curves = [c for i, group in enumerate(pair) for c in results.returns("umaze", group, i)]
    if curves:
        panels.append(Panel("return", curves, levels=results.levels("umaze")))
    for name, title in LOSSES.items():
        own = [c for i, group in enumerate(pair) for c in results.losses("umaze", group, name, i)]
        if own:
            panels.append(Panel(title, own))
    return picture(panels, {c.index: c.group for c in curves}, columns=2) if panels else ""


# --- offline to online --------------------------------------------------------------------------


def finetuning_table(results: Results) -> str:
    rows = []
    for run in results.runs("umaze", "finetuning"):
        offline = [r for r in results.runs("umaze", results.chosen) if r["seed"] == run["seed"]]
        before = offline[0]
        gain = run["return"] - before["return"]
        rows.append(
            [str(run["seed"]), f"{before['return']:.1f}", f"{run['return']:.1f}", f"{gain:+.1f}",
             f"{before['score']:.1f}", f"{run['score']:.1f}"]
        )  # fmt: skip
    if not rows:
        return ""
    head = ["seed", "return before", "after", "change", "normalised score before", "after"]
    return table(head, rows)


def finetuning_picture(results: Results) -> str:
    results.labels["finetuning"] = "fine-tuned in the environment"
    curves = results.returns("umaze", "finetuning", 0)
    if not curves:
        return ""
    panel = Panel("return on umaze", curves, "steps in the environment", results.levels("umaze"))
    return picture([panel], {0: curves[0].group})
