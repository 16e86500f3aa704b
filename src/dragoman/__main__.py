"""`python -m dragoman` is the `dragoman` command."""

from .cli import main

main()
