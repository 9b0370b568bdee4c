from run.conftest import quick  # noqa: F401
