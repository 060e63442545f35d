"""Scripts that set up, run, test and check the project. Only the standard library, as they run before installation."""
