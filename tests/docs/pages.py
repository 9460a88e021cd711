"""What the documentation's pages hold: fenced blocks, headings, tables and links, read from Markdown.

Conventions of these pages:

    ```python            runs; a page's blocks share one namespace, in their order
    ```pycon             an interactive session; what it shows is compared
    ```console           lines that begin with `$ rota` run; what follows is compared, `...` stands for anything, and
                         `$ echo $?` gives the exit code, which else must be 0
    ```console http      its commands, curl's too, run in a shell against `rota dev` on the page's own app, whose
                         address is in the place of 127.0.0.1:8470
    ``` ... notest       is for reading only
    ``` ... title="F"    is also written to the file F, in the folder where the page's commands run
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FENCE: Final = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: its language, the words after it, its text, and the line on which the text begins."""

    language: str
    words: str
    text: str
    line: int

    @property
    def is_tested(self) -> bool:
        return "notest" not in self.words.split()

    @property
    def is_over_http(self) -> bool:
        return "http" in self.words.split()

    @property
    def title(self) -> str | None:
        match = re.search(r'title="([^"/]+)"', self.words)
        return match[1] if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One command of a console block, what it is shown to say, and its exit code."""

    command: str
    shown: str
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def blocks(self) -> list[Block]:
        return [
            Block(language=match[1], words=match[2], text=match[3], line=self.text.count("\n", 0, match.start(3)) + 1)
            for match in _FENCE.finditer(self.text)
        ]

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def headings(self) -> list[str]:
        """Every heading's text without code marks."""
        return [heading.replace("`", "").strip() for heading in _HEADING.findall(self.prose)]

    @property
    def anchors(self) -> frozenset[str]:
        """What a link may name after `#`."""
        return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in self.headings)

    def section(self, heading: str) -> str:
        """Return the text from a heading to the next one of any level."""
        parts = re.split(r"^#{1,6} (.+)$", self.text, flags=re.MULTILINE)
        found = {name.replace("`", "").strip(): body for name, body in zip(parts[1::2], parts[2::2], strict=True)}
        return found[heading]

    def rows(self) -> list[list[str]]:
        """Return the cells of every table's rows, without code marks; headings and rules are left out."""
        lines = self.prose.splitlines()
        found = []
        for before, line in zip(["", *lines], lines, strict=False):
            is_row = line.startswith("|") and before.startswith("|") and not _is_rule(line)
            if is_row:
                found.append([cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")])
        return found


def pages() -> list[Page]:
    """Return the README and every page under docs/."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path=path, text=path.read_text(encoding="utf-8")) for path in paths]


def page(name: str) -> Page:
    """Return one page by its path from the project's root."""
    path = ROOT / name
    return Page(path=path, text=path.read_text(encoding="utf-8"))


def exchanges(block: Block) -> list[Exchange]:
    """Return the `rota` commands of a console block."""
    found: list[Exchange] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = command[:-1] + more
        if command == "echo $?":
            last = found.pop()
            found.append(Exchange(command=last.command, shown=last.shown, code=int(shown)))
        else:
            found.append(Exchange(command=command, shown=shown, code=0))
    return found


def agrees(shown: str, said: str) -> bool:
    """Tell whether an output is what a page shows: blanks count as one, `...` stands for anything."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("...")]
    return not shown.strip() or re.fullmatch(r"\s*.*?\s*".join(parts), said.strip(), re.DOTALL) is not None


def _is_rule(line: str) -> bool:
    return not line.strip("|-: ")
