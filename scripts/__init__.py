"""What sets up, runs, tests and checks the project. Standard library only: it works before anything is installed."""
