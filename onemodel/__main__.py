"""Lets `python -m onemodel` run the commands; must contain nothing else."""

from onemodel.cli import main

raise SystemExit(main())
