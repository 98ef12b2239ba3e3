"""What the README says is so: its example runs, its paths exist, its table of rooms is the tree."""

import re
from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
# what it says in more words
MORE = TEXT + "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("usage.md", "cuda.md"))
EXAMPLE, RULE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLE, "example.py", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith("plan: 1 kernel, ") and "example.py:4" in shown


def test_the_rule_is_one_that_ships() -> None:
    (line,) = (line.strip() for line in RULE.splitlines() if line.startswith("yield "))
    assert line in (ROOT / "morok/symbolic/divmod.py").read_text(encoding="utf-8")


def test_paths_exist() -> None:
    named = re.findall(r"`((?:morok|tests|docs|examples|benchmarks)/[\w./]*)`", TEXT)
    linked = re.findall(r"\]\(([\w./]+)\)", TEXT)
    assert named and linked
    assert [path for path in named + linked if not (ROOT / path).exists()] == []


def test_the_table_of_rooms_is_the_tree() -> None:
    rooms = {p.parent.name for p in (ROOT / "morok").glob("*/__init__.py")}
    assert set(re.findall(r"`morok/(\w+)/`", TEXT.partition("| room |")[2])) == rooms


def test_commands_and_options_exist() -> None:
    commands = set(re.findall(r"`morok (\w+)", MORE))
    assert commands and commands <= set(COMMANDS)
    inside = set(re.findall(r"override\((\w+)=", MORE))
    assert inside and inside <= set(knobs.KNOBS)
    options = set(re.findall(r"(?<!\()\b([A-Z][A-Z_0-9]{3,})=\w", MORE))
    assert options and options <= {name for knob in knobs.KNOBS.values() for name in knob.variables}
    targets = set(re.findall(r"`make ([\w-]+)", MORE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_as_many_stages_are_rules_as_it_says() -> None:
    from morok.codegen.pipeline import STAGES
    from morok.rewrite.stage import count_rules
    from morok.schedule.graph.stages import GRAPH_STAGES
    from morok.schedule.kernel.stages import KERNEL_STAGES

    (said,) = re.findall(r"stages that change it (\d+) are\s+sets of rules and (\d+) are functions", TEXT)
    assert tuple(map(int, said)) == count_rules((*GRAPH_STAGES, *KERNEL_STAGES, *STAGES))
