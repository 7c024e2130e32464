"""Botocore's descriptions of services, loaded in less time than botocore takes.

They are most of what a process does until its first request to S3: botocore parses megabytes of
JSON into ordered dictionaries, and looks into the folder of each of its 400 services to learn that
S3 is one of them. Knows botocore's loader and nothing else.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.loaders import JSONFileLoader, Loader, create_loader  # type: ignore[import-untyped]


def make_session(**given: Any) -> AioSession:
    """A session of botocore's, as ``AioSession(**given)``, that loads models quickly."""
    session = AioSession(**given)
    searched = create_loader(session.get_config_variable("data_path")).search_paths
    loader = _QuickLoader(searched, include_default_search_paths=False)
    session.register_component("data_loader", loader)
    return session


class _QuickFiles(JSONFileLoader):  # type: ignore[misc] # botocore has no types
    def load_file(self, file_path: str) -> Any:
        """The content of a file, whose name is told without its ending."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            return msgspec.json.decode(plain.read_bytes())
        if packed.is_file():
            return msgspec.json.decode(gzip.decompress(packed.read_bytes()))
        return super().load_file(file_path)


class _QuickLoader(Loader):  # type: ignore[misc] # botocore has no types
    FILE_LOADER_CLASS = _QuickFiles

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002
        """Whatever has a folder; that one has no model of the type shows when it is loaded."""
        folders = [Path(path) for path in self.search_paths]
        return sorted({one.name for path in folders if path.is_dir() for one in path.iterdir()})
