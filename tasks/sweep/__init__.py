"""The tasks of a sweep: its folder (`opening`), its runs (`running`, started by `local` or `deployed`), its report."""
