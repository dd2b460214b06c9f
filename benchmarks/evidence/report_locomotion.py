"""Tables and pictures of benchmarks/results/evidence_locomotion.json."""

from __future__ import annotations

from typing import Any

from report_pointmaze import NOT_RUN, spread, table
from svg_panels import Panel, curve, picture

PROGRAMS = {
    "iql": "IQL, preset iql/locomotion",
    "bc": "behaviour cloning",
    "bc10": "cloning, best 10 % of the episodes",
}
TASKS = ("bullet-hopper", "bullet-ant", "hopper", "halfcheetah")
BLOCKS = ("locomotion", "locomotion-long", "locomotion-data", "locomotion-sac")


def render(document: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns blocks of the page and pictures by name; a block begins with its picture."""
    longer = {**document, "runs": document.get("long_runs", [])}
    drawn = {
        "locomotion": ("Return against updates, data set by data set", returns_picture(document)),
        "locomotion-long": (
            "Return against updates on HalfCheetah, several times as long",
            returns_picture(longer),
        ),
        "locomotion-sac": ("Return of SAC against training steps", sac_picture(document)),
    }
    blocks = {
        "locomotion": returns_table(document),
        "locomotion-long": long_table(document, longer),
        "locomotion-data": data_table(document),
        "locomotion-sac": sac_table(document),
    }
    pictures = {name: svg for name, (_, svg) in drawn.items() if svg}
    for name in pictures:
        blocks[name] = f"![{drawn[name][0]}](pictures/{name}.svg)\n\n{blocks[name]}"
    return blocks, pictures


def name_of(data: dict[str, Any]) -> tuple[str, str]:
    """Task and kind of a data set, of `rlreg/hopper/medium-v0`."""
    _, task, kind = data["id"].split("/")
    return task, kind.removesuffix("-v0")


def ordered(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The data sets, in the order of the page."""
    return sorted(document["data"], key=lambda data: (TASKS.index(name_of(data)[0]), data["id"]))


def by_task(trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(trainings, key=lambda own: (TASKS.index(own["task"]), own["seed"]))


def runs_of(document: dict[str, Any], data: dict[str, Any], program: str) -> list[dict[str, Any]]:
    """The seeds of a program on a data set."""
    wanted = (*name_of(data), program)
    return [r for r in document["runs"] if (r["task"], r["data"], r["program"]) == wanted]


def returns_table(document: dict[str, Any]) -> str:
    rows = []
    for data in ordered(document):
        found = {name: runs_of(document, data, name) for name in PROGRAMS}
        if not any(found.values()):
            continue
        returns = {name: [run["return"] for run in runs] for name, runs in found.items()}
        iql = returns["iql"]
        rows.append(
            [f"`{data['id']}`", " / ".join(str(len(runs)) for runs in found.values()),
             *(spread(values, 0) if values else "" for values in returns.values()),
             f"{data['mean_return']:.0f}", f"{data['best_return']:.0f}", f"{data['policy']:.0f}",
             f"{data['random']:.0f}",
             f"{100 * sum(iql) / len(iql) / data['policy']:.0f} %" if iql else ""]
        )  # fmt: skip
    if not rows:
        return NOT_RUN
    head = [
        "data set", "seeds", "IQL", "cloning", "10 % cloning", "episodes of the data, mean", "best",
        "its best policy, without noise", "random play", "IQL, share of that policy's",
    ]  # fmt: skip
    return table(head, rows)


def long_table(document: dict[str, Any], longer: dict[str, Any]) -> str:
    """Returns after the usual and after the long runs, of what has both."""
    settings, rows = document["settings"], []
    for data in ordered(document):
        for program, label in PROGRAMS.items():
            both = [runs_of(own, data, program) for own in (document, longer)]
            if all(both):
                lengths = [settings[key][program] for key in ("updates", "long_updates")]
                returns = [
                    f"{spread([run['return'] for run in runs], 0)} at {length:,}"
                    for runs, length in zip(both, lengths, strict=True)
                ]
                rows.append(
                    [f"`{data['id']}`", label, str(len(both[1])),
                     *returns, f"{data['policy']:.0f}", f"{data['best_return']:.0f}"]
                )  # fmt: skip
    head = [
        "data set", "", "seeds of the long runs", "return, at so many updates", "return, long run",
        "its best policy, without noise", "best episode of the data",
    ]  # fmt: skip
    return table(head, rows) if rows else NOT_RUN


def returns_picture(document: dict[str, Any]) -> str:
    panels, names = [], {}
    for data in ordered(document):
        curves = []
        for index, (program, label) in enumerate(PROGRAMS.items()):
            if runs := runs_of(document, data, program):
                points = [[(float(x), float(y)) for x, y in run["curve"]] for run in runs]
                curves.append(curve(label, index, points))
                names[index] = label
        if curves:
            levels = [("data's mean", data["mean_return"]), ("its policy", data["policy"])]
            panels.append(Panel(" ".join(name_of(data)), curves, levels=levels))
    return picture(panels, dict(sorted(names.items())), columns=2) if panels else ""


def data_table(document: dict[str, Any]) -> str:
    rows = [
        [f"`{data['id']}`", f"{data['transitions']:,}", f"{data['episodes']:,}",
         f"{data['terminations']:,}", f"{data['mean_return']:.0f}", f"{data['best_return']:.0f}",
         f"`{data['content_hash'][:16]}`"]
        for data in ordered(document)
    ]  # fmt: skip
    head = ["data set", "steps", "episodes", "terminated", "mean return", "best", "content hash"]
    return table(head, rows) if rows else NOT_RUN


def sac_table(document: dict[str, Any]) -> str:
    rows = []
    for run in by_task(document["sac"]):
        (steps, last), (best_at, best) = run["curve"][-1], max(run["curve"], key=lambda p: p[1])
        rows.append(
            [run["task"], str(run["seed"]), f"{steps:,}", f"{last:.0f}", f"{best:.0f}",
             f"{best_at:,}"]
        )  # fmt: skip
    head = ["task", "seed", "training steps", "last return", "best", "after steps"]
    return table(head, rows) if rows else NOT_RUN


def sac_picture(document: dict[str, Any]) -> str:
    panels = []
    for run in by_task(document["sac"]):
        points = [(float(x), float(y)) for x, y in run["curve"]]
        if len(points) > 2:  # two are no curve
            line = curve("SAC of stable-baselines3", 0, [points])
            panels.append(Panel(f"return on {run['task']}", [line], "training steps"))
    return picture(panels, {0: "SAC of stable-baselines3"}, columns=2) if panels else ""
