"""Flows: the order of things, one screen each."""

from tasks.plain_logs import use_plain_logs

use_plain_logs()  # at a terminal and in a worker, before Prefect logs anything of a flow
