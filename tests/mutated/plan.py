"""How large the searches are."""

PLAN = {
    "trees of configurations": (700, 650),
    "texts of configurations": (350, 150),
    "overrides": (250, 180),
    "rows of data": (150, 150),
    "bytes of data": (150, 50),
}
"""{search: (mutations, those of them that get past the parser)}: at least so many."""
