"""The local stack: a Prefect server, an MLflow server and one worker on this machine, up and down with one command each.

`commands` has names and command lines, `services` starts each program and knows whether it works, `processes` finds and ends
them, `state` remembers the stack in one folder that is its owner's alone, `prefect_api` makes pool, deployments and automations
and asks for the flow runs; `control` is up and down; `servers` lets commands find the stack, or start the `embedded` server.
`cluster` has what containers of docker-compose.yml do beside their programs.
"""
