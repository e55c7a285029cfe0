"""How large the searches are."""

PLAN = {
    "trees of configurations": (700, 650),
    "texts of configurations": (350, 150),
    "overrides": (250, 180),
    "rows of data": (150, 150),
    "bytes of data": (150, 50),
    "records of a journal": (300, 300),
    "bytes of a journal": (200, 50),
    "small files": (70, 40),
    "frozen prompts": (100, 40),
    "frozen rows": (100, 100),
    "checkpoints": (220, 150),
    "sealed checkpoints": (60, 60),
}
"""{search: (mutations, those of them that get past the parser)}: at least so many."""
