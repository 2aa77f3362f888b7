"""Fixtures for pytest: `sluice_fs`, a fresh file system in memory, and `sluice_mount`, a directory where one is mounted."""

import os
import shutil
import subprocess

import pytest

from ._fs import Fs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
        fs = item.funcargs.get("sluice_fs") if hasattr(item, "funcargs") else None
        if report.failed and fs is not None:
            kept = item.funcargs["tmp_path"] / "sluice_fs"
            try:
                files, size = fs.export_dir("/", kept)
                said = f"{files} files, {size} bytes: {kept}"
            except OSError as error:
                said = f"could not be exported to {kept}: {error}"
            report.sections.append(("the tree of sluice_fs", said))
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def sluice_fs(tmp_path):
    """A fresh `sluicefs.Fs`. When the test fails, its tree is exported below `tmp_path`, and the report says where."""
    fs = Fs()
    yield fs
    found = fs.check()
    assert not found, "the file system is inconsistent: " + "; ".join(found)


@pytest.fixture
def sluice_mount(tmp_path):
    """A `pathlib.Path` where a fresh file system is mounted, for programs. Skipped without `/dev/fuse` or the program `sluice`."""
    program = os.environ.get("SLUICE") or shutil.which("sluice")
    if program is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("sluice_mount needs /dev/fuse and the program sluice (on PATH, or named by SLUICE)")
    directory = tmp_path / "sluice_mount"
    directory.mkdir()
    mounted = subprocess.run([program, "mount", directory], capture_output=True, text=True)
    if mounted.returncode:
        pytest.fail(f"sluice mount: {mounted.stderr.strip()}", pytrace=False)
    try:
        yield directory
    finally:
        subprocess.run([program, "umount", directory], check=True)
