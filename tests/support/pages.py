"""An HTML page as a test looks at it."""

import html.parser


class Page(html.parser.HTMLParser):
    """Tags with their attributes, values of attributes by name, and text of a page whose elements are all closed."""

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    @property
    def tags(self) -> list[str]:
        """Names of the elements, in their order."""
        return [tag for tag, _ in self.elements]

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of each element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        if tag not in {"meta", "img", "input"}:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element that closes itself."""
        self.handle_starttag(tag, attrs)
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close an element."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.text += data
