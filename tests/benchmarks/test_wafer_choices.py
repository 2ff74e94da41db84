"""The choices that are turned off one by one are settings of passes that every program has."""

import pytest
import wafer_choices

from meshc.passes.registry import own_pipeline
from meshc.pipelines import pipeline_to, resource_passes


@pytest.mark.every_case
@pytest.mark.parametrize("choice", wafer_choices.CHOICES)
def test_a_choice_is_not_what_a_pass_does_otherwise(choice):
    (chosen,) = own_pipeline(choice)
    (usual,) = (
        one for one in (*pipeline_to("tile"), *resource_passes()) if one.NAME == chosen.NAME
    )
    assert chosen != usual


def test_a_pass_runs_as_chosen(monkeypatch):
    def report(model, phase, side, layers):
        ran = [one for one in resource_passes() if one.NAME == "select-csl-functions"]
        return {"predicted_cycles": sum(not one.newton for one in ran)}

    monkeypatch.setattr(wafer_choices, "report", report)
    assert wafer_choices.cycles("decode", "select-csl-functions{newton=false}") == 1
    assert wafer_choices.cycles("decode", "") == 0
