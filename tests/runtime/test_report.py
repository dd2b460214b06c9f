"""A report shows what was logged, holds all it shows, and says what it cannot show."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import rlreg
from rlreg.cli.main import run as run_command
from rlreg.errors import RunError
from rlreg.files import commented_yaml, load_run
from rlreg.identity import config_hash
from rlreg.runtime.report import write_report
from rlreg.runtime.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, number, ticks
from rlreg.runtime.report.curves import shared_steps
from rlreg.runtime.report.runs import read_groups
from rlreg.runtime.seeds import statistics_of

SETTINGS = [
    "train.n_steps=60", "train.n_steps_per_epoch=20", "evaluation.n_episodes=1",
    "evaluation.every=20", "logging=[{type: jsonl}, {type: tensorboard}]",
]  # fmt: skip


RUNS = {"seeds-a/seed-0": "seed=0", "seeds-a/seed-1": "seed=1", "other": "learning_rate=0.05"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def runs(tiny, minari_root, store, tmp_path, monkeypatch):
    """Two seeds of one experiment and one run of another, trained once and copied."""
    monkeypatch.chdir(tmp_path)
    for name, override in RUNS.items():
        if not (store / name).exists():
            overrides = [*SETTINGS, override]
            rlreg.train("tiny_bc", out=store / name, overrides=overrides, show_progress=False)
    for name in RUNS:
        shutil.copytree(store / name, tmp_path / name)
    return [tmp_path / name for name in RUNS]


class Page(HTMLParser):
    """The charts and the addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.charts, self.addresses, self.tags = {}, [], []
        self._lines = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [found[key] for key in ("src", "href", "srcset") if key in found]
        if tag == "svg" and "data-metric" in found:
            self._frame = [
                [float(part) for part in found[key].split()] for key in ("data-x", "data-y")
            ]
            self._lines = self.charts[found["data-metric"]] = []
        if tag == "polyline" and "seed" in found["class"]:
            self._lines.append(("seed", self._data(found["points"])))
        elif tag == "polyline" and "middle" in found["class"] and hasattr(self, "_frame"):
            self._lines.append(("middle", self._data(found["points"])))
        elif tag == "polygon":
            self._lines.append(("band", self._data(found["points"])))

    def _data(self, points):
        """Turns places on the drawing back into numbers."""
        (x0, x1), (y0, y1) = self._frame
        places = [tuple(map(float, point.split(","))) for point in points.split()]
        return [
            (
                x0 + (x - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0),
                y0 + (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM) * (y1 - y0),
            )
            for x, y in places
        ]


def logged(folder, metric):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]


def close(drawn, wanted, metric_range):
    np.testing.assert_allclose(
        [x for x, _ in drawn], [x for x, _ in wanted], atol=0.01 * (60 - 0) / 3
    )
    np.testing.assert_allclose(
        [y for _, y in drawn], [y for _, y in wanted], atol=1e-3 * metric_range
    )


def test_the_curves_are_what_was_logged(runs, tmp_path):
    out = write_report(runs, tmp_path / "r.html", animations=False, data=False)
    page = Page(out.read_text())
    metrics = ["evaluation/mean_return", *(m for m in page.charts if m.startswith("loss/"))]
    assert len(metrics) >= 2
    for metric in metrics:
        values = [logged(folder, metric) for folder in runs]
        spread = np.ptp([y for points in values for _, y in points])
        lines = page.charts[metric]
        seeds = [points for kind, points in lines if kind == "seed"]
        middles = [points for kind, points in lines if kind == "middle"]
        (band,) = [points for kind, points in lines if kind == "band"]
        close(seeds[0], values[0], spread)
        close(seeds[1], values[1], spread)
        close(middles[1], values[2], spread)
        both = list(zip(*values[:2], strict=True))
        figures = [statistics_of([a[1], b[1]]) for a, b in both]
        steps = [a[0] for a, _ in both]
        middle = [f["interquartile_mean"] for f in figures]
        close(middles[0], list(zip(steps, middle, strict=True)), spread)
        upper = [(step, f["interval"][1]) for step, f in zip(steps, figures, strict=True)]
        lower = [(step, f["interval"][0]) for step, f in zip(steps, figures, strict=True)]
        close(band, upper + lower[::-1], spread)


def test_the_page_loads_nothing_and_has_every_part(runs, tmp_path):
    text = write_report(runs, tmp_path / "r.html").read_text()
    page = Page(text)
    assert all(address.startswith("data:image/") for address in page.addresses)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "https://" not in text.replace("http://www.w3.org", "")
    for wanted in (
        "interquartile mean of 2 seeds", "Settings in which the runs differ",
        "learnable.learning_rate", "0.05", "sum of rewards", "local/tiny_bc",
        "seeds-a", "other", "to compare with seeds-a and other",
    ):  # fmt: skip
        assert wanted in text, wanted
    for name in ("random", "behaviour"):
        row = re.search(rf'<tr class="baseline"><th scope="row">{name}</th>(.*?)</tr>', text)
        figures = json.loads((runs[0] / "summary.json").read_text())["baselines"][name]
        assert f"<td>{number(figures['mean_return'])}</td>" in row[1]
    assert rlreg.config_hash(runs[2]) in text


def test_the_policy_is_seen_at_work(runs, tmp_path):
    pytest.importorskip("PIL")
    pytest.importorskip("pygame")
    from PIL import Image

    text = write_report(runs[2:], tmp_path / "r.html", data=False).read_text()
    assert "one episode in Pendulum-v1 from seed 10000, 200 steps" in text
    moving = re.search(r"data:image/gif;base64,([A-Za-z0-9+/=]+)", text)[1]
    import base64
    import io

    with Image.open(io.BytesIO(base64.b64decode(moving))) as picture:
        assert picture.n_frames > 50
        assert picture.size == (240, 240)
    assert len(text) < 2_000_000


@pytest.mark.parametrize(
    ("module", "reason"), [("PIL", "it needs Pillow: "), ("pygame", "pygame is not installed")]
)
def test_what_cannot_be_seen_is_said(runs, tmp_path, monkeypatch, module, reason):
    monkeypatch.setitem(sys.modules, module, None)
    text = write_report(runs[2:], tmp_path / "r.html", data=False).read_text()
    (said,) = re.findall(r"No animation: [^<]*", text)
    assert reason in said
    assert "pip install 'rlreg[report]'" in html.unescape(said)


def test_a_data_set_that_is_gone_is_said(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "nothing"))
    text = write_report(runs[2:], tmp_path / "r.html", animations=False).read_text()
    assert "Not looked at: " in text


def test_one_run_is_compared_with_the_defaults(runs, tmp_path):
    text = write_report(runs[2:], tmp_path / "r.html", animations=False, data=False).read_text()
    assert "Settings that are no defaults" in text
    assert "train.n_steps_per_epoch" in text


def test_the_folder_of_a_run_means_what_its_file_says(runs, tmp_path, capsys):
    """The file leaves open what the folder states: name, data set, start, whether to compile."""
    run = load_run("tiny_bc", overrides=[*SETTINGS, RUNS["other"], "device=cpu"])
    (tmp_path / "other.yaml").write_text(commented_yaml(run))
    assert run.name is None
    assert load_run(tmp_path / "other").name == "tiny_bc"
    assert config_hash(tmp_path / "other.yaml") == config_hash(tmp_path / "other")
    assert run_command(["diff", "other.yaml", "other", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert changes == [{"path": "device", "a": "cpu", "b": "auto"}]
    assert config_hash(tmp_path / "other") != config_hash(tmp_path / "seeds-a/seed-0")


def test_seeds_belong_together_and_experiments_do_not(runs):
    groups = read_groups([*runs, runs[0]])
    assert [(group.name, len(group.runs)) for group in groups] == [("seeds-a", 2), ("other", 1)]


def test_an_interrupted_run_and_one_without_metrics_are_reported(runs, tmp_path):
    (runs[2] / "summary.json").unlink()
    (runs[1] / "metrics.jsonl").write_text("")
    text = write_report(runs, tmp_path / "r.html", animations=False, data=False).read_text()
    assert "not finished" in text
    assert "has no metrics" in text


@pytest.mark.filterwarnings("default")
def test_damaged_metrics_are_said_on_the_page_and_on_stderr(runs, tmp_path, capsys):
    file = runs[2] / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], "garbage\n", *lines[1:]]))
    output = tmp_path / "r.html"
    arguments = ["report", str(runs[2]), "-o", str(output), "--no-animation", "--no-data"]
    assert run_command(arguments) == 0
    expected = "metrics.jsonl is damaged: line 2 and the "
    error = capsys.readouterr().err
    assert error.startswith(f"warning: {runs[2]}: {expected}")
    assert error.count("\n") == 1
    assert expected in output.read_text()


def test_values_that_were_no_numbers_are_counted(runs, tmp_path):
    file = runs[2] / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["loss/x"] = None
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(runs[2:], tmp_path / "r.html", animations=False, data=False).read_text()
    assert "1 logged values were no numbers" in text


def test_the_command_writes_the_file_and_refuses_what_is_no_run(runs, tmp_path, capsys):
    arguments = ["report", str(runs[2]), "-o", "deep/r.html", "--no-animation", "--no-data"]
    assert run_command(arguments) == 2
    assert "deep/r.html: cannot be written: there is no folder deep" in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()
    (tmp_path / "deep").mkdir()
    assert run_command([*arguments, "--title", "A <b> & c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "deep/r.html"}
    assert "<h1>A &lt;b&gt; &amp; c</h1>" in (tmp_path / "deep/r.html").read_text()
    assert run_command(["report", str(tmp_path / "none")]) == 2
    with pytest.raises(RunError, match="no run was given"):
        write_report([], tmp_path / "r.html")


def test_tensorboard_reads_back_what_jsonl_has(runs):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(runs[0] / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    rows = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert sorted(tags) == sorted({name for row in rows for name in row} - {"step"})
    for tag in tags:
        points = [(event.step, event.value) for event in events.Scalars(tag)]
        wanted = logged(runs[0], tag)
        assert [step for step, _ in points] == [step for step, _ in wanted]
        values = [[value for _, value in many] for many in (points, wanted)]
        np.testing.assert_allclose(*values, rtol=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (-1000, -180, [-1000, -800, -600, -400, -200]), (0.1, 0.11, 6)],
)
def test_ticks_are_round_and_inside(low, high, wanted):
    found = ticks(low, high)
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    assert len(found) == wanted if isinstance(wanted, int) else found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234, "1234"), (20000, "20k"), (1.5e6, "1.5M"), (-0.5, "-0.5"), (3e-5, "3e-5")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_runs_that_logged_at_other_steps_share_what_both_have():
    runs = ([(0.0, 1.0), (10.0, 2.0), (20.0, 3.0)], [(5.0, 1.0), (15.0, 2.0)])
    assert shared_steps(runs) == [5.0, 10.0, 15.0]
    many = ([(float(step), 0.0) for step in range(1000)],) * 2
    assert len(shared_steps(many)) == 200
    assert shared_steps(many)[-1] == 999.0
