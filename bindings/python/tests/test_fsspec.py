"""fsspec's own tests of what a file system must do."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from sluicefs.fsspec import SluiceFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return SluiceFileSystem(auto_mkdir=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self):
        return "/a directory"


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_a_store_is_found_by_its_name_and_keeps_what_was_written(tmp_path):
    fs = fsspec.filesystem("sluice", store=str(tmp_path / "store"), auto_mkdir=True)
    with fs.open("sluice://data/one", "w") as file:
        file.write("kept")
    assert fsspec.filesystem("sluice", store=str(tmp_path / "store"), auto_mkdir=True) is fs
    fs.tree.close()
    SluiceFileSystem.clear_instance_cache()
    again = fsspec.filesystem("sluice", store=str(tmp_path / "store"))
    assert again.cat("data/one") == b"kept" and again.glob("/d*/*") == ["/data/one"]
    again.tree.close()
