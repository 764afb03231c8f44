"""`python -m fednoil` is the command `fednoil`."""

from fednoil.cli.main import main

main()
