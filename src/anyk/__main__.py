"""``python -m anyk`` is the command `anyk`."""

from .cli import main

main()
