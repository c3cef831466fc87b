"""A batch whose items several runs share, as one of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_files import DECODE, ENCODE

from tvae.pipeline.batch.job_file import read_job_file
from tvae.pipeline.batch.run import Options, run_batch
from tvae.pipeline.errors import UsageError


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ('existing = "overwrite"', "would overwrite what another has made"),
        ('[[step.override]]\nmatch = "*"\nexisting = "overwrite"', "would overwrite what another has made"),
        ('devices = "2"', "--claim and --devices cannot be used together"),
        ('[[step.override]]\nmatch = "*"\ndevices = "2"', "--claim and --devices cannot be used together"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_any_work(keys: str, told: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(ENCODE + DECODE + keys, encoding="utf-8")
    with pytest.raises(UsageError, match=told):
        run_batch(read_job_file(tmp_path / "job.toml"), Options(claim=True), lambda _event: None)
    assert not (tmp_path / "out").exists()
