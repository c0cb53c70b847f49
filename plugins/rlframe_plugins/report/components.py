"""What this folder offers."""

from __future__ import annotations

from rlframe import Component

__all__ = ["SECTIONS"]


def _section(name: str, target: str, summary: str) -> Component:
    return Component("section", name, f"rlframe_plugins.report.{target}", summary=summary)


SECTIONS = (
    _section("overview", "overview:Overview", "how each run ended, in a table"),
    _section("warnings", "warnings:Warnings", "figures that look wrong, and what to try"),
    _section("curves", "curves:Curves", "metrics over steps, runs and seeds beside each other"),
    _section("samples", "samples:Samples", "responses with rewards, their tokens in colours"),
    _section("stages", "stages:Stages", "the timeline of the devices"),
    _section("placement", "placement:Placement", "pools, roles, and who sends which weights"),
    _section("options", "options:Options", "the config, and where runs differ"),
)
