"""docs/serving.md names flags, metrics, policies and codes that there are."""

import re

from pages import commands, page

from meshc.cli.command_parser import parser
from meshc.serving.metrics import METRICS
from meshc.serving.policies import POLICIES
from meshc.support.diagnostics import known_codes

PAGE = page("docs/serving.md")
COMMANDS = ("schedule", "serve-trace", "serve", "compile")


def test_commands_are_understood():
    found = commands("docs/serving.md")
    assert len(found) >= 4
    for line in found:
        assert parser().parse_args(line.split()[1:]).command in COMMANDS


def test_flags_are_those_of_the_commands():
    words = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert len(words) > 10
    (commands_,) = (a for a in parser()._actions if a.dest == "command")
    actions = [a for name in COMMANDS for a in commands_.choices[name]._actions]
    known = {flag for action in actions for flag in action.option_strings}
    assert words <= known


def test_every_metric_and_policy_is_explained():
    for name in METRICS:
        stem = re.sub(r"_(mean|p\d+|std)_(s|ms)$|_per_request$", "", name)
        assert stem in PAGE, name
    assert all(f"| `{name}` |" in PAGE for name in POLICIES)
    assert {"dense-layered", "request-too-large", "trace-invalid"} <= known_codes().keys()
