"""Loggers: metrics survive a kill, and a broken logger never costs the run."""

from __future__ import annotations

import json

import pytest

from rlreg.errors import RunError
from rlreg.runtime.logging import (
    JsonlMetrics,
    LoggerGroup,
    RunInfo,
    TensorboardMetrics,
    damage_of,
    drop_rows_after,
    read_metrics,
)
from rlreg.runtime.progress import progress, shown_metrics


@pytest.fixture
def info(tmp_path):
    return RunInfo(tmp_path, config=None)


def test_jsonl_rows_are_flat_strict_json(info):
    logger = JsonlMetrics()
    logger.start(info)
    logger.metrics(10, {"wall_s": 1.5, "loss/a": 2.0, "loss/b": float("nan")})
    lines = (info.folder / "metrics.jsonl").read_text().splitlines()  # there before it is closed
    logger.end({})
    assert json.loads(lines[0]) == {"step": 10, "wall_s": 1.5, "loss/a": 2.0, "loss/b": None}
    assert list(json.loads(lines[0]))[:2] == ["step", "wall_s"]


def test_rows_past_a_step_and_half_lines_are_dropped(info):
    logger = JsonlMetrics()
    logger.start(info)
    for step in (10, 20, 30):
        logger.metrics(step, {"x": 1.0})
    logger.end({})
    path = info.folder / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 40, "x"')
    assert [row["step"] for row in drop_rows_after(path, 20)] == [10, 20]
    assert [row["step"] for row in read_metrics(path)] == [10, 20]
    logger = JsonlMetrics()
    logger.start(info)
    logger.metrics(30, {"x": 2.0})
    logger.end({})
    assert [row["step"] for row in read_metrics(path)] == [10, 20, 30]


@pytest.mark.parametrize(
    ("content", "num_rows", "damage"),
    [
        (b'{"step": 1}\n', 1, ""),
        (b'{"step": 1}\n{"st', 1, ""),  # a kill
        (b'{"step": 1}\n{"st\n', 1, "line 2 cannot be read"),
        (b'{"step": 1}\n\xff\n{"step": 2}\n{"st', 1, "line 2 and the 2 after it cannot be read"),
        (b'[1]\n', 0, "line 1 cannot be read"),
        (b'{"step": "x"}\n', 0, "line 1 cannot be read"),
        (b'{"step": 1e999}\n', 0, "line 1 cannot be read"),
        (b"", 0, ""),
    ],
)  # fmt: skip
def test_a_damaged_file_of_metrics_says_where(content, num_rows, damage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    assert len(read_metrics(path)) == num_rows
    assert damage in damage_of(path)
    assert bool(damage) == bool(damage_of(path))


def test_no_file_of_metrics_has_no_rows(tmp_path):
    assert drop_rows_after(tmp_path / "metrics.jsonl", 5) == []
    assert not (tmp_path / "metrics.jsonl").exists()


class Broken:
    def __init__(self, fails_in):
        self.fails_in, self.calls = fails_in, []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append(name)
            if name == self.fails_in:
                raise ZeroDivisionError("no disk")

        return call


def test_a_logger_that_fails_is_reported_once_and_switched_off(info):
    reports, broken, good = [], Broken("metrics"), Broken("")
    group = LoggerGroup([("bad", broken), ("good", good)], reports.append)
    group.start(info)
    for step in range(3):
        group.metrics(step, {})
    group.end({})
    assert broken.calls == ["start", "metrics"]
    assert good.calls == ["start", "metrics", "metrics", "metrics", "end"]
    assert len(reports) == 1
    assert "'bad' failed and is switched off" in reports[0]


def test_a_logger_that_cannot_start_ends_the_run_before_it_begins(info):
    group = LoggerGroup([("bad", Broken("start"))], lambda _: None)
    with pytest.raises(RunError, match="'bad' could not be started"):
        group.start(info)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_every_metric(info):
    pytest.importorskip("tensorboard")
    logger = TensorboardMetrics()
    logger.start(info)
    logger.metrics(5, {"loss/a": 0.5})
    logger.end({})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(info.folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/a")] == [(5, 0.5)]


def test_progress_off_a_terminal_is_one_line_an_epoch(capsys):
    fitter = ((epoch, {"critic_loss": 0.25}) for epoch in (1, 2))
    assert len(list(progress(fitter, 15, 10))) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 2
    assert "epoch 2/2" in lines[1]
    assert "15/15 updates" in lines[1]
    assert "critic_loss 0.25" in lines[1]


def test_progress_can_be_silent(capsys):
    list(progress(iter([(1, {})]), 10, 10, is_shown=False))
    assert capsys.readouterr() == ("", "")


def test_shown_metrics_are_losses_first_then_returns():
    row = {f"loss/{name}_loss": 1.0 for name in "abcdef"} | {"evaluation/mean_return": -3.0}
    assert shown_metrics(row).split("  ")[0] == "a_loss 1"
    assert shown_metrics(row).endswith("mean_return -3")
