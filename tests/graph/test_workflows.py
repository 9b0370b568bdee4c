"""Workflows of hosted CI say what can be run: no service has to try them to find a wrong word, path or option."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml")) if FOLDER.is_dir() else []
pytestmark = pytest.mark.skipif(not FILES, reason="not in this copy")
#: Of a job and of a step, as GitHub's documentation has them; those that nothing here needs are left out.
JOB = {"runs-on", "steps", "strategy", "timeout-minutes", "continue-on-error", "needs", "env"}
STEP = {"name", "uses", "with", "run", "env", "if", "id"}
RUNNERS = {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "macos-15-intel"}
CONTEXTS = {"github", "matrix", "runner"}
#: How a file of tests asks for a package of the extras `zoo`, `train` and `cluster` before anything else.
NEEDS = re.compile(
    r"""^(?:\w+ = )?pytest\.importorskip\("(?:torch|s3fs|aiohttp)|^from schedulers import""", re.MULTILINE
)


def jobs() -> list[tuple[str, dict[str, Any]]]:
    found = [(path.name, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in FILES]
    return [(f"{file}:{name}", job) for file, table in found for name, job in table["jobs"].items()]


JOBS = jobs()
each_job = pytest.mark.parametrize("job", [job for _, job in JOBS], ids=[name for name, _ in JOBS])


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def values(job: dict[str, Any], word: str) -> set[str]:
    """What a `matrix` gives for a word."""
    matrix = job.get("strategy", {}).get("matrix", {})
    rows = [*matrix.get("include", []), *({word: value} for value in matrix.get(word, []))]
    return {str(row[word]) for row in rows if word in row}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_may_only_read(path: Path) -> None:
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert table["permissions"] == {"contents": "read"}
    # YAML reads the key `on` as True.
    assert set(table) - {"concurrency"} == {"name", True, "permissions", "jobs"}


@each_job
def test_a_job_is_well_formed(job: dict[str, Any]) -> None:
    assert set(job) <= JOB and {"runs-on", "steps", "timeout-minutes"} <= set(job)
    for step in job["steps"]:
        assert set(step) <= STEP and ("run" in step) != ("uses" in step), step
        assert "with" not in step or "uses" in step
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1")), step
    words = set(re.findall(r"\$\{\{ *matrix\.(\w+)", str(job)))
    assert all(values(job, word) for word in words), words
    assert set(re.findall(r"\$\{\{ *(?:\w+\()?(\w+)\.", str(job))) <= CONTEXTS
    assert (values(job, "os") or {job["runs-on"]}) <= RUNNERS


@each_job
def test_commands_are_those_of_a_shell_and_name_what_there_is(job: dict[str, Any]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for command in commands(job):
        plain = re.sub(r"\$\{\{.*?\}\}", "x", command)
        subprocess.run(["bash", "-n"], input=plain, text=True, check=True)
        for path in re.findall(r"(?:tests|models|custom_ops|\.ci|docs)(?:/[\w./-]+)?(?=[\s\"']|$)", plain):
            assert (ROOT / path).exists(), path
        for named in itertools.chain.from_iterable(x.split(",") for x in re.findall(r"\.\[([\w,]+)\]", plain)):
            assert named in extras, named


def test_every_folder_of_tests_is_run_somewhere() -> None:
    """By `.ci/run`, which one job is, and by the systems that it does not run on."""
    all_of_them = "\n".join(command for _, job in JOBS for command in commands(job))
    assert ".ci/run" in all_of_them.split()
    with_tests = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    named = set(re.findall(r"tests/(\w+)", all_of_them + (ROOT / ".ci" / "run").read_text(encoding="utf-8")))
    assert with_tests - named - {"zoo"} == set()  # which has the models of a folder that hosts do not have


def test_files_that_need_what_the_readme_does_not_install_are_run_with_it() -> None:
    """Elsewhere they are skipped as a whole, which nobody notices."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    nightly = " ".join(commands(dict(JOBS)["nightly.yml:exports"]))
    named = re.findall(r"tests/[\w*]+/[\w*.]+", script)
    left = [path for path in (ROOT / "tests").glob("*/test_*.py") if NEEDS.search(path.read_text())]
    left = [path for path in left if not any(path.match(pattern) for pattern in named)]
    assert {str(path.parent.relative_to(ROOT)) for path in left} <= set(nightly.split())


def test_wheels_are_tested_after_they_were_installed() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    tried = [options, *options["overrides"]]
    assert all(".ci/installed.py" in str(each["test-command"]) for each in tried)
    assert any(".ci/installed.py" in command for name, job in JOBS if "sdist" in name for command in commands(job))
    assert ".ci/installed.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
