"""Botocore's models are those that it loads itself, for a few looks at the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from aiobotocore.session import AioSession  # type: ignore[import-untyped]

from txnlog.storage.adapters.s3_files import S3Files, make_session

KINDS = ("service-2", "endpoint-rule-set-1", "paginators-1")


@pytest.mark.parametrize("service", ["s3", "sts"])
def test_models_are_botocores(service: str) -> None:
    """S3's and that of roles, with what botocore adds to them, in the same order."""
    quick, own = (s.get_component("data_loader") for s in (make_session(), AioSession()))
    for kind in KINDS:
        loaded = [json.dumps(loader.load_service_model(service, kind)) for loader in (quick, own)]
        assert loaded[0] == loaded[1]
        assert type(quick.load_service_model(service, kind)) is dict  # botocore's is an OrderedDict
    assert set(own.list_available_services("service-2")) <= set(
        quick.list_available_services("service-2")
    )


def test_models_of_the_users_own_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders that AWS_DATA_PATH names, before botocore's."""
    folder = tmp_path / "s3" / "2999-01-01"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text('{"metadata": {}, "shapes": {"A": {}}}')
    monkeypatch.setenv("AWS_DATA_PATH", f"{tmp_path}{os.pathsep}/nowhere")
    loader = make_session().get_component("data_loader")
    assert loader.load_service_model("s3", "service-2")["shapes"] == {"A": {}}


def test_a_client_looks_at_few_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at one for each of the services that botocore knows."""
    looked: list[object] = []
    list_folder = os.listdir

    def note(path: str = ".") -> list[str]:
        looked.append(path)
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", note)
    files = S3Files(key="k", secret="s", endpoint_url="http://127.0.0.1:1")
    assert files.s3.meta.service_model.service_name == "s3"
    assert 0 < len(looked) < 30
