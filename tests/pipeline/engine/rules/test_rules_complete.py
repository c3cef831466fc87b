"""No rule without a property test."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tvae.pipeline.engine.rules import RULES
from tvae.pipeline.engine.rules.multi_output import MULTI_OUTPUT


def test_every_rule_has_a_property_test() -> None:
    tested: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_rules_*.py")):
        spec = spec_from_file_location(f"cases_of_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        if path.name == Path(__file__).name:
            continue
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        cases = set(getattr(module, "CASES", {}))
        assert not cases & tested, "an operation is tested in two files"
        tested |= cases
    assert tested == set(RULES) | MULTI_OUTPUT
