"""Parts of `gpu_check` that end as parts may end; they import no torch."""
