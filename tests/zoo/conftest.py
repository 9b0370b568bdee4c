from run.conftest import quick, twice_as_fast  # noqa: F401
