"""The `recguide` command line: parse, build a config, call one core function, render."""
