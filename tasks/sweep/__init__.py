"""A sweep's parts: its folder (`opening`), its search (`study`), its runs (`running`, `local`, `deployed`), its report."""
