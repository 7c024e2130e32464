"""The documents: their code runs as it stands, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import ROOT
from documents import DOCUMENTS, SPARK_DOCUMENTS, Runner, blocks_of

MOST_NOT_RUN = 20
BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
HERE = sorted({block.document for block in BLOCKS} - set(SPARK_DOCUMENTS) - {"docs/CLI.md"})


@pytest.mark.parametrize("document", HERE)
def test_the_code_of_a_document_runs(document: str, tmp_path: Path) -> None:
    """In order, as a reader pastes it; what is shown as output is what comes."""
    Runner(tmp_path).run(blocks_of(ROOT / document))
