"""`python -m polydraft`: the command, for where its script is not on the path."""

from polydraft.apps.cli.main import main

if __name__ == "__main__":
    main()
