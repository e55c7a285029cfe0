from benchmarks.gpu_check.part import Context, Result, Table

FIGURES = {"whole": 3, "tiny": 1.25e-7, "nothing": None, "true": True, "not a number": float("nan"), "text": "a|b"}


def run(context: Context) -> Result:
    table = Table(title="Rows", head=("name", "value"), rows=(("one", 1.5), ("none", None)))
    return Result(verdict="passed", text=f"on {context.device}", figures=FIGURES, tables=(table,))
