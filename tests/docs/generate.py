"""``make docs``: writes the parts of the docs that are made from the code, between their markers."""

from __future__ import annotations

import re
from pathlib import Path

import click
import grimp
from bench import billion

from penstock import config
from penstock.cli.options import FLAGS
from penstock.cli.serve import serve
from penstock.config.settings import SPELLED
from penstock.core import lifecycle, limits
from penstock.doors.jobs.event_rendering import PAYLOADS
from penstock.lake.tables import TABLES
from penstock.spark.options import OPTIONS

ROOT = Path(__file__).parents[2]
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def default_of(name: str) -> str:
    value = getattr(config.Config(), name)
    if value is None:
        return "off" if name in ("tcp", "resp", "metrics", "batches", "topics", "messages") else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple) and not isinstance(value, config.Listener):
        return ", ".join(map(str, value)) or "none"
    return config.spell(name, value) or "empty" if name in SPELLED else str(value) or "empty"


def settings() -> str:
    flags = {option.name for option in serve.params}
    lines = ["| setting | default | environment | flag | what it is for |", "|---|---|---|---|---|"]
    for name, setting in config.SETTINGS.items():
        env = ", ".join(f"`{variable}`" for variable in setting.env) or "–"
        flag = f"`{config.flag_of(name)}`" if name in flags else "–"
        lines.append(f"| `{name}` | {default_of(name)} | {env} | {flag} | {setting.help} |")
    return "\n".join(lines)


def lifecycle_part() -> str:
    return f"```mermaid\n{lifecycle.diagram()}\n```\n\n{lifecycle.table()}"


def serve_help() -> str:
    context = click.Context(serve, info_name="penstock serve", max_content_width=110, terminal_width=110)
    return f"```text\n{serve.get_help(context)}\n```"


def events() -> str:
    rows = [f"| `{kind.wire_name}` | {', '.join(fields)} |" for kind, fields in PAYLOADS.items()]
    return "\n".join(["| event | data |", "|---|---|", *rows])


def spark_options() -> str:
    rows = [f"| `{name}` | {', '.join(each.modes)} | {each.default} | {each.help} |" for name, each in OPTIONS.items()]
    return "\n".join(["| option | for | default | what it is for |", "|---|---|---|---|", *rows])


def lake_tables() -> str:
    parts = []
    for table in TABLES.values():
        rows = [
            f"| `{each.name}` | {each.type} | {each.help} | {'' if each.fold == 'row' else each.fold} |"
            for each in table.columns
        ]
        parts.append("\n".join([f"### {table.path}\n", f"{table.help[0].upper()}{table.help[1:]}.\n",
                                "| column | type | what it is | folds |", "|---|---|---|---|", *rows]))  # fmt: skip
    return "\n\n".join(parts)


#: Limits that keep one client from using up the server, by what they bound. The page security.md lists them.
SECURITY_LIMITS = {
    "HTTP requests": (
        "path_chars_max", "path_segments_max", "query_chars_max", "query_fields_max", "header_list_bytes_max",
        "forwarded_hops_max", "body_bytes_max", "bodies_bytes_max", "bodies_share_bytes_max", "body_idle_ms_max",
        "payload_bytes_max", "payload_depth_max", "object_fields_max", "bulk_jobs_max", "claim_jobs_max", "loop_hold_ms",
    ),
    "HTTP connections": (
        "http_connections_max", "descriptors_reserved", "first_bytes", "first_bytes_ms_max", "http2_streams_max",
        "http1_buffer_bytes_max",
    ),
    "Answers that are not read": (
        "answers_connection_bytes_max", "answers_client_bytes_max", "answers_bytes_max", "answers_waiting_max",
        "answer_stall_ms_max", "answer_stall_crowded_ms_max",
    ),
    "TCP and WebSocket": (
        "frame_bytes_max", "frames_bytes_max", "frames_share_bytes_max", "frame_idle_ms_max", "stranger_frame_bytes_max",
        "connection_write_bytes_max", "connection_commands_max", "command_values_max", "tcp_connections_max",
        "listener_strangers_max", "message_bytes_max", "messages_arriving_bytes_max", "socket_commands_max", "websockets_max",
        "strangers_max", "strangers_address_max", "strangers_waiting_max", "auth_wait_ms_max", "stranger_commands_max",
        "client_listings_max",
    ),
    "Redis protocol": (
        "resp_connections_max", "resp_args_max", "resp_line_bytes_max", "resp_turn_commands", "stranger_args_max",
        "stranger_bulk_bytes_max",
    ),
    "Readers of streams": (
        "stream_unread_bytes_max", "streams_unread_bytes_max", "reader_buffer_bytes_max", "reader_stuck_ms_max",
        "event_streams_max", "subscribers_max", "replays_max", "replay_blocks", "replay_read_bytes", "replay_bytes",
    ),
    "Tokens and keys": (
        "token_chars_min", "secret_bytes_min", "rsa_bits_min", "token_chars_max", "token_grants_max", "known_tokens_max",
        "api_keys_max", "jwks_bytes_max", "jwks_pause_ms",
    ),
    "Clients and tenants": (
        "rate_limit_clients_max", "rate_limit_marks_max", "quota_namespaces_max", "pending_commands_max",
        "pending_commands_namespace_max", "share_turn_requests", "share_turn_strangers", "share_large_requests",
        "queues_at_once",
        "reads_waiting_max", "read_wait_ms_max", "queues_max", "workers_max", "workers_bytes_max", "crons_max",
        "cron_plan_bytes_max", "groups_max",
        "needs_max", "request_needs_max", "result_copies_bytes_max", "result_uncounted_bytes", "flow_bytes_batch_max",
        "flow_bytes_shared_max",
    ),
    "Outbound requests": (
        "webhooks_max", "webhook_attempts", "webhook_attempt_ms_max", "webhook_reply_line_bytes_max", "webhook_addresses_max",
        "webhook_lookups_max", "webhook_read_bytes", "subscriptions_max", "push_deliveries_max",
    ),
    "Bulk work": (
        "stage_bytes_max", "stage_unpacked_bytes_max", "stage_rows_max", "stages_max", "staged_bytes_max", "bulk_tasks_max",
        "bulk_task_ms_max", "bulk_process_bytes", "bulk_snapshots_max", "bulk_snapshots_namespace_max",
    ),
    "Data in Redis, enqueue buffer": (
        "redis_connections_max", "fast_job_bytes_max", "fast_list_bytes_max", "fast_bytes_max", "fast_jobs_max",
        "buffer_jobs_max", "buffer_bytes_max", "buffer_record_bytes_max",
        "buffer_ahead_weight",
    ),
}  # fmt: skip


def security_limits() -> str:
    rows = []
    for what, names in SECURITY_LIMITS.items():
        values = [f"`{name}` {_measured(name, getattr(limits, name))}" for name in names]
        rows.append(f"| {what} | {', '.join(values)} |")
    return "\n".join(["| What is bounded | Limits |", "|---|---|", *rows])


def _measured(name: str, value: int) -> str:
    if "_ms" in name:
        return f"{value:,} ms"
    if "bytes" in name:
        return f"{value // limits.MEBIBYTE} MiB" if value % limits.MEBIBYTE == 0 else f"{value:,} bytes"
    return f"{value:,}"


def billion_jobs() -> str:
    return billion.text(billion.Measured())


def layers() -> str:
    """Draw the packages and who imports whom, from the code. Imports that follow from others are left out."""
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=True)
    packages = sorted(
        name for name in graph.find_children("penstock") if name not in ("penstock.__main__", "penstock.masking")
    )
    imports = {
        package: {other for other in packages if other != package and _imports_directly(graph, package, other)}
        for package in packages
    }
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {_node(name)}[{_node(name)}/]" for name in packages if (ROOT / "src" / name.replace(".", "/")).is_dir()]
    for package, others in imports.items():
        further = {last for other in others for last in _reached(imports, other)}
        lines += [f"    {_node(package)} --> {_node(other)}" for other in sorted(others - further)]
    return "\n".join([*lines, "```"])


def _imports_directly(graph: grimp.ImportGraph, package: str, other: str) -> bool:
    parts = {package, *graph.find_descendants(package)}
    return any(
        importer in parts
        for each in {other, *graph.find_descendants(other)}
        for importer in graph.find_modules_that_directly_import(each)
    )


def _reached(imports: dict[str, set[str]], package: str) -> set[str]:
    return imports[package] | {last for other in imports[package] for last in _reached(imports, other)}


def _node(name: str) -> str:
    return name.removeprefix("penstock.")


PARTS = {
    "layers": layers,
    "lifecycle": lifecycle_part,
    "settings": settings,
    "serve": serve_help,
    "events": events,
    "spark_options": spark_options,
    "lake_tables": lake_tables,
    "billion": billion_jobs,
    "security_limits": security_limits,
}


#: The file with every setting, made by ``penstock config example``.
EXAMPLE = ROOT / "deploy" / "penstock.yaml"


def every_setting() -> str:
    return "\n".join([*config.example(frozenset(FLAGS)), ""])


def renew(text: str) -> str:
    """Return a document with its generated parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", text)


def documents() -> list[Path]:
    return [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


if __name__ == "__main__":
    EXAMPLE.write_text(every_setting(), encoding="utf-8")
    for path in documents():
        before = path.read_text(encoding="utf-8")
        after = renew(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print("renewed", path.relative_to(ROOT))
