"""Predicted cycles of drawn models (decode steps, prompts, layers in regions) against those of the
simulator under both timing models."""

import json
import random
import re
from dataclasses import replace

import pytest
from csl_runs import prepare, run_script
from model_predictions import DRAWN, LIMIT, taken, tensors
from reduced import each

from meshc.sim import machines
from meshc.sim.timing import MODELS
from meshc.support.diagnostics import MeshcError

COUNTS = {"decode": 40, "prefill": 20, "regions": 20}
CASES = [(kind, number) for kind, count in COUNTS.items() for number in range(count)]


@pytest.mark.parametrize(("kind", "number"), each(CASES, 80))
def test_within_a_tenth(kind, number, tmp_path, monkeypatch):
    dice = random.Random(f"predictions {kind} {number}")
    model = DRAWN[kind](dice)
    while not (files := taken(model, tmp_path)):
        model = DRAWN[kind](dice)
    predicted = json.loads(files["report.json"])["predicted_cycles"]
    (tmp_path / "program").mkdir()
    prepare(files, tensors(files), tmp_path / "program", monkeypatch)
    for timing in MODELS:
        monkeypatch.setattr(machines, "DEFAULT", timing)
        cycles = int(re.match(r"(\d+) cycles", run_script(options=model.scalar))[1])
        assert predicted == pytest.approx(cycles, rel=LIMIT), (timing, model)


def test_what_is_refused_for_another_reason_is_not_passed_over(tmp_path):
    model = replace(DRAWN["decode"](random.Random(1)), mesh="0x2")
    with pytest.raises(MeshcError):
        taken(model, tmp_path)
