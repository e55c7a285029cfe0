"""The local stack: a Prefect server, an MLflow server and one worker on this machine, up and down with one command each.

`services` has what is started and how, `processes` starts and ends it, `state` remembers it in one folder that is its owner's
alone, with Prefect's secret and the client that carries it, `prefect_api` makes pool, deployments and automation and asks for
the flow runs; `control` is up, down and status; `servers` lets commands find the stack, or starts an embedded server.
"""
