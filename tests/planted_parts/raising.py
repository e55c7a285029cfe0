import sys

from benchmarks.gpu_check.part import Context, Result

HOSTILE = "<script>x</script> | [a](http://evil/x) `c` \x1b[2J"


def run(context: Context) -> Result:
    sys.stderr.write(f"{HOSTILE}\n")
    raise RuntimeError(HOSTILE)
