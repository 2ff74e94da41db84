"""Predicted cycles of drawn models, decode steps and prompts, against those of the simulator under
both timing models."""

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

CASES = [*(("decode", number) for number in range(40)), *(("prefill", n) for n in range(20))]


@pytest.mark.parametrize(("phase", "number"), each(CASES, 20))
def test_within_a_tenth(phase, number, tmp_path, monkeypatch):
    dice = random.Random(f"predictions {phase} {number}")
    model = DRAWN[phase](dice)
    while not (files := taken(model, tmp_path)):
        model = DRAWN[phase](dice)
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
