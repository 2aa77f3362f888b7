"""The programs of the README."""

import doctest
import re
from pathlib import Path

import sluicefs


def test_the_programs_of_the_readme_run(tmp_path):
    text = (Path(__file__).parent.parent / "README.md").read_text().replace("/tmp/letters", str(tmp_path / "letters"))
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 5
    for program in programs:
        exec(compile(program, "README.md", "exec"), {"sluicefs": sluicefs, "fs": sluicefs.Fs()})
    with sluicefs.Fs.open_store(tmp_path / "letters", passphrase="correct horse") as fs:
        assert fs.read_text("/letter") == "Dear reader"


def test_the_example_of_the_package_gives_what_it_says():
    assert doctest.testmod(sluicefs).failed == 0
