from __future__ import annotations

from commprof.analysis.scaling import RunResult
from commprof.report.full_report import FullReport
from commprof.report.section import Maker, Section, terminal
from commprof.report.table import section_blocks


def table_text(section: Section) -> str:
    return next(section_blocks(section, 100))


def tables_text(made: Maker, result: RunResult) -> str:
    report = FullReport(result, (), None, None)
    return "\n\n".join(map(table_text, made(report, terminal(100))))
