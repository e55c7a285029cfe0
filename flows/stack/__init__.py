"""The local stack: a Prefect server, an MLflow server and one worker on this machine, up and down with one command each.

`services` has what is started and how, `processes` starts and ends it, `state` remembers it in one folder, `prefect_setup`
makes pool, deployments and automation, `runs` asks for the flow runs; `control` is up, down and status. `folder` keeps that
folder to its owner, `secret` holds what Prefect asks for, and the client that carries it.
"""
