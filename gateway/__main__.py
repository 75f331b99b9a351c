"""`slotgate` and `python -m gateway`."""

from gateway.cli.app import main

if __name__ == "__main__":
    main()
