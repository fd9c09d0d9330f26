"""One module per command: parse, build a config, call one core function, render.

Each module defines a function `run` whose signature is its options (`Annotated` with
`typer.Option`) and whose docstring is its help. It imports the core inside `run`, so that
`recguide --help` stays fast.
"""
