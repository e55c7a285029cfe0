"""Every command of the documentation has a rule by which tests/e2e/test_pages.py runs it or looks it up."""

from tests.e2e.pages import COMMANDS, ELSEWHERE, PAGES, RUN, commands_of, rule_of


def test_every_command_has_a_rule() -> None:
    assert [command for command in COMMANDS if rule_of(command) is None] == []
    assert len(RUN) > 20


def test_the_pages_are_read() -> None:
    assert "make train" in commands_of(PAGES[0])
    assert 'make train ARGS="loss.beta=0 training.seed=1"' in COMMANDS
    assert COMMANDS["grpo train --resume runs/<run>"] == ["README.md", "commands.md", "interruptions.md"]
    assert {page.name for page in PAGES} >= ELSEWHERE.keys()
