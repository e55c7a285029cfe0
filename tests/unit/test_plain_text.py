"""Hostile text is shown as the text that it is: on a terminal, in Markdown, in HTML and in pictures."""

import html.parser
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from grpo_core.text import for_code, for_link, for_markdown, for_terminal, visible

HOSTILE = (
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31m",
    "\x9b31m",
    "\u202etxt.exe",
    "\u2066a\u2069",
    "one\ntwo\rthree\u2028four",
    "tab\tbell\x07back\x08",
    "<script>alert(1)</script>",
    "</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- comment -->",
    "[click](javascript:alert(1))",
    "![x](http://evil.example/x.png)",
    "[a]: http://evil.example",
    "<http://evil.example>",
    "http://evil.example/x?a=b_c*d",
    "www.evil.example",
    "me@evil.example",
    "| a | b |",
    "```",
    "`a``b`",
    "{{7*7}}",
    "$\\frac",
    "$x^2$",
    "[bold red]x[/]",
    "# heading",
    "# heading #",
    "- item",
    "1. item",
    "1) item",
    "+ item",
    "> quote",
    "---",
    "- - -",
    "-",
    "12.",
    "===",
    "***a***",
    "__a__",
    "~~a~~",
    "&lt;b&gt; &#60;",
    "    code",
    "back\\slash\\",
)
PLACES = ("{}", "- {}", "# {}", "**{}**", "before {} after", "| a | b |\n|---|---|\n| {} | b |")


class Page(html.parser.HTMLParser):
    """Tags and text of an HTML page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(markdown: str) -> Page:
    return Page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_renders_as_the_text(text: str, place: str) -> None:
    page, frame = rendered(place.format(for_markdown(text))), rendered(place.format("PLACE"))
    assert [tag for tag in page.tags if tag != "code"] == frame.tags
    assert page.text == " ".join(frame.text.replace("PLACE", visible(text)).split())


@pytest.mark.parametrize("text", HOSTILE)
def test_code_renders_as_the_text(text: str) -> None:
    page = rendered(f"before {for_code(text)} after")
    assert page.tags == ["p", "code"]
    assert page.text == " ".join(f"before {visible(text)} after".split())
    row = rendered(f"| a | b |\n|---|---|\n| {for_code(text, in_table=True)} | c |")
    assert row.tags.count("code") == 1
    assert row.tags.count("td") == 2


def test_figures_and_names_stay_readable_in_the_source() -> None:
    for text in (
        "0.04",
        "-0.5",
        "reward: 0.123 (first 5 steps) -> 0.4",
        "loss.beta",
        "quickstart β=0 G=8",
        "a_b",
        "step 3: kl/ref/drift",
    ):
        assert for_markdown(text) == text


@given(st.text(st.sampled_from("a1 `*_[]()<>|!#\\&;$@:/.-+=~\n\t\"'{}x"), min_size=1))
def test_no_text_becomes_markup(text: str) -> None:
    page = rendered(f"- a {for_markdown(text)} b")
    assert set(page.tags) <= {"ul", "li", "code"}
    assert page.text == " ".join(f"a {visible(text)} b".split())


@given(st.text())
def test_a_terminal_gets_no_character_that_acts(text: str) -> None:
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]", for_terminal(text)
    )
    assert for_terminal(text).count("\n") == text.count("\n")
    assert "\n" not in visible(text)


@pytest.mark.parametrize("address", ["http://h/a) [x](javascript:y", "http://h/a b<c>", "http://h/\nx", 'http://h/"x"'])
def test_a_link_cannot_be_left(address: str) -> None:
    page = rendered(f"[run]({for_link(address)})")
    assert page.tags == ["p", "a"]
    assert page.text == "run"
