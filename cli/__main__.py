"""``python -m tvae.cli``: the program where no console script is on the path."""

from tvae.cli.app import main

if __name__ == "__main__":
    main()
